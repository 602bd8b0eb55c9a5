/*
 * Evaluates a trained policy in whole numbers. Every child comes after its parent, as the reader checked, so
 * a walk ends.
 */
#include "policy/trees.h"

static uint64_t leaf_cost(const ms__tree_node *nodes, const uint64_t *value)
{
    const ms__tree_node *node = nodes;
    while (node->feature < MS_FEATURE_COUNT) {
        node = &nodes[value[node->feature] <= node->value ? node->below : node->above];
    }
    return node->value;
}

static void sum_costs(const ms_policy *policy, const ms_strategy_context *context, uint64_t *sums)
{
    for (uint32_t s = 0; s < policy->strategy_count; s++) {
        sums[s] = policy->base_cost[s];
    }
    for (uint32_t t = 0; t < policy->tree_count; t++) {
        const ms__tree *tree = &policy->trees[t];
        sums[tree->strategy] += leaf_cost(&policy->nodes[tree->first_node], context->value);
    }
}

void ms__policy_best(const ms_policy *policy, const ms_strategy_context *context, uint32_t *best, uint32_t *next)
{
    uint64_t sums[MS__POLICY_STRATEGIES_MOST];
    sum_costs(policy, context, sums);
    *best = 0;
    for (uint32_t s = 1; s < policy->strategy_count; s++) {
        *best = sums[s] < sums[*best] ? s : *best;
    }
    *next = *best == 0 && policy->strategy_count > 1 ? 1 : 0;
    for (uint32_t s = 0; s < policy->strategy_count; s++) {
        *next = s != *best && sums[s] < sums[*next] ? s : *next;
    }
}

ms_strategy ms_policy_choose(const ms_policy *policy, const ms_strategy_context *context)
{
    uint32_t best, next;
    ms__policy_best(policy, context, &best, &next);
    return policy->strategies[best];
}

bool ms_policy_strategy(const ms_policy *policy, size_t i, ms_strategy *strategy)
{
    if (i < policy->strategy_count) {
        *strategy = policy->strategies[i];
    }
    return i < policy->strategy_count;
}

uint64_t ms_policy_cost(const ms_policy *policy, size_t i, const ms_strategy_context *context)
{
    if (i >= policy->strategy_count) {
        return UINT64_MAX;
    }
    uint64_t sum = policy->base_cost[i];
    for (uint32_t t = 0; t < policy->tree_count; t++) {
        const ms__tree *tree = &policy->trees[t];
        sum += tree->strategy == i ? leaf_cost(&policy->nodes[tree->first_node], context->value) : 0;
    }
    return sum;
}

const char *ms_policy_name(const ms_policy *policy)
{
    return policy->name;
}

void ms_policy_free(ms_policy *policy)
{
    if (policy == NULL) {
        return;
    }
    ms_free(policy->trees);
    ms_free(policy->nodes);
    ms_free(policy->name);
    ms_free(policy);
}
