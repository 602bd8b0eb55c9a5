/*
 * The search: proposes candidates, selects one and makes its plan, or names the smallest budget. Called by
 * the pipeline with the rules' admissions.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "plan/explain_internal.h"

enum { FRONT_MOST = 48, UNIFORM_MOST = 128, SMALLEST_MOST = 8 };
enum { FINALISTS_MOST = 12 * FRONT_MOST + UNIFORM_MOST + SMALLEST_MOST };
enum { SELECTIVE_PART = 4, SEGMENT_PART = 4, SEGMENT_REPLAYS_LEAST = 96 };
enum { PACKING_PART = 3, PACKING_REPLAYS_LEAST = 160 };
enum { STATE_PART = 4, STATE_REPLAYS_LEAST = 192 };

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

/* The candidates of the smallest peak: at the smallest budget hardly any cache fits, and neither front
 * ranks them at that budget. */
static size_t list_smallest(const ms__search *search, size_t *finalists, size_t count)
{
    uint64_t smallest = ms__candidate_peak(&search->items[ms__select_smallest_peak(search)]);
    size_t most = count + SMALLEST_MOST;
    for (size_t i = 0; i < search->count && count < most; i++) {
        if (ms__candidate_peak(&search->items[i]) == smallest) {
            count = add_finalist(finalists, count, i);
        }
    }
    return count;
}

/* Adds the fronts, with and without a cache, of the first `among` candidates and of the light ones of them. */
static size_t list_fronts(ms__search *search, size_t among, size_t *finalists, size_t count)
{
    size_t front[FRONT_MOST];
    for (int i = 0; i < 4; i++) {
        ms__front_kind kind = i < 2 ? MS__FRONT_UNCACHED : MS__FRONT_CACHED;
        size_t found = ms__search_front(search, kind, i % 2 == 1, among, front, FRONT_MOST);
        for (size_t f = 0; f < found; f++) {
            count = add_finalist(finalists, count, front[f]);
        }
    }
    return count;
}

/* Candidates worth a closer look at any budget: the fronts, the uniform plans, and the smallest. Candidates with bit
 * packing have fronts of their own, and so have those with a part of the state moved: they displace no other. */
static size_t list_finalists(ms__search *search, size_t *finalists)
{
    const size_t among[] = {search->plain_count, search->whole_count, search->count};
    size_t count = 0;
    for (size_t i = 0; i < sizeof among / sizeof among[0]; i++) {
        count = i == 0 || among[i] > among[i - 1] ? list_fronts(search, among[i], finalists, count) : count;
    }
    size_t uniform = 0;
    for (size_t i = 0; i < search->count && uniform < UNIFORM_MOST; i++) {
        if (search->items[i].uniform) {
            count = add_finalist(finalists, count, i);
            uniform++;
        }
    }
    return list_smallest(search, finalists, count);
}

/* The range of each step's uniform candidates among the items. */
typedef struct uniforms {
    size_t first[MS__STEPS_COMBINED_MOST + 1];
} uniforms;

static void propose_uniform(ms__search *search, uniforms *made)
{
    for (uint32_t step = 0; step < search->step_count; step++) {
        made->first[step] = search->count;
        ms__search_use(search, step);
        ms__families_uniform(search);
    }
    made->first[search->step_count] = search->count;
}

/* Whether step b has, for each uniform candidate of step a, the same techniques at no more time and no
 * higher peak. Of two equal steps the one with fewer options stays. */
