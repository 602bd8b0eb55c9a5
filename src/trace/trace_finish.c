/*
 * The concluding half of the tracer: the recorded events become a graph. Nodes without events are removed, storages
 * are split into local and crossing ones, programs are renumbered locally, and equal programs are shared.
 */
#include <string.h>

#include "base/units.h"
#include "graph/graph_internal.h"
#include "trace/trace_internal.h"

#define NO_STORAGE UINT32_MAX

/* Conclusions about a life. */
typedef struct life_info {
    uint32_t first_node, last_node; /* graph numbers; as ms_storage has them */
    uint32_t seen_node;             /* 1 + the last node that uses it, to find lives used by several */
    uint32_t storage;               /* in the graph, or NO_STORAGE: local */
    uint32_t local;                 /* in the profile being built ... */
    uint32_t local_node;            /* ... of this node, plus 1 */
    bool crosses;
    bool placed;      /* first_node is set */
    bool in_backward; /* allocated there */
} life_info;

typedef struct builder {
    ms_trace *trace;
    ms_graph *graph;
    life_info *infos;     /* [trace->lives.count] */
    uint32_t *kept;       /* [graph->node_count]: node numbers of the trace */
    uint8_t *needed;      /* [trace->lives.count], for ms__trace_thin_makers() */
    ms__keymap by_hash;   /* hash of a profile -> its number */
    MS__ARRAY(uint32_t) order; /* lives of the profile being built, by local number */
} builder;

/* ---- what to keep --------------------------------------------------------- */

static void remove_void_events(const ms_trace *trace, trace_program *program)
{
    size_t kept = 0;
    for (size_t i = 0; i < program->count; i++) {
        const ms_event *event = &program->items[i];
        bool of_other = event->kind == MS_EVENT_FINAL && trace->lives.items[event->storage].role != MS_STORAGE_GRADIENT;
        if (event->kind != TRACE_VOID_EVENT && !of_other) {
            program->items[kept++] = *event;
        }
    }
    program->count = kept;
}

/* Gradients from before the step count from the beginning of backward. */
static int place_old_gradients(ms_trace *trace, ms_error *err)
{
    size_t count = trace->old_gradients.count;
    if (count == 0) {
        return MS_OK;
    }
    trace_program *program = &trace->nodes.items[trace->backward_from].backward;
    if (MS__ARRAY_RESERVE(program, program->count + count) != MS_OK) {
        return ms__trace_no_memory(err);
    }
    if (program->count > 0) {
        memmove(program->items + count, program->items, program->count * sizeof *program->items);
    }
    program->count += count;
    for (size_t i = 0; i < count; i++) {
        program->items[i] = (ms_event){.kind = MS_EVENT_ALLOC, .storage = trace->old_gradients.items[i]};
    }
    return MS_OK;
}

static int choose_nodes(builder *b, ms_error *err)
{
    ms_trace *trace = b->trace;
    b->kept = ms_calloc(trace->nodes.count, sizeof *b->kept);
    b->graph->nodes = ms_calloc(trace->nodes.count, sizeof *b->graph->nodes);
    if (b->kept == NULL || b->graph->nodes == NULL) {
        return ms__trace_no_memory(err);
    }
    for (uint32_t i = 0; i < trace->nodes.count; i++) {
        trace_node *node = &trace->nodes.items[i];
        remove_void_events(trace, &node->forward);
        remove_void_events(trace, &node->backward);
        if (node->forward.count + node->backward.count > 0) {
            b->kept[b->graph->node_count++] = i;
        }
    }
    if (b->graph->node_count == 0) {
        b->graph->node_count = 1; /* the first, which is empty: a plan needs a node */
    }
    return MS_OK;
}

/* ---- which storages cross ------------------------------------------------- */

static void note_use(builder *b, uint32_t life, uint32_t node, bool backward)
{
    life_info *info = &b->infos[life];
    info->crosses |= info->seen_node != 0 && info->seen_node != node + 1;
    info->seen_node = node + 1;
    if (!info->placed) {
        info->placed = true;
        info->first_node = node;
        info->in_backward = backward;
    }
    if (info->in_backward == backward) {
        info->last_node = node;
    }
}

static void note_program(builder *b, const trace_program *program, uint32_t node, bool backward)
{
    for (size_t i = 0; i < program->count; i++) {
        if (program->items[i].kind != MS_EVENT_WORK) {
            note_use(b, program->items[i].storage, node, backward);
        }
    }
}

