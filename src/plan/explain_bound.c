/*
 * A lower bound on the step time of every plan that fits. Called once per plan. Explanations show the gap to it;
 * no choice depends on it.
 *
 * Why it holds. Take the event at which the step with everything kept peaks. At that event, a plan that fits
 * holds the bytes of that step less those its nodes gave up, so they gave up at least the excess over the
 * budget. A storage is freed only if every node that keeps it gives it up, so a node is credited with its
 * share (bytes / keepers). A forward that waits for its backward holds what the step holds at the end of its
 * forward: a node is credited with its share of that too, for each such forward. Work never takes less time
 * than with everything kept. Giving up costs at least the time of recompute, the handling of transfers, or
 * the packing of bits, which a node may combine with any other technique. Each node's cost over bytes is
 * replaced by its lower convex hull, and all hulls are filled cheapest first: a relaxation of the choice. The
 * smallest bound over the sets of step options counts. While backward waits for optimizer state, layers can be
 * recomputed at no cost (sim_update.c), so the costs are added to the work without these waits.
 */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "plan/explain_internal.h"

/* The most bytes that a node can give up with a technique, and the least time that this costs. */
typedef struct offer {
    uint64_t bytes, ns;
} offer;

typedef struct step_bound {
    ms__search *search;
    uint32_t *keepers;   /* nodes that hold it if all is kept */
    uint64_t *shares;    /* [slot_count] bytes that the node's giving up frees: at the event, and in each forward that
                          * waits; 0: none */
    uint64_t *again_ns;  /* [node_count] */
    offer *offers;       /* [node_count][MS_TECHNIQUE_COUNT]; 0 bytes: none */
    offer *slices;       /* [node_count * MS_TECHNIQUE_COUNT + slot_count] pieces of the hulls, and bits */
} step_bound;

static uint32_t slot_instance(const ms__sim_node *node, uint32_t slot)
{
    const ms__sim_profile *profile = node->profile;
    uint32_t storage = slot < profile->save_count ? profile->saved[slot] : profile->inputs[slot - profile->save_count];
    return ms__sim_instance_of(node, storage);
}

/* ---- storages held at the peak with everything kept ---------------------------------------- */

/* Adds each node's share of what it holds now, `times` times. What lives under every technique frees nothing. */
static void add_shares(const ms__sim *sim, step_bound *b, uint64_t times)
{
    memset(b->keepers, 0, sim->instance_count * sizeof *b->keepers);
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        for (uint32_t s = 0; s < node->profile->save_count; s++) {
            b->keepers[slot_instance(node, s)] += sim->slots[node->first_slot + s].state == MS__SLOT_HELD;
        }
    }
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        for (uint32_t s = 0; s < node->profile->save_count; s++) {
            uint32_t instance = slot_instance(node, s);
            if (sim->slots[node->first_slot + s].state == MS__SLOT_HELD && !sim->instances[instance].natural) {
                uint64_t share = ms__div_up(sim->instance_bytes[instance], b->keepers[instance]);
                uint64_t *shares = &b->shares[node->first_slot + s];
                *shares = ms__add_sat(*shares, ms__mul_sat(share, times));
            }
        }
    }
}

static void bound_look_at_kept(const ms__sim *sim, void *context)
{
    add_shares(sim, context, 1);
}

/* Called between forward and backward: each forward that waits holds as much. */
static void bound_look_at_waiting(const ms__sim *sim, void *context)
{
    add_shares(sim, context, sim->graph->loop.pending_forwards);
}

/* ---- bytes that nodes can give up -------------------------------------------------------------- */

/* Whether a node still holds the storage in memory, saved or as an argument. */
static bool node_keeps(const ms__sim *sim, const ms__sim_node *node, uint32_t instance)
{
    for (uint32_t s = 0; s < node->profile->save_count + node->profile->input_count; s++) {
        if (sim->slots[node->first_slot + s].state == MS__SLOT_HELD && slot_instance(node, s) == instance) {
            return true;
        }
    }
    return false;
}

/* Called between forward and backward, with every node under one technique. */
static void bound_look_at_given_up(const ms__sim *sim, void *context)
{
    step_bound *b = context;
    for (uint32_t i = 0; i < sim->node_count; i++) {
        const ms__sim_node *node = &sim->nodes[i];
        offer given = {0, 0};
        for (uint32_t s = 0; s < node->profile->save_count; s++) {
            uint32_t instance = slot_instance(node, s), state = sim->slots[node->first_slot + s].state;
            uint64_t share = b->shares[node->first_slot + s];
            if (share == 0 || node_keeps(sim, node, instance)) {
                continue;
            }
            given.bytes = ms__add_sat(given.bytes, share);
            /* If several nodes move a storage, one pays. */
            given.ns += state == MS__SLOT_AWAY ? MS__HANDLING_NS / ms__max_u64(b->keepers[instance], 1) : 0;
        }
        if (sim->choices->technique[i] != MS_TECHNIQUE_KEEP) {
            b->offers[(size_t)i * MS_TECHNIQUE_COUNT + sim->choices->technique[i]] = given;
        }
    }
}

