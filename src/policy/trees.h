/*
 * A trained policy in memory: an ensemble of decision trees whose leaves give scores to strategies. Read by
 * artifact.c, evaluated by trees.c. Tests: tests/c/policy/test_policy.c.
 */
#ifndef MS_POLICY_TREES_H
#define MS_POLICY_TREES_H

#include "memscale/policy.h"

enum {
    MS__POLICY_TREES_MOST = 4096,
    MS__POLICY_NODES_MOST = 65536, /* of a tree */
    MS__POLICY_STRATEGIES_MOST = 64
};
/* So the sum over all trees fits in 64 bits. */
#define MS__POLICY_SCORE_MOST ((uint64_t)1 << 40)

typedef struct ms__tree_node {
    uint32_t feature;    /* ms_feature; MS_FEATURE_COUNT: a leaf */
    uint32_t below;      /* next node if the feature is at most the threshold; > this node */
    uint32_t above;      /* next node otherwise; > this node */
    uint32_t first_score; /* of a leaf: index into the policy's scores, one per strategy */
    uint64_t threshold;
} ms__tree_node;

typedef struct ms__tree {
    uint32_t node_count;
    ms__tree_node *nodes;
} ms__tree;

struct ms_policy {
    char *name;
    uint32_t strategy_count;
    ms_strategy strategies[MS__POLICY_STRATEGIES_MOST];
    uint32_t tree_count;
    ms__tree *trees;
    size_t score_count;
    uint64_t *scores;
};

#endif
