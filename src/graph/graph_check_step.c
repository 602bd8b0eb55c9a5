/*
 * The part of ms_graph_check() about the step as a whole: the lifetimes of storages that cross nodes, and sums.
 * Called after every profile and node passed graph_check.c.
 */
#include "base/array.h"
#include "base/units.h"
#include "graph/graph_internal.h"

/* ---- storages over the whole step ----------------------------------------- */

/* The events of external storages, collected from the profiles once. There are at most five per external
 * (graph_check.c), so the time for a node is linear in its externals. */
typedef struct crossing_events {
    uint32_t *starts; /* [2 x profile_count + 1]: of forward and backward of each profile */
    MS__ARRAY(const ms_event *) list;
} crossing_events;

static int collect_from(const ms_profile *profile, bool backward, crossing_events *crossing)
{
    const ms_event *events = backward ? profile->backward : profile->forward;
    uint32_t count = backward ? profile->backward_count : profile->forward_count;
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].kind == MS_EVENT_WORK || events[i].storage >= profile->external_count) {
            continue;
        }
        const ms_event **slot = MS__ARRAY_PUSH(&crossing->list);
        if (slot == NULL) {
            return MS_ENOMEM;
        }
        *slot = &events[i];
    }
    return MS_OK;
}

static int collect_crossing(const ms_graph *graph, crossing_events *crossing)
{
    crossing->starts = ms_calloc(2 * (size_t)graph->profile_count + 1, sizeof *crossing->starts);
    if (crossing->starts == NULL) {
        return MS_ENOMEM;
    }
    for (size_t i = 0; i < 2 * (size_t)graph->profile_count; i++) {
        int rc = collect_from(&graph->profiles[i / 2], i % 2 != 0, crossing);
        if (rc != MS_OK) {
            return rc;
        }
        crossing->starts[i + 1] = (uint32_t)crossing->list.count;
    }
    return MS_OK;
}

typedef struct storage_track {
    bool touched, allocated, freed, in_backward;
    uint32_t first, last;
} storage_track;

static int storage_error(ms_error *err, uint32_t storage, uint32_t node, const char *problem)
{
    return ms_fail(err, MS_EFORMAT, "graph: $.storages[%u]: node %u %s", (unsigned)storage, (unsigned)node, problem);
}

static int track_event(const ms_graph *graph, uint32_t node, const ms_event *event, bool backward,
                       storage_track *tracks, ms_error *err)
{
    uint32_t index = graph->nodes[node].externals[event->storage];
    storage_track *track = &tracks[index];
    uint32_t role = graph->storages[index].role;
    if (role == MS_STORAGE_BATCH) {
        return storage_error(err, index, node, "has an event of the batch, which is always there");
    }
    if (event->kind == MS_EVENT_ALLOC) {
        if (track->allocated) {
            return storage_error(err, index, node, "allocates it a second time");
        }
        *track = (storage_track){true, true, false, backward, node, node};
        return MS_OK;
    }
    if (!track->allocated) {
        return storage_error(err, index, node, "uses it before its alloc");
    }
    if (event->kind == MS_EVENT_FREE) {
        if (track->freed || role == MS_STORAGE_GRADIENT) {
            return storage_error(err, index, node,
                                 track->freed ? "frees it a second time" : "frees a parameter's gradient");
        }
        track->freed = true;
    }
    if (event->kind == MS_EVENT_SAVE && track->freed) {
        return storage_error(err, index, node, "saves it after its free");
    }
    if (backward == track->in_backward) {
        track->last = node;
    }
    return MS_OK;
}

static int track_node(const ms_graph *graph, const crossing_events *crossing, uint32_t index, bool backward,
                      storage_track *tracks, ms_error *err)
{
    const ms_node *node = &graph->nodes[index];
    const ms_profile *profile = &graph->profiles[node->profile];
    for (uint32_t i = 0; !backward && i < profile->input_count; i++) {
        uint32_t storage = node->externals[profile->inputs[i]];
        storage_track *track = &tracks[storage];
        if (graph->storages[storage].role == MS_STORAGE_BATCH) {
            track->first = track->touched ? track->first : index;
            track->touched = true;
        } else if (!track->allocated) {
            return storage_error(err, storage, index, "takes it as input before its alloc");
        }
        track->last = index;
    }
    const uint32_t *starts = &crossing->starts[2 * (size_t)node->profile + backward];
    for (uint32_t i = starts[0]; i < starts[1]; i++) {
        int rc = track_event(graph, index, crossing->list.items[i], backward, tracks, err);
        if (rc != MS_OK) {
            return rc;
        }
    }
    return MS_OK;
}

static int check_tracks(const ms_graph *graph, const storage_track *tracks, ms_error *err)
{
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        const ms_storage *storage = &graph->storages[i];
        if (!tracks[i].touched) {
            return ms_fail(err, MS_EFORMAT, "graph: $.storages[%u]: no node touches it", (unsigned)i);
        }
        if (storage->first_node != tracks[i].first || storage->last_node != tracks[i].last) {
            return ms_fail(err, MS_EFORMAT, "graph: $.storages[%u]: nodes %u to %u are given, the events say %u to %u",
                           (unsigned)i, (unsigned)storage->first_node, (unsigned)storage->last_node,
                           (unsigned)tracks[i].first, (unsigned)tracks[i].last);
        }
    }
    return MS_OK;
}

