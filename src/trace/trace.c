/*
 * The recording half of the tracer: files events, in order, under their node, with storages numbered by life
 * (trace_storages.c). Called by the extension for every operator of a traced step, so each call is a few table
 * look-ups. trace_finish.c draws the conclusions.
 */
#include "base/units.h"
#include "trace/draws.h"
#include "trace/evaluations.h"
#include "trace/flops.h"
#include "trace/trace_internal.h"
#include "trace/workspace.h"

int ms__trace_no_memory(ms_error *err)
{
    return ms_fail(err, MS_ENOMEM, "trace: out of memory");
}

int ms__trace_check_open(const ms_trace *trace, ms_error *err)
{
    return trace->finished ? ms_fail(err, MS_ESTATE, "trace: it is finished") : MS_OK;
}

/* ---- making and freeing --------------------------------------------------- */

int ms_trace_new(const char *model, const char *signature, const char *source, ms_trace **trace, ms_error *err)
{
    ms_trace *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms__trace_no_memory(err);
    }
    made->threads = 1;
    made->model = ms_strdup(model);
    made->signature = ms_strdup(signature);
    made->source = ms_strdup(source);
    if (made->model == NULL || made->signature == NULL || made->source == NULL) {
        ms_trace_free(made);
        return ms__trace_no_memory(err);
    }
    *trace = made;
    return MS_OK;
}

void ms_trace_set_threads(ms_trace *trace, uint32_t threads)
{
    trace->threads = threads;
}

void ms_trace_on_several_devices(ms_trace *trace)
{
    trace->on_several_devices = true;
}

static void clear_node(trace_node *node)
{
    ms_free(node->name);
    MS__ARRAY_FREE(&node->forward);
    MS__ARRAY_FREE(&node->backward);
    MS__ARRAY_FREE(&node->inputs);
    MS__ARRAY_FREE(&node->makers);
    MS__ARRAY_FREE(&node->operands);
}

void ms_trace_free(ms_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    for (size_t i = 0; i < trace->nodes.count; i++) {
        clear_node(&trace->nodes.items[i]);
    }
    MS__ARRAY_FREE(&trace->nodes);
    MS__ARRAY_FREE(&trace->lives);
    MS__ARRAY_FREE(&trace->saves);
    MS__ARRAY_FREE(&trace->losses);
    MS__ARRAY_FREE(&trace->heads);
    MS__ARRAY_FREE(&trace->old_gradients);
    MS__ARRAY_FREE(&trace->optimizer);
    ms__keymap_free(&trace->keys);
    ms__keymap_free(&trace->save_of);
    ms__keymap_free(&trace->convolutions);
    ms__keymap_free(&trace->half_products);
    ms_free(trace->model);
    ms_free(trace->signature);
    ms_free(trace->source);
    ms_free(trace);
}

/* ---- nodes ---------------------------------------------------------------- */

static int push_node(ms_trace *trace, const char *name, uint32_t kind, uint32_t call, ms_error *err)
{
    if (trace->nodes.count >= TRACE_NO_NODE) {
        return ms_fail(err, MS_EOVERFLOW, "trace: too many nodes");
    }
    char *copy = ms_strdup(name);
    trace_node *node = copy != NULL ? MS__ARRAY_PUSH(&trace->nodes) : NULL;
    if (node == NULL) {
        ms_free(copy);
        return ms__trace_no_memory(err);
    }
    node->name = copy;
    node->kind = kind;
    node->call = call;
    node->flags = kind == MS_NODE_ROOT && trace->on_several_devices ? MS_NODE_ELSEWHERE : 0;
    return MS_OK;
}

int ms__trace_forward_node(ms_trace *trace, uint32_t event_kind, uint32_t *node, ms_error *err)
{
    bool ends = event_kind == MS_EVENT_FREE || event_kind == MS_EVENT_DROP;
    bool stays = trace->layer_open || trace->root_open || (ends && trace->nodes.count > 0);
    if (!stays) {
        int rc = push_node(trace, "", MS_NODE_ROOT, 0, err);
        if (rc != MS_OK) {
            return rc;
        }
        trace->root_open = true;
    }
    *node = ms__trace_last_node(trace);
    return MS_OK;
}

int ms__trace_push(trace_program *program, ms_event event, ms_error *err)
{
    ms_event *slot = MS__ARRAY_PUSH(program);
    if (slot == NULL) {
        return ms__trace_no_memory(err);
    }
    *slot = event;
    return MS_OK;
}