static bool is_beaten_by(const ms__search *search, const uniforms *made, uint32_t a, uint32_t b)
{
    bool alike = true;
    for (size_t i = made->first[a]; i < made->first[a + 1]; i++) {
        const ms__candidate *mine = &search->items[i];
        bool covered = false;
        for (size_t k = made->first[b]; k < made->first[b + 1] && !covered; k++) {
            const ms__candidate *other = &search->items[k];
            covered = other->window == mine->window && other->step_ns <= mine->step_ns &&
                      other->work_ns <= mine->work_ns && ms__candidate_peak(other) <= ms__candidate_peak(mine) &&
                      memcmp(ms__candidate_row(search, i), ms__candidate_row(search, k), search->row_bytes) == 0;
            alike = alike && (!covered || (other->step_ns == mine->step_ns && other->work_ns == mine->work_ns &&
                                           ms__candidate_peak(other) == ms__candidate_peak(mine)));
        }
        if (!covered) {
            return false;
        }
    }
    return !alike || b < a;
}

static ms_exactness step_class(const ms__search *search, uint32_t step)
{
    return ms__step_options_exactness(search->steps[step].options);
}

/* The steps worth a search of their own: no other step that is as exact beats them. */
static uint32_t list_steps(const ms__search *search, const uniforms *made, uint32_t *steps)
{
    uint32_t count = 0;
    for (uint32_t a = 0; a < search->step_count; a++) {
        bool beaten = false;
        for (uint32_t b = 0; b < search->step_count && !beaten; b++) {
            beaten = b != a && step_class(search, b) <= step_class(search, a) && is_beaten_by(search, made, a, b);
        }
        if (!beaten) {
            steps[count++] = a;
        }
    }
    return count;
}

/* After all others, with a quarter of their replays on top: so they take nothing away from the others'
 * results. */
static void propose_selective(ms__search *search, const uint32_t *steps, uint32_t count)
{
    if (search->selective_techniques == 0) {
        return;
    }
    uint64_t share = search->replays_most / SELECTIVE_PART / (count + 1);
    for (uint32_t i = 0; i < count; i++) {
        search->replays_left = share;
        ms__search_use(search, steps[i]);
        ms__families_selective(search);
    }
    search->replays_left = share;
    ms__families_refine(search);
}

/* The same, after the selective ones. */
static void propose_segments(ms__search *search, const uint32_t *steps, uint32_t count)
{
    if (search->segment_techniques == 0) {
        return;
    }
    uint64_t share =
        ms__max_u64(search->replays_most / SEGMENT_PART / (count + 1), ms__search_share(search, SEGMENT_REPLAYS_LEAST));
    for (uint32_t i = 0; i < count; i++) {
        search->replays_left = share;
        ms__search_use(search, steps[i]);
        ms__families_segment(search);
    }
    search->replays_left = share;
    search->offered |= search->segment_techniques;
    ms__families_refine(search);
}

/* The same, on the best of all candidates without packing. */
static void propose_packing(ms__search *search, uint32_t count)
{
    search->plain_count = search->count;
    if (search->row_bytes == search->node_count) {
        return; /* nothing is two-valued */
    }
    uint64_t share =
        ms__max_u64(search->replays_most / PACKING_PART / (count + 1), ms__search_share(search, PACKING_REPLAYS_LEAST));
    search->replays_left = share * count;
    ms__families_packing(search);
    search->packing_offered = true;
    search->replays_left = share;
    ms__families_refine(search);
}

/* The same, on the best of all candidates that move all state or none. */
static void propose_parts(ms__search *search)
{
    search->whole_count = search->count;
    if (search->forced) { /* its peak is to be the smallest */
        return;
    }
    search->replays_left =
        ms__max_u64(search->replays_most / STATE_PART, ms__search_share(search, STATE_REPLAYS_LEAST));
    ms__families_state(search);
}

static void solver_propose(ms__search *search)
{
    uniforms made;
    uint32_t steps[MS__STEPS_COMBINED_MOST];
    propose_uniform(search, &made);
    if (search->out_of_memory) {
        return;
    }
    uint32_t count = list_steps(search, &made, steps);
    for (uint32_t i = 0; i < count; i++) {
        /* Each step gets a share of the replays, and so does refinement. */
        uint64_t kept = count == 1 ? 0 : search->replays_left - search->replays_left / (count - i + 1);
        search->replays_left -= kept;
        ms__search_use(search, steps[i]);
        ms__families_split(search);
        ms__families_greedy(search);
        ms__families_mixed(search);
        search->replays_left += kept;
    }
    ms__families_refine(search);
    propose_selective(search, steps, count);
    propose_segments(search, steps, count);
    propose_packing(search, count);
    propose_parts(search);
}

