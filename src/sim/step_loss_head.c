/*
 * The exact loss head as an option of the step. The traced cross entropy keeps the log-softmax of its logits,
 * and its backward allocates a scattered and a final gradient: three tokens x vocabulary buffers. The head
 * (techniques/loss.c) keeps the logits and writes the gradient over them, or into one buffer if another
 * holder keeps the logits. On a GPU torch's operators do the work, some rows at a time; they allocate a chunk of
 * log-softmax, in backward also one of scattered gradient.
 */
#include "base/units.h"
#include "sim/step_options.h"

/* One marked cross entropy, as positions of its events. */
typedef struct loss_region {
    uint32_t forward_begin, forward_end;   /* of the LOSS and LOSS_END events */
    uint32_t backward_begin, backward_end;
    uint32_t logits, gradient;             /* local storages */
    bool freed;                            /* this node frees the logits */
    bool in_place;                         /* no other holder keeps them in backward */
    bool by_operators;                     /* torch's, on a GPU */
} loss_region;

/* The next marked region of a program from `from` on; false if there is none. */
static bool next_marked(const ms_event *events, uint32_t count, uint32_t from, uint32_t *begin, uint32_t *end)
{
    bool open = false;
    for (uint32_t i = from; i < count; i++) {
        if (events[i].kind == MS_EVENT_LOSS) {
            *begin = i;
            open = true;
        } else if (events[i].kind == MS_EVENT_LOSS_END && open) {
            *end = i;
            return true;
        }
    }
    return false;
}

static bool has_event(const ms_event *events, uint32_t count, ms_event_kind kind, uint32_t storage)
{
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].kind == kind && events[i].storage == storage) {
            return true;
        }
    }
    return false;
}

static bool frees_storage(const ms_profile *profile, uint32_t storage)
{
    return has_event(profile->forward, profile->forward_count, MS_EVENT_FREE, storage) ||
           has_event(profile->backward, profile->backward_count, MS_EVENT_FREE, storage);
}

static bool held_by_caller(const ms_graph *graph, const ms_node *node, uint32_t storage)
{
    const ms_profile *profile = &graph->profiles[node->profile];
    return graph->loop.outputs_held && storage < profile->external_count &&
           graph->storages[node->externals[storage]].role == MS_STORAGE_OUTPUT;
}

/* The next cross entropy of the node whose backward is marked too. */
static bool next_region(const ms_graph *graph, const ms_node *node, uint32_t from, loss_region *found)
{
    const ms_profile *p = &graph->profiles[node->profile];
    while (next_marked(p->forward, p->forward_count, from, &found->forward_begin, &found->forward_end)) {
        uint32_t at = 0;
        found->logits = p->forward[found->forward_begin].storage;
        while (next_marked(p->backward, p->backward_count, at, &found->backward_begin, &found->backward_end)) {
            at = found->backward_end + 1;
            if (p->backward[found->backward_begin].storage == found->logits) {
                found->gradient = p->backward[found->backward_end].storage;
                found->freed = frees_storage(p, found->logits);
                found->in_place = found->freed && found->gradient >= p->external_count &&
                                  frees_storage(p, found->gradient) &&
                                  p->storage_bytes[found->gradient] == p->storage_bytes[found->logits] &&
                                  !held_by_caller(graph, node, found->logits) &&
                                  !has_event(p->forward, p->forward_count, MS_EVENT_SAVE, found->logits);
                return true;
            }
        }
        from = found->forward_end + 1;
    }
    return false;
}

/* Sets 1 in `removed` for the region's own tokens x vocabulary buffers. They have at least half the
 * logits' bytes, as their type may be smaller. */
static void loss_find_removed(const ms_profile *profile, const loss_region *r, uint8_t *removed)
{
    uint64_t least = profile->storage_bytes[r->logits] / 2;
    for (int pass = 0; pass < 2; pass++) {
        const ms_event *events = pass == 0 ? profile->forward : profile->backward;
        uint32_t begin = pass == 0 ? r->forward_begin : r->backward_begin;
        uint32_t end = pass == 0 ? r->forward_end : r->backward_end;
        for (uint32_t i = begin; i < end; i++) {
            uint32_t storage = events[i].storage;
            if (events[i].kind == MS_EVENT_ALLOC && storage >= profile->external_count && storage != r->gradient &&
                profile->storage_bytes[storage] >= least) {
                removed[storage] = 1;
            }
        }
    }
    removed[r->gradient] = r->in_place;
}

/* How often rows are read or written. In C forward reads them once; backward reads and writes them. Operators read
 * them and write the log-softmax in both; backward also writes zeros, reads these and the log-softmax, and writes the
 * gradient. */
static uint64_t passes_over(const loss_region *r, bool backward)
{
    if (r->by_operators) {
        return backward ? 6 : 2;
    }
    return backward ? 2 : 1;
}

/* Rewrites one event; false if it is removed. The logits live until backward has finished with them: up to
 * their gradient's FREE, or to the end of the region. */
