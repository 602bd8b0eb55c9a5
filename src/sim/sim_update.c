/*
 * The optimizer's time. Usually it comes after backward, in one piece. If state lies off the device and gradients are
 * released, each update comes in backward, with its gradient, and takes its share: of the processor's time, and of the
 * disk's or link's, as far as that was not done before. Between updates, what the last ones changed is written and what
 * the next ones need is read, but only as much as the buffers hold: half of them for each direction. sim_replay.c and
 * sim_step.c call this file.
 *
 * Disk and link serve others too. Between updates they first move streamed parameters, a share for each gradient. If
 * activations move, they have them between updates, so that state moves only during updates, when they wait. A GPU's
 * host is assumed to run ahead of the card, so that it asks for transfers early.
 *
 * Tests: tests/c/sim/test_step_optimizer.c.
 */
#include "base/units.h"
#include "sim/sim_nodes.h"

static bool updates_in_backward(const ms__sim *sim)
{
    return sim->released != NULL && sim->state.moving_ns > 0;
}

/* The part of `whole_ns` that gradients of `bytes` take. */
static uint64_t share_ns(const ms__state_stream *state, uint64_t whole_ns, uint64_t bytes)
{
    return ms__mul_div(whole_ns, bytes, ms__max_u64(state->gradient_bytes, 1));
}

/* The part of `whole_ns` in which half of the buffers move; 0 if activations have the disk between updates. */
static uint64_t buffered_ns(const ms__state_stream *state, uint64_t whole_ns)
{
    uint64_t held_bytes = ms__min_u64(state->buffer_bytes / 2, state->state_bytes);
    return state->is_alone ? ms__mul_div(whole_ns, held_bytes, ms__max_u64(state->state_bytes, 1)) : 0;
}

/* The time since the last update in which the disk could move state. It owes streamed parameters their share first. */
static uint64_t time_for_state(ms__sim *sim, uint64_t bytes)
{
    ms__state_stream *state = &sim->state;
    uint64_t elapsed_ns = ms__sub_sat(sim->now_ns, state->at_ns);
    state->owed_ns = ms__add_sat(state->owed_ns, share_ns(state, sim->hardware->process.window_backward_ns, bytes));
    uint64_t paid_ns = ms__min_u64(state->owed_ns, elapsed_ns);
    state->owed_ns -= paid_ns;
    return elapsed_ns - paid_ns;
}

/*
 * `ahead_ns` is how far the disk is ahead of the latest time at which it can do its work: with nothing read ahead and
 * half of the buffers still to be written it is 0, with nothing to be written and half of them read ahead it is as large
 * as it can be.
 */
static void update(ms__sim *sim, uint64_t bytes)
{
    ms__state_stream *state = &sim->state;
    uint64_t moving_ns = share_ns(state, state->moving_ns, bytes);
    uint64_t computing_ns = share_ns(state, state->update_ns, bytes);
    uint64_t writing_ns = share_ns(state, state->writing_ns, bytes);
    uint64_t since_ns = time_for_state(sim, bytes), most_ns = buffered_ns(state, state->moving_ns);
    bool is_first = state->updated_bytes == 0;
    uint64_t ahead_ns =
        is_first ? buffered_ns(state, state->writing_ns) : ms__min_u64(ms__add_sat(state->ahead_ns, since_ns), most_ns);
    uint64_t took_ns = ms__max_u64(computing_ns, ms__sub_sat(moving_ns, ahead_ns));
    if (is_first) { /* what it needs can't have been read */
        took_ns = ms__max_u64(took_ns, ms__sub_sat(moving_ns, writing_ns));
    }
    sim->stall_backward_ns = ms__add_sat(sim->stall_backward_ns, took_ns - computing_ns);
    ms__io_pause(sim, ms__min_u64(moving_ns, took_ns));
    ms__sim_spend(sim, took_ns);
    state->ahead_ns = ms__min_u64(ms__sub_sat(ms__add_sat(ahead_ns, took_ns), moving_ns), most_ns);
    state->at_ns = sim->now_ns;
    state->updated_bytes = ms__add_sat(state->updated_bytes, bytes);
    state->last_writing_ns = bytes > 0 ? writing_ns : ms__sub_sat(state->last_writing_ns, since_ns);
}

void ms__sim_begin_updates(ms__sim *sim)
{
    sim->state.ahead_ns = sim->state.at_ns = sim->state.updated_bytes = 0;
    sim->state.owed_ns = sim->state.last_writing_ns = 0;
}

void ms__sim_update(ms__sim *sim, uint32_t instance)
{
    if (updates_in_backward(sim) && instance < sim->graph->storage_count && sim->released[instance]) {
        update(sim, sim->graph->storages[instance].bytes);
    }
}

/* The gradients that were not released, and the writes under way. */
void ms__sim_end_updates(ms__sim *sim)
{
    if (!updates_in_backward(sim)) {
        ms__sim_spend(sim, sim->optimizer_ns);
        return;
    }
    const ms__state_stream *state = &sim->state;
    update(sim, ms__sub_sat(state->gradient_bytes, state->updated_bytes));
    /* At least the last update's writes, as far as buffers hold them: nothing is read ahead any more. */
    uint64_t buffered = buffered_ns(state, state->writing_ns);
    uint64_t writing_ns =
        ms__max_u64(ms__sub_sat(buffered, state->ahead_ns), ms__min_u64(state->last_writing_ns, buffered));
    sim->stall_backward_ns = ms__add_sat(sim->stall_backward_ns, writing_ns);
    ms__sim_spend(sim, writing_ns);
}
