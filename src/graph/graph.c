/*
 * The graph as a value: names of its enumerators, freeing, copying and finding nodes. Knows nothing of JSON or of the
 * tracer.
 */
#include <string.h>

#include "base/units.h"
#include "graph/graph_internal.h"

static const char *const event_names[] = {
#define EVENT_NAME(id, name) [MS_EVENT_##id] = name,
    MS_EVENT_TABLE(EVENT_NAME)
#undef EVENT_NAME
};

static const char *const role_names[] = {
#define ROLE_NAME(id, name) [MS_STORAGE_##id] = name,
    MS_STORAGE_ROLE_TABLE(ROLE_NAME)
#undef ROLE_NAME
};

static const struct {
    uint32_t bit;
    const char *name;
} node_flags[] = {
#define NODE_FLAG(id, shift, text) {MS_NODE_##id, text},
    MS_NODE_FLAG_TABLE(NODE_FLAG)
#undef NODE_FLAG
};

const char *ms__event_name(uint32_t kind)
{
    return kind < MS_EVENT_COUNT ? event_names[kind] : NULL;
}

const char *ms__storage_role_name(uint32_t role)
{
    return role < MS_STORAGE_ROLE_COUNT ? role_names[role] : NULL;
}

const char *ms__node_kind_name(uint32_t kind)
{
    switch (kind) {
    case MS_NODE_ROOT:
        return "root";
    case MS_NODE_LAYER:
        return "layer";
    default:
        return NULL;
    }
}

bool ms__node_flag_at(size_t index, uint32_t *bit, const char **name)
{
    if (index >= sizeof node_flags / sizeof node_flags[0]) {
        return false;
    }
    *bit = node_flags[index].bit;
    *name = node_flags[index].name;
    return true;
}

void ms__profile_clear(ms_profile *profile)
{
    ms_free(profile->storage_bytes);
    ms_free(profile->inputs);
    ms_free(profile->forward);
    ms_free(profile->backward);
    ms_free(profile->makers);
    ms_free(profile->operands);
    ms__pairs_clear(profile);
    memset(profile, 0, sizeof *profile);
}

void ms__node_clear(ms_node *node)
{
    ms_free(node->name);
    ms_free(node->externals);
    memset(node, 0, sizeof *node);
}

void ms_graph_free(ms_graph *graph)
{
    if (graph == NULL) {
        return;
    }
    for (uint32_t i = 0; graph->profiles != NULL && i < graph->profile_count; i++) {
        ms__profile_clear(&graph->profiles[i]);
    }
    for (uint32_t i = 0; graph->nodes != NULL && i < graph->node_count; i++) {
        ms__node_clear(&graph->nodes[i]);
    }
    ms_free(graph->profiles);
    ms_free(graph->nodes);
    ms_free(graph->storages);
    ms_free(graph->model);
    ms_free(graph->signature);
    ms_free(graph->source);
    ms_free(graph);
}

/* A copy of `count` items, or NULL. A copy of no items is a valid block. */
static void *copy_items(const void *items, size_t count, size_t item_bytes)
{
    void *copy = ms_calloc(count, item_bytes);
    if (copy != NULL && count > 0) {
        memcpy(copy, items, count * item_bytes);
    }
    return copy;
}

int ms__profile_copy(const ms_profile *from, ms_profile *to)
{
    *to = *from;
    to->storage_bytes = copy_items(from->storage_bytes, from->storage_count, sizeof *from->storage_bytes);
    to->inputs = copy_items(from->inputs, from->input_count, sizeof *from->inputs);
    to->forward = copy_items(from->forward, from->forward_count, sizeof *from->forward);
    to->backward = copy_items(from->backward, from->backward_count, sizeof *from->backward);
    to->makers = copy_items(from->makers, from->maker_count, sizeof *from->makers);
    to->operands = copy_items(from->operands, from->operand_count, sizeof *from->operands);
    int rc = ms__pairs_copy(from, to);
    bool complete = to->storage_bytes != NULL && to->inputs != NULL && to->forward != NULL && to->backward != NULL &&
                    to->makers != NULL && to->operands != NULL;
    return complete ? rc : MS_ENOMEM;
}

static int copy_node(const ms_graph *graph, const ms_node *from, ms_node *to)
{
    *to = *from;
    to->name = ms_strdup(from->name);
    to->externals = copy_items(from->externals, graph->profiles[from->profile].external_count, sizeof *from->externals);
    return to->name != NULL && to->externals != NULL ? MS_OK : MS_ENOMEM;
}

/* Fills a graph whose arrays are all NULL. After a failure `to` still owns its parts. */
static int copy_parts(const ms_graph *from, ms_graph *to)
{
    to->model = ms_strdup(from->model);
    to->signature = ms_strdup(from->signature);
    to->source = ms_strdup(from->source);
    to->storages = copy_items(from->storages, from->storage_count, sizeof *from->storages);
    to->profiles = ms_calloc(from->profile_count, sizeof *to->profiles);
    to->nodes = ms_calloc(from->node_count, sizeof *to->nodes);
    if (to->model == NULL || to->signature == NULL || to->source == NULL || to->storages == NULL ||
        to->profiles == NULL || to->nodes == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < from->profile_count; i++) {
        int code = ms__profile_copy(&from->profiles[i], &to->profiles[i]);
        if (code != MS_OK) {
            return code;
        }
    }
    for (uint32_t i = 0; i < from->node_count; i++) {
        int code = copy_node(from, &from->nodes[i], &to->nodes[i]);
        if (code != MS_OK) {
            return code;
        }
    }
    return MS_OK;
}

