/*
 * The rule policy, and what a strategy does to a configuration. Thresholds on memory
 * pressure are those of the engine; the solver prices what is admitted, so that the rules
 * only say how far it may look.
 */
#include <stdio.h>

#include "memscale/policy.h"

ms_strategy ms_strategy_widest(void)
{
    return (ms_strategy){MS_MODE_AGGRESSIVE, true, true};
}

ms_config ms_strategy_apply(const ms_strategy *strategy, const ms_config *config)
{
    ms_config effective = *config;
    effective.mode = strategy->mode;
    effective.enable_checkpointing = config->enable_checkpointing && strategy->enable_checkpointing;
    effective.enable_offloading = config->enable_offloading && strategy->enable_offloading;
    return effective;
}

static void decide(ms_strategy_decision *decision, ms_mode mode, bool may_offload, const char *why)
{
    const uint64_t *value = decision->context.value;
    decision->strategy = (ms_strategy){mode, true, may_offload};
    snprintf(decision->reason, sizeof decision->reason, "pressure %llu permille: %s",
             (unsigned long long)value[MS_FEATURE_PRESSURE_PERMILLE], why);
}

void ms_policy_rule(const ms_strategy_context *context, const ms_config *config, ms_strategy_decision *decision)
{
    uint64_t permille = context->value[MS_FEATURE_PRESSURE_PERMILLE];
    bool has_tier = context->value[MS_FEATURE_DISK_ROOM_BYTES] > 0 || context->value[MS_FEATURE_HOST_ROOM_BYTES] > 0;
    decision->context = *context;
    if (config->force_optimize) {
        decide(decision, MS_MODE_AGGRESSIVE, has_tier,
               "the smallest peak is asked for, so every technique may be used");
    } else if (permille <= MS_COMFORTABLE_PERMILLE) {
        decide(decision, MS_MODE_CONSERVATIVE, false, "the run fits comfortably");
    } else if (permille <= MS_LOW_PRESSURE_PERMILLE) {
        decide(decision, MS_MODE_BALANCED, has_tier, "little is missing, so recompute and offload will do");
    } else {
        decide(decision, MS_MODE_AGGRESSIVE, has_tier, "much is missing, so every technique may be used");
    }
}
