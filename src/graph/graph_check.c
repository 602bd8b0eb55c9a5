/*
 * ms_graph_check(): checks the invariants of a graph once, so that the planner and the simulator index and add
 * without checks. Called by the parser, and by the tracer when it has built a graph. This file checks profiles and
 * nodes one by one; graph_check_step.c runs the step over the storages that cross nodes. Time and memory are linear
 * in the graph, except for sorting names.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/graph_internal.h"

/* Events of a local storage so far in one profile. */
enum {
    SEEN_ALLOC = 1 << 0,
    SEEN_FREE = 1 << 1,
    SEEN_SAVE = 1 << 2,
    SEEN_NEED = 1 << 3,
    SEEN_DROP = 1 << 4,
    SEEN_FINAL = 1 << 5,
};

/* ---- profiles ------------------------------------------------------------- */

static int event_error(ms_error *err, uint32_t profile, bool backward, uint32_t index, const ms_event *event,
                       const char *problem)
{
    return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].%s[%u]: \"%s\" of storage %u: %s", (unsigned)profile,
                   backward ? "backward" : "forward", (unsigned)index, ms__event_name(event->kind),
                   (unsigned)event->storage, problem);
}

/* Why the event may not follow the events `seen` of its storage, or NULL. check_lifetimes() checks externals over
 * the whole step. */
static const char *event_problem(const ms_event *event, unsigned seen, bool external, bool backward)
{
    if (!external && event->kind != MS_EVENT_ALLOC && !(seen & SEEN_ALLOC)) {
        return "before its alloc";
    }
    switch (event->kind) {
    case MS_EVENT_ALLOC:
        return seen != 0 ? "after another event of it" : NULL;
    case MS_EVENT_FREE:
        return seen & SEEN_FREE ? "a second time" : NULL;
    case MS_EVENT_SAVE:
        if (backward) {
            return "in backward";
        }
        if (seen & SEEN_FREE) {
            return "after its free";
        }
        return seen & SEEN_SAVE ? "a second time" : NULL;
    case MS_EVENT_NEED:
        if (!backward) {
            return "in forward";
        }
        if (!(seen & SEEN_SAVE)) {
            return "without a save";
        }
        if (seen & SEEN_DROP) {
            return "after its drop";
        }
        return seen & SEEN_NEED ? "a second time" : NULL;
    case MS_EVENT_DROP:
        if (!(seen & SEEN_SAVE)) {
            return "without a save";
        }
        return seen & SEEN_DROP ? "a second time" : NULL;
    case MS_EVENT_FINAL:
        if (!backward || !external) {
            return backward ? "of a local storage" : "in forward";
        }
        return seen & SEEN_FINAL ? "a second time" : NULL;
    default:
        return NULL;
    }
}

static int check_events(const ms_profile *profile, uint32_t index, bool backward, uint8_t *seen, ms_error *err)
{
    static const uint8_t marks[MS_EVENT_COUNT] = {
        [MS_EVENT_ALLOC] = SEEN_ALLOC, [MS_EVENT_FREE] = SEEN_FREE, [MS_EVENT_SAVE] = SEEN_SAVE,
        [MS_EVENT_NEED] = SEEN_NEED,   [MS_EVENT_DROP] = SEEN_DROP, [MS_EVENT_FINAL] = SEEN_FINAL,
    };
    const ms_event *events = backward ? profile->backward : profile->forward;
    uint32_t count = backward ? profile->backward_count : profile->forward_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms_event *event = &events[i];
        if (event->kind >= MS_EVENT_COUNT) {
            return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].%s[%u]: unknown event kind %u", (unsigned)index,
                           backward ? "backward" : "forward", (unsigned)i, (unsigned)event->kind);
        }
        if (event->kind == MS_EVENT_WORK) {
            if (event->flops > MS__GRAPH_NUMBER_MAX || event->bytes > MS__GRAPH_NUMBER_MAX ||
                event->draws > MS__GRAPH_NUMBER_MAX || event->evaluations > MS__GRAPH_NUMBER_MAX ||
                event->precision > MS_PRECISION_FP16 || event->moved_bytes > MS__GRAPH_NUMBER_MAX) {
                return event_error(err, index, backward, i, event, "a number is too large");
            }
            continue;
        }
        if (event->storage >= profile->storage_count) {
            return event_error(err, index, backward, i, event, "there is no such storage");
        }
        bool external = event->storage < profile->external_count;
        const char *problem = event_problem(event, seen[event->storage], external, backward);
        if (problem != NULL) {
            return event_error(err, index, backward, i, event, problem);
        }
        seen[event->storage] |= marks[event->kind];
    }
    return MS_OK;
}

