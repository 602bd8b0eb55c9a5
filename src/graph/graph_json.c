/*
 * Writes graphs as JSON (docs/formats/graph.schema.json): one line, members always in the same order, so that reading
 * (graph_json_read.c) and writing again gives the same bytes. Called from any thread.
 */
#include "base/json_fields.h"
#include "graph/graph_internal.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const ms__json_field residents_fields[] = {
    MS__FIELD(ms_residents, parameter_bytes, U64),
    MS__FIELD(ms_residents, trainable_bytes, U64),
    MS__FIELD(ms_residents, buffer_bytes, U64),
    MS__FIELD(ms_residents, batch_bytes, U64),
    MS__FIELD(ms_residents, largest_parameter_bytes, U64),
};

static const ms__json_field loop_fields[] = {
    MS__FIELD(ms_loop, outputs_held, BOOL),
    MS__FIELD(ms_loop, gradients_live_in_forward, BOOL),
    MS__FIELD(ms_loop, observed, BOOL),
    MS__FIELD(ms_loop, gradients_cleared, IF_SET),
    MS__FIELD(ms_loop, pending_forwards, IF_ANY),
    MS__FIELD(ms_loop, optimizer_state_bytes, U64),
    MS__FIELD(ms_loop, optimizer_made_bytes, IF_ANY),
    MS__FIELD(ms_loop, optimizer_transient_bytes, U64),
    MS__FIELD(ms_loop, external_loss_bytes, U64),
    MS__FIELD(ms_loop, optimizer_stream_bytes, IF_ANY),
    MS__FIELD(ms_loop, gradients_releasable, IF_SET),
    MS__FIELD(ms_loop, gradients_released, IF_SET),
    MS__FIELD(ms_loop, gradients_needed, IF_SET),
    MS__FIELD(ms_loop, state_streamed, IF_SET),
};

static const ms__json_field storage_fields[] = {
    MS__FIELD(ms_storage, bytes, U64),
    MS__FIELD_WORDS(ms_storage, role, MS_STORAGE_ROLE_COUNT, ms__storage_role_name),
    MS__FIELD(ms_storage, first_node, U32),
    MS__FIELD(ms_storage, last_node, U32),
};

static const char *const no_others[] = {NULL};

int ms__graph_read_residents(const ms__json_at *root, ms_residents *residents)
{
    ms__json_at object;
    int rc = ms__json_object(root, "residents", &object);
    return rc != MS_OK
               ? rc
               : ms__json_read_only_fields(&object, residents_fields, COUNT_OF(residents_fields), no_others, residents);
}

int ms__graph_read_loop(const ms__json_at *root, ms_loop *loop)
{
    ms__json_at object;
    int rc = ms__json_object(root, "loop", &object);
    return rc != MS_OK ? rc : ms__json_read_only_fields(&object, loop_fields, COUNT_OF(loop_fields), no_others, loop);
}

int ms__graph_read_storage(const ms__json_at *object, ms_storage *storage)
{
    return ms__json_read_only_fields(object, storage_fields, COUNT_OF(storage_fields), no_others, storage);
}

static void put_storages(ms__json_writer *writer, json_t *tree, const ms_graph *graph)
{
    json_t *out = ms__json_put_array(writer, tree, "storages");
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        ms__json_put_fields(writer, ms__json_add_object(writer, out), storage_fields, COUNT_OF(storage_fields),
                            &graph->storages[i]);
    }
}

/* Leaves out the zeros at the end. */
static void add_until_zero(ms__json_writer *writer, json_t *item, const ms_event *work)
{
    const uint64_t numbers[] = {work->draws, work->evaluations, work->precision, work->moved_bytes};
    size_t count = COUNT_OF(numbers);
    while (count > 0 && numbers[count - 1] == 0) {
        count--;
    }
    for (size_t i = 0; i < count; i++) {
        ms__json_add_u64(writer, item, numbers[i]);
    }
}

static void put_events(ms__json_writer *writer, json_t *profile, const char *name, const ms_event *events,
                       uint32_t count)
{
    json_t *out = ms__json_put_array(writer, profile, name);
    for (uint32_t i = 0; i < count; i++) {
        json_t *item = ms__json_add_array(writer, out);
        ms__json_add_string(writer, item, ms__event_name(events[i].kind));
        if (events[i].kind == MS_EVENT_WORK) {
            ms__json_add_u64(writer, item, events[i].flops);
            ms__json_add_u64(writer, item, events[i].bytes);
            add_until_zero(writer, item, &events[i]);
        } else {
            ms__json_add_u64(writer, item, events[i].storage);
        }
    }
}

static void put_u32s(ms__json_writer *writer, json_t *object, const char *name, const uint32_t *values, uint32_t count)
{
    json_t *out = ms__json_put_array(writer, object, name);
    for (uint32_t i = 0; i < count; i++) {
        ms__json_add_u64(writer, out, values[i]);
    }
}

static void put_measured(ms__json_writer *writer, json_t *object, const ms_profile *profile)
{
    if (profile->forward_ns != 0 || profile->backward_ns != 0) {
        json_t *out = ms__json_put_array(writer, object, "measured_ns");
        ms__json_add_u64(writer, out, profile->forward_ns);
        ms__json_add_u64(writer, out, profile->backward_ns);
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
        put_measured(writer, item, profile);
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
        put_u32s(writer, item, "externals", node->externals, graph->profiles[node->profile].external_count);
    }
}

char *ms_graph_to_json(const ms_graph *graph)
{
    ms__json_writer writer = {0};
    json_t *tree = ms__json_new(&writer);
    ms__json_put_u64(&writer, tree, "version", MS__GRAPH_VERSION);
    ms__json_put_string(&writer, tree, "model", graph->model);
    ms__json_put_string(&writer, tree, "signature", graph->signature);
    ms__json_put_string(&writer, tree, "source", graph->source);
    ms__json_put_fields(&writer, ms__json_put_object(&writer, tree, "residents"), residents_fields,
                        COUNT_OF(residents_fields), &graph->residents);
    ms__json_put_fields(&writer, ms__json_put_object(&writer, tree, "loop"), loop_fields, COUNT_OF(loop_fields),
                        &graph->loop);
    if (graph->small_products) {
        ms__json_put_bool(&writer, tree, "small_products", true);
    }
    if (graph->convolutions > 0) {
        ms__json_put_u64(&writer, tree, "convolutions", graph->convolutions);
    }
    if (graph->half_products > 0) {
        ms__json_put_u64(&writer, tree, "half_products", graph->half_products);
    }
    if (graph->libc_buffer_bytes > 0) {
        ms__json_put_u64(&writer, tree, "libc_buffer_bytes", graph->libc_buffer_bytes);
    }
    put_storages(&writer, tree, graph);
    put_profiles(&writer, tree, graph);
    put_nodes(&writer, tree, graph);
    char *text = writer.code == MS_OK ? ms__json_text(tree, true) : NULL;
    json_decref(tree);
    return text;
}