int ms__trace_record(ms_trace *trace, ms_event event, ms_error *err)
{
    if (event.kind != MS_EVENT_WORK) {
        ms__trace_sum_ends(trace);
    }
    if (trace->phase == MS_TRACE_BACKWARD) {
        return ms__trace_push(&trace->nodes.items[trace->backward_node].backward, event, err);
    }
    if (trace->phase == MS_TRACE_OPTIMIZER) {
        return ms__trace_push(&trace->optimizer, event, err);
    }
    if (!ms__trace_in_forward(trace)) {
        return MS_OK;
    }
    uint32_t node = 0;
    int rc = ms__trace_forward_node(trace, event.kind, &node, err);
    return rc == MS_OK ? ms__trace_push(&trace->nodes.items[node].forward, event, err) : rc;
}

int ms_trace_enter(ms_trace *trace, const char *name, uint32_t call, uint32_t *node, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (name[0] == '\0') {
        return ms_fail(err, MS_EINVAL, "trace: a layer needs a name");
    }
    if (!ms__trace_in_forward(trace) || trace->layer_open) {
        return ms_fail(err, MS_ESTATE, "trace: layer %s entered %s", name,
                       trace->layer_open ? "inside another layer" : "outside of forward");
    }
    rc = push_node(trace, name, MS_NODE_LAYER, call, err);
    if (rc != MS_OK) {
        return rc;
    }
    trace->layer_open = true;
    trace->root_open = false;
    *node = ms__trace_last_node(trace);
    return MS_OK;
}

int ms_trace_leave(ms_trace *trace, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && !trace->layer_open) {
        rc = ms_fail(err, MS_ESTATE, "trace: no layer to leave");
    }
    if (rc != MS_OK) {
        return rc;
    }
    trace_node *node = &trace->nodes.items[ms__trace_last_node(trace)];
    node->flags |= node->has_input ? 0 : MS_NODE_NO_TENSOR_INPUT;
    trace->layer_open = false;
    return MS_OK;
}

uint32_t ms_trace_current(const ms_trace *trace)
{
    return ms__trace_last_node(trace);
}

/* The life's place among the node's inputs, where it is added if it is new. */
static int place_input(trace_node *node, uint32_t life, uint32_t *place, ms_error *err)
{
    for (*place = 0; *place < node->inputs.count; ++*place) {
        if (node->inputs.items[*place] == life) {
            return MS_OK;
        }
    }
    uint32_t *slot = MS__ARRAY_PUSH(&node->inputs);
    if (slot == NULL) {
        return ms__trace_no_memory(err);
    }
    *slot = life;
    return MS_OK;
}

int ms_trace_input(ms_trace *trace, uint64_t key, uint32_t *place, ms_error *err)
{
    uint32_t unused;
    place = place != NULL ? place : &unused;
    *place = MS_TRACE_NO_PLACE;
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && !trace->layer_open) {
        rc = ms_fail(err, MS_ESTATE, "trace: an input, but no layer is open");
    }
    if (rc != MS_OK) {
        return rc;
    }
    trace_node *node = &trace->nodes.items[ms__trace_last_node(trace)];
    node->has_input = true;
    uint64_t value;
    if (!ms__keymap_get(&trace->keys, key, &value) || (value & KEY_KIND) != KEY_LIFE) {
        return MS_OK;
    }
    return place_input(node, (uint32_t)value, place, err);
}

int ms_trace_flag(ms_trace *trace, uint32_t node, uint32_t flags, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && node >= trace->nodes.count) {
        rc = ms_fail(err, MS_EINVAL, "trace: a fact about node %u of %zu", (unsigned)node, trace->nodes.count);
    }
    if (rc == MS_OK) {
        trace->nodes.items[node].flags |= flags;
    }
    return rc;
}

/* ---- phases --------------------------------------------------------------- */

/* Storages that the optimizer's step left alive are its state; the peak of the others is its transient. Computed
 * at the end, so that one step suffices although the first step makes the state. */
static void close_optimizer_step(ms_trace *trace)
{
    uint64_t live_bytes = 0;
    for (size_t i = 0; i < trace->optimizer.count; i++) {
        const ms_event *event = &trace->optimizer.items[i];
        const trace_life *life = &trace->lives.items[event->storage];
        if (life->in_step) {
            continue; /* allocated before: a gradient that the optimizer freed */
        }
        if (!life->freed) {
            trace->optimizer_state_bytes = ms__add_sat(trace->optimizer_state_bytes, life->bytes);
        } else if (event->kind == MS_EVENT_ALLOC) {
            live_bytes = ms__add_sat(live_bytes, life->bytes);
        } else {
            live_bytes = ms__sub_sat(live_bytes, life->bytes);
        }
        trace->optimizer_transient_bytes = ms__max_u64(trace->optimizer_transient_bytes, live_bytes);
    }
}

