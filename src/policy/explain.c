/*
 * A trained policy's decision in words. Called for the log's line and by `memscale policy --explain`.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
#include "policy/trees.h"

bool ms_policy_covers(const ms_policy *policy, const ms_strategy_context *context, char why[MS_REASON_MAX])
{
    for (int f = 0; f < MS_FEATURE_COUNT; f++) {
        const ms__feature_range *range = &policy->range[f];
        uint64_t value = context->value[f];
        if (!range->is_checked || (value >= range->least && value <= range->most)) {
            continue;
        }
        bool is_below = value < range->least;
        snprintf(why, MS_REASON_MAX, "%s %" PRIu64 " is %s %" PRIu64 ", the %s that policy \"%.64s\" was trained for",
                 ms_feature_name((ms_feature)f), value, is_below ? "below" : "above",
                 is_below ? range->least : range->most, is_below ? "least" : "most", policy->name);
        return false;
    }
    return true;
}

/* How much cheaper `best` is than `next`; 0 if it isn't. */
static uint64_t lead(const ms_policy *policy, const ms_strategy_context *context, uint32_t best, uint32_t next)
{
    return ms__sub_sat(ms_policy_cost(policy, next, context), ms_policy_cost(policy, best, context));
}

enum { NAMED_MOST = 3 };

/* The features that make the lead, the strongest first. */
static int find_reasons(const ms_policy *policy, const ms_strategy_context *context, uint32_t best, uint32_t next,
                        int *features)
{
    uint64_t whole = lead(policy, context, best, next), effects[NAMED_MOST + 1];
    int count = 0;
    for (int f = 0; f < MS_FEATURE_COUNT; f++) {
        ms_strategy_context usual = *context;
        usual.value[f] = policy->range[f].usual;
        uint64_t effect = policy->range[f].is_used ? ms__sub_sat(whole, lead(policy, &usual, best, next)) : 0;
        int at = count;
        for (; effect > 0 && at > 0 && effects[at - 1] < effect; at--) {
            effects[at] = effects[at - 1];
            features[at] = features[at - 1];
        }
        if (effect > 0) {
            effects[at] = effect;
            features[at] = f;
            count = count < NAMED_MOST ? count + 1 : count;
        }
    }
    return count;
}

/* "recompute, quick", or two of them. */
static int add_name(char *text, int length, const ms_strategy *strategy)
{
    ms_strategy second;
    bool has_second = ms_strategy_second(strategy, &second);
    return length + snprintf(text + length, MS_REASON_MAX - (size_t)length, "%s%s%s", ms_strategy_name(strategy),
                             has_second ? " and " : "", has_second ? ms_strategy_name(&second) : "");
}

void ms_policy_explain(const ms_policy *policy, const ms_strategy_context *context, char text[MS_REASON_MAX])
{
    uint32_t best, next;
    int features[NAMED_MOST + 1];
    ms__policy_best(policy, context, &best, &next);
    int count = best == next ? 0 : find_reasons(policy, context, best, next, features);
    int length = snprintf(text, MS_REASON_MAX, "policy \"%.32s\": ", policy->name);
    length = add_name(text, length, &policy->strategies[best]);
    if (best != next) {
        length += snprintf(text + length, MS_REASON_MAX - (size_t)length, " rather than ");
        length = add_name(text, length, &policy->strategies[next]);
    }
    for (int i = 0; i < count && length < MS_REASON_MAX; i++) {
        uint64_t value = context->value[features[i]], usual = policy->range[features[i]].usual;
        length += snprintf(text + length, MS_REASON_MAX - (size_t)length, "%s%s is %s",
                           i == 0           ? ", because "
                           : i + 1 == count ? " and "
                                            : ", ",
                           ms_feature_name((ms_feature)features[i]), value < usual ? "low" : "high");
    }
}
