/*
 * The pipeline: graph, hardware and config in, plan out. The file to open first: each stage is one call
 * below. Stages run one way and pass plain values on; nothing is kept between calls.
 */
#include "memscale/pipeline.h"

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "plan/plan_internal.h"

/* ---- planning ----------------------------------------------------------------- */

/* Removes techniques that cost another forward. */
static void hold_segments_back(ms_admission *admissions, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
            uint32_t bit = 1u << technique;
            if (ms_technique_of((ms_technique)technique)->nesting == 0 || (admissions[i].under_pressure & bit) == 0) {
                continue;
            }
            admissions[i].rule[technique] = MS_RULE_LAST_RESORT;
            admissions[i].techniques &= ~bit;
            admissions[i].under_pressure &= ~bit;
        }
    }
}

static ms__limits plan_limits(bool segments, bool exact_only)
{
    return (ms__limits){.most_ns = UINT64_MAX, .segments = segments, .exact_only = exact_only};
}

/* The rules and the search at a known pressure. */
static int plan_at(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, ms__limits *limits, ms_plan **plan, ms_error *err)
{
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    if (admissions == NULL) {
        return ms_fail(err, MS_ENOMEM, "pipeline: out of memory for %u nodes", graph->node_count);
    }
    int rc = ms_rules_admit(graph, hardware, config, pressure, admissions, err);
    if (rc == MS_OK && !limits->segments) {
        hold_segments_back(admissions, graph->node_count);
    }
    if (rc == MS_OK) {
        rc = ms__plan_solve(graph, hardware, config, pressure, admissions, limits, plan, err);
    }
    ms_free(admissions);
    return rc;
}

static int pipeline_pressure_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                ms_pressure *pressure, ms_error *err)
{
    ms_replay kept;
    int rc = ms__simulate_kept(graph, hardware, &kept, err);
    if (rc == MS_OK) {
        ms_pressure_of(kept.peak_bytes, hardware, config, pressure);
    }
    return rc;
}

/* ---- before the training loop has been observed ---------------------------------------- */

/* From the loop that holds most to the one that holds least. */
enum { ASSUMPTIONS = 3 };
static const struct {
    bool outputs_held, gradients_live;
} assumptions[ASSUMPTIONS] = {{true, true}, {true, false}, {false, false}};

/* The graph with that loop; it shares everything else with the original. */
static ms_graph graph_assuming(const ms_graph *graph, int which)
{
    ms_graph assumed = *graph;
    assumed.loop.outputs_held = assumptions[which].outputs_held;
    assumed.loop.gradients_live_in_forward = assumptions[which].gradients_live;
    return assumed;
}

/* Plans for one assumption within limits. MS_EINFEASIBLE also if only the target is missed. */
static int plan_assuming(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, int which,
                         ms__limits *limits, ms_plan **plan, ms_error *err)
{
    ms_graph assumed = graph_assuming(graph, which);
    ms_pressure pressure;
    int rc = pipeline_pressure_of(&assumed, hardware, config, &pressure, err);
    if (rc != MS_OK) {
        return rc;
    }
    pressure.comfortable = false; /* a comfortable fit needs no assumption relaxed; see plan_in_class() */
    ms_plan *made = NULL;
    rc = plan_at(&assumed, hardware, config, &pressure, limits, &made, err);
    if (made == NULL) {
        return rc;
    }
    if (made->over_target && which + 1 < ASSUMPTIONS) {
        ms_plan_free(made);
        return MS_EINFEASIBLE;
    }
    *plan = made;
    return MS_OK;
}

/*
 * The plan is made for the loop that holds most, and for less only if that does not fit; two steps later the
 * loop has been observed. A larger budget must not give a slower plan. So a plan for a loop that holds more may be at
 * most as slow as the plan with which the loop that holds least meets its smallest budget, and a plan for a loop that
 * holds less must be at least as slow as those for more.
 *
 * Segments that cost another forward are offered only for the loop that holds least. Otherwise users
 * would see slow steps for a loop that may not be theirs.
 */
static int plan_unobserved(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, bool exact_only,
                           ms_plan **plan, ms_error *err)
{
    const int last = ASSUMPTIONS - 1;
    ms__limits open = plan_limits(true, exact_only), careful = plan_limits(false, exact_only);
    ms_plan *fallback = NULL;
    int rc = plan_assuming(graph, hardware, config, last, &open, &fallback, err);
    if (fallback == NULL) {
        return rc;
    }
    if (fallback->over_target) {
        *plan = fallback;
        return MS_OK;
    }
    careful.most_ns = open.slowest_ns;
    for (int i = 0; i < last; i++) {
        rc = plan_assuming(graph, hardware, config, i, &careful, plan, err);
        if (rc == MS_OK) {
            /* The least careful assumption's smallest budget would be accepted. */
            (*plan)->smallest_budget_bytes = fallback->smallest_budget_bytes;
        }
        if (rc != MS_EINFEASIBLE) {
            ms_plan_free(fallback);
            return rc;
        }
        careful.least_ns = ms__max_u64(careful.least_ns, careful.slowest_ns);
    }
    if (fallback->replay.step_ns >= careful.least_ns) {
        *plan = fallback;
        return MS_OK;
    }
    ms_plan_free(fallback);
    open.most_ns = open.slowest_ns;
    open.least_ns = careful.least_ns;
    return plan_assuming(graph, hardware, config, last, &open, plan, err);
}

