/*
 * Reads the document that graph_json.c writes, strictly: every refusal names its place. Called from any thread.
 * ms_graph_check() checks the result; a refused graph is freed here.
 */
#include <string.h>

#include "graph/graph_internal.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* UINT32_MAX is refused, so that a loop over a count can't overflow. */
#define ITEMS_MOST (UINT32_MAX - 1)

/* Limit of a whole document, checked before it is parsed. */
enum { VALUES_MOST = 32 << 20 };

static int read_storages(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    int rc;
    graph->storages =
        ms__json_items(root, "storages", ITEMS_MOST, sizeof *graph->storages, &array, &graph->storage_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < graph->storage_count; i++) {
        ms__json_at item;
        rc = ms__json_item_object(&array, i, &item);
        if (rc == MS_OK) {
            rc = ms__graph_read_storage(&item, &graph->storages[i]);
        }
    }
    return rc;
}

int ms__graph_read_precision(const ms__json_at *item, size_t index, uint32_t *precision)
{
    uint64_t value = MS_PRECISION_AS_IS;
    int rc = ms__json_item_u64(item, index, MS_PRECISION_AS_IS, MS_PRECISION_FP16, &value);
    *precision = (uint32_t)value;
    return rc;
}

static int read_work(const ms__json_at *item, uint32_t count, ms_event *event)
{
    int rc = ms__json_item_u64(item, 1, 0, MS__GRAPH_NUMBER_MAX, &event->flops);
    if (rc == MS_OK) {
        rc = ms__json_item_u64(item, 2, 0, MS__GRAPH_NUMBER_MAX, &event->bytes);
    }
    if (rc == MS_OK && count > 3) {
        rc = ms__json_item_u64(item, 3, 0, MS__GRAPH_NUMBER_MAX, &event->draws);
    }
    if (rc == MS_OK && count > 4) {
        rc = ms__json_item_u64(item, 4, 0, MS__GRAPH_NUMBER_MAX, &event->evaluations);
    }
    if (rc == MS_OK && count > 5) {
        rc = ms__graph_read_precision(item, 5, &event->precision);
    }
    if (rc == MS_OK && count > 6) {
        rc = ms__json_item_u64(item, 6, 0, MS__GRAPH_NUMBER_MAX, &event->moved_bytes);
    }
    return rc;
}

static int read_event(const ms__json_at *item, ms_event *event)
{
    const char *name;
    uint64_t storage = 0;
    int rc = ms__json_item_string(item, 0, &name);
    if (rc != MS_OK) {
        return rc;
    }
    while (event->kind < MS_EVENT_COUNT && strcmp(name, ms__event_name(event->kind)) != 0) {
        event->kind++;
    }
    bool is_work = event->kind == MS_EVENT_WORK;
    uint32_t count = ms__json_count(item);
    bool fits = is_work ? count >= 3 && count <= 7 : count == 2;
    if (event->kind == MS_EVENT_COUNT || !fits) {
        return ms__json_fail(item, MS_EFORMAT, "expected [\"work\", flops, bytes] or [\"alloc\", storage] and its kin");
    }
    if (is_work) {
        return read_work(item, count, event);
    }
    rc = ms__json_item_u64(item, 1, 0, UINT32_MAX, &storage);
    event->storage = (uint32_t)storage;
    return rc;
}

static int read_events(const ms__json_at *profile, const char *name, ms_event **events, uint32_t *count)
{
    ms__json_at array;
    int rc;
    *events = ms__json_items(profile, name, ITEMS_MOST, sizeof **events, &array, count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < *count; i++) {
        ms__json_at item;
        rc = ms__json_item_array(&array, i, &item);
        if (rc == MS_OK) {
            rc = read_event(&item, &(*events)[i]);
        }
    }
    return rc;
}

static int read_u32s(const ms__json_at *object, const char *name, uint32_t **values, uint32_t *count)
{
    ms__json_at array;
    int rc;
    *values = ms__json_items(object, name, ITEMS_MOST, sizeof **values, &array, count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < *count; i++) {
        uint64_t value = 0;
        rc = ms__json_item_u64(&array, i, 0, UINT32_MAX, &value);
        (*values)[i] = (uint32_t)value;
    }
    return rc;
}

