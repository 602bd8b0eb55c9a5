/*
 * Trained policies as files (docs/formats/policy.schema.json): read strictly, with every bound checked, and
 * refused whole. The checksum covers the member "policy" in compact form, so it depends on every digit but not
 * on spaces.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/json_fields.h"
#include "base/units.h"
#include "policy/trees.h"

enum { CHECKSUM_DIGITS = 16 };

typedef struct checksum_text {
    char text[CHECKSUM_DIGITS + 1];
} checksum_text;

static int checksum_of(const json_t *value, checksum_text *checksum, ms_error *err)
{
    char *text = ms__json_text(value, true);
    if (text == NULL) {
        return ms_fail(err, MS_ENOMEM, "policy: out of memory");
    }
    uint64_t sum = ms__checksum_select()(text, strlen(text));
    snprintf(checksum->text, sizeof checksum->text, "%016" PRIx64, sum);
    ms_free(text);
    return MS_OK;
}

/* ---- strategies ---------------------------------------------------------------- */

static const char *mode_word(uint32_t mode)
{
    return ms_mode_name((ms_mode)mode);
}

static const ms__json_field strategy_fields[] = {
    {"mode", MS__FIELD_WORD, offsetof(ms_strategy, mode), 0, MS_MODE_COUNT, mode_word},
    MS__FIELD(ms_strategy, enable_checkpointing, BOOL),
    MS__FIELD(ms_strategy, enable_offloading, BOOL),
    MS__FIELD_NUMBER(ms_strategy, search_permille, U32, 1, 1000),
    MS__FIELD_NUMBER(ms_strategy, second_permille, U32, 0, 1000),
};
_Static_assert(sizeof(ms_mode) == sizeof(uint32_t), "a word is read into 32 bits");

static int read_strategy(const ms__json_at *at, ms_policy *policy, size_t i)
{
    const size_t count = sizeof strategy_fields / sizeof strategy_fields[0];
    int rc = ms__json_read_fields(at, strategy_fields, count, &policy->strategies[i]);
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "base_cost", 0, MS__POLICY_COST_MOST, &policy->base_cost[i]);
    }
    return rc == MS_OK ? ms__json_only_count(at, count + 1) : rc;
}

static int read_strategies(const ms__json_at *at, ms_policy *policy)
{
    ms__json_at list, item;
    int rc = ms__json_array(at, "strategies", &list);
    size_t count = rc == MS_OK ? ms__json_count(&list) : 0;
    if (rc == MS_OK && (count == 0 || count > MS__POLICY_STRATEGIES_MOST)) {
        rc = ms__json_fail(&list, MS_EFORMAT, "expected 1 to %d strategies", MS__POLICY_STRATEGIES_MOST);
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_strategy(&item, policy, i);
        }
    }
    policy->strategy_count = (uint32_t)count;
    return rc;
}

/* ---- features -------------------------------------------------------------------- */

/* The features of an artifact in its own order, which its nodes' numbers mean. */
typedef struct feature_list {
    uint32_t count;
    uint32_t feature[MS_FEATURE_COUNT];
} feature_list;

static int read_feature(const ms__json_at *at, ms_policy *policy, feature_list *list)
{
    const char *names[MS_FEATURE_COUNT];
    size_t feature = 0;
    for (int i = 0; i < MS_FEATURE_COUNT; i++) {
        names[i] = ms_feature_name((ms_feature)i);
    }
    int rc = ms__json_enum(at, "name", names, MS_FEATURE_COUNT, &feature);
    ms__feature_range *range = &policy->range[feature];
    if (rc == MS_OK && range->is_used) {
        rc = ms__json_fail(at, MS_EFORMAT, "the feature \"%s\" is given twice", names[feature]);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "least", 0, INT64_MAX, &range->least);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "most", range->least, INT64_MAX, &range->most);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "usual", range->least, range->most, &range->usual);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(at, "is_checked", &range->is_checked);
    }
    range->is_used = true;
    list->feature[list->count++] = (uint32_t)feature;
    return rc == MS_OK ? ms__json_only_count(at, 5) : rc;
}

static int read_features(const ms__json_at *at, ms_policy *policy, feature_list *features)
{
    ms__json_at list, item;
    int rc = ms__json_array(at, "features", &list);
    size_t count = rc == MS_OK ? ms__json_count(&list) : 0;
    if (rc == MS_OK && (count == 0 || count > MS_FEATURE_COUNT)) {
        rc = ms__json_fail(&list, MS_EFORMAT, "expected 1 to %d features", MS_FEATURE_COUNT);
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_feature(&item, policy, features);
        }
    }
    return rc;
}

