/*
 * ms_graph_measure(): gives compiled layers the profiles of calls that were measured. Compiled code saves other tensors
 * than the code that the trace runs, and nothing can look into it; but how much is live can be seen from outside.
 * Called once per traced graph. Works on a copy, so that a failure leaves the graph as it was.
 */
#include <string.h>

#include "base/array.h"
#include "base/units.h"
#include "graph/graph_internal.h"

enum { NO_STORAGE = UINT32_MAX };

typedef MS__ARRAY(ms_event) event_list;

/* One profile under construction. */
typedef struct measured_profile {
    const ms_graph *graph;
    const ms_node *node;
    const ms_profile *from; /* of the layer as written */
    const ms_measured_call *seen;
    uint64_t least_bytes;
    MS__ARRAY(uint64_t) bytes; /* of storages, externals first */
    MS__ARRAY(uint32_t) saved; /* storages */
    uint32_t unsaved;          /* the storage that lives until backward without being saved, or NO_STORAGE */
    event_list forward, backward;
    bool no_memory;
} measured_profile;

/* ---- events --------------------------------------------------------------------- */

static void add_event(measured_profile *m, event_list *list, const ms_event *event)
{
    ms_event *slot = MS__ARRAY_PUSH(list);
    m->no_memory |= slot == NULL;
    if (slot != NULL) {
        *slot = *event;
    }
}

static void add(measured_profile *m, event_list *list, ms_event_kind kind, uint32_t storage)
{
    ms_event event = {.kind = kind, .storage = storage};
    add_event(m, list, &event);
}

/* The events of `kind` of the layer as written: work, or of storages that cross nodes. */
static void copy_events(measured_profile *m, event_list *list, const ms_event *events, uint32_t count,
                        ms_event_kind kind)
{
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].kind == kind && (kind == MS_EVENT_WORK || events[i].storage < m->from->external_count)) {
            add_event(m, list, &events[i]);
        }
    }
}

static uint32_t add_storage(measured_profile *m, uint64_t bytes)
{
    uint64_t *slot = MS__ARRAY_PUSH(&m->bytes);
    m->no_memory |= slot == NULL;
    if (slot != NULL) {
        *slot = bytes;
    }
    return (uint32_t)m->bytes.count - 1;
}

/* ---- what is saved ----------------------------------------------------------------- */

static bool is_saved(const measured_profile *m, uint32_t storage)
{
    bool found = false;
    for (size_t i = 0; !found && i < m->saved.count; i++) {
        found = m->saved.items[i] == storage;
    }
    return found;
}

static void add_saved(measured_profile *m, uint32_t storage)
{
    uint32_t *slot = is_saved(m, storage) ? NULL : MS__ARRAY_PUSH(&m->saved);
    m->no_memory |= slot == NULL && !is_saved(m, storage);
    if (slot != NULL) {
        *slot = storage;
    }
}

/* The batch is always there, so it has no events. */
static void add_saved_inputs(measured_profile *m)
{
    for (uint32_t i = 0; i < m->seen->input_count; i++) {
        if (m->seen->inputs[i] >= m->from->input_count) {
            continue;
        }
        uint32_t local = m->from->inputs[m->seen->inputs[i]];
        if (m->graph->storages[m->node->externals[local]].role != MS_STORAGE_BATCH) {
            add_saved(m, local);
        }
    }
}

/* A storage of this size that the layer makes for other nodes, not taken yet; NO_STORAGE if there is none. */
static uint32_t find_output(const measured_profile *m, uint64_t bytes)
{
    const ms_profile *from = m->from;
    for (uint32_t i = 0; i < from->forward_count; i++) {
        const ms_event *event = &from->forward[i];
        if (event->kind == MS_EVENT_ALLOC && event->storage < from->external_count &&
            from->storage_bytes[event->storage] == bytes && !is_saved(m, event->storage)) {
            return event->storage;
        }
    }
    return NO_STORAGE;
}

/* An output without a counterpart counts as a storage of the layer's own. */
static void add_saved_storages(measured_profile *m)
{
    add_saved_inputs(m);
    for (uint32_t i = 0; i < m->seen->output_count; i++) {
        uint32_t found = find_output(m, m->seen->output_bytes[i]);
        add_saved(m, found != NO_STORAGE ? found : add_storage(m, m->seen->output_bytes[i]));
    }
    for (uint32_t i = 0; i < m->seen->made_count; i++) {
        add_saved(m, add_storage(m, m->seen->made_bytes[i]));
    }
}

/* ---- programs ------------------------------------------------------------------------ */

static uint64_t counted(const measured_profile *m, uint64_t bytes)
{
    return bytes >= m->least_bytes ? bytes : 0;
}

