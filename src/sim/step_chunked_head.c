/*
 * The chunked loss head as an option of the step (techniques/linear_head.py executes it). In forward, the
 * linear layer that makes the logits and their cross entropy run over some tokens at a time, and give the
 * loss and the gradients of the layer's operands. A tokens x vocabulary tensor never exists. Sums have
 * another order, so the option rounds differently.
 */
#include <string.h>

#include "base/units.h"
#include "sim/step_options.h"

/* Passes over a chunk's logits by the operators that turn it into losses and gradients. */
enum { PASSES = 10 };

/* One layer with its cross entropy, as positions of their events: HEAD, LOSS and LOSS_END in forward;
 * LOSS, HEAD and HEAD_END in backward. */
typedef struct chunked_region {
    const ms_node *node;
    uint32_t head, loss, loss_end;
    uint32_t by_loss, by_head, by_head_end;
    uint32_t made, logits;     /* local storages: the layer's result; the cross entropy's input */
    uint32_t by_input;         /* the gradient of the layer's input */
    bool is_half;              /* of 16 bits, cast to 32 for the cross entropy */
} chunked_region;

static uint32_t find_event(const ms_event *events, uint32_t count, uint32_t from, ms_event_kind kind)
{
    while (from < count && events[from].kind != kind) {
        from++;
    }
    return from;
}

/* The next HEAD of forward from *at on, with its LOSS. */
static bool find_forward(const ms_profile *p, uint32_t *at, chunked_region *r)
{
    for (;;) {
        r->head = find_event(p->forward, p->forward_count, *at, MS_EVENT_HEAD);
        if (r->head >= p->forward_count) {
            return false;
        }
        *at = r->head + 1;
        r->loss = find_event(p->forward, p->forward_count, *at, MS_EVENT_LOSS);
        r->loss_end = find_event(p->forward, p->forward_count, r->loss, MS_EVENT_LOSS_END);
        if (r->loss_end < p->forward_count && find_event(p->forward, r->loss, *at, MS_EVENT_HEAD) == r->loss) {
            r->made = p->forward[r->head].storage;
            r->logits = p->forward[r->loss].storage;
            return true;
        }
    }
}

static bool find_backward(const ms_profile *p, chunked_region *r)
{
    uint32_t count = p->backward_count;
    r->by_loss = find_event(p->backward, count, 0, MS_EVENT_LOSS);
    while (r->by_loss < count && p->backward[r->by_loss].storage != r->logits) {
        r->by_loss = find_event(p->backward, count, r->by_loss + 1, MS_EVENT_LOSS);
    }
    r->by_head = find_event(p->backward, count, r->by_loss, MS_EVENT_HEAD);
    r->by_head_end = find_event(p->backward, count, r->by_head, MS_EVENT_HEAD_END);
    if (r->by_head_end >= count || p->backward[r->by_head].storage != r->made) {
        return false;
    }
    r->by_input = p->backward[r->by_head_end].storage;
    r->is_half = p->storage_bytes[r->made] < p->storage_bytes[r->logits];
    return true;
}

/* ---- removed storages, and gradients made earlier ---------------------------------------- */

/* Whether the event allocates a tokens x vocabulary storage in the region. The option removes these. */
static bool allocates_removed(const ms_profile *p, const chunked_region *r, bool backward, uint32_t i)
{
    const ms_event *event = backward ? &p->backward[i] : &p->forward[i];
    uint64_t least = ms__min_u64(p->storage_bytes[r->made], p->storage_bytes[r->logits]) / 2;
    bool inside = backward ? i >= r->by_loss && i < r->by_head : i >= r->head && i < r->loss_end;
    return inside && event->kind == MS_EVENT_ALLOC && p->storage_bytes[event->storage] >= least;
}

/* Whether an external storage is removed. */
static bool is_removed(const ms_profile *p, const chunked_region *r, uint32_t storage)
{
    bool removed = storage == r->made || storage == r->logits;
    for (uint32_t i = r->head; !removed && i < r->loss_end; i++) {
        removed = allocates_removed(p, r, false, i) && p->forward[i].storage == storage;
    }
    for (uint32_t i = r->by_loss; !removed && i < r->by_head; i++) {
        removed = allocates_removed(p, r, true, i) && p->backward[i].storage == storage;
    }
    return removed;
}

