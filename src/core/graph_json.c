/*
 * Graphs as JSON: the document of docs/formats/graph.schema.json, one line, its
 * members always in the same order, so that reading a document that was written
 * here and writing it again gives the same bytes. Called by everyone who saves or
 * loads a graph. What was read is not trusted before ms_graph_check() passed it.
 */
#include <string.h>

#include "base/json.h"
#include "core/graph_internal.h"

enum { GRAPH_VERSION = 1, VALUES_MOST = 32 << 20 };

/* ---- writing -------------------------------------------------------------- */

static void put_residents(ms__json_writer *writer, json_t *tree, const ms_residents *residents)
{
    json_t *out = ms__json_put_object(writer, tree, "residents");
    ms__json_put_u64(writer, out, "parameter_bytes", residents->parameter_bytes);
    ms__json_put_u64(writer, out, "trainable_bytes", residents->trainable_bytes);
    ms__json_put_u64(writer, out, "buffer_bytes", residents->buffer_bytes);
    ms__json_put_u64(writer, out, "batch_bytes", residents->batch_bytes);
    ms__json_put_u64(writer, out, "largest_parameter_bytes", residents->largest_parameter_bytes);
}

static void put_loop(ms__json_writer *writer, json_t *tree, const ms_loop *loop)
{
    json_t *out = ms__json_put_object(writer, tree, "loop");
    ms__json_put_bool(writer, out, "outputs_held", loop->outputs_held);
    ms__json_put_bool(writer, out, "gradients_live_in_forward", loop->gradients_live_in_forward);
    ms__json_put_bool(writer, out, "observed", loop->observed);
    ms__json_put_u64(writer, out, "optimizer_state_bytes", loop->optimizer_state_bytes);
    ms__json_put_u64(writer, out, "optimizer_transient_bytes", loop->optimizer_transient_bytes);
    ms__json_put_u64(writer, out, "external_loss_bytes", loop->external_loss_bytes);
    if (loop->optimizer_stream_bytes > 0) {
        ms__json_put_u64(writer, out, "optimizer_stream_bytes", loop->optimizer_stream_bytes);
    }
    if (loop->gradients_releasable) {
        ms__json_put_bool(writer, out, "gradients_releasable", true);
    }
    if (loop->gradients_released) {
        ms__json_put_bool(writer, out, "gradients_released", true);
    }
    if (loop->gradients_needed) {
        ms__json_put_bool(writer, out, "gradients_needed", true);
    }
    if (loop->state_streamed) {
        ms__json_put_bool(writer, out, "state_streamed", true);
    }
}

static void put_storages(ms__json_writer *writer, json_t *tree, const ms_graph *graph)
{
    json_t *out = ms__json_put_array(writer, tree, "storages");
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        const ms_storage *storage = &graph->storages[i];
        json_t *item = ms__json_add_object(writer, out);
        ms__json_put_u64(writer, item, "bytes", storage->bytes);
        ms__json_put_string(writer, item, "role", ms__storage_role_name(storage->role));
        ms__json_put_u64(writer, item, "first_node", storage->first_node);
        ms__json_put_u64(writer, item, "last_node", storage->last_node);
    }
}

static void put_events(ms__json_writer *writer, json_t *profile, const char *name,
                       const ms_event *events, uint32_t count)
{
    json_t *out = ms__json_put_array(writer, profile, name);
    for (uint32_t i = 0; i < count; i++) {
        json_t *item = ms__json_add_array(writer, out);
        ms__json_add_string(writer, item, ms__event_name(events[i].kind));
        if (events[i].kind == MS_EVENT_WORK) {
            ms__json_add_u64(writer, item, events[i].flops);
            ms__json_add_u64(writer, item, events[i].bytes);
            if (events[i].draws != 0 || events[i].evaluations != 0) {
                ms__json_add_u64(writer, item, events[i].draws);
            }
            if (events[i].evaluations != 0) {
                ms__json_add_u64(writer, item, events[i].evaluations);
            }
        } else {
            ms__json_add_u64(writer, item, events[i].storage);
        }
    }
}

static void put_u32s(ms__json_writer *writer, json_t *object, const char *name, const uint32_t *values,
                     uint32_t count)
{
    json_t *out = ms__json_put_array(writer, object, name);
    for (uint32_t i = 0; i < count; i++) {
        ms__json_add_u64(writer, out, values[i]);
    }
}

