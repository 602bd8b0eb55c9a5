/*
 * Trained policies as files (docs/formats/policy.schema.json): read strictly, with every bound checked, and
 * refused whole. The checksum is that of the member "policy" in its compact form, so spaces don't matter and
 * digits do.
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
};
_Static_assert(sizeof(ms_mode) == sizeof(uint32_t), "a word is read into 32 bits");

static int read_strategy(const ms__json_at *at, ms_strategy *strategy)
{
    const size_t count = sizeof strategy_fields / sizeof strategy_fields[0];
    int rc = ms__json_read_fields(at, strategy_fields, count, strategy);
    return rc == MS_OK ? ms__json_only_count(at, count) : rc;
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
            rc = read_strategy(&item, &policy->strategies[i]);
        }
    }
    policy->strategy_count = (uint32_t)count;
    return rc;
}

/* ---- trees ----------------------------------------------------------------------- */

static int read_leaf(const ms__json_at *at, ms_policy *policy, ms__tree_node *node)
{
    static const char *const members[] = {"scores"};
    ms__json_at scores;
    int rc = ms__json_only(at, members, 1);
    if (rc == MS_OK) {
        rc = ms__json_array(at, "scores", &scores);
    }
    if (rc == MS_OK && ms__json_count(&scores) != policy->strategy_count) {
        rc = ms__json_fail(&scores, MS_EFORMAT, "expected one score for each of %u strategies", policy->strategy_count);
    }
    node->feature = MS_FEATURE_COUNT;
    node->first_score = (uint32_t)policy->score_count;
    for (uint32_t s = 0; rc == MS_OK && s < policy->strategy_count; s++) {
        rc = ms__json_item_u64(&scores, s, 0, MS__POLICY_SCORE_MOST, &policy->scores[policy->score_count++]);
    }
    return rc;
}

static int read_tree_node(const ms__json_at *at, ms_policy *policy, uint32_t index, uint32_t count, ms__tree_node *node)
{
    static const char *const members[] = {"feature", "at_most", "then", "else"};
    const char *names[MS_FEATURE_COUNT];
    size_t feature = 0;
    if (ms__json_has(at, "scores")) {
        return read_leaf(at, policy, node);
    }
    if (index + 1 >= count) {
        return ms__json_fail(at, MS_EFORMAT, "the last node must be a leaf");
    }
    for (int i = 0; i < MS_FEATURE_COUNT; i++) {
        names[i] = ms_feature_name((ms_feature)i);
    }
    int rc = ms__json_only(at, members, sizeof members / sizeof members[0]);
    if (rc == MS_OK) {
        rc = ms__json_enum(at, "feature", names, MS_FEATURE_COUNT, &feature);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "at_most", 0, UINT64_MAX, &node->threshold);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "then", index + 1, count - 1, &node->below);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "else", index + 1, count - 1, &node->above);
    }
    node->feature = (uint32_t)feature;
    return rc;
}

static int read_tree(const ms__json_at *list, size_t index, ms_policy *policy, ms__tree *tree)
{
    ms__json_at nodes, item;
    int rc = ms__json_item_array(list, index, &nodes);
    size_t count = rc == MS_OK ? ms__json_count(&nodes) : 0;
    if (rc == MS_OK && (count == 0 || count > MS__POLICY_NODES_MOST)) {
        return ms__json_fail(&nodes, MS_EFORMAT, "expected 1 to %d nodes", MS__POLICY_NODES_MOST);
    }
    if (rc == MS_OK && (tree->nodes = ms_calloc(count, sizeof *tree->nodes)) == NULL) {
        rc = ms__json_fail(&nodes, MS_ENOMEM, "out of memory");
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_object(&nodes, i, &item);
        if (rc == MS_OK) {
            rc = read_tree_node(&item, policy, (uint32_t)i, (uint32_t)count, &tree->nodes[i]);
        }
    }
    tree->node_count = (uint32_t)count;
    return rc;
}

/* Nodes of all trees, which bound the number of leaves. */
static int count_nodes(const ms__json_at *list, size_t *total)
{
    ms__json_at nodes;
    for (size_t t = 0; t < ms__json_count(list); t++) {
        int rc = ms__json_item_array(list, t, &nodes);
        if (rc != MS_OK) {
            return rc;
        }
        *total += ms__json_count(&nodes);
    }
    return MS_OK;
}

static int read_trees(const ms__json_at *at, ms_policy *policy)
{
    ms__json_at list;
    size_t nodes = 0;
    int rc = ms__json_array(at, "trees", &list);
    size_t count = rc == MS_OK ? ms__json_count(&list) : 0;
    if (rc == MS_OK && (count == 0 || count > MS__POLICY_TREES_MOST)) {
        rc = ms__json_fail(&list, MS_EFORMAT, "expected 1 to %d trees", MS__POLICY_TREES_MOST);
    }
    if (rc == MS_OK) {
        rc = count_nodes(&list, &nodes);
    }
    if (rc == MS_OK && nodes > UINT32_MAX / MS__POLICY_STRATEGIES_MOST) {
        rc = ms__json_fail(&list, MS_EFORMAT, "too many nodes in all");
    }
    if (rc == MS_OK) {
        policy->trees = ms_calloc(count, sizeof *policy->trees);
        policy->scores = ms_calloc(nodes + 1, policy->strategy_count * sizeof *policy->scores);
        rc = policy->trees != NULL && policy->scores != NULL ? MS_OK : ms__json_fail(&list, MS_ENOMEM, "out of memory");
    }
    for (size_t t = 0; rc == MS_OK && t < count; t++) {
        policy->tree_count = (uint32_t)t + 1;
        rc = read_tree(&list, t, policy, &policy->trees[t]);
    }
    return rc;
}

static int read_policy(const ms__json_at *at, ms_policy *policy)
{
    static const char *const members[] = {"name", "strategies", "trees"};
    int rc = ms__json_only(at, members, sizeof members / sizeof members[0]);
    if (rc == MS_OK) {
        rc = ms__json_string_copy(at, "name", &policy->name);
    }
    if (rc == MS_OK) {
        rc = read_strategies(at, policy);
    }
    return rc == MS_OK ? read_trees(at, policy) : rc;
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
    int rc = ms__json_parse(json, strlen(json), "policy", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = ms__json_version(&root, 1, 1, NULL);
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

static int write_artifact(json_t *body, char **artifact, ms_error *err)
{
    checksum_text sum;
    ms__json_writer writer = {0};
    int rc = checksum_of(body, &sum, err);
    if (rc != MS_OK) {
        return rc;
    }
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    ms__json_put_string(&writer, root, "checksum", sum.text);
    ms__json_put_value(&writer, root, "policy", json_incref(body));
    return ms__json_finish(&writer, root, "policy", artifact, err);
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
