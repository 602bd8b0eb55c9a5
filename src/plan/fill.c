/*
 * A plan's numbers after its candidate is chosen: predicted peaks, ceiling, windows and the unoptimized step.
 * Called by solver.c and uniform.c.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"
#include "plan/selections.h"

enum { CACHE_MARGIN_PART = 32 };

static uint64_t cache_margin(const ms__candidate *candidate)
{
    return candidate->held_most_bytes / CACHE_MARGIN_PART;
}

uint64_t ms__plan_most(const ms__search *search)
{
    return ms__add_sat(search->items[0].fixed_bytes, search->items[0].held_most_bytes);
}

uint64_t ms__plan_room(const ms__search *search, uint64_t allowed_bytes)
{
    return ms__min_u64(allowed_bytes, ms__add_sat(ms__plan_most(search), cache_margin(&search->items[0])));
}

uint64_t ms__plan_peak(const ms__search *search, const ms__variant *variant, uint64_t room_bytes)
{
    const ms__candidate *candidate = &search->items[variant->candidate];
    uint64_t most = ms__add_sat(candidate->fixed_bytes, candidate->held_most_bytes);
    return ms__max_u64(variant->bytes, ms__min_u64(room_bytes, most));
}

/* The reserve counts for the fit but is not expected to be used. */
static void leave_out_reserve(const ms__search *search, ms_replay *replay)
{
    uint64_t reserve = search->sim->reserve_bytes;
    replay->peak_bytes = ms__sub_sat(replay->peak_bytes, reserve);
    replay->first_step_peak_bytes = ms__sub_sat(replay->first_step_peak_bytes, reserve);
}

/* A cache seldom fills the budget's rest, so its expected bytes are replayed. */
void ms__plan_expect(ms__search *search, const ms__variant *variant, uint64_t peak, ms_replay *expected)
{
    const ms__candidate *candidate = &search->items[variant->candidate];
    const uint8_t *row = ms__candidate_row(search, variant->candidate);
    ms__search_use(search, candidate->step);
    uint64_t ceiling = search->sim->on_host ? peak - candidate->fixed_bytes : 0;
    ms_choices choices = ms__search_choices(search, row, candidate->window, ceiling);
    ms__outcome outcome;
    ms__sim_run_expected(search->sim, &choices, &outcome);
    const ms_replay *found = &outcome.replay;
    expected->peak_bytes = ms__min_u64(found->peak_bytes, peak);
    expected->first_step_peak_bytes = ms__min_u64(found->first_step_peak_bytes, expected->peak_bytes);
    expected->peak_live_bytes = found->peak_live_bytes;
    expected->small_peak_bytes = found->small_peak_bytes;
    expected->peak_node = found->peak_node;
    expected->peak_in_backward = found->peak_in_backward;
    leave_out_reserve(search, expected);
}

/*
 * Hostmem's ceiling. A step holds about 1% more than its replay (buffers of libraries, sizes rounded
 * differently). A cache that lacks 1% of a step faults in 4 times as much, since the map that was dropped is
 * the next one needed. The budget's rest serves as that margin.
 */
static uint64_t ceiling_within(const ms__candidate *candidate, uint64_t peak, uint64_t room_bytes)
{
    uint64_t wanted = ms__add_sat(peak, cache_margin(candidate));
    return ms__max_u64(peak, ms__min_u64(room_bytes, wanted)) - candidate->fixed_bytes;
}

/* The plan's numbers for a variant that may use `room_bytes` of the device in all. */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan)
{
    const ms__candidate *candidate = &search->items[chosen->candidate];
    ms__search_use(search, candidate->step);
    bool moves = ms__search_moves(search, ms__candidate_row(search, chosen->candidate));
    plan->replay = chosen->replay;
    plan->offload_min_bytes = search->offload_min_bytes;
    plan->write_window_bytes = search->windows[candidate->window].write_bytes;
    plan->read_window_bytes = search->windows[candidate->window].read_bytes;
    plan->slab_bytes = moves ? ms__slab_bytes(search->sim->on_host, plan->offload_min_bytes) : 0;
    plan->disk_cap_bytes = search->tier_cap_bytes[MS__DISK_TIER];
    plan->host_cap_bytes = search->tier_cap_bytes[MS__HOST_TIER];
    bool reads_ahead = (search->steps[candidate->step].options & 1u << MS_STEP_STATE_READ_AHEAD) != 0;
    plan->state_buffer_bytes = reads_ahead ? search->sim->state.buffer_bytes : 0;
    plan->state_moved_bytes = search->steps[candidate->step].moved_bytes;
    uint64_t peak = search->sim->on_host ? ms__plan_peak(search, chosen, room_bytes) : chosen->bytes;
    ms__plan_expect(search, chosen, peak, &plan->replay);
    if (search->sim->on_host) {
        /* Hostmem counts maps only; memory that libc holds is subtracted. What step options hold counts as fixed, but
         * lies in maps. */
        uint64_t small = ms__max_u64(chosen->replay.small_peak_bytes, plan->replay.small_peak_bytes);
        uint64_t ceiling = ms__add_sat(ceiling_within(candidate, peak, room_bytes), search->sim->option_bytes);
        plan->ceiling_bytes = ms__sub_sat(ceiling, small);
    }
    plan->reserve_bytes = ms__sub_sat(peak, plan->replay.peak_bytes);
    leave_out_reserve(search, &plan->unoptimized);
}

void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan)
{
    ms__outcome outcome;
    ms__search_use(search, 0);
    ms__search_keep_all(search);
    ms_choices choices = ms__search_choices(search, search->scratch, 0, 0);
    ms__sim_run_unmodified(search->sim, &choices, &outcome);
    plan->unoptimized = outcome.replay;
    if (search->sim->on_host) {
        choices.ceiling_bytes = UINT64_MAX;
        ms__sim_run(search->sim, &choices, &outcome, NULL);
        plan->unoptimized.step_ns = outcome.replay.step_ns;
        plan->unoptimized.compute_ns = outcome.replay.compute_ns;
        plan->unoptimized.fault_ns = outcome.replay.fault_ns;
    }
}

/* Recomputed layers save nothing to bit-pack. */
static void apply_packing(const ms__search *search, const uint8_t *packed, ms_plan_entry *entry)
{
    const ms__sim_node *node = &search->sim->nodes[entry->node];
    entry->packing = (ms_plan_packing){0};
    if (node->is_root || packed == NULL || !ms__bits_possible((ms_technique)entry->technique)) {
        return;
    }
    entry->packing.tensors = node->profile->bits_count;
    entry->packing.packed = packed[entry->node];
}

int ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan)
{
    const uint8_t *row = ms__candidate_row(search, chosen->candidate);
    for (uint32_t i = 0; i < search->node_count; i++) {
        plan->entries[i].technique = row[i];
        apply_packing(search, ms__row_packed(search, row), &plan->entries[i]);
    }
    return ms__selections_fill(search->sim, plan);
}
