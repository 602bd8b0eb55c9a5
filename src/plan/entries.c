/*
 * The reasons in each entry of a plan: its rule, bytes freed, time added and runner-up. They come from replays
 * that differ from the plan only in this node. Step options get the same. Called by the search after it has
 * chosen.
 */
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"

/* Nodes that are replayed one by one; in longer chains equal neighbours share a result. */
enum { JUDGED_MOST = 128 };

typedef struct entry_alternatives {
    ms__search *search;
    const ms__candidate *chosen;
    uint64_t room_bytes;  /* the limit for a fit */
    uint64_t given_bytes; /* bytes that the plan's step time assumes */
    ms_plan *plan;
} entry_alternatives;

/* Replays the plan with another value in one place of its row: without a cache for its peak, then, for its
 * time, with the cache that the plan's own bytes leave. */
static ms__outcome entry_replay(const entry_alternatives *a, uint32_t place, uint32_t value)
{
    ms__outcome outcome, cached;
    uint8_t original = a->search->scratch[place];
    a->search->scratch[place] = (uint8_t)value;
    ms_choices choices = ms__search_choices(a->search, a->search->scratch, a->chosen->window, 0);
    ms__sim_run(a->search->sim, &choices, &outcome, NULL);
    if (a->search->sim->on_host) {
        uint64_t left = ms__sub_sat(a->given_bytes, outcome.fixed_bytes);
        choices.ceiling_bytes = ms__max_u64(left, outcome.live_peak_bytes);
        ms__sim_run(a->search->sim, &choices, &cached, NULL);
        outcome.replay.step_ns = cached.replay.step_ns;
    }
    a->search->scratch[place] = original;
    return outcome;
}

/* Among the other admitted techniques: one that fits, then the faster, then the first. */
static void entry_judge_node(const entry_alternatives *a, ms_plan_entry *entry)
{
    uint32_t mask = a->search->admissions[entry->node].under_pressure;
    bool fits = false, found = false;
    for (uint32_t technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        if (technique == entry->technique || (mask & 1u << technique) == 0) {
            continue;
        }
        ms__outcome outcome = entry_replay(a, entry->node, technique);
        uint64_t step = outcome.replay.step_ns, peak = outcome.replay.peak_bytes;
        bool this_fits = peak <= a->room_bytes;
        if (technique == MS_TECHNIQUE_KEEP) {
            entry->saved_bytes = ms__sub_sat(outcome.boundary_bytes, a->chosen->boundary_bytes);
            entry->cost_ns = ms__sub_sat(a->plan->replay.step_ns, step);
        }
        if (!found || (this_fits && !fits) || (this_fits == fits && step < entry->runner_up_ns)) {
            entry->runner_up = technique;
            entry->runner_up_ns = step;
            entry->runner_up_peak_bytes = peak;
            fits = this_fits;
            found = true;
        }
    }
}

/* The alternative for two-valued storages: none packed, or all, whichever the plan does not have. */
static void entry_judge_packing(const entry_alternatives *a, ms_plan_entry *entry)
{
    ms_plan_packing *packing = &entry->packing;
    packing->runner_up = packing->packed;
    packing->runner_up_ns = a->plan->replay.step_ns;
    packing->runner_up_peak_bytes = ms__add_sat(a->plan->replay.peak_bytes, a->plan->reserve_bytes);
    uint32_t most = packing->tensors > 0 ? ms__search_packs(a->search, entry->node) : 0;
    if (most == 0) {
        return;
    }
    packing->runner_up = packing->packed > 0 ? 0 : most;
    ms__outcome outcome = entry_replay(a, a->search->node_count + entry->node, packing->runner_up);
    packing->runner_up_ns = outcome.replay.step_ns;
    packing->runner_up_peak_bytes = outcome.replay.peak_bytes;
    if (packing->packed > 0) {
        packing->saved_bytes = ms__sub_sat(outcome.boundary_bytes, a->chosen->boundary_bytes);
        packing->cost_ns = ms__sub_sat(a->plan->replay.step_ns, outcome.replay.step_ns);
    }
}