static int read_sizes(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    int rc;
    profile->storage_bytes = ms__json_items(object, "storage_bytes", ITEMS_MOST, sizeof *profile->storage_bytes, &array,
                                            &profile->storage_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < profile->storage_count; i++) {
        rc = ms__json_item_u64(&array, i, 0, MS__GRAPH_NUMBER_MAX, &profile->storage_bytes[i]);
    }
    return rc;
}

static int read_measured(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    if (!ms__json_has(object, "measured_ns")) {
        return MS_OK;
    }
    int rc = ms__json_array(object, "measured_ns", &array);
    if (rc == MS_OK && ms__json_count(&array) != 2) {
        rc = ms__json_fail(&array, MS_EFORMAT, "expected [forward, backward]");
    }
    if (rc == MS_OK) {
        rc = ms__json_item_u64(&array, 0, 0, MS__GRAPH_NUMBER_MAX, &profile->forward_ns);
    }
    return rc == MS_OK ? ms__json_item_u64(&array, 1, 0, MS__GRAPH_NUMBER_MAX, &profile->backward_ns) : rc;
}

static int read_profile(const ms__json_at *object, ms_profile *profile)
{
    static const char *const names[] = {"storage_bytes", "external_count", "inputs",    "forward",    "backward",
                                        "makers",        "two_valued",     "untouched", "measured_ns"};
    int rc = ms__json_only(object, names, COUNT_OF(names));
    if (rc == MS_OK) {
        rc = read_sizes(object, profile);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "external_count", 0, profile->storage_count, &profile->external_count);
    }
    if (rc == MS_OK) {
        rc = read_u32s(object, "inputs", &profile->inputs, &profile->input_count);
    }
    if (rc == MS_OK) {
        rc = read_events(object, "forward", &profile->forward, &profile->forward_count);
    }
    if (rc == MS_OK) {
        rc = read_events(object, "backward", &profile->backward, &profile->backward_count);
    }
    if (rc == MS_OK) {
        rc = ms__makers_read(object, profile);
    }
    if (rc == MS_OK) {
        rc = ms__pairs_read(object, profile);
    }
    return rc == MS_OK ? read_measured(object, profile) : rc;
}

static int read_profiles(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    int rc;
    graph->profiles =
        ms__json_items(root, "profiles", ITEMS_MOST, sizeof *graph->profiles, &array, &graph->profile_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < graph->profile_count; i++) {
        ms__json_at item;
        rc = ms__json_item_object(&array, i, &item);
        if (rc == MS_OK) {
            rc = read_profile(&item, &graph->profiles[i]);
        }
    }
    return rc;
}

static int read_flags(const ms__json_at *object, uint32_t *flags)
{
    ms__json_at array;
    int rc = ms__json_array(object, "flags", &array);
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(&array); i++) {
        const char *text;
        const char *name = NULL;
        uint32_t bit = 0;
        rc = ms__json_item_string(&array, i, &text);
        if (rc != MS_OK) {
            return rc;
        }
        size_t known = 0;
        while (ms__node_flag_at(known, &bit, &name) && strcmp(text, name) != 0) {
            known++;
        }
        if (!ms__node_flag_at(known, &bit, &name) || (*flags & bit) != 0) {
            return ms__json_fail(&array, MS_EFORMAT, "\"%.64s\" is unknown or listed twice", text);
        }
        *flags |= bit;
    }
    return rc;
}

