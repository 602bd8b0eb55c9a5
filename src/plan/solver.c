/*
 * The solver: proposes candidates, selects one, and makes the plan of it, or says what
 * the smallest budget would be. Called by the pipeline with what the rules admitted.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "plan/plan_internal.h"

enum { FRONT_MOST = 32, UNIFORM_MOST = 64, FINALISTS_MOST = 2 * FRONT_MOST + UNIFORM_MOST };

static size_t add_finalist(size_t *finalists, size_t count, size_t candidate)
{
    for (size_t i = 0; i < count; i++) {
        if (finalists[i] == candidate) {
            return count;
        }
    }
    finalists[count] = candidate;
    return count + 1;
}

/* Candidates worth a closer look whatever the budget: the fronts of all and of the
 * light ones, and the uniform plans, which come first in the set. */
static size_t list_finalists(ms__search *search, size_t uniform_count, size_t *finalists)
{
    size_t front[FRONT_MOST], count = 0;
    for (int light = 0; light < 2; light++) {
        size_t found = ms__search_front(search, light == 1, front, FRONT_MOST);
        for (size_t i = 0; i < found; i++) {
            count = add_finalist(finalists, count, front[i]);
        }
    }
    for (size_t i = 0; i < uniform_count && i < UNIFORM_MOST; i++) {
        count = add_finalist(finalists, count, i);
    }
    return count;
}

static size_t propose(ms__search *search)
{
    ms__families_uniform(search);
    size_t uniform_count = search->count;
    /* The yardstick is never refused for pressing harder than low pressure asks. */
    for (size_t i = 0; i < uniform_count; i++) {
        search->items[i].light = true;
    }
    ms__families_split(search);
    ms__families_greedy(search);
    ms__families_mixed(search);
    ms__families_refine(search);
    return uniform_count;
}

static ms__bounds bounds_of(const ms__search *search, const ms_pressure *pressure)
{
    const ms__candidate *kept = &search->items[0];
    ms__bounds bounds = {.allowed_bytes = pressure->allowed_bytes,
                     .heavy_bytes = pressure->allowed_bytes,
                     .most_bytes = ms__add_sat(kept->fixed_bytes, kept->held_most_bytes)};
    if (pressure->permille <= MS_LOW_PRESSURE_PERMILLE) {
        uint64_t begins = ms__mul_div_up(pressure->need_bytes, 1000, MS_LOW_PRESSURE_PERMILLE);
        bounds.heavy_bytes = ms__min_u64(begins, pressure->allowed_bytes);
    }
    return bounds;
}

/* "recompute on 12 nodes, offload_disk on 3 nodes". */
static void describe_use(const ms__search *search, const uint8_t *techniques, char *text, size_t size)
{
    uint32_t used[MS_TECHNIQUE_COUNT] = {0};
    size_t length = 0;
    snprintf(text, size, "nothing that mode and flags admit");
    for (uint32_t i = 0; i < search->node_count; i++) {
        used[techniques[i]]++;
    }
    for (int i = 1; i < MS_TECHNIQUE_COUNT; i++) {
        if (used[i] > 0 && length < size) {
            int wrote = snprintf(text + length, size - length, "%s%s on %u nodes", length > 0 ? ", " : "",
                                 ms_technique_name((ms_technique)i), used[i]);
            length += wrote > 0 ? (size_t)wrote : 0;
        }
    }
}

static int refuse(const ms__search *search, const ms_pressure *pressure, ms_error *err)
{
    size_t best = ms__select_smallest_peak(search);
    uint64_t smallest = ms__candidate_peak(&search->items[best]);
    char use[160];
    describe_use(search, ms__candidate_techniques(search, best), use, sizeof use);
    int code = ms_fail(err, MS_EINFEASIBLE,
                       "memory_budget_gb: no plan fits %s; the smallest budget that would fit is %s "
                       "(%llu bytes), which takes %s; everything kept needs %s",
                       ms__text_bytes(pressure->allowed_bytes).text, ms__text_bytes(smallest).text,
                       (unsigned long long)smallest, use, ms__text_bytes(pressure->need_bytes).text);
    if (err != NULL) {
        err->hint_bytes = smallest;
    }
    return code;
}