static void put_profiles(ms__json_writer *writer, json_t *tree, const ms_graph *graph)
{
    json_t *out = ms__json_put_array(writer, tree, "profiles");
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        const ms_profile *profile = &graph->profiles[i];
        json_t *item = ms__json_add_object(writer, out);
        json_t *sizes = ms__json_put_array(writer, item, "storage_bytes");
        for (uint32_t s = 0; s < profile->storage_count; s++) {
            ms__json_add_u64(writer, sizes, profile->storage_bytes[s]);
        }
        ms__json_put_u64(writer, item, "external_count", profile->external_count);
        put_u32s(writer, item, "inputs", profile->inputs, profile->input_count);
        put_events(writer, item, "forward", profile->forward, profile->forward_count);
        put_events(writer, item, "backward", profile->backward, profile->backward_count);
        ms__makers_put(writer, item, profile);
        ms__pairs_put(writer, item, profile);
    }
}

static void put_flags(ms__json_writer *writer, json_t *node, uint32_t flags)
{
    json_t *out = ms__json_put_array(writer, node, "flags");
    uint32_t bit;
    const char *name;
    for (size_t i = 0; ms__node_flag_at(i, &bit, &name); i++) {
        if (flags & bit) {
            ms__json_add_string(writer, out, name);
        }
    }
}

static void put_nodes(ms__json_writer *writer, json_t *tree, const ms_graph *graph)
{
    json_t *out = ms__json_put_array(writer, tree, "nodes");
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *node = &graph->nodes[i];
        json_t *item = ms__json_add_object(writer, out);
        ms__json_put_string(writer, item, "name", node->name);
        ms__json_put_string(writer, item, "kind", ms__node_kind_name(node->kind));
        ms__json_put_u64(writer, item, "call", node->call);
        put_flags(writer, item, node->flags);
        ms__json_put_u64(writer, item, "profile", node->profile);
        if (node->tiled > 0) {
            ms__json_put_u64(writer, item, "tiled", node->tiled - 1);
        }
        put_u32s(writer, item, "externals", node->externals,
                 graph->profiles[node->profile].external_count);
    }
}

char *ms_graph_to_json(const ms_graph *graph)
{
    ms__json_writer writer = {0};
    json_t *tree = ms__json_new(&writer);
    ms__json_put_u64(&writer, tree, "version", GRAPH_VERSION);
    ms__json_put_string(&writer, tree, "model", graph->model);
    ms__json_put_string(&writer, tree, "signature", graph->signature);
    ms__json_put_string(&writer, tree, "source", graph->source);
    put_residents(&writer, tree, &graph->residents);
    put_loop(&writer, tree, &graph->loop);
    if (graph->small_products) {
        ms__json_put_bool(&writer, tree, "small_products", true);
    }
    put_storages(&writer, tree, graph);
    put_profiles(&writer, tree, graph);
    put_nodes(&writer, tree, graph);
    char *text = writer.code == MS_OK ? ms__json_text(tree, true) : NULL;
    json_decref(tree);
    return text;
}

/* ---- reading -------------------------------------------------------------- */

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static int no_memory(const ms__json_at *at)
{
    return ms__json_fail(at, MS_ENOMEM, "out of memory");
}

/* The array's length as 32 bits. UINT32_MAX itself is refused, so that counts can
 * be stepped over. */
static int count_u32(const ms__json_at *array, uint32_t *count)
{
    size_t items = ms__json_count(array);
    if (items >= UINT32_MAX) {
        return ms__json_fail(array, MS_EFORMAT, "too many items");
    }
    *count = (uint32_t)items;
    return MS_OK;
}

/* Reads `count` bytes members of an object in a table, so that each has one line. */
typedef struct u64_field {
    const char *name;
    uint64_t *out;
} u64_field;

static int read_u64_fields(const ms__json_at *object, const u64_field *fields, size_t count)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_u64(object, fields[i].name, 0, MS__GRAPH_NUMBER_MAX, fields[i].out);
    }
    return rc;
}

static int read_residents(const ms__json_at *root, ms_residents *residents)
{
    static const char *const names[] = {"parameter_bytes", "trainable_bytes", "buffer_bytes",
                                        "batch_bytes", "largest_parameter_bytes"};
    const u64_field fields[] = {
        {names[0], &residents->parameter_bytes}, {names[1], &residents->trainable_bytes},
        {names[2], &residents->buffer_bytes},    {names[3], &residents->batch_bytes},
        {names[4], &residents->largest_parameter_bytes},
    };
    ms__json_at object;
    int rc = ms__json_object(root, "residents", &object);
    if (rc == MS_OK) {
        rc = ms__json_only(&object, names, COUNT_OF(names));
    }
    return rc == MS_OK ? read_u64_fields(&object, fields, COUNT_OF(fields)) : rc;
}