static int read_node(const ms__json_at *object, const ms_graph *graph, ms_node *node)
{
    static const char *const names[] = {"name", "kind", "call", "flags", "profile", "tiled", "externals"};
    static const char *const kinds[] = {[MS_NODE_ROOT] = "root", [MS_NODE_LAYER] = "layer"};
    size_t kind = 0;
    uint32_t external_count = 0;
    int rc = ms__json_only(object, names, COUNT_OF(names));
    if (rc == MS_OK) {
        rc = ms__json_string_copy(object, "name", &node->name);
    }
    if (rc == MS_OK) {
        rc = ms__json_enum(object, "kind", kinds, COUNT_OF(kinds), &kind);
    }
    node->kind = (uint32_t)kind;
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "call", 0, UINT32_MAX, &node->call);
    }
    if (rc == MS_OK) {
        rc = read_flags(object, &node->flags);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "profile", 0, UINT32_MAX, &node->profile);
    }
    if (rc == MS_OK && ms__json_has(object, "tiled")) {
        rc = ms__json_u32(object, "tiled", 0, UINT32_MAX - 1, &node->tiled);
        node->tiled++;
    }
    if (rc == MS_OK) {
        rc = read_u32s(object, "externals", &node->externals, &external_count);
    }
    if (rc != MS_OK) {
        return rc;
    }
    if (node->profile >= graph->profile_count || external_count != graph->profiles[node->profile].external_count) {
        return ms__json_fail(object, MS_EFORMAT, "profile %u does not exist or has another number of externals",
                             (unsigned)node->profile);
    }
    return MS_OK;
}

static int read_nodes(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    int rc;
    graph->nodes =
        ms__json_items(root, "nodes", MS_GRAPH_NODES_MOST, sizeof *graph->nodes, &array, &graph->node_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        ms__json_at item;
        rc = ms__json_item_object(&array, i, &item);
        if (rc == MS_OK) {
            rc = read_node(&item, graph, &graph->nodes[i]);
        }
    }
    return rc;
}

static int read_graph(const ms__json_at *root, ms_graph *graph)
{
    static const char *const names[] = {"version",      "model",         "signature",        "source", "residents",
                                        "loop",         "storages",      "profiles",         "nodes",  "small_products",
                                        "convolutions", "half_products", "libc_buffer_bytes"};
    static int (*const parts[])(const ms__json_at *, ms_graph *) = {read_storages, read_profiles, read_nodes};
    int rc = ms__json_version(root, MS__GRAPH_VERSION, MS__GRAPH_VERSION, NULL);
    if (rc == MS_OK) {
        rc = ms__json_only(root, names, COUNT_OF(names));
    }
    if (rc == MS_OK) {
        rc = ms__json_string_copy(root, "model", &graph->model);
    }
    if (rc == MS_OK) {
        rc = ms__json_string_copy(root, "signature", &graph->signature);
    }
    if (rc == MS_OK) {
        rc = ms__json_string_copy(root, "source", &graph->source);
    }
    if (rc == MS_OK) {
        rc = ms__graph_read_residents(root, &graph->residents);
    }
    if (rc == MS_OK) {
        rc = ms__graph_read_loop(root, &graph->loop);
    }
    if (rc == MS_OK && ms__json_has(root, "small_products")) {
        rc = ms__json_bool(root, "small_products", &graph->small_products);
    }
    if (rc == MS_OK && ms__json_has(root, "convolutions")) {
        rc = ms__json_u32(root, "convolutions", 1, UINT32_MAX, &graph->convolutions);
    }
    if (rc == MS_OK && ms__json_has(root, "half_products")) {
        rc = ms__json_u32(root, "half_products", 1, UINT32_MAX, &graph->half_products);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "libc_buffer_bytes", 1, INT64_MAX, 0, &graph->libc_buffer_bytes);
    }
    for (size_t i = 0; rc == MS_OK && i < COUNT_OF(parts); i++) {
        rc = parts[i](root, graph);
    }
    return rc;
}

int ms_graph_parse(const char *json, ms_graph **graph, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    const ms__json_extent most = {"nodes", MS_GRAPH_NODES_MOST, VALUES_MOST};
    int rc = ms__json_check_extent(json, "graph", &most, err);
    if (rc == MS_OK) {
        rc = ms__json_parse(json, strlen(json), "graph", &tree, &root, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms_graph *read = ms_calloc(1, sizeof *read);
    if (read == NULL) {
        rc = ms__json_fail(&root, MS_ENOMEM, "out of memory");
        goto cleanup;
    }
    rc = read_graph(&root, read);
    if (rc == MS_OK) {
        rc = ms_graph_check(read, err);
    }
    if (rc == MS_OK) {
        *graph = read;
        read = NULL;
    }
cleanup:
    ms_graph_free(read);
    json_decref(tree);
    return rc;
}