int ms_trace_expect_state(ms_trace *trace, uint64_t bytes, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->expected_state_bytes = ms__add_sat(trace->expected_state_bytes, bytes);
    }
    return rc;
}

int ms_trace_made_state(ms_trace *trace, uint64_t bytes, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->made_state_bytes = bytes;
    }
    return rc;
}

int ms_trace_optimizer_unknown(ms_trace *trace, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK && trace->phase != MS_TRACE_OPTIMIZER) {
        rc = ms_fail(err, MS_ESTATE, "trace: the optimizer's step has not begun or has ended");
    }
    if (rc == MS_OK) {
        trace->optimizer_seen = false;
        trace->phase = MS_TRACE_DONE;
    }
    return rc;
}

int ms_trace_own_optimizer(ms_trace *trace, uint64_t stream_bytes, bool released, bool streamed, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->optimizer_stream_bytes = stream_bytes;
        trace->gradients_releasable = true;
        trace->gradients_released = released;
        trace->state_streamed = streamed;
    }
    return rc;
}

int ms_trace_gradients_needed(ms_trace *trace, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->gradients_needed = true;
    }
    return rc;
}

int ms__trace_have_node(ms_trace *trace, ms_error *err)
{
    uint32_t node = 0;
    return trace->nodes.count > 0 ? MS_OK : ms__trace_forward_node(trace, MS_EVENT_WORK, &node, err);
}

static int begin_backward(ms_trace *trace, ms_error *err)
{
    /* A step without events of forward still needs a node for those of backward. */
    int rc = ms__trace_have_node(trace, err);
    if (rc == MS_OK) {
        trace->backward_from = trace->backward_node = ms__trace_last_node(trace);
    }
    return rc;
}

int ms_trace_set_phase(ms_trace *trace, ms_trace_phase phase, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (phase == MS_TRACE_DONE && trace->phase == MS_TRACE_DONE) {
        return MS_OK;
    }
    if ((int)phase <= (int)trace->phase || trace->layer_open) {
        return ms_fail(err, MS_ESTATE, "trace: phase %d after phase %d%s", (int)phase, (int)trace->phase,
                       trace->layer_open ? " inside a layer" : "");
    }
    if (trace->phase == MS_TRACE_OPTIMIZER) {
        close_optimizer_step(trace);
    }
    if (phase == MS_TRACE_BACKWARD) {
        rc = begin_backward(trace, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms__trace_sum_ends(trace);
    trace->optimizer_seen |= phase == MS_TRACE_OPTIMIZER;
    trace->phase = phase;
    trace->peak_bytes = trace->live_bytes;
    return MS_OK;
}

int ms_trace_loss_outside(ms_trace *trace, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->loss_outside = true;
    }
    return rc;
}

/* ---- operators ------------------------------------------------------------ */

static uint64_t hash_shapes(uint64_t hash, const ms_operand *operands, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = ms__trace_hash(hash, operands[i].rank);
        for (uint32_t k = 0; k < operands[i].rank; k++) {
            hash = ms__trace_hash(hash, operands[i].size[k]);
        }
    }
    return hash;
}

/* An operator whose code oneDNN generates for each shape. */
static int note_generated(ms__keymap *known, const char *name, uint64_t shapes, ms_error *err)
{
    uint64_t hash = shapes;
    for (const char *letter = name; *letter != '\0'; letter++) {
        hash = ms__trace_hash(hash, (unsigned char)*letter);
    }
    return ms__keymap_put(known, hash, 1) == MS_OK ? MS_OK : ms__trace_no_memory(err);
}

int ms_trace_moves(ms_trace *trace, uint64_t bytes, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc == MS_OK) {
        trace->moved_bytes = bytes;
    }
    return rc;
}

/* From this size on the math library packs operands into large buffers: measured 3 MB up to 2^28, 20 MB a thread
 * from 2^31. */
static const uint64_t LARGE_PRODUCT_FLOPS = (uint64_t)1 << 29;