/* Sets 1 for every removed storage. */
static void chunked_find_removed(const ms_profile *p, const chunked_region *r, uint8_t *removed)
{
    for (uint32_t i = r->head; i < r->loss_end; i++) {
        if (allocates_removed(p, r, false, i)) {
            removed[p->forward[i].storage] = 1;
        }
    }
    for (uint32_t i = r->by_loss; i < r->by_head; i++) {
        if (allocates_removed(p, r, true, i)) {
            removed[p->backward[i].storage] = 1;
        }
    }
    removed[r->made] = removed[r->logits] = 1;
}

static bool is_freed(const ms_event *events, uint32_t from, uint32_t to, uint32_t storage)
{
    for (uint32_t i = from; i < to; i++) {
        if (events[i].kind == MS_EVENT_FREE && events[i].storage == storage) {
            return true;
        }
    }
    return false;
}

/* Whether event `i` of backward begins a gradient that the head makes in forward. A 16-bit layer sums its
 * weight gradient in a 32-bit buffer and casts it in backward. */
static bool comes_earlier(const ms_profile *p, const chunked_region *r, uint32_t i)
{
    const ms_event *event = &p->backward[i];
    bool made_there = event->kind == MS_EVENT_ALLOC && i > r->by_head && i < r->by_head_end;
    return made_there && (!r->is_half || event->storage == r->by_input) &&
           !is_freed(p->backward, i, r->by_head_end, event->storage);
}

/* Bytes of the buffers that sum the gradients of weight and bias. */
static uint64_t summed_bytes(const ms_profile *p, const chunked_region *r)
{
    uint64_t bytes = 0;
    uint32_t products = 0;
    for (uint32_t i = r->by_head; i < r->by_head_end; i++) {
        const ms_event *event = &p->backward[i];
        if (event->kind != MS_EVENT_ALLOC) {
            continue;
        }
        if (r->is_half && products++ < 2) { /* of 16 bits; the input's is among them */
            bytes = ms__add_sat(bytes, ms__mul_sat(2, p->storage_bytes[event->storage]));
        } else if (!r->is_half && event->storage != r->by_input) {
            bytes = ms__add_sat(bytes, p->storage_bytes[event->storage]);
        }
    }
    return bytes;
}

/* ---- the rule ---------------------------------------------------------------------------------- */

static bool binds_storage(const ms_graph *graph, const ms_node *node, uint32_t storage)
{
    for (uint32_t i = 0; i < graph->profiles[node->profile].external_count; i++) {
        if (node->externals[i] == storage) {
            return true;
        }
    }
    return false;
}

/* Whether no other node uses the removed storages or the programs. */
static bool is_private(const ms_graph *graph, const chunked_region *r)
{
    const ms_profile *p = &graph->profiles[r->node->profile];
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *other = &graph->nodes[i];
        if (other != r->node && other->profile == r->node->profile) {
            return false;
        }
    }
    for (uint32_t local = 0; local < p->external_count; local++) {
        bool removed = is_removed(p, r, local);
        for (uint32_t i = 0; removed && i < graph->node_count; i++) {
            if (&graph->nodes[i] != r->node && binds_storage(graph, &graph->nodes[i], r->node->externals[local])) {
                return false;
            }
        }
    }
    return true;
}

/* The node's first region; false if it has none. */
static bool find_region(const ms_graph *graph, const ms_node *node, chunked_region *r)
{
    const ms_profile *p = &graph->profiles[node->profile];
    uint32_t at = 0;
    r->node = node;
    while (find_forward(p, &at, r)) {
        if (find_backward(p, r) && is_private(graph, r)) {
            return true;
        }
    }
    return false;
}