/* ---- trees ----------------------------------------------------------------------- */

/* A tree's nodes in a row: [feature, at_most, below, above] or [cost]. */
typedef struct tree_reader {
    ms__json_at list;
    const feature_list *features;
    uint32_t count;
} tree_reader;

static int read_split(const tree_reader *tree, const ms__json_at *at, uint32_t index, ms__tree_node *node)
{
    uint64_t feature = 0, below = 0, above = 0;
    if (index + 1 >= tree->count) {
        return ms__json_fail(at, MS_EFORMAT, "the last node must be a leaf");
    }
    int rc = ms__json_item_u64(at, 0, 0, tree->features->count - 1, &feature);
    if (rc == MS_OK) {
        rc = ms__json_item_u64(at, 1, 0, INT64_MAX, &node->value);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(at, 2, index + 1, tree->count - 1, &below);
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(at, 3, index + 1, tree->count - 1, &above);
    }
    node->feature = rc == MS_OK ? tree->features->feature[feature] : 0;
    node->below = (uint32_t)below;
    node->above = (uint32_t)above;
    return rc;
}

static int read_node(const tree_reader *tree, uint32_t index, ms__tree_node *node)
{
    ms__json_at at;
    int rc = ms__json_item_array(&tree->list, index, &at);
    if (rc != MS_OK) {
        return rc;
    }
    if (ms__json_count(&at) == 1) {
        node->feature = MS_FEATURE_COUNT;
        return ms__json_item_u64(&at, 0, 0, MS__POLICY_COST_MOST, &node->value);
    }
    return ms__json_count(&at) == 4
               ? read_split(tree, &at, index, node)
               : ms__json_fail(&at, MS_EFORMAT, "expected a leaf's cost or a split's four numbers");
}

static int read_tree(const ms__json_at *at, const feature_list *features, ms_policy *policy, ms__tree *tree)
{
    tree_reader reader = {.features = features};
    int rc = ms__json_u32(at, "strategy", 0, policy->strategy_count - 1, &tree->strategy);
    if (rc == MS_OK) {
        rc = ms__json_array(at, "nodes", &reader.list);
    }
    if (rc == MS_OK) {
        rc = ms__json_only_count(at, 2);
    }
    tree->first_node = (uint32_t)policy->node_count;
    reader.count = tree->node_count = rc == MS_OK ? (uint32_t)ms__json_count(&reader.list) : 0;
    for (uint32_t i = 0; rc == MS_OK && i < tree->node_count; i++) {
        rc = read_node(&reader, i, &policy->nodes[policy->node_count++]);
    }
    return rc;
}

/* Room for the nodes of all trees. */
static int reserve_nodes(const ms__json_at *list, ms_policy *policy)
{
    ms__json_at tree, nodes;
    size_t total = 0;
    for (size_t t = 0; t < ms__json_count(list); t++) {
        int rc = ms__json_item_object(list, t, &tree);
        if (rc == MS_OK) {
            rc = ms__json_array(&tree, "nodes", &nodes);
        }
        if (rc == MS_OK && ms__json_count(&nodes) == 0) {
            rc = ms__json_fail(&nodes, MS_EFORMAT, "expected a node");
        }
        if (rc != MS_OK) {
            return rc;
        }
        total += ms__json_count(&nodes);
    }
    if (total > MS__POLICY_NODES_MOST) {
        return ms__json_fail(list, MS_EFORMAT, "expected at most %d nodes in all", MS__POLICY_NODES_MOST);
    }
    policy->nodes = ms_calloc(total, sizeof *policy->nodes);
    return policy->nodes != NULL ? MS_OK : ms__json_fail(list, MS_ENOMEM, "out of memory");
}