/* Live bytes that the layer leaves behind as storages of the profile. */
static uint64_t known_bytes(const measured_profile *m)
{
    uint64_t sum = 0;
    for (size_t i = m->from->external_count; i < m->bytes.count; i++) {
        sum = ms__add_sat(sum, counted(m, m->bytes.items[i]));
    }
    for (size_t i = 0; i < m->forward.count; i++) {
        const ms_event *event = &m->forward.items[i];
        if (event->kind == MS_EVENT_ALLOC && event->storage < m->from->external_count) {
            sum = ms__add_sat(sum, counted(m, m->bytes.items[event->storage]));
        }
    }
    return sum;
}

/* Memory that is live while the operators run, and no longer. */
static void add_work(measured_profile *m, event_list *list, const ms_event *events, uint32_t count, uint64_t bytes)
{
    uint32_t transient = bytes > 0 ? add_storage(m, bytes) : NO_STORAGE;
    if (transient != NO_STORAGE) {
        add(m, list, MS_EVENT_ALLOC, transient);
    }
    copy_events(m, list, events, count, MS_EVENT_WORK);
    if (transient != NO_STORAGE) {
        add(m, list, MS_EVENT_FREE, transient);
    }
}

static void add_for_saved(measured_profile *m, event_list *list, ms_event_kind kind, bool own_only)
{
    for (size_t i = 0; i < m->saved.count; i++) {
        if (!own_only || m->saved.items[i] >= m->from->external_count) {
            add(m, list, kind, m->saved.items[i]);
        }
    }
}

static void make_forward(measured_profile *m)
{
    const ms_profile *from = m->from;
    copy_events(m, &m->forward, from->forward, from->forward_count, MS_EVENT_ALLOC);
    add_for_saved(m, &m->forward, MS_EVENT_ALLOC, true);
    /* Whole pages and a few small storages are no tensor that bypasses hooks. */
    uint64_t unsaved_bytes = ms__sub_sat(m->seen->live_bytes, known_bytes(m));
    if (unsaved_bytes >= m->least_bytes && unsaved_bytes > 0) {
        m->unsaved = add_storage(m, unsaved_bytes);
        add(m, &m->forward, MS_EVENT_ALLOC, m->unsaved);
    }
    uint64_t transient_bytes = ms__sub_sat(m->seen->forward_peak_bytes, known_bytes(m));
    add_work(m, &m->forward, from->forward, from->forward_count, transient_bytes);
    add_for_saved(m, &m->forward, MS_EVENT_SAVE, false);
    add_for_saved(m, &m->forward, MS_EVENT_FREE, true);
    copy_events(m, &m->forward, from->forward, from->forward_count, MS_EVENT_FREE);
}

/* Gradients are made in the memory that the measured growth counts. */
static void make_backward(measured_profile *m)
{
    const ms_profile *from = m->from;
    add_for_saved(m, &m->backward, MS_EVENT_NEED, false);
    add_work(m, &m->backward, from->backward, from->backward_count, m->seen->backward_peak_bytes);
    if (m->unsaved != NO_STORAGE) {
        add(m, &m->backward, MS_EVENT_FREE, m->unsaved);
    }
    add_for_saved(m, &m->backward, MS_EVENT_DROP, false);
    for (uint32_t i = 0; i < from->backward_count; i++) {
        uint32_t kind = from->backward[i].kind;
        if ((kind == MS_EVENT_ALLOC || kind == MS_EVENT_FREE) && from->backward[i].storage < from->external_count) {
            add_event(m, &m->backward, &from->backward[i]);
        }
    }
}

static void *copied(const void *items, size_t count, size_t item_bytes)
{
    void *copy = ms_calloc(count, item_bytes);
    if (copy != NULL && count > 0) {
        memcpy(copy, items, count * item_bytes);
    }
    return copy;
}

/* Fills `to`, which the caller frees, also after MS_ENOMEM. */
static int take_profile(const measured_profile *m, ms_profile *to)
{
    to->storage_count = (uint32_t)m->bytes.count;
    to->external_count = m->from->external_count;
    to->input_count = m->from->input_count;
    to->forward_count = (uint32_t)m->forward.count;
    to->backward_count = (uint32_t)m->backward.count;
    to->forward_ns = m->seen->forward_ns;
    to->backward_ns = m->seen->backward_ns;
    to->storage_bytes = copied(m->bytes.items, m->bytes.count, sizeof *to->storage_bytes);
    to->inputs = copied(m->from->inputs, m->from->input_count, sizeof *to->inputs);
    to->forward = copied(m->forward.items, m->forward.count, sizeof *to->forward);
    to->backward = copied(m->backward.items, m->backward.count, sizeof *to->backward);
    to->makers = ms_calloc(0, sizeof *to->makers);
    to->operands = ms_calloc(0, sizeof *to->operands);
    bool complete = to->storage_bytes != NULL && to->inputs != NULL && to->forward != NULL && to->backward != NULL &&
                    to->makers != NULL && to->operands != NULL;
    return complete ? MS_OK : MS_ENOMEM;
}