static uint32_t chunked_head_judge(const ms__step_case *facts)
{
    bool found = false;
    chunked_region r;
    for (uint32_t i = 0; !found && i < facts->graph->node_count; i++) {
        found = find_region(facts->graph, &facts->graph->nodes[i], &r);
    }
    if (!found) {
        return MS_RULE_NO_PLAIN_HEAD;
    }
    if (!facts->config->enable_tiling) {
        return MS_RULE_FLAG_OFF;
    }
    return facts->config->mode == MS_MODE_CONSERVATIVE ? MS_RULE_MODE : MS__STEP_ADMITTED;
}

/* ---- the changed step ---------------------------------------------------------------------------- */

/* Removed storages are reused with other sizes: for a chunk, and for the sums of a 16-bit layer. */
static void resize_storage(ms_graph *graph, const chunked_region *r, uint32_t local, uint64_t bytes)
{
    ms_profile *p = &graph->profiles[r->node->profile];
    p->storage_bytes[local] = bytes;
    if (local < p->external_count) {
        graph->storages[r->node->externals[local]].bytes = bytes;
    }
}

static void put_event(ms_event *out, uint32_t *count, ms_event_kind kind, uint32_t storage)
{
    out[(*count)++] = (ms_event){.kind = kind, .storage = storage};
}

/* The head's events, in place of the LOSS event. */
static void put_head(const ms_profile *p, const chunked_region *r, uint64_t work_bytes, ms_event *out, uint32_t *count)
{
    for (uint32_t i = r->by_head; i < r->by_head_end; i++) {
        if (comes_earlier(p, r, i)) {
            put_event(out, count, MS_EVENT_ALLOC, p->backward[i].storage);
        }
    }
    if (r->is_half) {
        put_event(out, count, MS_EVENT_ALLOC, r->made);
    }
    put_event(out, count, MS_EVENT_ALLOC, r->logits);
    out[(*count)++] = (ms_event){.kind = MS_EVENT_WORK, .bytes = work_bytes};
    put_event(out, count, MS_EVENT_FREE, r->logits);
}

static int rewrite_forward(ms_profile *p, const chunked_region *r, const uint8_t *removed, uint64_t work_bytes)
{
    size_t room = (size_t)p->forward_count + (r->by_head_end - r->by_head) + 4;
    ms_event *out = ms_calloc(room, sizeof *out);
    uint32_t count = 0;
    if (out == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < p->forward_count; i++) {
        bool is_work = p->forward[i].kind == MS_EVENT_WORK;
        if (i == r->loss) {
            put_head(p, r, work_bytes, out, &count);
        } else if (is_work ? i < r->loss || i > r->loss_end : i != r->loss_end && !removed[p->forward[i].storage]) {
            out[count++] = p->forward[i];
        }
    }
    ms_free(p->forward);
    p->forward = out;
    p->forward_count = count;
    return MS_OK;
}

/* The layer's products stay in backward: they take the same time there. */
static void rewrite_backward(ms_profile *p, const chunked_region *r, const uint8_t *removed)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->backward_count; i++) {
        ms_event event = p->backward[i];
        bool is_work = event.kind == MS_EVENT_WORK;
        bool stays = is_work ? i < r->by_loss || i > r->by_head
                             : !removed[event.storage] && i != r->by_head_end && !comes_earlier(p, r, i);
        stays = stays && !(event.kind == MS_EVENT_LOSS_END && i > r->by_loss && i < r->by_head);
        if (i == r->by_head_end && r->is_half) {
            event = (ms_event){.kind = MS_EVENT_FREE, .storage = r->made};
            stays = true;
        }
        if (stays) {
            p->backward[kept++] = event;
        }
    }
    p->backward_count = kept;
}

/* A chunk exists with its exponentials; a 16-bit chunk also with its copy and a product, which torch casts
 * to 32 bits to add it to the sums. */
static uint64_t chunk_bytes(const chunked_region *r, uint64_t logits_bytes, uint64_t sums_bytes)
{
    uint64_t chunk = ms__min_u64(logits_bytes, MS__LOSS_CHUNK_BYTES);
    uint64_t most = ms__mul_sat(2, chunk);
    return r->is_half ? ms__max_u64(most, ms__add_sat(chunk + chunk / 2, sums_bytes + sums_bytes / 2)) : most;
}

/* ---- a weight with a second use ------------------------------------------------------------- */