static bool entries_alike(const entry_alternatives *a, const ms_plan_entry *left, const ms_plan_entry *right)
{
    const ms_graph *graph = a->search->sim->graph;
    return left->technique == right->technique && left->packing.packed == right->packing.packed &&
           graph->nodes[left->node].profile == graph->nodes[right->node].profile &&
           a->search->admissions[left->node].under_pressure == a->search->admissions[right->node].under_pressure;
}

static void copy_judgement(const ms_plan_entry *from, ms_plan_entry *to)
{
    to->saved_bytes = from->saved_bytes;
    to->cost_ns = from->cost_ns;
    to->runner_up = from->runner_up;
    to->runner_up_ns = from->runner_up_ns;
    to->runner_up_peak_bytes = from->runner_up_peak_bytes;
    to->packing = from->packing;
}

void ms__plan_fill_entries(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan)
{
    entry_alternatives a = {search, &search->items[chosen->candidate], ms__max_u64(room_bytes, chosen->bytes),
                            chosen->bytes, plan};
    uint32_t stride = (uint32_t)ms__div_up(ms__max_u64(plan->entry_count, 1), JUDGED_MOST);
    const ms_plan_entry *last = NULL;
    ms__search_load(search, chosen->candidate);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        ms_plan_entry *entry = &plan->entries[i];
        const ms_admission *admission = &search->admissions[i];
        entry->kept_bytes = admission->saved_bytes;
        entry->rule = admission->rule[entry->technique];
        bool is_refused = admission->rule[MS_TECHNIQUE_RECOMPUTE] == MS_RULE_NOT_REPEATABLE;
        entry->refusal = is_refused ? MS_RULE_NOT_REPEATABLE : 0;
        entry->packing.rule = entry->packing.tensors > 0 ? admission->packing_rule : 0;
        entry->runner_up = entry->technique;
        entry->runner_up_ns = plan->replay.step_ns;
        entry->runner_up_peak_bytes = ms__add_sat(plan->replay.peak_bytes, plan->reserve_bytes);
        if (i % stride != 0 && last != NULL && entries_alike(&a, last, entry)) {
            copy_judgement(last, entry);
        } else {
            entry_judge_node(&a, entry);
            entry_judge_packing(&a, entry);
            last = entry;
        }
    }
}

/* ---- options of the step ---------------------------------------------------------- */

void ms__plan_fill_options(ms__search *search, const ms__variant *chosen, ms_plan *plan)
{
    entry_alternatives a = {search, &search->items[chosen->candidate], chosen->bytes, chosen->bytes, plan};
    uint32_t options = search->steps[a.chosen->step].options;
    uint64_t moved_bytes = search->steps[a.chosen->step].moved_bytes;
    ms__search_load(search, chosen->candidate);
    ms__outcome mine = entry_replay(&a, 0, search->scratch[0]);
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        ms_plan_option *option = &plan->step_options[i];
        uint32_t other = ms__search_step_for(search, ms__step_options_toggle(options, i), moved_bytes);
        option->chosen = (options & 1u << i) != 0;
        if (other == search->step_count) {
            continue; /* not admitted */
        }
        ms__search_use(search, other);
        ms__outcome outcome = entry_replay(&a, 0, search->scratch[0]);
        const ms_replay *with = option->chosen ? &mine.replay : &outcome.replay;
        const ms_replay *without = option->chosen ? &outcome.replay : &mine.replay;
        option->saved_bytes = ms__sub_sat(without->peak_bytes, with->peak_bytes);
        option->cost_ns = ms__sub_sat(with->step_ns, without->step_ns);
        option->gain_ns = ms__sub_sat(without->step_ns, with->step_ns);
    }
}