/* At low pressure, candidates that are not light must fit the budget at which low pressure begins, or the
 * smallest exact budget if that is larger. */
static ms__bounds bounds_at(const ms__search *search, uint64_t need_bytes, uint64_t allowed_bytes,
                            const ms__limits *limits)
{
    uint64_t begins = ms__mul_div_up(need_bytes, 1000, MS_LOW_PRESSURE_PERMILLE);
    uint64_t smallest = ms__candidate_peak(&search->items[ms__select_smallest_exact(search)]);
    return (ms__bounds){.allowed_bytes = allowed_bytes,
                        .heavy_bytes = ms__min_u64(allowed_bytes, ms__max_u64(begins, smallest)),
                        .least_ns = limits->least_ns,
                        .most_ns = limits->most_ns};
}

/* "12 x recompute, 3 x offload_disk, exact_loss_head". */
static void describe_use(const ms__search *search, const uint8_t *row, uint32_t step, char *text, size_t size)
{
    uint32_t used[MS_TECHNIQUE_COUNT] = {0};
    uint32_t options = search->steps[step].options;
    const uint8_t *packed = ms__row_packed(search, row);
    uint32_t packing = 0;
    size_t length = 0;
    snprintf(text, size, "no technique, because none that mode and flags admit frees more");
    for (uint32_t i = 0; i < search->node_count; i++) {
        used[row[i]]++;
        packing += packed != NULL && packed[i] > 0;
    }
    for (int i = 1; i < MS_TECHNIQUE_COUNT; i++) {
        if (used[i] > 0 && length < size) {
            int wrote = snprintf(text + length, size - length, "%s%u x %s", length > 0 ? ", " : "", used[i],
                                 ms_technique_name((ms_technique)i));
            length += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    if (packing > 0 && length < size) {
        int wrote = snprintf(text + length, size - length, "%s%u x masks as bits", length > 0 ? ", " : "", packing);
        length += wrote > 0 ? (size_t)wrote : 0;
    }
    for (int i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        if ((options & 1u << i) != 0 && length < size) {
            int wrote = snprintf(text + length, size - length, "%s%s", length > 0 ? ", " : "",
                                 ms_step_option_name((ms_step_option)i));
            length += wrote > 0 ? (size_t)wrote : 0;
        }
    }
}

static int solver_refuse(const ms__search *search, const ms_pressure *pressure, ms_error *err)
{
    size_t best = ms__select_smallest_peak(search);
    /* Both for another run: the smallest must not exceed the other. */
    uint64_t smallest = ms__add_sat(ms__candidate_peak(&search->items[best]), search->runs_differ_bytes);
    uint64_t need = ms__add_sat(pressure->need_bytes, search->runs_differ_bytes);
    char use[240];
    describe_use(search, ms__candidate_row(search, best), search->items[best].step, use, sizeof use);
    int code =
        ms_fail(err, MS_EINFEASIBLE,
                "memory_budget_gb: no plan fits %s; everything kept needs %s; the smallest budget that would fit "
                "is %s (%llu bytes), with %s",
                ms__text_bytes(pressure->allowed_bytes).text, ms__text_bytes_up(need).text,
                ms__text_bytes_up(smallest).text, (unsigned long long)smallest, use);
    if (err != NULL) {
        err->hint_bytes = smallest;
    }
    return code;
}

/* Moves to a smaller neighbour while there is one. A forced plan has no budget to be monotone in. */
static size_t solver_press_on(ms__search *search)
{
    size_t best = ms__select_forced(search), before;
    do {
        before = best;
        ms__families_around(search, best);
        best = ms__select_forced(search);
    } while (best != before && search->replays_left > 0);
    return best;
}

/* The step time of the plan for the smallest budget within the limits; 0 if there is none. */
static uint64_t slowest_ns(ms__search *search, ms__variants *variants, const ms_pressure *pressure,
                           const ms__limits *limits)
{
    ms__bounds bounds = bounds_at(search, pressure->need_bytes, UINT64_MAX, limits);
    const ms__variant *least = ms__select_least(search, variants, &bounds);
    if (least == NULL) {
        return 0;
    }
    bounds = bounds_at(search, pressure->need_bytes, least->bytes, limits);
    const ms__variant *fastest = ms__select(search, variants, &bounds);
    return fastest != NULL ? fastest->replay.step_ns : least->replay.step_ns;
}

/* The chosen variant, whether it fits, and the bytes it may fill with cache. */
typedef struct choice {
    ms__variant variant;
    bool fits;
    uint64_t room_bytes;
} choice;

/* The choice for a binding budget or a target. */
static int choose_fastest(ms__search *search, ms__limits *limits, ms_plan *plan, choice *made)
{
    const ms_pressure *pressure = &plan->pressure;
    size_t finalists[FINALISTS_MOST];
    ms__variants variants;
    size_t count = list_finalists(search, finalists);
    if (search->out_of_memory ||
        ms__variants_make(search, finalists, count, ms__plan_most(search), &variants) != MS_OK) {
        search->out_of_memory = true;
        return MS_ENOMEM;
    }
    ms__bounds bounds = bounds_at(search, pressure->need_bytes, pressure->allowed_bytes, limits);
    const ms__variant *found = ms__select(search, &variants, &bounds);
    made->fits = found != NULL;
    made->variant = found != NULL ? *found : ms__variant_of(search, ms__select_smallest_peak(search), 0);
    made->room_bytes = found != NULL ? ms__plan_room(search, pressure->allowed_bytes) : 0;
    ms__variant_replay(search, &made->variant);
    limits->slowest_ns = slowest_ns(search, &variants, pressure, limits);
    ms__explain_neighbours(search, &variants, &bounds, &made->variant, ms__plan_most(search), plan);
    ms__variants_free(&variants);
    return MS_OK;
}

static int solver_choose(ms__search *search, ms__limits *limits, ms_plan *plan, choice *made)
{
    solver_propose(search);
    if (search->out_of_memory) {
        return MS_ENOMEM;
    }
    if (!plan->pressure.forced) {
        return choose_fastest(search, limits, plan, made);
    }
    *made = (choice){.variant = ms__variant_of(search, solver_press_on(search), 0), .fits = true};
    ms__variant_replay(search, &made->variant);
    return search->out_of_memory ? MS_ENOMEM : MS_OK;
}

static int solver_explain(ms__search *search, const ms__variant *chosen, ms_plan *plan, ms_error *err)
{
    int rc = ms__explain_peak(search, chosen, plan);
    if (rc == MS_OK) {
        rc = ms__explain_bound(search, chosen, plan);
    }
    return rc == MS_OK ? MS_OK : ms_fail(err, rc, "solver: out of memory for an explanation");
}

static int solver_solve(ms__search *search, const ms_pressure *pressure, ms__limits *limits, ms_plan *plan,
                        ms_error *err)
{
    choice made;
    ms__plan_fill_unoptimized(search, plan);
    if (solver_choose(search, limits, plan, &made) != MS_OK) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory after %zu candidates", search->count);
    }
    if (!made.fits && pressure->budget_given) {
        return solver_refuse(search, pressure, err);
    }
    plan->over_target = !made.fits;
    plan->smallest_budget_bytes = ms__candidate_peak(&search->items[ms__select_smallest_peak(search)]);
    ms__plan_fill(search, &made.variant, made.room_bytes, plan);
    if (ms__plan_apply(search, &made.variant, plan) != MS_OK) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory");
    }
    ms__plan_fill_entries(search, &made.variant, made.room_bytes, plan);
    ms__plan_fill_options(search, &made.variant, plan);
    if (search->out_of_memory) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory for the options' reasons");
    }
    return solver_explain(search, &made.variant, plan, err);
}