static bool rewrite_event(const ms_profile *profile, const loss_region *r, const uint8_t *removed, bool backward,
                          uint32_t index, ms_event *event)
{
    uint32_t begin = backward ? r->backward_begin : r->forward_begin;
    uint32_t end = backward ? r->backward_end : r->forward_end;
    uint64_t bytes = profile->storage_bytes[r->logits];
    if (index == begin) {
        *event = (ms_event){.kind = MS_EVENT_WORK, .bytes = ms__mul_sat(passes_over(r, backward), bytes)};
        return true;
    }
    if (index == end) {
        *event = (ms_event){.kind = MS_EVENT_FREE, .storage = r->logits};
        return backward && !r->in_place && r->freed;
    }
    if (event->kind == MS_EVENT_WORK) {
        return index < begin || index > end;
    }
    if (event->kind == MS_EVENT_FREE && event->storage == r->logits) {
        return false;
    }
    if (event->kind == MS_EVENT_FREE && event->storage == r->gradient && r->in_place) {
        event->storage = r->logits;
        return true;
    }
    return !removed[event->storage];
}

/* A removed storage of the region, which stands for the chunks that operators allocate there; NO_CHUNKS if they
 * allocate none. */
static const uint32_t NO_CHUNKS = UINT32_MAX;

static uint32_t chunks_of(const ms_profile *profile, const loss_region *r, const uint8_t *removed, bool backward)
{
    const ms_event *events = backward ? profile->backward : profile->forward;
    uint32_t end = backward ? r->backward_end : r->forward_end;
    for (uint32_t i = backward ? r->backward_begin : r->forward_begin; i < end; i++) {
        if (events[i].kind == MS_EVENT_ALLOC && events[i].storage != r->gradient && removed[events[i].storage]) {
            return events[i].storage;
        }
    }
    return NO_CHUNKS;
}

/* `chunks` is the storage of chunks_of(). */
static int rewrite_program(ms_profile *profile, const loss_region *r, const uint8_t *removed, bool backward,
                           uint32_t chunks)
{
    ms_event **events = backward ? &profile->backward : &profile->forward;
    uint32_t *count = backward ? &profile->backward_count : &profile->forward_count, kept = 0;
    uint32_t begin = backward ? r->backward_begin : r->forward_begin;
    ms_event *out = ms_calloc((size_t)*count + 2, sizeof *out);
    if (out == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < *count; i++) {
        ms_event event = (*events)[i];
        bool has_chunks = i == begin && chunks != NO_CHUNKS;
        if (has_chunks) {
            out[kept++] = (ms_event){.kind = MS_EVENT_ALLOC, .storage = chunks};
        }
        if (rewrite_event(profile, r, removed, backward, i, &event)) {
            out[kept++] = event;
        }
        if (has_chunks) {
            out[kept++] = (ms_event){.kind = MS_EVENT_FREE, .storage = chunks};
        }
    }
    ms_free(*events);
    *events = out;
    *count = kept;
    return MS_OK;
}

static int rewrite_both(ms_profile *profile, const loss_region *r, const uint8_t *removed)
{
    uint64_t chunk = ms__min_u64(profile->storage_bytes[r->logits], MS__LOSS_CHUNK_BYTES);
    int rc = MS_OK;
    for (int backward = 0; rc == MS_OK && backward < 2; backward++) {
        uint32_t chunks = r->by_operators ? chunks_of(profile, r, removed, backward == 1) : NO_CHUNKS;
        if (chunks != NO_CHUNKS) {
            profile->storage_bytes[chunks] = (backward == 1 ? 2 : 1) * chunk;
        }
        rc = rewrite_program(profile, r, removed, backward == 1, chunks);
    }
    return rc;
}

/* The head, not the caller, holds the logits until backward. */
static void keep_for_backward(ms_graph *graph, const ms_node *node, uint32_t logits)
{
    if (logits < graph->profiles[node->profile].external_count && !held_by_caller(graph, node, logits)) {
        graph->storages[node->externals[logits]].role = MS_STORAGE_ACTIVATION;
    }
}

static int loss_head_apply_to(ms_graph *graph, const ms_node *node, bool on_host)
{
    ms_profile *profile = &graph->profiles[node->profile];
    int rc = MS_OK;
    loss_region r;
    while (rc == MS_OK && next_region(graph, node, 0, &r)) {
        uint8_t *removed = ms_calloc(profile->storage_count, 1);
        if (removed == NULL) {
            return MS_ENOMEM;
        }
        loss_find_removed(profile, &r, removed);
        r.by_operators = !on_host;
        rc = rewrite_both(profile, &r, removed);
        keep_for_backward(graph, node, r.logits);
        ms_free(removed);
    }
    return rc;
}

/* Nodes may share a profile: rewriting for the first removes the marks. */
static int loss_head_apply(const ms_hardware *hardware, ms__step *step)
{
    bool on_host = ms_hardware_host_is_device(hardware);
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < step->graph->node_count; i++) {
        rc = loss_head_apply_to(step->graph, &step->graph->nodes[i], on_host);
    }
    return rc;
}

/* A loss outside the model is reported if it holds at least this part of the peak with everything kept. */
enum { OUTSIDE_PERMILLE = 20 };

static bool is_outside(const ms__step_case *facts)
{
    uint64_t bytes = facts->graph->loop.external_loss_bytes;
    return bytes > 0 && bytes >= ms__mul_div(facts->pressure->need_bytes, OUTSIDE_PERMILLE, 1000);
}

static uint32_t loss_head_judge(const ms__step_case *facts)
{
    for (uint32_t i = 0; i < facts->graph->node_count; i++) {
        loss_region r;
        if (next_region(facts->graph, &facts->graph->nodes[i], 0, &r)) {
            return MS__STEP_ADMITTED;
        }
    }
    return is_outside(facts) ? MS_RULE_LOSS_OUTSIDE : MS_RULE_NO_LOSS_HEAD;
}

const ms__step_option ms__step_exact_loss_head = {.judge = loss_head_judge, .apply = loss_head_apply};