/* Whether a program allocates a sum of the gradient `local` and another: *sum is its ALLOC, *end the FREE
 * of `local`. */
static bool find_sum(const ms_profile *p, uint32_t local, uint32_t *sum, uint32_t *end)
{
    const ms_event *events = p->backward;
    uint32_t i = 0;
    while (i < p->backward_count && !(events[i].kind == MS_EVENT_FREE && events[i].storage == local)) {
        i++;
    }
    *end = *sum = i;
    while (*sum > 0 && i < p->backward_count) {
        const ms_event *event = &events[--*sum];
        if (event->kind == MS_EVENT_ALLOC) {
            return event->storage != local && p->storage_bytes[event->storage] == p->storage_bytes[local];
        }
        if (event->kind != MS_EVENT_WORK) {
            return false;
        }
    }
    return false;
}

/* The head's gradient, unlike the layer's own, is not a view. So autograd adds the gradient of another use
 * (a tied embedding) to it in place: the old gradient ends when the sum begins. */
static void add_in_place(ms_graph *graph, const chunked_region *r, uint32_t storage)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *node = &graph->nodes[i];
        ms_profile *p = &graph->profiles[node->profile];
        uint32_t sum, end;
        for (uint32_t local = 0; node != r->node && local < p->external_count; local++) {
            if (node->externals[local] == storage && find_sum(p, local, &sum, &end)) {
                ms_event freed = p->backward[end];
                memmove(&p->backward[sum + 1], &p->backward[sum], (end - sum) * sizeof freed);
                p->backward[sum] = freed;
            }
        }
    }
}

static void add_all_in_place(ms_graph *graph, const chunked_region *r)
{
    const ms_profile *p = &graph->profiles[r->node->profile];
    for (uint32_t i = r->by_head; i < r->by_head_end; i++) {
        uint32_t local = p->backward[i].storage;
        bool made = p->backward[i].kind == MS_EVENT_ALLOC && local != r->by_input && local < p->external_count;
        if (made) {
            add_in_place(graph, r, r->node->externals[local]);
        }
    }
}

static int chunked_head_apply_to(ms_graph *graph, const chunked_region *r)
{
    ms_profile *p = &graph->profiles[r->node->profile];
    uint8_t *removed = ms_calloc((size_t)p->storage_count + 1, 1);
    if (removed == NULL) {
        return MS_ENOMEM;
    }
    chunked_find_removed(p, r, removed);
    add_all_in_place(graph, r);
    uint64_t bytes = p->storage_bytes[r->logits], sums = summed_bytes(p, r);
    uint64_t chunks = ms__div_up(bytes, MS__LOSS_CHUNK_BYTES);
    uint64_t work = ms__add_sat(ms__mul_sat(PASSES, bytes), ms__mul_sat(2 * chunks, sums));
    int rc = rewrite_forward(p, r, removed, work);
    if (rc == MS_OK) {
        resize_storage(graph, r, r->logits, chunk_bytes(r, bytes, sums));
        if (r->is_half) {
            resize_storage(graph, r, r->made, sums);
        }
        for (uint32_t i = 0; i < p->external_count; i++) {
            ms_storage *storage = &graph->storages[r->node->externals[i]];
            storage->role = removed[i] ? (uint32_t)MS_STORAGE_ACTIVATION : storage->role;
        }
        rewrite_backward(p, r, removed);
    }
    ms_free(removed);
    return rc;
}

static int chunked_head_apply(const ms_hardware *hardware, ms__step *step)
{
    (void)hardware;
    ms_graph *graph = step->graph;
    int rc = MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < graph->node_count; i++) {
        chunked_region r;
        while (rc == MS_OK && find_region(graph, &graph->nodes[i], &r)) { /* which removes its marks */
            rc = chunked_head_apply_to(graph, &r);
        }
    }
    return rc;
}

const ms__step_option ms__step_chunked_loss_head = {.excludes = 1u << MS_STEP_EXACT_LOSS_HEAD,
                                                    .goes_first = true,
                                                    .judge = chunked_head_judge,
                                                    .apply = chunked_head_apply};