static int check_profile(const ms_graph *graph, uint32_t index, ms_error *err)
{
    const ms_profile *profile = &graph->profiles[index];
    if (profile->external_count > profile->storage_count) {
        return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u]: %u externals among %u storages", (unsigned)index,
                       (unsigned)profile->external_count, (unsigned)profile->storage_count);
    }
    if (profile->forward_ns > MS__GRAPH_NUMBER_MAX || profile->backward_ns > MS__GRAPH_NUMBER_MAX) {
        return ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].measured_ns: a number is too large", (unsigned)index);
    }
    uint8_t *seen = ms_calloc(profile->storage_count, 1);
    if (seen == NULL) {
        return ms_fail(err, MS_ENOMEM, "checking profile %u", (unsigned)index);
    }
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < profile->input_count; i++) {
        uint32_t input = profile->inputs[i];
        if (input >= profile->external_count || seen[input] != 0) {
            rc =
                ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u].inputs[%u]: %u is %s", (unsigned)index, (unsigned)i,
                        (unsigned)input, input >= profile->external_count ? "not an external storage" : "listed twice");
            break;
        }
        seen[input] = 1;
    }
    if (profile->storage_count > 0) {
        memset(seen, 0, profile->storage_count);
    }
    if (rc == MS_OK) {
        rc = check_events(profile, index, false, seen, err);
    }
    if (rc == MS_OK) {
        rc = check_events(profile, index, true, seen, err);
    }
    for (uint32_t i = profile->external_count; rc == MS_OK && i < profile->storage_count; i++) {
        if (!(seen[i] & SEEN_ALLOC)) {
            rc = ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u]: local storage %u is never allocated", (unsigned)index,
                         (unsigned)i);
        }
    }
    ms_free(seen);
    if (rc == MS_OK) {
        rc = ms__makers_check(profile, index, err);
    }
    return rc == MS_OK ? ms__pairs_check(profile, index, err) : rc;
}

/* ---- nodes ---------------------------------------------------------------- */

static uint32_t known_flags(void)
{
    uint32_t all = 0;
    uint32_t bit;
    const char *name;
    for (size_t i = 0; ms__node_flag_at(i, &bit, &name); i++) {
        all |= bit;
    }
    return all;
}

static int check_binding(const ms_graph *graph, uint32_t index, const ms_profile *profile, ms_error *err)
{
    const ms_node *node = &graph->nodes[index];
    for (uint32_t i = 0; i < profile->external_count; i++) {
        uint32_t storage = node->externals[i];
        if (storage >= graph->storage_count) {
            return ms_fail(err, MS_EFORMAT, "graph: $.nodes[%u].externals[%u]: there is no storage %u", (unsigned)index,
                           (unsigned)i, (unsigned)storage);
        }
        if (graph->storages[storage].bytes != profile->storage_bytes[i]) {
            return ms_fail(
                err, MS_EFORMAT, "graph: $.nodes[%u].externals[%u]: storage %u has %llu bytes, the profile %llu",
                (unsigned)index, (unsigned)i, (unsigned)storage, (unsigned long long)graph->storages[storage].bytes,
                (unsigned long long)profile->storage_bytes[i]);
        }
    }
    return MS_OK;
}

/* A layer's call in tiles takes the same arguments and binds the same storages. */
static int check_tiled(const ms_graph *graph, uint32_t index, bool *profile_used, ms_error *err)
{
    const ms_node *node = &graph->nodes[index];
    const ms_profile *profile = &graph->profiles[node->profile];
    if (node->tiled == 0) {
        return MS_OK;
    }
    const ms_profile *tiled = node->tiled <= graph->profile_count ? &graph->profiles[node->tiled - 1] : NULL;
    bool fits = node->kind == MS_NODE_LAYER && tiled != NULL && tiled->external_count == profile->external_count &&
                tiled->input_count == profile->input_count;
    for (uint32_t i = 0; fits && i < profile->input_count; i++) {
        fits = tiled->inputs[i] == profile->inputs[i];
    }
    if (!fits) {
        return ms_fail(err, MS_EFORMAT,
                       "graph: $.nodes[%u].tiled: no such profile, not a layer, or of other inputs and externals",
                       (unsigned)index);
    }
    profile_used[node->tiled - 1] = true;
    return check_binding(graph, index, tiled, err);
}

/* `last_seen[s]` is 1 + the last node that listed storage s. */
static int check_node(const ms_graph *graph, uint32_t index, uint32_t *last_seen, bool *profile_used, ms_error *err)
{
    const ms_node *node = &graph->nodes[index];
    if (node->kind > MS_NODE_LAYER || (node->kind == MS_NODE_ROOT) != (node->name[0] == '\0') ||
        (node->flags & ~known_flags()) != 0 || node->profile >= graph->profile_count) {
        return ms_fail(err, MS_EFORMAT,
                       "graph: $.nodes[%u]: kind, name, flags or profile is not allowed (only "
                       "layers have names; %u profiles)",
                       (unsigned)index, (unsigned)graph->profile_count);
    }
    const ms_profile *profile = &graph->profiles[node->profile];
    profile_used[node->profile] = true;
    int rc = check_binding(graph, index, profile, err);
    for (uint32_t i = 0; rc == MS_OK && i < profile->external_count; i++) {
        uint32_t storage = node->externals[i];
        if (last_seen[storage] == index + 1) {
            rc = ms_fail(err, MS_EFORMAT, "graph: $.nodes[%u].externals[%u]: storage %u is bound twice",
                         (unsigned)index, (unsigned)i, (unsigned)storage);
        }
        last_seen[storage] = index + 1;
    }
    return rc == MS_OK ? check_tiled(graph, index, profile_used, err) : rc;
}

