/*
 * The rule policy, and who decides: a trained policy or the rules. The rule policy uses the rules' thresholds of memory
 * pressure. It only says which techniques the search may use; the search computes their cost.
 */
#include <stdio.h>

#include "memscale/policy.h"

static void set_strategy(ms_strategy_decision *decision, ms_mode mode, bool may_offload, const char *why)
{
    const uint64_t *value = decision->context.value;
    decision->strategy = (ms_strategy){mode, true, may_offload, 1000, 0};
    snprintf(decision->reason, sizeof decision->reason, "pressure %llu permille: %s",
             (unsigned long long)value[MS_FEATURE_PRESSURE_PERMILLE], why);
}

void ms_policy_rule(const ms_strategy_context *context, const ms_config *config, ms_strategy_decision *decision)
{
    uint64_t permille = context->value[MS_FEATURE_PRESSURE_PERMILLE];
    /* In host memory the flag also admits bit packing, which needs no tier. */
    bool may_offload = context->value[MS_FEATURE_DISK_ROOM_BYTES] > 0 ||
                       context->value[MS_FEATURE_HOST_ROOM_BYTES] > 0 || context->value[MS_FEATURE_ON_GPU] == 0;
    decision->context = *context;
    if (config->force_optimize) {
        set_strategy(decision, MS_MODE_AGGRESSIVE, may_offload,
                     "force_optimize asks for the smallest peak, so every technique may be used");
    } else if (permille <= MS_COMFORTABLE_PERMILLE) {
        set_strategy(decision, MS_MODE_CONSERVATIVE, false, "the run fits comfortably");
    } else if (permille <= MS_LOW_PRESSURE_PERMILLE) {
        set_strategy(decision, MS_MODE_BALANCED, may_offload,
                     "little memory is missing, so recompute and offload suffice");
    } else {
        set_strategy(decision, MS_MODE_AGGRESSIVE, may_offload,
                     "much memory is missing, so every technique may be used");
    }
}

void ms_strategy_decide(const ms_strategy_context *context, const ms_config *config, const ms_policy *trained,
                        bool rules_only, ms_strategy_decision *decision)
{
    decision->context = *context;
    char why[MS_REASON_MAX] = "";
    /* Trained policies know nothing of force_optimize, which wants the smallest peak instead of the fastest step. */
    bool may_decide = !rules_only && trained != NULL && !config->force_optimize;
    if (may_decide && ms_policy_covers(trained, &decision->context, why)) {
        decision->source = MS_DECISION_SOURCE_ML;
        decision->strategy = ms_policy_choose(trained, &decision->context);
        ms_policy_explain(trained, &decision->context, decision->reason);
        return;
    }
    ms_policy_rule(&decision->context, config, decision);
    decision->source = rules_only ? MS_DECISION_SOURCE_RULE : MS_DECISION_SOURCE_RULE_FALLBACK;
    if (why[0] != '\0') {
        snprintf(decision->reason, sizeof decision->reason, "%.250s", why);
    }
}
