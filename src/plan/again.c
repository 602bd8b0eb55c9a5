/*
 * A plan's choices once more, for documents that a finished step has corrected. Called by the session through the
 * extension when a search for another plan could find none that is better.
 */
#include "base/units.h"
#include "plan/explain_internal.h"
#include "sim/step_options.h"

static bool keeps_all(const ms_plan *plan)
{
    bool any = ms_plan_step_options(plan) != 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        any |= plan->entries[i].technique != MS_TECHNIQUE_KEEP || plan->entries[i].packing.packed > 0;
    }
    return !any;
}

/* Nothing is faster than keeping everything. Another plan stays the fastest that fits as long as the corrected step
 * needs more than the one it was chosen for. */
static bool is_still_best(const ms_plan *old, const ms_pressure *pressure)
{
    bool same_bounds = pressure->budget_given == old->pressure.budget_given &&
                       pressure->allowed_bytes == old->pressure.allowed_bytes &&
                       pressure->comfortable == old->pressure.comfortable;
    bool chosen = !pressure->forced && !old->pressure.forced && !old->over_target;
    return same_bounds && chosen && (keeps_all(old) || pressure->need_bytes > old->pressure.need_bytes);
}

static bool is_admitted(const ms__search *search, const ms_plan *old)
{
    for (uint32_t i = 0; i < search->node_count; i++) {
        const ms_admission *admission = &search->admissions[i];
        uint32_t technique = old->entries[i].technique, packed = old->entries[i].packing.packed;
        bool admitted = technique == MS_TECHNIQUE_KEEP || (admission->under_pressure & 1u << technique) != 0;
        if (!admitted || (packed > 0 && packed > ms__search_packs(search, i))) {
            return false;
        }
    }
    return true;
}

/* The window of the plan's transfers; MS__WINDOW_COUNT if the search has no such window. */
static uint32_t window_of(const ms__search *search, const ms_plan *old)
{
    uint32_t window = 0;
    while (window < MS__WINDOW_COUNT && (search->windows[window].write_bytes != old->write_window_bytes ||
                                         search->windows[window].read_bytes != old->read_window_bytes)) {
        window++;
    }
    return window;
}

static void load_choices(ms__search *search, const ms_plan *old)
{
    bool packs = search->row_bytes > search->node_count;
    for (uint32_t i = 0; i < search->node_count; i++) {
        search->scratch[i] = (uint8_t)old->entries[i].technique;
        if (packs) {
            search->scratch[search->node_count + i] = (uint8_t)old->entries[i].packing.packed;
        }
    }
}

/* Adds the old choices as a candidate, after the one that keeps everything. Returns whether they can be replayed. */
static bool add_choices(ms__search *search, const ms_plan *old, size_t *candidate)
{
    uint32_t step = ms__search_step_for(search, ms_plan_step_options(old), old->state_moved_bytes);
    uint32_t window = window_of(search, old);
    ms__search_keep_all(search);
    ms__search_add(search, 0, true);
    *candidate = 0;
    if (keeps_all(old) || search->count == 0) {
        return search->count > 0;
    }
    if (step == search->step_count || window == MS__WINDOW_COUNT) {
        return false;
    }
    ms__search_use(search, step);
    if (!is_admitted(search, old)) {
        return false;
    }
    load_choices(search, old);
    ms__search_add(search, window, true);
    *candidate = search->count - 1;
    return search->count == 2;
}

/* With the largest cache that fits. */
static ms__variant variant_within(const ms__search *search, size_t candidate, uint64_t room_bytes)
{
    const ms__candidate *chosen = &search->items[candidate];
    uint64_t most = ms__add_sat(chosen->fixed_bytes, chosen->held_most_bytes);
    uint64_t slack = search->sim->on_host ? ms__sub_sat(ms__min_u64(room_bytes, most), ms__candidate_peak(chosen)) : 0;
    return ms__variant_of(search, candidate, slack);
}