/* In order of execution, as in ms_graph_check(). An input always crosses: an earlier node allocated it, or it is
 * of the batch. */
static void note_uses(builder *b)
{
    const ms_trace *trace = b->trace;
    for (uint32_t i = 0; i < b->graph->node_count; i++) {
        const trace_node *node = &trace->nodes.items[b->kept[i]];
        for (size_t k = 0; k < node->inputs.count; k++) {
            note_use(b, node->inputs.items[k], i, false);
        }
        note_program(b, &node->forward, i, false);
    }
    for (uint32_t i = b->graph->node_count; i-- > 0;) {
        note_program(b, &trace->nodes.items[b->kept[i]].backward, i, true);
    }
}

static int make_storages(builder *b, ms_error *err)
{
    const ms_trace *trace = b->trace;
    ms_graph *graph = b->graph;
    graph->storages = ms_calloc(trace->lives.count, sizeof *graph->storages);
    if (graph->storages == NULL) {
        return ms__trace_no_memory(err);
    }
    for (uint32_t i = 0; i < trace->lives.count; i++) {
        life_info *info = &b->infos[i];
        const trace_life *life = &trace->lives.items[i];
        bool named = life->role != MS_STORAGE_ACTIVATION && info->placed;
        info->storage = NO_STORAGE;
        if (!info->crosses && !named) {
            continue;
        }
        info->storage = graph->storage_count++;
        graph->storages[info->storage] = (ms_storage){life->bytes, life->role, info->first_node, info->last_node};
    }
    return MS_OK;
}

/* ---- programs ------------------------------------------------------------- */

static int add_local(builder *b, uint32_t life, uint32_t node, ms_error *err)
{
    life_info *info = &b->infos[life];
    if (info->local_node == node + 1) {
        return MS_OK;
    }
    uint32_t *slot = MS__ARRAY_PUSH(&b->order);
    if (slot == NULL) {
        return ms__trace_no_memory(err);
    }
    *slot = life;
    info->local = (uint32_t)b->order.count - 1;
    info->local_node = node + 1;
    return MS_OK;
}

static int number_program(builder *b, const trace_program *program, uint32_t node, bool externals, ms_error *err)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < program->count; i++) {
        uint32_t life = program->items[i].storage;
        bool wanted = program->items[i].kind != MS_EVENT_WORK && (b->infos[life].storage != NO_STORAGE) == externals;
        rc = wanted ? add_local(b, life, node, err) : MS_OK;
    }
    return rc;
}

/* Local numbers: inputs, other externals, then locals, each by first appearance. So equal layers get equal
 * programs. */
static int number_locals(builder *b, uint32_t index, uint32_t *external_count, ms_error *err)
{
    const trace_node *node = &b->trace->nodes.items[b->kept[index]];
    b->order.count = 0;
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < node->inputs.count; i++) {
        rc = add_local(b, node->inputs.items[i], index, err);
    }
    for (int externals = 1; rc == MS_OK && externals >= 0; externals--) {
        rc = number_program(b, &node->forward, index, externals != 0, err);
        if (rc == MS_OK) {
            rc = number_program(b, &node->backward, index, externals != 0, err);
        }
        if (externals != 0) {
            *external_count = (uint32_t)b->order.count;
        }
    }
    return rc;
}

static ms_event *copy_program(const builder *b, const trace_program *program)
{
    ms_event *events = ms_calloc(program->count, sizeof *events);
    for (size_t i = 0; events != NULL && i < program->count; i++) {
        events[i] = program->items[i];
        bool is_work = events[i].kind == MS_EVENT_WORK;
        events[i].storage = is_work ? 0 : b->infos[events[i].storage].local;
    }
    return events;
}

/* True if all operands are storages of the profile being built. */
static bool operands_are_local(const builder *b, const trace_node *node, const ms_maker *maker, uint32_t index)
{
    for (uint32_t i = 0; i < maker->input_count + maker->output_count; i++) {
        if (b->infos[node->operands.items[maker->first + i].life].local_node != index + 1) {
            return false;
        }
    }
    return true;
}

