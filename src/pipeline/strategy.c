/*
 * Stage 1 in the pipeline: context, policy, effective configuration, then the plan. Called if
 * Config(auto_policy=True). The caller's configuration is not changed.
 */
#include <stdio.h>

#include "pipeline/pipeline_internal.h"

static void choose_strategy(const ms_config *config, const ms_policy *trained, bool rules_only,
                            ms_strategy_decision *decision)
{
    if (rules_only || trained == NULL) {
        ms_policy_rule(&decision->context, config, decision);
        decision->source = rules_only ? MS_DECISION_SOURCE_RULE : MS_DECISION_SOURCE_RULE_FALLBACK;
        return;
    }
    decision->source = MS_DECISION_SOURCE_ML;
    decision->strategy = ms_policy_choose(trained, &decision->context);
    snprintf(decision->reason, sizeof decision->reason, "policy \"%.64s\"", ms_policy_name(trained));
}

/* Stage 1 does not decide: the configuration stays as it is. */
static void use_config(const ms_config *config, ms_strategy_decision *decision)
{
    decision->source = MS_DECISION_SOURCE_USER_CONFIG;
    decision->strategy = (ms_strategy){config->mode, config->enable_checkpointing, config->enable_offloading};
    snprintf(decision->reason, sizeof decision->reason,
             "without a GPU and without a budget there is no pressure to judge by");
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

static int plan_with(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                     ms_strategy_decision *decision, ms_config *effective, ms_plan **plan, ms_error *err)
{
    *effective = ms_strategy_apply(&decision->strategy, config);
    int rc = ms_pipeline_plan(graph, hardware, effective, plan, err);
    bool fits = rc == MS_OK && !(*plan)->over_target;
    bool failed = rc != MS_OK && rc != MS_EINFEASIBLE;
    if (fits || failed || decision->source == MS_DECISION_SOURCE_USER_CONFIG) {
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
        rc = ms_strategy_context_of(graph, hardware, config, &pressure, &made.context, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    if (ms_hardware_host_is_device(hardware) && !pressure.budget_given) {
        use_config(config, &made);
    } else {
        choose_strategy(config, trained, rules_only, &made);
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