/* ---- classes of exactness ----------------------------------------------------------------- */

int ms__pipeline_pressure(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          ms_pressure *pressure, ms_error *err)
{
    ms_graph careful = graph->loop.observed ? *graph : graph_assuming(graph, 0);
    return pipeline_pressure_of(&careful, hardware, config, pressure, err);
}

static int plan_in_class(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                         const ms_pressure *pressure, bool exact_only, ms_plan **plan, ms_error *err)
{
    if (!graph->loop.observed && !pressure->comfortable && !pressure->forced) {
        return plan_unobserved(graph, hardware, config, exact_only, plan, err);
    }
    ms_graph careful = graph->loop.observed ? *graph : graph_assuming(graph, 0);
    ms__limits limits = plan_limits(!pressure->forced, exact_only);
    return plan_at(&careful, hardware, config, pressure, &limits, plan, err);
}

/* Stores the smallest budget accepted in any class in a plan of the exact one. */
static int name_smallest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan *exact,
                         ms_error *err)
{
    ms_plan *least = NULL;
    ms__limits limits = plan_limits(true, false);
    ms_graph assumed = graph->loop.observed ? *graph : graph_assuming(graph, ASSUMPTIONS - 1);
    ms_pressure pressure = exact->pressure;
    int rc = plan_at(&assumed, hardware, config, &pressure, &limits, &least, err);
    if (rc == MS_OK) {
        exact->smallest_budget_bytes = ms__min_u64(exact->smallest_budget_bytes, least->smallest_budget_bytes);
    }
    ms_plan_free(least);
    return rc == MS_EINFEASIBLE ? MS_OK : rc;
}

/* Rounding options are tried only if no exact plan fits, under any assumption and with segments. */
static int plan_any(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                    ms_error *err)
{
    ms_graph careful = graph->loop.observed ? *graph : graph_assuming(graph, 0);
    ms_pressure pressure;
    int rc = pipeline_pressure_of(&careful, hardware, config, &pressure, err);
    if (rc != MS_OK) {
        return rc;
    }
    bool may_round = config->enable_tiling && !pressure.comfortable && !pressure.forced;
    ms_plan *exact = NULL;
    rc = plan_in_class(graph, hardware, config, &pressure, may_round, &exact, err);
    if (may_round && (rc == MS_EINFEASIBLE || (rc == MS_OK && exact->over_target))) {
        ms_plan_free(exact);
        exact = NULL;
        rc = plan_in_class(graph, hardware, config, &pressure, false, &exact, err);
    } else if (may_round && rc == MS_OK) {
        rc = name_smallest(graph, hardware, config, exact, err);
    }
    if (rc != MS_OK) {
        ms_plan_free(exact);
        return rc;
    }
    *plan = exact;
    return MS_OK;
}

int ms__pipeline_smallest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint64_t *bytes,
                          ms_error *err)
{
    ms_graph assumed = graph->loop.observed ? *graph : graph_assuming(graph, ASSUMPTIONS - 1);
    ms_config tight = *config;
    ms_pressure pressure;
    ms_plan *plan = NULL;
    ms_error refusal = {0};
    ms__limits limits = plan_limits(true, false);
    tight.memory_budget_bytes = 1;
    int rc = pipeline_pressure_of(&assumed, hardware, &tight, &pressure, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = plan_at(&assumed, hardware, &tight, &pressure, &limits, &plan, &refusal);
    ms_plan_free(plan);
    if (rc == MS_OK || rc == MS_EINFEASIBLE) {
        *bytes = rc == MS_OK ? 1 : refusal.hint_bytes;
        return MS_OK;
    }
    return ms_fail(err, rc, "%s", refusal.text);
}

int ms__pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                      ms_error *err)
{
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "pipeline: the graph has no nodes");
    }
    return plan_any(graph, hardware, config, plan, err);
}

void ms__pipeline_add_forced(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan *plan)
{
    ms_config wanted = *config;
    ms_plan *forced = NULL;
    wanted.force_optimize = true;
    if (ms__pipeline_plan(graph, hardware, &wanted, &forced, NULL) == MS_OK) {
        plan->why.forced = (ms_neighbour){forced->replay.peak_bytes, forced->replay.peak_bytes, forced->replay.step_ns};
    }
    ms_plan_free(forced);
}

int ms_pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                     ms_error *err)
{
    int rc = ms__pipeline_plan(graph, hardware, config, plan, err);
    if (rc == MS_OK && (*plan)->skipped) {
        ms__pipeline_add_forced(graph, hardware, config, *plan);
    }
    if (rc == MS_EINFEASIBLE && err != NULL) {
        ms__pipeline_suggest(graph, hardware, config, err);
    }
    return rc;
}