/* Runs the step: forward, then backward in reverse, over the external storages. */
static int track_step(const ms_graph *graph, storage_track *tracks, ms_error *err)
{
    crossing_events crossing = {0};
    int rc = collect_crossing(graph, &crossing);
    if (rc != MS_OK) {
        ms_fail(err, rc, "checking %u storages", (unsigned)graph->storage_count);
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        rc = track_node(graph, &crossing, i, false, tracks, err);
    }
    for (uint32_t i = graph->node_count; rc == MS_OK && i-- > 0;) {
        rc = track_node(graph, &crossing, i, true, tracks, err);
    }
    ms_free(crossing.starts);
    MS__ARRAY_FREE(&crossing.list);
    return rc;
}

static storage_track *new_tracks(const ms_graph *graph, ms_error *err)
{
    storage_track *tracks = ms_calloc(graph->storage_count, sizeof *tracks);
    if (tracks == NULL) {
        ms_fail(err, MS_ENOMEM, "checking %u storages", (unsigned)graph->storage_count);
    }
    return tracks;
}

static int check_lifetimes(const ms_graph *graph, ms_error *err)
{
    storage_track *tracks = new_tracks(graph, err);
    int rc = tracks != NULL ? track_step(graph, tracks, err) : MS_ENOMEM;
    if (rc == MS_OK) {
        rc = check_tracks(graph, tracks, err);
    }
    ms_free(tracks);
    return rc;
}

int ms__graph_place_storages(ms_graph *graph, ms_error *err)
{
    storage_track *tracks = new_tracks(graph, err);
    int rc = tracks != NULL ? track_step(graph, tracks, err) : MS_ENOMEM;
    for (uint32_t i = 0; rc == MS_OK && i < graph->storage_count; i++) {
        graph->storages[i].first_node = tracks[i].first;
        graph->storages[i].last_node = tracks[i].last;
    }
    ms_free(tracks);
    return rc;
}

/* ---- sizes ---------------------------------------------------------------- */

typedef struct profile_sums {
    uint64_t local_bytes;
    uint64_t work; /* sum of operations, bytes moved, draws and evaluations */
} profile_sums;

static uint64_t sum_work(const ms_event *events, uint32_t count)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t amounts = ms__add_sat(ms__add_sat(events[i].flops, events[i].bytes), events[i].draws);
        work = ms__add_sat(work, ms__add_sat(amounts, events[i].evaluations));
    }
    return work;
}

static profile_sums sum_profile(const ms_profile *profile)
{
    profile_sums sums = {0};
    for (uint32_t i = profile->external_count; i < profile->storage_count; i++) {
        sums.local_bytes = ms__add_sat(sums.local_bytes, profile->storage_bytes[i]);
    }
    sums.work = ms__add_sat(sum_work(profile->forward, profile->forward_count),
                            sum_work(profile->backward, profile->backward_count));
    return sums;
}

/* The bytes of all storages and residents together, and all work of the step, must each fit a signed 64-bit
 * number: readers add without checking. */
static int check_sums(const ms_graph *graph, ms_error *err)
{
    const ms_residents *residents = &graph->residents;
    const ms_loop *loop = &graph->loop;
    uint64_t parts[] = {
        residents->parameter_bytes,      residents->trainable_bytes,         residents->buffer_bytes,
        residents->batch_bytes,          residents->largest_parameter_bytes, loop->optimizer_state_bytes,
        loop->optimizer_transient_bytes, loop->external_loss_bytes,          graph->libc_buffer_bytes,
    };
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bytes = ms__add_sat(bytes, parts[i]);
    }
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        bytes = ms__add_sat(bytes, graph->storages[i].bytes);
    }
    if (residents->trainable_bytes > residents->parameter_bytes ||
        residents->largest_parameter_bytes > residents->parameter_bytes) {
        return ms_fail(err, MS_EFORMAT, "graph: $.residents: a part of the parameters is larger than all");
    }
    profile_sums *sums = ms_calloc(graph->profile_count, sizeof *sums);
    if (sums == NULL) {
        return ms_fail(err, MS_ENOMEM, "checking %u profiles", (unsigned)graph->profile_count);
    }
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        sums[i] = sum_profile(&graph->profiles[i]);
    }
    uint64_t work = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        bytes = ms__add_sat(bytes, sums[graph->nodes[i].profile].local_bytes);
        work = ms__add_sat(work, sums[graph->nodes[i].profile].work);
    }
    ms_free(sums);
    if (bytes > MS__GRAPH_NUMBER_MAX || work > MS__GRAPH_NUMBER_MAX) {
        return ms_fail(err, MS_EFORMAT, "graph: the %s of the step do not fit 63 bits",
                       work > MS__GRAPH_NUMBER_MAX ? "operations" : "bytes");
    }
    return MS_OK;
}

int ms__graph_check_step(const ms_graph *graph, ms_error *err)
{
    int rc = check_lifetimes(graph, err);
    return rc == MS_OK ? check_sums(graph, err) : rc;
}