static int make_profile(const ms_graph *graph, const ms_node *node, const ms_measured_call *seen, uint64_t least_bytes,
                        ms_profile *to)
{
    measured_profile m = {.graph = graph,
                          .node = node,
                          .from = &graph->profiles[node->profile],
                          .seen = seen,
                          .least_bytes = least_bytes,
                          .unsaved = NO_STORAGE};
    for (uint32_t i = 0; i < m.from->external_count; i++) {
        add_storage(&m, m.from->storage_bytes[i]);
    }
    if (!m.no_memory) {
        add_saved_storages(&m);
    }
    if (!m.no_memory) {
        make_forward(&m);
        make_backward(&m);
    }
    int rc = m.no_memory ? MS_ENOMEM : take_profile(&m, to);
    MS__ARRAY_FREE(&m.bytes);
    MS__ARRAY_FREE(&m.saved);
    MS__ARRAY_FREE(&m.forward);
    MS__ARRAY_FREE(&m.backward);
    return rc;
}

/* ---- nodes ------------------------------------------------------------------------------ */

static ms_node *find_node(const ms_graph *graph, const ms_measured_call *call)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        ms_node *node = &graph->nodes[i];
        if (node->kind == MS_NODE_LAYER && (node->flags & MS_NODE_COMPILED) != 0 &&
            (node->flags & MS_NODE_MEASURED) == 0 && node->call == call->call && strcmp(node->name, call->layer) == 0) {
            return node;
        }
    }
    return NULL;
}

/* Equal profiles are shared, but only with other measured ones: the rest may go. */
static int measure_node(ms_graph *graph, uint32_t own_count, const ms_measured_call *call, uint64_t least_bytes)
{
    ms_node *node = find_node(graph, call);
    ms_profile profile = {0};
    int rc = node != NULL ? make_profile(graph, node, call, least_bytes, &profile) : MS_OK;
    if (node == NULL || rc != MS_OK) {
        ms__profile_clear(&profile);
        return rc;
    }
    uint32_t found = own_count;
    while (found < graph->profile_count && !ms__profile_equal(&profile, &graph->profiles[found])) {
        found++;
    }
    if (found == graph->profile_count) {
        graph->profiles[graph->profile_count++] = profile;
    } else {
        ms__profile_clear(&profile);
    }
    node->profile = found;
    node->tiled = 0;
    node->flags |= MS_NODE_MEASURED;
    return MS_OK;
}

static int drop_unused_profiles(ms_graph *graph)
{
    uint32_t *number = ms_calloc((size_t)graph->profile_count + 1, sizeof *number);
    if (number == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        number[graph->nodes[i].profile] = 1;
        number[graph->nodes[i].tiled > 0 ? graph->nodes[i].tiled - 1 : graph->nodes[i].profile] = 1;
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        if (number[i] == 0) {
            ms__profile_clear(&graph->profiles[i]);
            continue;
        }
        number[i] = kept;
        graph->profiles[kept++] = graph->profiles[i];
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        ms_node *node = &graph->nodes[i];
        node->profile = number[node->profile];
        node->tiled = node->tiled > 0 ? number[node->tiled - 1] + 1 : 0;
    }
    graph->profile_count = kept;
    ms_free(number);
    return MS_OK;
}

static int measure_nodes(ms_graph *graph, const ms_measured_call *calls, size_t count, uint64_t least_bytes)
{
    uint32_t own_count = graph->profile_count;
    ms_profile *profiles = ms_realloc_array(graph->profiles, (size_t)own_count + graph->node_count, sizeof *profiles);
    int rc = profiles != NULL ? MS_OK : MS_ENOMEM;
    if (rc == MS_OK) {
        graph->profiles = profiles;
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = measure_node(graph, own_count, &calls[i], least_bytes);
    }
    return rc == MS_OK ? drop_unused_profiles(graph) : rc;
}

static int check_copy(ms_graph *copy, ms_error *err)
{
    int rc = ms__graph_place_storages(copy, err);
    if (rc == MS_OK) {
        rc = ms_graph_check(copy, err);
    }
    return rc == MS_EFORMAT ? MS_EPROFILE : rc;
}

int ms_graph_measure(ms_graph *graph, const ms_measured_call *calls, size_t count, uint64_t least_bytes, ms_error *err)
{
    ms_graph *copy = ms_graph_copy(graph, err);
    if (copy == NULL) {
        return MS_ENOMEM;
    }
    int rc = measure_nodes(copy, calls, count, least_bytes);
    if (rc != MS_OK) {
        ms_fail(err, rc, "graph: out of memory for measured layers");
    }
    ms_error problem = {0};
    if (rc == MS_OK) {
        rc = check_copy(copy, &problem);
        if (rc != MS_OK) {
            ms_fail(err, rc, "measured layers: %.400s", problem.text);
        }
    }
    if (rc == MS_OK) {
        ms_graph before = *graph;
        *graph = *copy;
        *copy = before;
    }
    ms_graph_free(copy);
    return rc;
}
