/*
 * Stage 1 in the pipeline: context, policy, effective configuration, then the plan. Called if
 * Config(auto_policy=True). The caller's configuration is not changed.
 */
#include <stdio.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/sim.h"

/* Stage 1 does not decide: the configuration stays as it is. */
static void use_config(const ms_config *config, const char *reason, ms_strategy_decision *decision)
{
    decision->source = MS_DECISION_SOURCE_USER_CONFIG;
    decision->strategy = (ms_strategy){config->mode, config->enable_checkpointing, config->enable_offloading, 1000, 0};
    snprintf(decision->reason, sizeof decision->reason, "%s", reason);
}

int ms_pipeline_as_configured(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                              ms_strategy_decision *decision, ms_error *err)
{
    ms_pressure pressure;
    ms_strategy_decision made = {0};
    int rc = MS_OK;
    if (graph != NULL && hardware != NULL) {
        rc = ms__pipeline_pressure(graph, hardware, config, &pressure, err);
        if (rc == MS_OK) {
            rc = ms__pipeline_context(graph, hardware, config, &pressure, &made.context, err);
        }
    }
    if (rc == MS_OK) {
        use_config(config, config->auto_policy ? "no step is known yet" : "auto_policy is off", &made);
        *decision = made;
    }
    return rc;
}

static int name_source(const ms_strategy_decision *decision, ms_plan *plan, ms_error *err)
{
    char *name = ms_strdup(ms_decision_source_name(decision->source));
    if (name == NULL) {
        return ms_fail(err, MS_ENOMEM, "pipeline: out of memory");
    }
    ms_free(plan->decision_source);
    plan->decision_source = name;
    return MS_OK;
}

/* How much the plan's assumed loop may hold. */
static uint32_t care_of(const ms_plan *plan)
{
    return (uint32_t)plan->assumed_outputs_held + (uint32_t)plan->assumed_gradients_live;
}

/* Whether plan `b` is to be preferred. What counts, in this order: it fits, its loop may hold more, it is faster. */
static bool is_better(const ms_plan *b, const ms_plan *a)
{
    if (a == NULL || b == NULL) {
        return b != NULL;
    }
    if (a->over_target != b->over_target) {
        return a->over_target;
    }
    return care_of(a) != care_of(b) ? care_of(b) > care_of(a) : b->replay.step_ns < a->replay.step_ns;
}

/* A plan of the shortest search (NULL: nothing fits), and what the context says of it. */
static int glance(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                  ms_strategy_context *context, ms_plan **plan, ms_error *err)
{
    ms_strategy strategy = ms_strategy_glance();
    ms_config effective = ms_strategy_apply(&strategy, config);
    int rc = ms__pipeline_plan(graph, hardware, &effective, plan, err);
    if (rc == MS_OK && !(*plan)->over_target) {
        context->value[MS_FEATURE_GLANCE_PEAK_PERMILLE] =
            ms__mul_div((*plan)->replay.peak_bytes, 1000, ms__max_u64(context->value[MS_FEATURE_ALLOWED_BYTES], 1));
        context->value[MS_FEATURE_GLANCE_STEP_PERMILLE] =
            ms__mul_div((*plan)->replay.step_ns, 1000, ms__max_u64((*plan)->unoptimized.step_ns, 1));
    } else if (rc == MS_OK) {
        ms_plan_free(*plan);
        *plan = NULL;
    }
    return rc == MS_EINFEASIBLE ? MS_OK : rc;
}

/* Plans under the first search of a strategy. `seen`, a glance's plan (owned; NULL: none), is taken if that is the
 * search, or if it is better than what the search finds. */
static int plan_first(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan *seen,
                      ms_strategy *strategy, ms_plan **plan, ms_error *err)
{
    if (seen != NULL && ms_strategy_is_glance(strategy)) {
        *plan = seen;
        return MS_OK;
    }
    ms_config effective = ms_strategy_apply(strategy, config);
    int rc = ms__pipeline_plan(graph, hardware, &effective, plan, err);
    bool fits_none = rc != MS_OK || (*plan)->over_target; /* the widest search is next */
    if (fits_none || !is_better(seen, *plan)) {
        ms_plan_free(seen);
        return rc;
    }
    ms_plan_free(*plan);
    *plan = seen;
    *strategy = ms_strategy_glance();
    return MS_OK;
}

