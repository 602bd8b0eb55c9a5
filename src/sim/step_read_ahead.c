/*
 * Moving optimizer state ahead as an option of the step (execute/optimizer_stream.c executes it for state on disk,
 * optim/host.py for state in host memory). With released gradients, each update needs its state in the middle of
 * backward. Through the usual buffers little of it can move before, and backward waits for the rest. Buffers as large
 * as a layer's state let it move while backward computes.
 */
#include "base/units.h"
#include "rules/rules_internal.h"
#include "sim/step_options.h"

/* ---- state off the device ------------------------------------------------------------------ */

uint64_t ms__streamed_state_bytes(const ms_loop *loop)
{
    return ms__min_u64(loop->optimizer_stream_bytes, loop->optimizer_state_bytes);
}

uint64_t ms__moved_state_bytes(const ms_loop *loop, uint64_t moved_bytes)
{
    uint64_t bytes = ms__streamed_state_bytes(loop);
    return moved_bytes > 0 ? ms__min_u64(bytes, moved_bytes) : bytes;
}

static uint64_t all_gradient_bytes(const ms_graph *graph)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        const ms_storage *storage = &graph->storages[i];
        bytes = ms__add_sat(bytes, storage->role == MS_STORAGE_GRADIENT ? storage->bytes : 0);
    }
    return bytes;
}

/* The bytes of the gradients that are final in the node. */
static uint64_t gradient_bytes_in(const ms_graph *graph, uint32_t node)
{
    const ms_profile *profile = &graph->profiles[graph->nodes[node].profile];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < profile->external_count; i++) {
        const ms_storage *storage = &graph->storages[graph->nodes[node].externals[i]];
        bool is_final = storage->role == MS_STORAGE_GRADIENT && storage->last_node == node;
        bytes = ms__add_sat(bytes, is_final ? storage->bytes : 0);
    }
    return bytes;
}

/* The state of the layer that has most of `state_bytes`. */
static uint64_t layer_state_bytes(const ms_graph *graph, uint64_t state_bytes)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        most = ms__max_u64(most, graph->nodes[i].kind == MS_NODE_LAYER ? gradient_bytes_in(graph, i) : 0);
    }
    return ms__mul_div(state_bytes, most, ms__max_u64(all_gradient_bytes(graph), 1));
}

void ms__step_move_state(ms__step *step, uint64_t bytes, uint64_t moving_ns, uint64_t writing_ns, uint64_t buffer_bytes)
{
    uint64_t state_bytes = ms__max_u64(step->graph->loop.optimizer_state_bytes, 1);
    step->state = (ms__state_stream){
        .update_ns = step->optimizer_ns,
        .moving_ns = moving_ns,
        .writing_ns = writing_ns,
        .state_bytes = bytes,
        .gradient_bytes = all_gradient_bytes(step->graph),
        .buffer_bytes = buffer_bytes,
        /* States move whole: of a part, some layers move all of theirs. */
        .layer_bytes = ms__min_u64(layer_state_bytes(step->graph, state_bytes), bytes),
    };
    uint64_t update_ns = ms__mul_div(step->optimizer_ns, ms__min_u64(bytes, state_bytes), state_bytes);
    step->optimizer_ns = ms__add_sat(step->optimizer_ns - update_ns, ms__max_u64(update_ns, moving_ns));
}

/* ---- the option ------------------------------------------------------------------------------ */

static uint64_t buffers_for(const ms_hardware *hardware, uint64_t layer_bytes)
{
    uint64_t chunk_bytes = ms_hardware_host_is_device(hardware) ? MS__STREAM_CHUNK_BYTES : MS__HOST_CHUNK_BYTES;
    uint64_t rounded = ms__mul_sat(ms__div_up(layer_bytes, chunk_bytes), chunk_bytes);
    return ms__min_u64(rounded, MS__STREAM_BUFFER_MOST_BYTES);
}

static uint32_t read_ahead_judge(const ms__step_case *facts)
{
    bool on_disk = ms_hardware_host_is_device(facts->hardware);
    uint32_t rule = (on_disk ? &ms__step_state_on_disk : &ms__step_state_on_host)->judge(facts);
    if (rule == MS__STEP_ADMITTED) {
        rule = ms__step_gradient_release.judge(facts);
    }
    if (rule != MS__STEP_ADMITTED) {
        return rule;
    }
    uint64_t state = ms__streamed_state_bytes(&facts->graph->loop);
    uint64_t wanted = buffers_for(facts->hardware, layer_state_bytes(facts->graph, state));
    if (wanted <= (on_disk ? MS__STREAM_BUFFER_BYTES : MS__HOST_BUFFER_BYTES)) {
        return MS_RULE_TOO_SMALL;
    }
    bool exceeds = on_disk && ms_rules_disk_cap(facts->hardware, facts->config) < ms__add_sat(state, wanted);
    return exceeds ? MS_RULE_DISK_CAP : MS__STEP_ADMITTED;
}

static int read_ahead_apply(const ms_hardware *hardware, ms__step *step)
{
    uint64_t more = ms__sub_sat(buffers_for(hardware, step->state.layer_bytes), step->state.buffer_bytes);
    step->state.buffer_bytes = ms__add_sat(step->state.buffer_bytes, more);
    step->resident_bytes = ms__add_sat(step->resident_bytes, more);
    if (ms_hardware_host_is_device(hardware)) { /* a version on disk is freed once the next one is written */
        step->tier_bytes[MS__DISK_TIER] = ms__add_sat(step->tier_bytes[MS__DISK_TIER], more);
    }
    return MS_OK;
}

const ms__step_option ms__step_state_read_ahead = {.needs = 1u << MS_STEP_GRADIENT_RELEASE,
                                                   .needs_one = MS__STATE_MOVES,
                                                   .judge = read_ahead_judge,
                                                   .apply = read_ahead_apply};