/* Copies the makers whose operands the node's events name; the others could not run. */
static int fill_makers(const builder *b, trace_node *node, uint32_t index, ms_profile *profile, ms_error *err)
{
    memset(b->needed, 0, b->trace->lives.count);
    ms__trace_thin_makers(b->trace, node, b->needed);
    profile->makers = ms_calloc(node->makers.count, sizeof *profile->makers);
    profile->operands = ms_calloc(node->operands.count, sizeof *profile->operands);
    if (profile->makers == NULL || profile->operands == NULL) {
        return ms__trace_no_memory(err);
    }
    for (size_t i = 0; i < node->makers.count; i++) {
        const ms_maker *from = &node->makers.items[i];
        if (!operands_are_local(b, node, from, index)) {
            continue;
        }
        ms_maker *to = &profile->makers[profile->maker_count++];
        *to = *from;
        to->first = profile->operand_count;
        for (uint32_t k = 0; k < from->input_count + from->output_count; k++) {
            uint32_t life = node->operands.items[from->first + k].life;
            profile->operands[profile->operand_count++] = b->infos[life].local;
        }
    }
    return MS_OK;
}

static bool open_pairs(const ms_profile *profile, ms_storage_list *list)
{
    list->items = ms_calloc(profile->storage_count, sizeof *list->items);
    return list->items != NULL;
}

static void add_pair(ms_storage_list *list, uint32_t storage, uint64_t bytes)
{
    list->items[list->count++] = (ms_storage_bytes){storage, bytes};
}

/* The saved local storages of two values. */
static int fill_two_valued(const builder *b, const trace_node *node, ms_profile *profile, ms_error *err)
{
    memset(b->needed, 0, b->trace->lives.count);
    for (size_t i = 0; i < node->forward.count; i++) {
        if (node->forward.items[i].kind == MS_EVENT_SAVE) {
            b->needed[node->forward.items[i].storage] = 1;
        }
    }
    if (!open_pairs(profile, &profile->two_valued)) {
        return ms__trace_no_memory(err);
    }
    for (uint32_t i = profile->external_count; node->kind == MS_NODE_LAYER && i < profile->storage_count; i++) {
        const trace_life *life = &b->trace->lives.items[b->order.items[i]];
        if (b->needed[b->order.items[i]] && ms__trace_is_two_valued(life)) {
            add_pair(&profile->two_valued, i, life->value_bytes);
        }
    }
    return MS_OK;
}

static int fill_untouched(const builder *b, ms_profile *profile, ms_error *err)
{
    if (!open_pairs(profile, &profile->untouched)) {
        return ms__trace_no_memory(err);
    }
    for (uint32_t i = profile->external_count; i < profile->storage_count; i++) {
        uint64_t bytes = b->trace->lives.items[b->order.items[i]].untouched_bytes;
        if (bytes > 0) {
            add_pair(&profile->untouched, i, bytes);
        }
    }
    return MS_OK;
}

static int fill_profile(const builder *b, const trace_node *node, uint32_t external_count, ms_profile *profile,
                        ms_error *err)
{
    profile->storage_count = (uint32_t)b->order.count;
    profile->external_count = external_count;
    profile->input_count = (uint32_t)node->inputs.count;
    profile->forward_count = (uint32_t)node->forward.count;
    profile->backward_count = (uint32_t)node->backward.count;
    profile->storage_bytes = ms_calloc(profile->storage_count, sizeof *profile->storage_bytes);
    profile->inputs = ms_calloc(profile->input_count, sizeof *profile->inputs);
    profile->forward = copy_program(b, &node->forward);
    profile->backward = copy_program(b, &node->backward);
    if (profile->storage_bytes == NULL || profile->inputs == NULL || profile->forward == NULL ||
        profile->backward == NULL) {
        return ms__trace_no_memory(err);
    }
    for (uint32_t i = 0; i < profile->storage_count; i++) {
        profile->storage_bytes[i] = b->trace->lives.items[b->order.items[i]].bytes;
    }
    for (uint32_t i = 0; i < profile->input_count; i++) {
        profile->inputs[i] = i;
    }
    return MS_OK;
}

/* ---- sharing -------------------------------------------------------------- */

static uint64_t hash_add_events(uint64_t hash, const ms_event *events, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        hash = ms__trace_hash(hash, (uint64_t)events[i].kind << 32 | events[i].storage);
        hash = ms__trace_hash(ms__trace_hash(ms__trace_hash(hash, events[i].flops), events[i].bytes), events[i].draws);
        hash = ms__trace_hash(ms__trace_hash(hash, events[i].evaluations), events[i].precision);
        hash = ms__trace_hash(hash, events[i].moved_bytes);
    }
    return ms__trace_hash(hash, count);
}