static int fill_again(ms__search *search, size_t candidate, ms_plan *plan)
{
    uint64_t room_bytes = ms__plan_room(search, plan->pressure.allowed_bytes);
    ms__variant chosen = variant_within(search, candidate, room_bytes);
    ms__plan_fill_unoptimized(search, plan);
    ms__variant_replay(search, &chosen);
    ms__plan_fill(search, &chosen, room_bytes, plan);
    int rc = ms__plan_apply(search, &chosen, plan);
    ms__plan_fill_entries(search, &chosen, room_bytes, plan);
    ms__plan_fill_options(search, &chosen, plan);
    if (rc == MS_OK) {
        rc = ms__explain_peak(search, &chosen, plan);
    }
    return rc == MS_OK ? ms__explain_bound(search, &chosen, plan) : rc;
}

static bool fits(const ms__search *search, size_t candidate, const ms_pressure *pressure)
{
    const ms__candidate *chosen = &search->items[candidate];
    bool heavy_at_low_pressure = !chosen->light && pressure->permille < MS_LOW_PRESSURE_PERMILLE;
    return ms__candidate_peak(chosen) <= pressure->allowed_bytes && !heavy_at_low_pressure;
}

/* What a plan has before its figures. */
static ms_plan *begin_again(const ms__step_case *facts, const uint32_t *rules, const ms_plan *old)
{
    ms_plan *plan = ms__plan_new(facts->graph);
    char *source = ms_strdup(old->decision_source);
    if (plan == NULL || source == NULL) {
        ms_plan_free(plan);
        ms_free(source);
        return NULL;
    }
    ms_free(plan->decision_source);
    plan->decision_source = source;
    plan->pressure = *facts->pressure;
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        plan->step_options[i].rule = rules[i];
    }
    return plan;
}

/* A comfortable plan leaves room in the cache for another model: it is made without a search. */
static int make_again(const ms__step_case *facts, const ms_admission *admissions, const ms_plan *old, ms_plan **plan,
                      ms_error *err)
{
    ms__limits limits = {.most_ns = UINT64_MAX};
    if (facts->pressure->comfortable) {
        return ms__plan_solve(facts->graph, facts->hardware, facts->config, facts->pressure, admissions, &limits, plan,
                              err);
    }
    uint32_t rules[MS_STEP_OPTION_COUNT], chosen = ms_plan_step_options(old);
    uint32_t options = ms__step_options_admit(facts, rules);
    ms__search search;
    size_t candidate;
    if ((options & chosen) != chosen) {
        return MS_OK;
    }
    int rc = ms__search_open(facts->graph, facts->hardware, facts->config, admissions, false, chosen, &search, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (add_choices(&search, old, &candidate) && fits(&search, candidate, facts->pressure)) {
        *plan = begin_again(facts, rules, old);
        rc = *plan == NULL ? MS_ENOMEM : fill_again(&search, candidate, *plan);
    }
    rc = search.out_of_memory || rc != MS_OK ? ms_fail(err, MS_ENOMEM, "plan: out of memory") : MS_OK;
    ms__search_close(&search);
    return rc;
}

int ms_plan_again(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, const ms_plan *old,
                  ms_plan **plan, ms_error *err)
{
    ms_pressure pressure;
    ms_replay kept;
    ms_plan *made = NULL;
    *plan = NULL;
    if (graph->node_count == 0 || old->entry_count != graph->node_count) {
        return MS_OK;
    }
    int rc = ms__simulate_kept(graph, hardware, &kept, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_pressure_of(kept.peak_bytes, hardware, config, &pressure);
    if (!is_still_best(old, &pressure)) {
        return MS_OK;
    }
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    rc = admissions == NULL ? ms_fail(err, MS_ENOMEM, "plan: out of memory for %u nodes", graph->node_count)
                            : ms_rules_admit(graph, hardware, config, &pressure, admissions, err);
    if (rc == MS_OK) {
        ms__step_case facts = {graph, hardware, config, &pressure};
        rc = make_again(&facts, admissions, old, &made, err);
    }
    ms_free(admissions);
    if (rc != MS_OK) {
        ms_plan_free(made);
        return rc;
    }
    *plan = made;
    return MS_OK;
}