static void collect_offers(step_bound *b, uint32_t technique)
{
    ms__search *search = b->search;
    ms__sim *sim = search->sim;
    ms__outcome outcome;
    bool any = false;
    for (uint32_t i = 0; i < search->node_count; i++) {
        bool may = (search->admissions[i].under_pressure & 1u << technique) != 0;
        search->scratch[i] = may ? (uint8_t)technique : (uint8_t)MS_TECHNIQUE_KEEP;
        any = any || may;
    }
    if (!any) {
        return;
    }
    ms_choices choices = ms__search_choices(search, search->scratch, 0, 0);
    sim->watch =
        (ms__watch){.at_boundary = true, .look = bound_look_at_given_up, .context = b, .again_ns = b->again_ns};
    ms__sim_run(sim, &choices, &outcome, NULL);
    sim->watch = (ms__watch){0};
    for (uint32_t i = 0; i < search->node_count; i++) {
        /* Backward runs from the last node to the first; its clock was read after each node. */
        uint64_t before = i + 1 < search->node_count ? b->again_ns[i + 1] : 0;
        if (search->scratch[i] == technique) {
            b->offers[(size_t)i * MS_TECHNIQUE_COUNT + technique].ns += ms__sub_sat(b->again_ns[i], before);
        }
    }
}

/* ---- the relaxation ---------------------------------------------------------------------------- */

static bool offer_is_cheaper(const offer *a, const offer *b)
{
    return ms__compare_quotients(a->ns, a->bytes, b->ns, b->bytes) < 0;
}

