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

/* Plans under both searches of a strategy and keeps the better plan, with its strategy. */
static int plan_under(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                      ms_strategy *strategy, ms_plan **plan, ms_error *err)
{
    ms_strategy second;
    ms_plan *other = NULL;
    bool has_second = ms_strategy_second(strategy, &second);
    ms_config effective = ms_strategy_apply(strategy, config);
    int rc = ms__pipeline_plan(graph, hardware, &effective, plan, err);
    strategy->second_permille = 0;
    if (!has_second || (rc != MS_OK && rc != MS_EINFEASIBLE)) {
        return rc;
    }
    effective = ms_strategy_apply(&second, config);
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

static int plan_with(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                     ms_strategy_decision *decision, ms_config *effective, ms_plan **plan, ms_error *err)
{
    bool by_caller = decision->source == MS_DECISION_SOURCE_USER_CONFIG;
    int rc = by_caller ? ms_pipeline_plan(graph, hardware, config, plan, err)
                       : plan_under(graph, hardware, config, &decision->strategy, plan, err);
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
    ms_plan *planned = NULL;
    int rc = ms__pipeline_pressure(graph, hardware, config, &pressure, err);
    if (rc == MS_OK) {
        rc = ms__pipeline_context(graph, hardware, config, &pressure, &made.context, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    if (ms_hardware_host_is_device(hardware) && !pressure.budget_given) {
        use_config(config, "without a GPU and without a budget there is no pressure to judge by", &made);
    } else {
        ms_strategy_decide(&made.context, config, trained, rules_only, &made);
    }
    rc = plan_with(graph, hardware, config, &made, effective, &planned, err);
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
    int rc = plan_under(graph, hardware, config, &tried, &plan, err);
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
    int rc = ms__pipeline_pressure(graph, hardware, config, &pressure, err);
    return rc == MS_OK ? ms__pipeline_context(graph, hardware, config, &pressure, context, err) : rc;
}