/* What an optimizer of memscale's own can do: documents without one do not speak of it. */
static int read_own_optimizer(const ms__json_at *object, const char *const names[5], ms_loop *loop)
{
    const u64_field field = {names[0], &loop->optimizer_stream_bytes};
    bool *const switches[] = {&loop->gradients_releasable, &loop->gradients_released, &loop->state_streamed,
                               &loop->gradients_needed};
    int rc = ms__json_has(object, names[0]) ? read_u64_fields(object, &field, 1) : MS_OK;
    for (size_t i = 0; rc == MS_OK && i < COUNT_OF(switches); i++) {
        rc = ms__json_has(object, names[1 + i]) ? ms__json_bool(object, names[1 + i], switches[i]) : MS_OK;
    }
    return rc;
}

static int read_loop(const ms__json_at *root, ms_loop *loop)
{
    static const char *const names[] = {
        "outputs_held",          "gradients_live_in_forward", "observed",
        "optimizer_state_bytes", "optimizer_transient_bytes", "external_loss_bytes",
        "optimizer_stream_bytes", "gradients_releasable", "gradients_released",
        "state_streamed",        "gradients_needed",
    };
    bool *const switches[] = {&loop->outputs_held, &loop->gradients_live_in_forward, &loop->observed};
    const u64_field fields[] = {
        {names[3], &loop->optimizer_state_bytes},
        {names[4], &loop->optimizer_transient_bytes},
        {names[5], &loop->external_loss_bytes},
    };
    ms__json_at object;
    int rc = ms__json_object(root, "loop", &object);
    if (rc == MS_OK) {
        rc = ms__json_only(&object, names, COUNT_OF(names));
    }
    for (size_t i = 0; rc == MS_OK && i < COUNT_OF(switches); i++) {
        rc = ms__json_bool(&object, names[i], switches[i]);
    }
    rc = rc == MS_OK ? read_u64_fields(&object, fields, COUNT_OF(fields)) : rc;
    return rc == MS_OK ? read_own_optimizer(&object, &names[6], loop) : rc;
}

static int read_storage(const ms__json_at *object, ms_storage *storage)
{
    static const char *const names[] = {"bytes", "role", "first_node", "last_node"};
    static const char *const roles[] = {
#define ROLE_NAME(id, name) [MS_STORAGE_##id] = name,
        MS_STORAGE_ROLE_TABLE(ROLE_NAME)
#undef ROLE_NAME
    };
    size_t role = 0;
    int rc = ms__json_only(object, names, COUNT_OF(names));
    if (rc == MS_OK) {
        rc = ms__json_u64(object, "bytes", 0, MS__GRAPH_NUMBER_MAX, &storage->bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_enum(object, "role", roles, COUNT_OF(roles), &role);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "first_node", 0, UINT32_MAX, &storage->first_node);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "last_node", 0, UINT32_MAX, &storage->last_node);
    }
    storage->role = (uint32_t)role;
    return rc;
}

