/*
 * A plan's numbers once its candidate is chosen: predicted peaks, ceiling, windows and
 * the unoptimized step beside it. Called by solver.c and uniform.c.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"
#include "plan/selections.h"

uint64_t ms__plan_peak(const ms__search *search, const ms__variant *variant, uint64_t room_bytes)
{
    const ms__candidate *candidate = &search->items[variant->candidate];
    uint64_t most = ms__add_sat(candidate->fixed_bytes, candidate->held_most_bytes);
    return ms__max_u64(variant->bytes, ms__min_u64(room_bytes, most));
}

/* The plan's numbers for a variant that may use `room_bytes` of the device in all. */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan)
{
    const ms__candidate *candidate = &search->items[chosen->candidate];
    ms__search_use(search, candidate->step);
    uint64_t most = ms__add_sat(candidate->fixed_bytes, candidate->held_most_bytes);
    uint64_t peak = ms__plan_peak(search, chosen, room_bytes);
    bool moves = ms__search_moves(search, ms__candidate_techniques(search, chosen->candidate));
    plan->replay = chosen->replay;
    plan->offload_min_bytes = search->offload_min_bytes;
    plan->write_window_bytes = search->windows[candidate->window].write_bytes;
    plan->read_window_bytes = search->windows[candidate->window].read_bytes;
    plan->slab_bytes = moves ? MS__SLAB_BYTES : 0;
    plan->disk_cap_bytes = search->tier_cap_bytes[MS__DISK_TIER];
    plan->host_cap_bytes = search->tier_cap_bytes[MS__HOST_TIER];
    if (!search->sim->on_host) {
        return;
    }
    uint64_t state = search->sim->graph->loop.optimizer_state_bytes;
    plan->replay.peak_bytes = peak;
    uint64_t first = ms__max_u64(plan->replay.first_step_peak_bytes, ms__sub_sat(most, state));
    plan->replay.first_step_peak_bytes = ms__min_u64(peak, first);
    /* hostmem counts maps only: what libc holds beside them comes off. */
    plan->ceiling_bytes = ms__sub_sat(peak - candidate->fixed_bytes, plan->replay.small_peak_bytes);
}

void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan)
{
    ms__outcome outcome;
    ms__search_use(search, 0);
    memset(search->scratch, MS_TECHNIQUE_KEEP, search->node_count);
    ms_choices choices = ms__search_choices(search, search->scratch, 0, 0);
    ms__sim_run(search->sim, &choices, &outcome, NULL);
    plan->unoptimized = outcome.replay;
    if (search->sim->on_host) {
        choices.ceiling_bytes = UINT64_MAX;
        ms__sim_run(search->sim, &choices, &outcome, NULL);
        plan->unoptimized.step_ns = outcome.replay.step_ns;
        plan->unoptimized.compute_ns = outcome.replay.compute_ns;
        plan->unoptimized.fault_ns = outcome.replay.fault_ns;
    }
}

int ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan)
{
    const uint8_t *techniques = ms__candidate_techniques(search, chosen->candidate);
    for (uint32_t i = 0; i < search->node_count; i++) {
        plan->entries[i].technique = techniques[i];
    }
    return ms__selections_fill(search->sim, plan);
}

