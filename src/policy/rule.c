/*
 * The rule policy, and a configuration under a strategy. Thresholds of memory pressure are those of the
 * rules; the solver prices the admitted techniques, so this policy only says how far it may go.
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

static void set_strategy(ms_strategy_decision *decision, ms_mode mode, bool may_offload, const char *why)
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
        set_strategy(decision, MS_MODE_AGGRESSIVE, has_tier,
                     "force_optimize asks for the smallest peak, so every technique may be used");
    } else if (permille <= MS_COMFORTABLE_PERMILLE) {
        set_strategy(decision, MS_MODE_CONSERVATIVE, false, "the run fits comfortably");
    } else if (permille <= MS_LOW_PRESSURE_PERMILLE) {
        set_strategy(decision, MS_MODE_BALANCED, has_tier,
                     "little memory is missing, so recompute and offload suffice");
    } else {
        set_strategy(decision, MS_MODE_AGGRESSIVE, has_tier, "much memory is missing, so every technique may be used");
    }
}