static int compare_offers(const void *left, const void *right)
{
    const offer *a = left, *b = right;
    int order = ms__compare_quotients(a->ns, a->bytes, b->ns, b->bytes);
    return order != 0 ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* Cuts a node's lower convex hull, from {0, 0} on, into slices of rising cost per byte. Returns their
 * number. */
static size_t cut_hull(const offer *offers, offer *slices)
{
    offer at = {0, 0};
    size_t made = 0;
    for (;;) {
        offer best = {0, 0};
        for (uint32_t i = 0; i < MS_TECHNIQUE_COUNT; i++) {
            if (offers[i].bytes <= at.bytes) {
                continue;
            }
            offer step = {offers[i].bytes - at.bytes, ms__sub_sat(offers[i].ns, at.ns)};
            bool longer = best.bytes > 0 && !offer_is_cheaper(&best, &step) && step.bytes > best.bytes;
            if (best.bytes == 0 || offer_is_cheaper(&step, &best) || longer) {
                best = step;
            }
        }
        if (best.bytes == 0) {
            return made;
        }
        slices[made++] = best;
        at.bytes += best.bytes;
        at.ns += best.ns;
    }
}

/* A slice for bit packing each two-valued storage. */
static size_t cut_bits(const step_bound *b, uint32_t index, offer *slices)
{
    const ms__sim *sim = b->search->sim;
    const ms__sim_node *node = &sim->nodes[index];
    size_t made = 0;
    bool may = ms__search_packs(b->search, index) > 0;
    for (uint32_t s = 0; may && s < node->profile->save_count; s++) {
        const ms__sim_bits *bits = &node->profile->bits[s];
        uint64_t share = b->shares[node->first_slot + s], keepers = b->keepers[slot_instance(node, s)];
        if (bits->rank > 0 && share > 0) {
            slices[made++] = (offer){share, ms__add_sat(bits->pack_ns, bits->unpack_ns) / ms__max_u64(keepers, 1)};
        }
    }
    return made;
}

/* The least time for giving up `excess` bytes; UINT64_MAX if nodes can't give up that many. */
static uint64_t least_cost(step_bound *b, uint64_t excess)
{
    size_t count = 0;
    uint64_t ns = 0;
    for (uint32_t i = 0; i < b->search->node_count; i++) {
        count += cut_hull(&b->offers[(size_t)i * MS_TECHNIQUE_COUNT], &b->slices[count]);
        count += cut_bits(b, i, &b->slices[count]);
    }
    qsort(b->slices, count, sizeof *b->slices, compare_offers);
    for (size_t i = 0; i < count && excess > 0; i++) {
        uint64_t bytes = ms__min_u64(excess, b->slices[i].bytes);
        ns = ms__add_sat(ns, ms__mul_div(b->slices[i].ns, bytes, b->slices[i].bytes));
        excess -= bytes;
    }
    return excess > 0 ? UINT64_MAX : ns;
}

/* In a segment one layer's clock includes other layers' replays. Only its own replay is certain. */
static void lower_segments(const step_bound *b)
{
    for (uint32_t i = 0; i < b->search->node_count; i++) {
        offer *offers = &b->offers[(size_t)i * MS_TECHNIQUE_COUNT];
        for (int t = 0; t < MS_TECHNIQUE_COUNT; t++) {
            if (ms_technique_is_chained((ms_technique)t)) {
                offers[t].ns = ms__min_u64(offers[t].ns, offers[MS_TECHNIQUE_RECOMPUTE].ns);
            }
        }
    }
}

/* ---- one set of step options ------------------------------------------------------------------- */

static uint64_t bound_of_step(step_bound *b, uint32_t step, uint64_t allowed_bytes)
{
    ms__search *search = b->search;
    ms__search_use(search, step);
    ms__sim *sim = search->sim;
    ms__outcome kept, again;
    ms__search_keep_all(search);
    memset(b->shares, 0, sim->slot_count * sizeof *b->shares);
    memset(b->offers, 0, (size_t)search->node_count * MS_TECHNIQUE_COUNT * sizeof *b->offers);
    ms_choices choices = ms__search_choices(search, search->scratch, 0, 0);
    sim->in_full = true;
    ms__sim_run(sim, &choices, &kept, NULL);
    uint64_t work = kept.replay.step_ns - kept.replay.fault_ns;
    if (kept.replay.peak_bytes <= allowed_bytes) {
        sim->in_full = false;
        return work;
    }
    if (sim->graph->loop.pending_forwards > 0) {
        sim->watch = (ms__watch){.at_boundary = true, .look = bound_look_at_waiting, .context = b};
        ms__sim_run(sim, &choices, &again, NULL);
    }
    sim->watch = (ms__watch){.tick = kept.peak_tick, .look = bound_look_at_kept, .context = b};
    ms__sim_run(sim, &choices, &again, NULL);
    sim->watch = (ms__watch){0};
    sim->in_full = false;
    for (uint32_t technique = MS_TECHNIQUE_KEEP + 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        collect_offers(b, technique);
    }
    lower_segments(b);
    uint64_t hurried = ms__sub_sat(work, kept.replay.stall_backward_ns);
    return ms__max_u64(work, ms__add_sat(hurried, least_cost(b, kept.replay.peak_bytes - allowed_bytes)));
}

/* Enough for any step: options can change a layer's allocations and saved storages. */
static void most_of_steps(const ms__search *search, size_t *instances, size_t *slots)
{
    *instances = *slots = 1;
    for (uint32_t step = 0; step < search->step_count; step++) {
        const ms__sim *sim = search->steps[step].sim;
        *instances = sim->instance_count > *instances ? sim->instance_count : *instances;
        *slots = sim->slot_count > *slots ? sim->slot_count : *slots;
    }
}

/* Releases nothing on failure: the caller does. */
static int bound_allocate(step_bound *b)
{
    size_t nodes = b->search->node_count, instances, slots;
    most_of_steps(b->search, &instances, &slots);
    b->keepers = ms_calloc(instances, sizeof *b->keepers);
    b->shares = ms_calloc(slots, sizeof *b->shares);
    b->again_ns = ms_calloc(nodes, sizeof *b->again_ns);
    b->offers = ms_calloc(nodes * MS_TECHNIQUE_COUNT, sizeof *b->offers);
    b->slices = ms_calloc(nodes * MS_TECHNIQUE_COUNT + slots, sizeof *b->slices);
    bool complete =
        b->keepers != NULL && b->shares != NULL && b->again_ns != NULL && b->offers != NULL && b->slices != NULL;
    return complete ? MS_OK : MS_ENOMEM;
}

int ms__explain_bound(ms__search *search, const ms__variant *chosen, ms_plan *plan)
{
    uint64_t allowed = ms__max_u64(plan->pressure.allowed_bytes, chosen->bytes), least = UINT64_MAX;
    step_bound b = {.search = search};
    int rc = bound_allocate(&b);
    for (uint32_t step = 0; rc == MS_OK && step < search->step_count; step++) {
        least = ms__min_u64(least, bound_of_step(&b, step, allowed));
    }
    if (rc == MS_OK) {
        plan->why.lower_bound_ns = least == UINT64_MAX ? 0 : least;
    }
    ms_free(b.keepers);
    ms_free(b.shares);
    ms_free(b.again_ns);
    ms_free(b.offers);
    ms_free(b.slices);
    return rc;
}