static uint64_t hash_of_profile(const ms_profile *profile)
{
    uint64_t hash = ms__trace_hash(profile->input_count, profile->external_count);
    for (uint32_t i = 0; i < profile->storage_count; i++) {
        hash = ms__trace_hash(hash, profile->storage_bytes[i]);
    }
    hash = hash_add_events(hash, profile->forward, profile->forward_count);
    hash = ms__trace_hash(hash, (uint64_t)profile->maker_count << 32 | profile->operand_count);
    hash = ms__trace_hash(hash, (uint64_t)profile->untouched.count << 32 | profile->two_valued.count);
    return hash_add_events(hash, profile->backward, profile->backward_count);
}

/* Returns the number of an equal profile, or of this one, which the graph then owns. */
static int share_profile(builder *b, ms_profile *profile, uint32_t *number, ms_error *err)
{
    ms_graph *graph = b->graph;
    uint64_t hash = hash_of_profile(profile);
    uint64_t known;
    while (ms__keymap_get(&b->by_hash, hash, &known)) {
        if (ms__profile_equal(&graph->profiles[known], profile)) {
            ms__profile_clear(profile);
            *number = (uint32_t)known;
            return MS_OK;
        }
        hash++;
    }
    if (ms__keymap_put(&b->by_hash, hash, graph->profile_count) != MS_OK) {
        return ms__trace_no_memory(err);
    }
    *number = graph->profile_count++;
    graph->profiles[*number] = *profile;
    memset(profile, 0, sizeof *profile);
    return MS_OK;
}

/* ---- nodes ---------------------------------------------------------------- */

static int make_node(builder *b, uint32_t index, uint32_t *root_calls, ms_error *err)
{
    trace_node *from = &b->trace->nodes.items[b->kept[index]];
    ms_node *node = &b->graph->nodes[index];
    ms_profile profile = {0};
    uint32_t external_count = 0;
    int rc = number_locals(b, index, &external_count, err);
    if (rc == MS_OK) {
        rc = fill_profile(b, from, external_count, &profile, err);
    }
    if (rc == MS_OK) {
        rc = fill_makers(b, from, index, &profile, err);
    }
    if (rc == MS_OK) {
        rc = fill_two_valued(b, from, &profile, err);
    }
    if (rc == MS_OK) {
        rc = fill_untouched(b, &profile, err);
    }
    if (rc == MS_OK) {
        node->externals = ms_calloc(external_count, sizeof *node->externals);
        rc = node->externals != NULL ? share_profile(b, &profile, &node->profile, err) : ms__trace_no_memory(err);
    }
    for (uint32_t i = 0; rc == MS_OK && i < external_count; i++) {
        node->externals[i] = b->infos[b->order.items[i]].storage;
    }
    ms__profile_clear(&profile);
    node->name = from->name;
    from->name = NULL;
    node->kind = from->kind;
    node->call = from->kind == MS_NODE_ROOT ? (*root_calls)++ : from->call;
    node->flags = from->flags;
    return rc;
}

static int make_nodes(builder *b, ms_error *err)
{
    uint32_t root_calls = 0;
    b->graph->profiles = ms_calloc(b->graph->node_count, sizeof *b->graph->profiles);
    if (b->graph->profiles == NULL) {
        return ms__trace_no_memory(err);
    }
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < b->graph->node_count; i++) {
        rc = make_node(b, i, &root_calls, err);
    }
    return rc;
}

/* ---- the loop around the step --------------------------------------------- */

/* Two fp32 moments per trainable element, as in Adam; torch's step needs two temporaries of the current parameter. */
enum { STATE_BYTES_PER_ELEMENT = 8, TRANSIENT_COPIES = 2, LOSS_COPIES = 2 };

static uint64_t output_bytes(const ms_graph *graph)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        bytes = ms__add_sat(bytes, graph->storages[i].role == MS_STORAGE_OUTPUT ? graph->storages[i].bytes : 0);
    }
    return bytes;
}