/* Orders node indices by name, then by index. */
static int compare_names(const void *a, const void *b, void *graph)
{
    const uint32_t *first = a;
    const uint32_t *second = b;
    const ms_node *nodes = ((const ms_graph *)graph)->nodes;
    int side = strcmp(nodes[*first].name, nodes[*second].name);
    return side != 0 ? side : (*first > *second) - (*first < *second);
}

/* Calls of one module have ascending numbers in order of execution, so that name and call form a key. */
static int check_calls(const ms_graph *graph, ms_error *err)
{
    uint32_t *order = ms_calloc(graph->node_count, sizeof *order);
    if (order == NULL) {
        return ms_fail(err, MS_ENOMEM, "checking %u nodes", (unsigned)graph->node_count);
    }
    int rc = MS_OK;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        order[i] = i;
    }
    qsort_r(order, graph->node_count, sizeof *order, compare_names, (void *)(uintptr_t)graph);
    for (uint32_t i = 1; i < graph->node_count && rc == MS_OK; i++) {
        const ms_node *earlier = &graph->nodes[order[i - 1]];
        const ms_node *later = &graph->nodes[order[i]];
        if (strcmp(earlier->name, later->name) == 0 && earlier->call >= later->call) {
            rc = ms_fail(err, MS_EFORMAT, "graph: $.nodes[%u].call: call %u of \"%s\" after call %u",
                         (unsigned)order[i], (unsigned)later->call, later->name, (unsigned)earlier->call);
        }
    }
    ms_free(order);
    return rc;
}

/* ---- all ------------------------------------------------------------------ */

static int check_nodes(const ms_graph *graph, ms_error *err)
{
    uint32_t *last_seen = ms_calloc(graph->storage_count, sizeof *last_seen);
    bool *profile_used = ms_calloc(graph->profile_count, sizeof *profile_used);
    int rc = MS_OK;
    if (last_seen == NULL || profile_used == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "checking %u nodes", (unsigned)graph->node_count);
        goto cleanup;
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        rc = check_node(graph, i, last_seen, profile_used, err);
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->profile_count; i++) {
        if (!profile_used[i]) {
            rc = ms_fail(err, MS_EFORMAT, "graph: $.profiles[%u]: no node uses it", (unsigned)i);
        }
    }
cleanup:
    ms_free(last_seen);
    ms_free(profile_used);
    return rc;
}

/* Checks the step with every layer in tiles that has a tiled profile. */
static int check_tiled_step(const ms_graph *graph, ms_error *err)
{
    bool any = false;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        any |= graph->nodes[i].tiled > 0;
    }
    if (!any) {
        return MS_OK;
    }
    ms_graph tiled = *graph;
    tiled.nodes = ms_calloc(graph->node_count, sizeof *tiled.nodes);
    if (tiled.nodes == NULL) {
        return ms_fail(err, MS_ENOMEM, "checking %u nodes", (unsigned)graph->node_count);
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        tiled.nodes[i] = graph->nodes[i];
        tiled.nodes[i].profile = graph->nodes[i].tiled > 0 ? graph->nodes[i].tiled - 1 : graph->nodes[i].profile;
    }
    int rc = ms__graph_check_step(&tiled, err);
    ms_free(tiled.nodes);
    return rc;
}

int ms_graph_check(const ms_graph *graph, ms_error *err)
{
    int rc = MS_OK;
    if (graph->model == NULL || graph->signature == NULL || graph->source == NULL) {
        return ms_fail(err, MS_EFORMAT, "graph: model, signature or source is missing");
    }
    if (strcmp(graph->source, "static") != 0 && strcmp(graph->source, "empirical") != 0) {
        return ms_fail(err, MS_EFORMAT, "graph: $.source: \"%.64s\" is not one of \"static\", \"empirical\"",
                       graph->source);
    }
    if (graph->node_count == UINT32_MAX) {
        return ms_fail(err, MS_EFORMAT, "graph: $.nodes: too many");
    }
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        if (graph->storages[i].role >= MS_STORAGE_ROLE_COUNT) {
            return ms_fail(err, MS_EFORMAT, "graph: $.storages[%u].role: unknown role %u", (unsigned)i,
                           (unsigned)graph->storages[i].role);
        }
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->profile_count; i++) {
        rc = check_profile(graph, i, err);
    }
    if (rc == MS_OK) {
        rc = check_nodes(graph, err);
    }
    if (rc == MS_OK) {
        rc = check_calls(graph, err);
    }
    if (rc == MS_OK) {
        rc = ms__graph_check_step(graph, err);
    }
    return rc == MS_OK ? check_tiled_step(graph, err) : rc;
}
