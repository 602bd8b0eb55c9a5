/*
 * A replay's result: reads peaks and times from a simulator after its pass, and adds the bytes that are live
 * through a whole phase, which no event reports. Called by the replay.
 */
#include "base/units.h"
#include "sim/sim.h"

/* ---- constant over a phase --------------------------------------------------------------- */

bool ms__sim_accumulates(const ms_loop *loop)
{
    return loop->observed && loop->gradients_live_in_forward && !loop->gradients_cleared;
}

/* The state that lives in `phase`, beside the part that the process's baseline counts. */
static uint64_t state_beside_baseline(const ms__sim *sim, ms__phase phase, bool first)
{
    const ms_loop *loop = &sim->graph->loop;
    bool is_made = phase == MS__OPTIMIZER || !first;
    uint64_t made = ms__min_u64(loop->optimizer_made_bytes, loop->optimizer_state_bytes);
    return ms__sub_sat(is_made ? loop->optimizer_state_bytes : made, sim->hardware->process.state_bytes);
}

ms__carried ms__sim_carried(const ms__sim *sim, ms__phase phase, bool first)
{
    const ms_loop *loop = &sim->graph->loop;
    ms__carried carried = {.state_bytes = state_beside_baseline(sim, phase, first)};
    if (phase == MS__OPTIMIZER) {
        carried.transient_bytes = loop->optimizer_transient_bytes;
    }
    carried.pending_bytes = phase != MS__OPTIMIZER ? sim->pending_bytes : 0;
    if (phase == MS__FORWARD && !first) {
        carried.output_bytes = loop->outputs_held ? sim->output_bytes : 0;
        carried.gradient_bytes = loop->gradients_live_in_forward ? sim->gradient_bytes : 0;
    } else if (phase != MS__FORWARD && ms__sim_accumulates(loop)) {
        carried.gradient_bytes = sim->gradient_bytes;
    }
    return carried;
}

uint64_t ms__sim_carried_bytes(const ms__sim *sim, ms__phase phase, bool first)
{
    ms__carried carried = ms__sim_carried(sim, phase, first);
    uint64_t loop_bytes = ms__add_sat(ms__add_sat(carried.output_bytes, carried.gradient_bytes), carried.pending_bytes);
    return ms__add_sat(ms__add_sat(carried.state_bytes, carried.transient_bytes), loop_bytes);
}

/* ---- results ----------------------------------------------------------------------------- */

static uint64_t phase_peak(const ms__sim *sim, ms__phase phase, bool first)
{
    uint64_t bytes = ms__add_sat(sim->peaks[phase].bytes, sim->small_peak_bytes);
    return ms__add_sat(bytes, ms__sim_carried_bytes(sim, phase, first));
}

static void read_peaks(const ms__sim *sim, ms__outcome *out)
{
    ms_replay *replay = &out->replay;
    uint64_t first = 0;
    for (ms__phase phase = MS__FORWARD; phase < MS__PHASE_COUNT; phase++) {
        uint64_t bytes = phase_peak(sim, phase, false);
        if (bytes > out->live_peak_bytes) {
            out->live_peak_bytes = bytes;
            out->peak_phase = phase;
            out->peak_tick = sim->peaks[phase].tick;
            replay->peak_node = sim->peaks[phase].node;
            replay->peak_in_backward = phase == MS__BACKWARD;
        }
        first = ms__max_u64(first, phase_peak(sim, phase, true));
        if (phase != MS__OPTIMIZER) {
            uint64_t activations = ms__add_sat(sim->peaks[phase].bytes, sim->small_peak_bytes);
            out->activation_peak_bytes = ms__max_u64(out->activation_peak_bytes, activations);
        }
    }
    replay->first_step_peak_bytes = ms__add_sat(out->fixed_bytes, first);
    replay->peak_bytes = ms__add_sat(out->fixed_bytes, out->live_peak_bytes);
    replay->peak_live_bytes =
        ms__add_sat(ms__add_sat(sim->parameter_bytes, out->live_peak_bytes), sim->graph->residents.batch_bytes);
}

static void read_times(const ms__sim *sim, ms__outcome *out)
{
    ms_replay *replay = &out->replay;
    replay->step_ns = ms__add_sat(sim->now_ns, sim->fault_ns);
    replay->recompute_ns = sim->recompute_ns;
    replay->stall_forward_ns = sim->stall_forward_ns;
    replay->stall_backward_ns = sim->stall_backward_ns;
    uint64_t stalls_ns = ms__add_sat(sim->stall_forward_ns, sim->stall_backward_ns);
    replay->compute_ns = ms__sub_sat(replay->step_ns, ms__add_sat(sim->recompute_ns, stalls_ns));
    for (int tier = 0; tier < MS__TIER_COUNT; tier++) {
        replay->tier_peak_bytes[tier] = ms__add_sat(sim->io.tier_peak_bytes[tier], sim->held_tier_bytes[tier]);
    }
    replay->moved_bytes = sim->io.moved_bytes;
    replay->packed_bytes = sim->packed_bytes;
    replay->packing_ns = sim->packing_ns;
    replay->fault_ns = sim->fault_ns;
    replay->small_peak_bytes = ms__add_sat(sim->small_peak_bytes, sim->small_state_bytes);
}

void ms__sim_read(const ms__sim *sim, ms__outcome *out)
{
    read_peaks(sim, out);
    read_times(sim, out);
}