static int read_trees(const ms__json_at *at, const feature_list *features, ms_policy *policy)
{
    ms__json_at list, item;
    int rc = ms__json_array(at, "trees", &list);
    size_t count = rc == MS_OK ? ms__json_count(&list) : 0;
    if (rc == MS_OK && (count == 0 || count > MS__POLICY_TREES_MOST)) {
        rc = ms__json_fail(&list, MS_EFORMAT, "expected 1 to %d trees", MS__POLICY_TREES_MOST);
    }
    if (rc == MS_OK) {
        rc = reserve_nodes(&list, policy);
    }
    if (rc == MS_OK && (policy->trees = ms_calloc(count, sizeof *policy->trees)) == NULL) {
        rc = ms__json_fail(&list, MS_ENOMEM, "out of memory");
    }
    for (size_t t = 0; rc == MS_OK && t < count; t++) {
        policy->tree_count = (uint32_t)t + 1;
        rc = ms__json_item_object(&list, t, &item);
        if (rc == MS_OK) {
            rc = read_tree(&item, features, policy, &policy->trees[t]);
        }
    }
    return rc;
}

static int read_policy(const ms__json_at *at, ms_policy *policy)
{
    static const char *const members[] = {"name", "features", "strategies", "trees"};
    feature_list features = {0};
    int rc = ms__json_only(at, members, sizeof members / sizeof members[0]);
    if (rc == MS_OK) {
        rc = ms__json_string_copy(at, "name", &policy->name);
    }
    if (rc == MS_OK) {
        rc = read_features(at, policy, &features);
    }
    if (rc == MS_OK) {
        rc = read_strategies(at, policy);
    }
    return rc == MS_OK ? read_trees(at, &features, policy) : rc;
}

/* ---- artifacts --------------------------------------------------------------------- */

static int make_policy(const ms__json_at *at, ms_policy **policy, ms_error *err)
{
    ms_policy *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "policy: out of memory");
    }
    int rc = read_policy(at, made);
    if (rc != MS_OK) {
        ms_policy_free(made);
        return rc;
    }
    *policy = made;
    return MS_OK;
}

static int check_sum(const ms__json_at *root, const ms__json_at *body, ms_error *err)
{
    const char *written;
    checksum_text found;
    int rc = ms__json_string(root, "checksum", &written);
    if (rc == MS_OK) {
        rc = checksum_of(body->value, &found, err);
    }
    if (rc == MS_OK && strcmp(written, found.text) != 0) {
        rc = ms__json_fail(root, MS_EFORMAT, "the checksum does not match: the file was changed or truncated");
    }
    return rc;
}

int ms_policy_parse(const char *json, ms_policy **policy, ms_error *err)
{
    static const char *const members[] = {"version", "checksum", "policy"};
    ms__json_at root, body;
    json_t *tree = NULL;
    size_t bytes = strlen(json);
    if (bytes > MS_POLICY_BYTES_MOST) {
        return ms_fail(err, MS_EFORMAT, "policy: expected at most %d bytes, found %zu", MS_POLICY_BYTES_MOST, bytes);
    }
    int rc = ms__json_parse(json, bytes, "policy", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = ms__json_version(&root, 2, 2, NULL);
    if (rc == MS_OK) {
        rc = ms__json_only(&root, members, sizeof members / sizeof members[0]);
    }
    if (rc == MS_OK) {
        rc = ms__json_object(&root, "policy", &body);
    }
    if (rc == MS_OK) {
        rc = check_sum(&root, &body, err);
    }
    if (rc == MS_OK) {
        rc = make_policy(&body, policy, err);
    }
    json_decref(tree);
    return rc;
}

/* One line: with an indent, the numbers of the trees would take many times the bytes. */
static int write_artifact(json_t *body, char **artifact, ms_error *err)
{
    checksum_text sum;
    ms__json_writer writer = {0};
    int rc = checksum_of(body, &sum, err);
    if (rc != MS_OK) {
        return rc;
    }
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 2);
    ms__json_put_string(&writer, root, "checksum", sum.text);
    ms__json_put_value(&writer, root, "policy", json_incref(body));
    char *text = writer.code == MS_OK ? ms__json_text(root, true) : NULL;
    json_decref(root);
    if (text == NULL) {
        return ms_fail(err, MS_ENOMEM, "policy: out of memory");
    }
    *artifact = text;
    return MS_OK;
}

int ms_policy_seal(const char *policy_json, char **artifact, ms_error *err)
{
    ms__json_at root;
    json_t *tree = NULL;
    ms_policy *checked = NULL;
    int rc = ms__json_parse(policy_json, strlen(policy_json), "policy", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = make_policy(&root, &checked, err);
    if (rc == MS_OK) {
        rc = write_artifact(tree, artifact, err);
    }
    ms_policy_free(checked);
    json_decref(tree);
    return rc;
}