/* Plans under both searches of a strategy and keeps the better plan, with its strategy. */
static int plan_under(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan *seen,
                      ms_strategy *strategy, ms_plan **plan, ms_error *err)
{
    ms_strategy second;
    ms_plan *other = NULL;
    bool has_second = ms_strategy_second(strategy, &second);
    int rc = plan_first(graph, hardware, config, seen, strategy, plan, err);
    strategy->second_permille = 0;
    if (!has_second || (rc != MS_OK && rc != MS_EINFEASIBLE)) {
        return rc;
    }
    ms_config effective = ms_strategy_apply(&second, config);
    int second_rc = ms__pipeline_plan(graph, hardware, &effective, &other, rc == MS_OK ? NULL : err);
    if (is_better(other, *plan)) {
        ms_plan_free(*plan);
        *plan = other;
        *strategy = second;
        return second_rc;
    }
    ms_plan_free(other);
    return rc;
}

/* `seen` is the glance's plan, which is taken over; NULL: there is none. */
static int plan_with(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan *seen,
                     ms_strategy_decision *decision, ms_config *effective, ms_plan **plan, ms_error *err)
{
    bool by_caller = decision->source == MS_DECISION_SOURCE_USER_CONFIG;
    int rc = by_caller ? ms_pipeline_plan(graph, hardware, config, plan, err)
                       : plan_under(graph, hardware, config, seen, &decision->strategy, plan, err);
    bool fits = rc == MS_OK && !(*plan)->over_target;
    bool failed = rc != MS_OK && rc != MS_EINFEASIBLE;
    *effective = ms_strategy_apply(&decision->strategy, config);
    if (fits && !by_caller && (*plan)->skipped) {
        ms__pipeline_add_forced(graph, hardware, effective, *plan);
    }
    if (fits || failed || by_caller) {
        return rc;
    }
    ms_plan_free(*plan);
    *plan = NULL;
    decision->strategy = ms_strategy_widest();
    if (decision->source == MS_DECISION_SOURCE_ML) {
        decision->source = MS_DECISION_SOURCE_RULE_FALLBACK;
    }
    snprintf(decision->reason, sizeof decision->reason, "no plan fits under a narrower strategy");
    *effective = ms_strategy_apply(&decision->strategy, config);
    return ms_pipeline_plan(graph, hardware, effective, plan, err);
}

int ms_pipeline_plan_by_policy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                               const ms_policy *trained, bool rules_only, ms_strategy_decision *decision,
                               ms_config *effective, ms_plan **plan, ms_error *err)
{
    ms_pressure pressure;
    ms_strategy_decision made = {0};
    ms_plan *planned = NULL, *seen = NULL;
    int rc = ms__pipeline_pressure(graph, hardware, config, &pressure, err);
    bool by_config = ms_hardware_host_is_device(hardware) && !pressure.budget_given;
    if (rc == MS_OK) {
        rc = ms__pipeline_context(graph, hardware, config, &pressure, &made.context, err);
    }
    if (rc == MS_OK && !by_config && trained != NULL && !rules_only && !config->force_optimize) {
        rc = glance(graph, hardware, config, &made.context, &seen, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    if (by_config) {
        use_config(config, "without a GPU and without a budget there is no pressure to judge by", &made);
    } else {
        ms_strategy_decide(&made.context, config, trained, rules_only, &made);
    }
    if (made.source != MS_DECISION_SOURCE_ML) {
        ms_plan_free(seen);
        seen = NULL;
    }
    rc = plan_with(graph, hardware, config, seen, &made, effective, &planned, err);
    if (rc == MS_OK) {
        rc = name_source(&made, planned, err);
    }
    if (rc != MS_OK) {
        ms_plan_free(planned);
        return rc;
    }
    *decision = made;
    *plan = planned;
    return MS_OK;
}

/* ---- every strategy ---------------------------------------------------------------- */

int ms_pipeline_try_strategy(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                             const ms_strategy *strategy, ms_strategy_outcome *outcome, ms_error *err)
{
    ms_plan *plan = NULL;
    ms_strategy tried = *strategy;
    uint64_t before = ms__sim_events_replayed();
    int rc = plan_under(graph, hardware, config, NULL, &tried, &plan, err);
    *outcome = (ms_strategy_outcome){.replayed_events = ms__sim_events_replayed() - before};
    if (rc == MS_OK) {
        outcome->fits = !plan->over_target;
        outcome->care = care_of(plan);
        outcome->step_ns = plan->replay.step_ns;
        outcome->peak_bytes = plan->replay.peak_bytes;
        ms_plan_free(plan);
    }
    return rc == MS_EINFEASIBLE ? MS_OK : rc;
}

int ms_pipeline_context(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                        ms_strategy_context *context, ms_error *err)
{
    ms_pressure pressure;
    ms_plan *seen = NULL;
    int rc = ms__pipeline_pressure(graph, hardware, config, &pressure, err);
    if (rc == MS_OK) {
        rc = ms__pipeline_context(graph, hardware, config, &pressure, context, err);
    }
    if (rc == MS_OK) {
        rc = glance(graph, hardware, config, context, &seen, err);
    }
    ms_plan_free(seen);
    return rc;
}