ms_graph *ms_graph_copy(const ms_graph *graph, ms_error *err)
{
    ms_graph *copy = ms_calloc(1, sizeof *copy);
    if (copy == NULL) {
        ms_fail(err, MS_ENOMEM, "copying the graph of %s", graph->model);
        return NULL;
    }
    copy->residents = graph->residents;
    copy->loop = graph->loop;
    copy->small_products = graph->small_products;
    copy->convolutions = graph->convolutions;
    copy->half_products = graph->half_products;
    copy->libc_buffer_bytes = graph->libc_buffer_bytes;
    copy->storage_count = graph->storage_count;
    copy->profile_count = graph->profile_count;
    copy->node_count = graph->node_count;
    if (copy_parts(graph, copy) != MS_OK) {
        ms_graph_free(copy);
        ms_fail(err, MS_ENOMEM, "copying the graph of %s", graph->model);
        return NULL;
    }
    return copy;
}

void ms_graph_adopt_loop(ms_graph *graph, const ms_graph *other)
{
    if (!other->loop.observed) {
        return;
    }
    graph->loop.observed = true;
    graph->loop.outputs_held = other->loop.outputs_held;
    graph->loop.gradients_live_in_forward = other->loop.gradients_live_in_forward;
    graph->loop.gradients_cleared = other->loop.gradients_cleared;
    if (graph->residents.trainable_bytes == other->residents.trainable_bytes) {
        graph->loop.optimizer_state_bytes = other->loop.optimizer_state_bytes;
    }
    graph->loop.pending_forwards = other->loop.pending_forwards;
    graph->loop.gradients_released = other->loop.gradients_released;
    graph->loop.gradients_needed = other->loop.gradients_needed;
}

void ms_graph_pend(ms_graph *graph, uint64_t forwards)
{
    graph->loop.pending_forwards = ms__max_u64(graph->loop.pending_forwards, forwards);
}

void ms_graph_hold(ms_graph *graph, const char *layer)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        ms_node *node = &graph->nodes[i];
        if (node->kind == MS_NODE_LAYER && strcmp(node->name, layer) == 0) {
            node->flags |= MS_NODE_NOT_REPEATABLE;
        }
    }
}

bool ms_graph_same_step(const ms_graph *graph, const ms_graph *other)
{
    ms_error err;
    bool is_same = false;
    char *text = NULL, *other_text = NULL;
    ms_graph *twin = ms_graph_copy(graph, &err);
    if (twin != NULL) {
        ms_free(twin->signature);
        twin->signature = ms_strdup(other->signature);
        twin->loop = other->loop;
        text = twin->signature != NULL ? ms_graph_to_json(twin) : NULL;
        other_text = ms_graph_to_json(other);
        is_same = text != NULL && other_text != NULL && strcmp(text, other_text) == 0;
    }
    ms_free(text);
    ms_free(other_text);
    ms_graph_free(twin);
    return is_same;
}

static bool equal_items(const void *a, const void *b, size_t count, size_t item_bytes)
{
    return count == 0 || memcmp(a, b, count * item_bytes) == 0;
}

bool ms__profile_equal(const ms_profile *a, const ms_profile *b)
{
    return a->storage_count == b->storage_count && a->external_count == b->external_count &&
           a->input_count == b->input_count && a->forward_count == b->forward_count &&
           a->backward_count == b->backward_count && a->forward_ns == b->forward_ns &&
           a->backward_ns == b->backward_ns &&
           equal_items(a->storage_bytes, b->storage_bytes, a->storage_count, sizeof *a->storage_bytes) &&
           equal_items(a->inputs, b->inputs, a->input_count, sizeof *a->inputs) &&
           equal_items(a->forward, b->forward, a->forward_count, sizeof *a->forward) &&
           equal_items(a->backward, b->backward, a->backward_count, sizeof *a->backward) && ms__makers_equal(a, b) &&
           ms__pairs_equal(a, b);
}

/* ---- chains --------------------------------------------------------------- */

static bool profile_allocates(const ms_profile *profile, uint32_t storage)
{
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        if (profile->forward[i].kind == MS_EVENT_ALLOC && profile->forward[i].storage == storage) {
            return true;
        }
    }
    return false;
}

const ms_node *ms__chain_before(const ms_graph *graph, const ms_node *node, uint32_t *storage)
{
    const ms_profile *profile = &graph->profiles[node->profile];
    const ms_node *before = node;
    do {
        if (before == graph->nodes) {
            return NULL;
        }
        before--;
    } while (before->kind != MS_NODE_LAYER);
    if (node->kind != MS_NODE_LAYER || (before->flags & MS_NODE_CHAINED) == 0 || profile->input_count == 0) {
        return NULL;
    }
    const ms_profile *made = &graph->profiles[before->profile];
    for (uint32_t i = 0; i < made->external_count; i++) {
        if (before->externals[i] == node->externals[profile->inputs[0]]) {
            *storage = i;
            return profile_allocates(made, i) ? before : NULL;
        }
    }
    return NULL;
}
