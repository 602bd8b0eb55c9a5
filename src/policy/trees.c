/*
 * Evaluates a trained policy in whole numbers. Every child comes after its parent, as the reader checked, so
 * a walk ends.
 */
#include "policy/trees.h"

static const ms__tree_node *leaf_of(const ms__tree *tree, const uint64_t *value)
{
    const ms__tree_node *node = tree->nodes;
    while (node->feature < MS_FEATURE_COUNT) {
        node = &tree->nodes[value[node->feature] <= node->threshold ? node->below : node->above];
    }
    return node;
}

ms_strategy ms_policy_choose(const ms_policy *policy, const ms_strategy_context *context)
{
    uint64_t sums[MS__POLICY_STRATEGIES_MOST] = {0};
    for (uint32_t t = 0; t < policy->tree_count; t++) {
        const ms__tree_node *leaf = leaf_of(&policy->trees[t], context->value);
        for (uint32_t s = 0; s < policy->strategy_count; s++) {
            sums[s] += policy->scores[leaf->first_score + s];
        }
    }
    uint32_t best = 0;
    for (uint32_t s = 1; s < policy->strategy_count; s++) {
        best = sums[s] > sums[best] ? s : best;
    }
    return policy->strategies[best];
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
    for (uint32_t t = 0; t < policy->tree_count; t++) {
        ms_free(policy->trees[t].nodes);
    }
    ms_free(policy->trees);
    ms_free(policy->scores);
    ms_free(policy->name);
    ms_free(policy);
}