/* The whole process shares the cache: under a ceiling of this model's need alone, a second model would
 * make both fault their memory in again in every step. So a plan that does nothing leaves room for as much
 * again, within the allowed bytes. It leaves no more than that, as the cache grows with every new shape. */
static void leave_room_in_cache(const ms__search *search, const ms_pressure *pressure, ms_plan *plan)
{
    uint64_t own_bytes = search->items[0].held_most_bytes;
    uint64_t room_bytes = ms__min_u64(ms__sub_sat(pressure->allowed_bytes, search->items[0].fixed_bytes),
                                      ms__add_sat(own_bytes, own_bytes));
    room_bytes = ms__sub_sat(room_bytes, plan->replay.small_peak_bytes);
    plan->ceiling_bytes = search->sim->on_host ? ms__max_u64(plan->ceiling_bytes, room_bytes) : 0;
}

/* A comfortable fit: nothing is done. Hostmem still keeps a given budget. */
static int solver_skip(ms__search *search, const ms_pressure *pressure, ms_plan *plan, ms_error *err)
{
    ms__search_keep_all(search);
    ms__search_add(search, 0, true);
    if (search->out_of_memory) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory");
    }
    ms__variant kept = ms__variant_of(search, 0, 0);
    ms__plan_fill_unoptimized(search, plan);
    kept.replay = plan->unoptimized;
    uint64_t room_bytes = pressure->budget_given ? ms__plan_room(search, pressure->allowed_bytes) : 0;
    ms__plan_fill(search, &kept, room_bytes, plan);
    leave_room_in_cache(search, pressure, plan);
    plan->skipped = true;
    if (ms__plan_apply(search, &kept, plan) != MS_OK) {
        return ms_fail(err, MS_ENOMEM, "solver: out of memory");
    }
    ms__plan_fill_entries(search, &kept, room_bytes, plan);
    return solver_explain(search, &kept, plan, err);
}