int ms_trace_op(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                const ms_operand *outputs, size_t output_count, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK || trace->phase > MS_TRACE_BACKWARD) {
        return rc;
    }
    ms_event event = {.kind = MS_EVENT_WORK, .moved_bytes = trace->moved_bytes};
    trace->moved_bytes = 0;
    for (size_t i = 0; i < input_count; i++) {
        event.bytes = ms__add_sat(event.bytes, inputs[i].bytes);
    }
    for (size_t i = 0; i < output_count; i++) {
        event.bytes = ms__add_sat(event.bytes, outputs[i].bytes);
    }
    event.flops = ms__flops(name, inputs, input_count, outputs, output_count);
    event.draws = ms__draws(name, outputs, output_count);
    event.evaluations = ms__evaluations(name, inputs, input_count, outputs, output_count, event.flops);
    event.precision = event.flops > 0 && output_count > 0 ? outputs[0].precision : MS_PRECISION_AS_IS;
    bool is_convolution = ms__is_convolution(name);
    trace->has_large_product |= event.flops >= LARGE_PRODUCT_FLOPS && !is_convolution;
    if (is_convolution || event.precision != MS_PRECISION_AS_IS) {
        uint64_t shapes = hash_shapes(hash_shapes(0, inputs, input_count), outputs, output_count);
        rc = note_generated(is_convolution ? &trace->convolutions : &trace->half_products, name, shapes, err);
    }
    trace->last_work = event;
    trace->last_write = ms__trace_write_of(name, inputs, input_count, outputs, output_count);
    return rc == MS_OK && (event.bytes != 0 || event.flops != 0) ? ms__trace_record(trace, event, err) : rc;
}

/* Keys of a workspace's pieces: 1, 2, ... Not the address of any storage of torch. */
enum { PIECES_MOST = 8, PIECE_LEAST_BYTES = 128 << 10 };

static size_t put_sizes(const ms_operand *operands, size_t count, uint64_t *sizes, size_t put)
{
    for (size_t i = 0; i < count && put < PIECES_MOST - 1; i++) {
        sizes[put++] = operands[i].bytes;
    }
    return put;
}

/*
 * A workspace is mostly operands and results in another layout: measured, a convolution allocates images and a filter, not
 * their sum. So it is recorded in pieces of those sizes as far as they go, because freed maps serve tensors of the same size.
 */
static size_t split_workspace(uint64_t bytes, uint64_t *sizes, size_t count, uint64_t *pieces)
{
    size_t pieces_count = 0;
    while (bytes > 0) {
        size_t largest = count;
        for (size_t i = 0; i < count; i++) {
            bool fits = sizes[i] >= PIECE_LEAST_BYTES && sizes[i] <= bytes;
            largest = fits && (largest == count || sizes[i] > sizes[largest]) ? i : largest;
        }
        uint64_t piece = largest == count ? bytes : sizes[largest];
        if (largest < count) {
            sizes[largest] = 0;
        }
        pieces[pieces_count++] = piece;
        bytes -= piece;
    }
    return pieces_count;
}

int ms_trace_workspace(ms_trace *trace, const char *name, const ms_operand *inputs, size_t input_count,
                       const ms_operand *outputs, size_t output_count, uint32_t copied, ms_error *err)
{
    int rc = ms__trace_check_open(trace, err);
    if (rc != MS_OK || trace->phase > MS_TRACE_BACKWARD) {
        return rc;
    }
    uint64_t sizes[PIECES_MOST], pieces[PIECES_MOST];
    size_t known = 0; /* on a GPU, a kernel allocates its workspace as a whole */
    if ((copied & MS_WORKSPACE_GPU) == 0) {
        known = put_sizes(outputs, output_count, sizes, put_sizes(inputs, input_count, sizes, 0));
    }
    uint64_t buffers = ms__libc_buffers(name, inputs, input_count, outputs, output_count, copied, trace->threads);
    uint64_t kept = ms__libc_share_bytes(name, inputs, input_count);
    trace->libc_buffer_bytes = ms__max_u64(trace->libc_buffer_bytes, ms__add_sat(buffers, kept));
    uint64_t bytes = ms__sub_sat(ms_workspace_bytes(name, inputs, input_count, outputs, output_count, copied), kept);
    size_t count = split_workspace(bytes, sizes, known, pieces);
    for (size_t i = 0; i < count && rc == MS_OK; i++) {
        rc = ms_trace_born(trace, i + 1, pieces[i], err);
    }
    for (size_t i = count; i > 0 && rc == MS_OK; i--) {
        rc = ms_trace_died(trace, i, err);
    }
    return rc;
}