/* Steps down from the best while anything smaller is next to it. A forced plan has no
 * budget to be monotone in. */
static size_t press_on(ms__search *search)
{
    size_t best = ms__select_smallest_tensors(search), before;
    do {
        before = best;
        ms__families_around(search, best);
        best = ms__select_smallest_tensors(search);
    } while (best != before && search->replays_left > 0);
    return best;
}

/* The choice at this pressure, and in *room_bytes what the plan may fill with cache. */
static bool choose(ms__search *search, const ms_pressure *pressure, ms__variant *chosen, uint64_t *room_bytes)
{
    size_t finalists[FINALISTS_MOST];
    size_t uniform_count = propose(search);
    if (search->out_of_memory) {
        return false;
    }
    if (pressure->forced) {
        *chosen = (ms__variant){.candidate = press_on(search)};
        *room_bytes = 0;
        ms__variant_replay(search, chosen);
        return true;
    }
    ms__bounds bounds = bounds_of(search, pressure);
    size_t count = list_finalists(search, uniform_count, finalists);
    *room_bytes = ms__min_u64(bounds.allowed_bytes, bounds.most_bytes);
    if (ms__select(search, &bounds, finalists, count, chosen)) {
        return true;
    }
    *chosen = (ms__variant){.candidate = ms__select_smallest_peak(search)};
    *room_bytes = 0;
    ms__variant_replay(search, chosen);
    return ms__candidate_peak(&search->items[chosen->candidate]) <= pressure->allowed_bytes;
}

static int solve(ms__search *search, const ms_pressure *pressure, ms_plan *plan, ms_error *err)
{
    ms__variant chosen;
    uint64_t room_bytes;
    bool fits = choose(search, pressure, &chosen, &room_bytes);
    if (search->out_of_memory) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory after %zu candidates", search->count);
    }
    if (!fits && pressure->budget_given) {
        return refuse(search, pressure, err);
    }
    plan->over_target = !fits;
    plan->smallest_budget_bytes = ms__candidate_peak(&search->items[ms__select_smallest_peak(search)]);
    ms__plan_fill(search, &chosen, room_bytes, plan);
    ms__plan_fill_unoptimized(search, plan);
    ms__plan_apply(search, &chosen, plan);
    ms__plan_fill_entries(search, chosen.candidate, ms__max_u64(room_bytes, ms__variant_bytes(search, &chosen)), plan);
    return MS_OK;
}

/* A comfortable fit: nothing is done. A budget that was given is still kept by hostmem. */
static int skip(ms__search *search, const ms_pressure *pressure, ms_plan *plan, ms_error *err)
{
    memset(search->scratch, MS_TECHNIQUE_KEEP, search->node_count);
    ms__search_add(search, 0, true);
    if (search->out_of_memory) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory");
    }
    ms__variant kept = {.candidate = 0};
    ms__bounds bounds = bounds_of(search, pressure);
    ms__plan_fill_unoptimized(search, plan);
    kept.replay = plan->unoptimized;
    ms__plan_fill(search, &kept, pressure->budget_given ? ms__min_u64(bounds.allowed_bytes, bounds.most_bytes) : 0, plan);
    plan->skipped = true;
    ms__plan_apply(search, &kept, plan);
    ms__plan_fill_entries(search, 0, ms__candidate_peak(&search->items[0]), plan);
    return MS_OK;
}

int ms_plan_solve(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                  const ms_pressure *pressure, const ms_admission *admissions, ms_plan **plan, ms_error *err)
{
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "solver: the graph has no nodes");
    }
    ms__search search;
    int rc = ms__search_open(graph, hardware, config, admissions, pressure->forced, &search, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_plan *made = ms__plan_new(graph);
    if (made == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "solver: out of memory for a plan of %u nodes", graph->node_count);
    } else {
        made->pressure = *pressure;
        rc = pressure->comfortable ? skip(&search, pressure, made, err) : solve(&search, pressure, made, err);
    }
    ms__search_close(&search);
    if (rc != MS_OK) {
        ms_plan_free(made);
        return rc;
    }
    *plan = made;
    return MS_OK;
}