/* The options without those that may change bits. */
static uint32_t leave_out_inexact(uint32_t options, uint32_t *rules)
{
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        if ((options & 1u << i) != 0 && ms_step_option_exactness((ms_step_option)i) != MS_EXACT) {
            options &= ~(1u << i);
            rules[i] = MS_RULE_EXACT_FITS;
        }
    }
    return options;
}

int ms__plan_solve(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, const ms_admission *admissions, ms__limits *limits, ms_plan **plan,
                   ms_error *err)
{
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "solver: the graph has no nodes");
    }
    ms__search search;
    ms__step_case facts = {graph, hardware, config, pressure};
    uint32_t rules[MS_STEP_OPTION_COUNT];
    uint32_t options = ms__step_options_admit(&facts, rules);
    options = limits->exact_only ? leave_out_inexact(options, rules) : options;
    int rc = ms__search_open(graph, hardware, config, admissions, pressure->forced, options, &search, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_plan *made = ms__plan_new(graph);
    for (uint32_t i = 0; made != NULL && i < MS_STEP_OPTION_COUNT; i++) {
        made->step_options[i].rule = rules[i];
    }
    if (made == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "solver: out of memory for a plan of %u nodes", graph->node_count);
    } else {
        made->pressure = *pressure;
        rc = pressure->comfortable ? solver_skip(&search, pressure, made, err)
                                   : solver_solve(&search, pressure, limits, made, err);
    }
    ms__search_close(&search);
    if (rc != MS_OK) {
        ms_plan_free(made);
        return rc;
    }
    *plan = made;
    return MS_OK;
}
