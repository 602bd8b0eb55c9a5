/*
 * A trained policy in memory: for each strategy an ensemble of decision trees whose leaves add up to the predicted
 * cost. Read by artifact.c, evaluated by trees.c, put into words by explain.c. Tests: tests/c/policy/test_policy.c.
 */
#ifndef MS_POLICY_TREES_H
#define MS_POLICY_TREES_H

#include "memscale/policy.h"

enum {
    MS__POLICY_TREES_MOST = 4096,
    MS__POLICY_NODES_MOST = 65536, /* of all trees */
    MS__POLICY_STRATEGIES_MOST = 64
};
/* The sum over all trees fits in 64 bits. */
#define MS__POLICY_COST_MOST ((uint64_t)1 << 40)

typedef struct ms__tree_node {
    uint32_t feature; /* ms_feature; MS_FEATURE_COUNT: a leaf */
    uint32_t below;   /* next node if the feature is at most the value; > this node */
    uint32_t above;   /* next node otherwise; > this node */
    uint64_t value;   /* the threshold; of a leaf: its cost */
} ms__tree_node;

typedef struct ms__tree {
    uint32_t strategy; /* whose cost it adds to */
    uint32_t first_node, node_count;
} ms__tree;

/* What training saw of a feature. */
typedef struct ms__feature_range {
    bool is_used;    /* by the trees */
    bool is_checked; /* a value outside is left to the rules */
    uint64_t least, usual, most;
} ms__feature_range;

struct ms_policy {
    char *name;
    uint32_t strategy_count;
    ms_strategy strategies[MS__POLICY_STRATEGIES_MOST];
    uint64_t base_cost[MS__POLICY_STRATEGIES_MOST];
    ms__feature_range range[MS_FEATURE_COUNT];
    uint32_t tree_count;
    ms__tree *trees;
    size_t node_count;
    ms__tree_node *nodes;
};

/* The strategy of the lowest cost, and of the next lowest (the same if there is one strategy). */
void ms__policy_best(const ms_policy *policy, const ms_strategy_context *context, uint32_t *best, uint32_t *next);

#endif