static int read_storages(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    uint32_t count = 0;
    int rc = ms__json_array(root, "storages", &array);
    if (rc != MS_OK || (rc = count_u32(&array, &count)) != MS_OK) {
        return rc;
    }
    graph->storages = ms_calloc(count, sizeof *graph->storages);
    if (graph->storages == NULL) {
        return no_memory(&array);
    }
    graph->storage_count = count;
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        ms__json_at item;
        rc = ms__json_item_object(&array, i, &item);
        if (rc == MS_OK) {
            rc = read_storage(&item, &graph->storages[i]);
        }
    }
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
    bool fits = is_work ? count >= 3 && count <= 5 : count == 2;
    if (event->kind == MS_EVENT_COUNT || !fits) {
        return ms__json_fail(item, MS_EFORMAT,
                             "expected [\"work\", flops, bytes] or [\"alloc\", storage] and its kin");
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
    uint32_t items = 0;
    int rc = ms__json_array(profile, name, &array);
    if (rc != MS_OK || (rc = count_u32(&array, &items)) != MS_OK) {
        return rc;
    }
    *events = ms_calloc(items, sizeof **events);
    if (*events == NULL) {
        return no_memory(&array);
    }
    *count = items;
    for (uint32_t i = 0; rc == MS_OK && i < items; i++) {
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
    uint32_t items = 0;
    int rc = ms__json_array(object, name, &array);
    if (rc != MS_OK || (rc = count_u32(&array, &items)) != MS_OK) {
        return rc;
    }
    *values = ms_calloc(items, sizeof **values);
    if (*values == NULL) {
        return no_memory(&array);
    }
    *count = items;
    for (uint32_t i = 0; rc == MS_OK && i < items; i++) {
        uint64_t value = 0;
        rc = ms__json_item_u64(&array, i, 0, UINT32_MAX, &value);
        (*values)[i] = (uint32_t)value;
    }
    return rc;
}

static int read_sizes(const ms__json_at *object, ms_profile *profile)
{
    ms__json_at array;
    uint32_t count = 0;
    int rc = ms__json_array(object, "storage_bytes", &array);
    if (rc != MS_OK || (rc = count_u32(&array, &count)) != MS_OK) {
        return rc;
    }
    profile->storage_bytes = ms_calloc(count, sizeof *profile->storage_bytes);
    if (profile->storage_bytes == NULL) {
        return no_memory(&array);
    }
    profile->storage_count = count;
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_u64(&array, i, 0, MS__GRAPH_NUMBER_MAX, &profile->storage_bytes[i]);
    }
    return rc;
}

static int read_profile(const ms__json_at *object, ms_profile *profile)
{
    static const char *const names[] = {"storage_bytes", "external_count", "inputs", "forward",
                                        "backward", "makers", "two_valued", "untouched"};
    int rc = ms__json_only(object, names, COUNT_OF(names));
    if (rc == MS_OK) {
        rc = read_sizes(object, profile);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(object, "external_count", 0, profile->storage_count,
                          &profile->external_count);
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
    return rc == MS_OK ? ms__pairs_read(object, profile) : rc;
}

static int read_profiles(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    uint32_t count = 0;
    int rc = ms__json_array(root, "profiles", &array);
    if (rc != MS_OK || (rc = count_u32(&array, &count)) != MS_OK) {
        return rc;
    }
    graph->profiles = ms_calloc(count, sizeof *graph->profiles);
    if (graph->profiles == NULL) {
        return no_memory(&array);
    }
    graph->profile_count = count;
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
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
    if (node->profile >= graph->profile_count ||
        external_count != graph->profiles[node->profile].external_count) {
        return ms__json_fail(object, MS_EFORMAT,
                             "profile %u does not exist or has another number of externals",
                             (unsigned)node->profile);
    }
    return MS_OK;
}

static int read_nodes(const ms__json_at *root, ms_graph *graph)
{
    ms__json_at array;
    uint32_t count = 0;
    int rc = ms__json_array(root, "nodes", &array);
    if (rc != MS_OK || (rc = count_u32(&array, &count)) != MS_OK) {
        return rc;
    }
    if (count > MS_GRAPH_NODES_MOST) {
        return ms__json_fail(&array, MS_EFORMAT, "has %u nodes, more than %d", (unsigned)count, MS_GRAPH_NODES_MOST);
    }
    graph->nodes = ms_calloc(count, sizeof *graph->nodes);
    if (graph->nodes == NULL) {
        return no_memory(&array);
    }
    graph->node_count = count;
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
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
    static const char *const names[] = {"version",  "model",    "signature", "source",        "residents", "loop",
                                        "storages", "profiles", "nodes",     "small_products"};
    static int (*const parts[])(const ms__json_at *, ms_graph *) = {read_storages, read_profiles,
                                                                    read_nodes};
    int rc = ms__json_version(root, GRAPH_VERSION, GRAPH_VERSION, NULL);
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
        rc = read_residents(root, &graph->residents);
    }
    if (rc == MS_OK) {
        rc = read_loop(root, &graph->loop);
    }
    if (rc == MS_OK && ms__json_has(root, "small_products")) {
        rc = ms__json_bool(root, "small_products", &graph->small_products);
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
    rc = rc != MS_OK ? rc : ms__json_parse(json, strlen(json), "graph", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_graph *read = ms_calloc(1, sizeof *read);
    if (read == NULL) {
        rc = no_memory(&root);
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