static void assume_loop(const ms_trace *trace, ms_graph *graph)
{
    ms_loop *loop = &graph->loop;
    *loop = (ms_loop){.outputs_held = true, .gradients_live_in_forward = true};
    loop->optimizer_state_bytes = trace->expected_state_bytes != 0
                                      ? trace->expected_state_bytes
                                      : ms__mul_sat(trace->optimizer_elements, STATE_BYTES_PER_ELEMENT);
    loop->optimizer_transient_bytes = ms__mul_sat(trace->largest_trainable_bytes, TRANSIENT_COPIES);
    if (trace->optimizer_seen) {
        /* A real optimizer may have made its state before the trace. */
        uint64_t unseen_bytes = strcmp(trace->source, "empirical") == 0 ? loop->optimizer_state_bytes : 0;
        loop->optimizer_state_bytes = ms__max_u64(trace->optimizer_state_bytes, unseen_bytes);
        loop->optimizer_transient_bytes = trace->optimizer_transient_bytes;
    }
    loop->optimizer_made_bytes = trace->made_state_bytes;
    loop->optimizer_state_bytes = ms__max_u64(loop->optimizer_state_bytes, loop->optimizer_made_bytes);
    loop->optimizer_stream_bytes = trace->optimizer_stream_bytes;
    loop->gradients_releasable = trace->gradients_releasable;
    loop->gradients_released = trace->gradients_released;
    loop->gradients_needed = trace->gradients_needed;
    loop->state_streamed = trace->state_streamed;
    if (trace->loss_outside) {
        loop->external_loss_bytes = ms__mul_sat(output_bytes(graph), LOSS_COPIES);
    }
}

/* ---- all ------------------------------------------------------------------ */

static int build_graph(builder *b, ms_error *err)
{
    ms_trace *trace = b->trace;
    if (trace->phase == MS_TRACE_OPTIMIZER) {
        return ms_fail(err, MS_ESTATE, "trace: the optimizer's step has not ended");
    }
    if (trace->layer_open) {
        return ms_fail(err, MS_ESTATE, "trace: layer %s was not left", trace->nodes.items[trace->nodes.count - 1].name);
    }
    int rc = ms__trace_have_node(trace, err);
    if (rc == MS_OK) {
        rc = place_old_gradients(trace, err);
    }
    b->infos = ms_calloc(trace->lives.count, sizeof *b->infos);
    b->needed = ms_calloc(trace->lives.count, 1);
    if (rc == MS_OK && (b->infos == NULL || b->needed == NULL)) {
        rc = ms__trace_no_memory(err);
    }
    if (rc == MS_OK) {
        rc = choose_nodes(b, err);
    }
    if (rc == MS_OK) {
        note_uses(b);
        rc = make_storages(b, err);
    }
    if (rc == MS_OK) {
        rc = make_nodes(b, err);
    }
    if (rc == MS_OK) {
        b->graph->residents = trace->residents;
        b->graph->small_products = !trace->has_large_product;
        b->graph->convolutions = (uint32_t)trace->convolutions.count;
        b->graph->half_products = (uint32_t)trace->half_products.count;
        b->graph->libc_buffer_bytes = trace->libc_buffer_bytes;
        assume_loop(trace, b->graph);
    }
    return rc;
}

/* Moves the trace's texts to the graph; the trace can then only be freed. */
static void take_texts(ms_trace *trace, ms_graph *graph)
{
    graph->model = trace->model;
    graph->signature = trace->signature;
    graph->source = trace->source;
    trace->model = trace->signature = trace->source = NULL;
}

/* A refusal (sizes too large, contradictory events) is the step's fault: MS_EPROFILE, not MS_EFORMAT. */
static int check_result(const ms_graph *graph, ms_error *err)
{
    ms_error problem = {0};
    int rc = ms_graph_check(graph, &problem);
    if (rc == MS_OK) {
        return rc;
    }
    return ms_fail(err, rc == MS_EFORMAT ? MS_EPROFILE : rc, "trace of %.64s: %.400s", graph->model, problem.text);
}

int ms_trace_finish(ms_trace *trace, ms_graph **graph, ms_error *err)
{
    if (trace->finished) {
        return ms_fail(err, MS_ESTATE, "trace: it is finished already");
    }
    trace->finished = true;
    builder b = {.trace = trace, .graph = ms_calloc(1, sizeof *b.graph)};
    int rc = b.graph != NULL ? build_graph(&b, err) : ms__trace_no_memory(err);
    if (rc == MS_OK) {
        take_texts(trace, b.graph);
        rc = check_result(b.graph, err);
    }
    if (rc == MS_OK) {
        *graph = b.graph;
        b.graph = NULL;
    }
    ms_graph_free(b.graph);
    ms_free(b.infos);
    ms_free(b.kept);
    ms_free(b.needed);
    MS__ARRAY_FREE(&b.order);
    ms__keymap_free(&b.by_hash);
    return rc;
}
