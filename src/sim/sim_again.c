/*
 * Runs a node again in backward: the whole layer up to its last saved storage; in a segment, the layers
 * before it for its first argument; or single operators of a selective layer, chosen by selective.c. Called
 * by sim_replay.c.
 */
#include "base/units.h"
#include "sim/sim_nodes.h"

/* ---- running a node again --------------------------------------------------------- */

static void again_alloc(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t fresh = node->first_replay + storage, original = ms__sim_instance_of(node, storage);
    sim->instance_bytes[fresh] = sim->instance_bytes[original];
    sim->instance_class[fresh] = sim->instance_class[original];
    ms__sim_begin_life(sim, fresh);
}

static void again_save(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    if (slot->state == MS__SLOT_LOST) {
        ms__sim_hold_slot(sim, slot, ms__sim_replay_instance(node, op->storage), MS__SLOT_REBUILT);
    }
}

static void fetch_arguments(ms__sim *sim, const ms__sim_node *node)
{
    ms__slot *slots = &sim->slots[node->first_slot + node->profile->save_count];
    for (uint32_t i = 0; i < node->profile->input_count; i++) {
        if (slots[i].state == MS__SLOT_AWAY) {
            ms__io_need(sim, slots[i].entry);
        }
    }
}

static void again_run_op(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    switch (op->kind) {
    case MS_EVENT_ALLOC:
        again_alloc(sim, node, op->storage);
        break;
    case MS_EVENT_FREE:
        if (node->profile->made[op->storage]) {
            ms__sim_end_life(sim, node->first_replay + op->storage);
        }
        break;
    case MS_EVENT_WORK:
        sim->recompute_ns = ms__add_sat(sim->recompute_ns, op->value);
        ms__sim_spend(sim, op->value);
        break;
    case MS__OP_STRETCH:
        sim->recompute_ns = ms__add_sat(sim->recompute_ns, node->profile->stretches[op->value].ns);
        ms__sim_stretch(sim, node->profile, &node->profile->stretches[op->value]);
        break;
    default:
        break;
    }
}

/* ---- recomputing the arguments of a segment's layers ---------------------------------- */

static ms__slot *first_argument(ms__sim *sim, const ms__sim_node *node)
{
    return &sim->slots[node->first_slot + node->profile->save_count];
}

static bool lacks_argument(ms__sim *sim, const ms__sim_node *node)
{
    return node->profile->input_count > 0 && first_argument(sim, node)->state == MS__SLOT_LOST;
}

static ms_technique again_technique(const ms__sim *sim, const ms__sim_node *node)
{
    return ms__sim_technique_of(sim, (uint32_t)(node - sim->nodes));
}

static void again_end_all(ms__sim *sim, const ms__sim_node *node)
{
    for (uint32_t storage = 0; storage < node->profile->storage_count; storage++) {
        ms__sim_end_life(sim, node->first_replay + storage);
    }
}

/* The instance of a storage of the layer before, when that layer runs for the node's argument. */
static uint32_t made_instance(const ms__sim_node *node, uint32_t storage)
{
    return storage == node->link ? ms__sim_instance_of(node->before, storage) : node->before->first_replay + storage;
}

/* Ends that run: its graph is freed with everything saved, and so are its other results. */
static void end_making(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_profile *profile = node->before->profile;
    for (uint32_t i = 0; i < profile->save_count; i++) {
        if (profile->made[profile->saved[i]]) {
            ms__sim_release(sim, made_instance(node, profile->saved[i]));
        }
    }
    again_end_all(sim, node->before);
}

/* One SAVE of a run for its result: held until the run ends, or, if it `stays`, until its own backward. */
static void making_save(ms__sim *sim, const ms__sim_node *node, const ms__op *op, bool stays)
{
    const ms__sim_node *before = node->before;
    if (!stays && before->profile->made[op->storage]) {
        ms__sim_acquire(sim, made_instance(node, op->storage));
    } else if (stays && op->storage == node->link) {
        ms__slot *slot = &sim->slots[before->first_slot + op->value];
        if (slot->state == MS__SLOT_LOST) {
            ms__sim_hold_slot(sim, slot, made_instance(node, op->storage), MS__SLOT_HELD);
        }
    } else if (stays) {
        again_save(sim, before, op);
    }
}

/* Runs the whole layer before a node, for the node's argument. With `stays`, it keeps the tensors that its
 * own backward will ask for. */
static void make_argument(ms__sim *sim, const ms__sim_node *node, bool stays)
{
    const ms__sim_node *before = node->before;
    const ms__sim_profile *profile = before->profile;
    bool brief = ms__sim_runs_short(sim);
    const ms__op *ops = brief ? profile->short_forward : profile->forward;
    uint32_t count = brief ? profile->short_forward_count : profile->forward_count;
    uint32_t resumed = sim->current_node;
    sim->current_node = (uint32_t)(before - sim->nodes);
    fetch_arguments(sim, before);
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        if (op->kind == MS_EVENT_ALLOC && op->storage == node->link) {
            ms__sim_hold_slot(sim, first_argument(sim, node), made_instance(node, op->storage), MS__SLOT_REBUILT);
        } else if (op->kind == MS_EVENT_SAVE) {
            making_save(sim, node, op, stays);
        } else {
            again_run_op(sim, before, op);
        }
    }
    if (stays) {
        again_end_all(sim, before);
    } else {
        end_making(sim, node);
    }
    sim->current_node = resumed;
    sim->current_event = 0;
}

static void forget_argument(ms__sim *sim, const ms__sim_node *node)
{
    first_argument(sim, node)->state = MS__SLOT_LOST;
    ms__sim_release(sim, ms__sim_instance_of(node, node->profile->inputs[0]));
}

/* The layer after `node` among those that lead to `last`; layers are linked backwards only. */
static const ms__sim_node *again_next(const ms__sim_node *node, const ms__sim_node *last)
{
    while (last->before != node) {
        last = last->before;
    }
    return last;
}

/* One run: from the nearest layer before that has its argument, up to the last layer of the smallest
 * nesting, at most up to the node. See memscale/technique.h. */
static void again_run_nested(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_node *last = node, *from = node, *start;
    uint32_t least = UINT32_MAX;
    for (; lacks_argument(sim, from); from = from->before) {
        uint32_t nesting = ms_technique_of(again_technique(sim, from))->nesting;
        if (nesting > 0 && nesting < least) {
            least = nesting;
            last = from;
        }
    }
    start = from;
    while (from != last) {
        const ms__sim_node *next = again_next(from, last);
        make_argument(sim, next, false);
        if (from != start && ms_technique_of(again_technique(sim, from))->nesting != least) {
            forget_argument(sim, from);
        }
        from = next;
    }
}

/* The arguments of all layers that run again as one with the node. */
static void make_arguments(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_node *head = node;
    while (lacks_argument(sim, head) && ms_technique_of(again_technique(sim, head))->joined) {
        head = head->before;
    }
    while (lacks_argument(sim, head)) {
        again_run_nested(sim, head);
    }
    while (head != node) {
        head = again_next(head, node);
        make_argument(sim, head, true);
    }
}

/* ---- a whole layer -------------------------------------------------------------------- */

void ms__sim_run_again(ms__sim *sim, const ms__sim_node *node)
{
    uint32_t resumed = sim->current_event;
    sim->again = true;
    sim->current_event = 0;
    make_arguments(sim, node);
    fetch_arguments(sim, node);
    ms__io_prefetch(sim);
    bool brief = ms__sim_runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_forward : node->profile->forward;
    uint32_t count = brief ? node->profile->short_replay_count : node->profile->replay_count;
    for (uint32_t i = 0; i < count; i++) {
        sim->current_event = i;
        if (ops[i].kind == MS_EVENT_SAVE) {
            again_save(sim, node, &ops[i]);
        } else {
            again_run_op(sim, node, &ops[i]);
        }
    }
    /* The replay stops here: results that it did not save are freed. */
    again_end_all(sim, node);
    sim->again = false;
    sim->current_event = resumed;
}

/* ---- recomputing single storages: see selective.c ------------------------------------- */

bool ms__sim_has(const ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t slot = node->profile->slot_of[storage];
    if (node->profile->maker_of[storage] == UINT32_MAX) {
        return true;
    }
    if (slot == UINT32_MAX) {
        return false;
    }
    uint32_t index = (uint32_t)(node - sim->nodes);
    const uint8_t *dropped = ms__selective_set(node->profile, ms__sim_technique_of(sim, index));
    uint32_t state = sim->slots[node->first_slot + slot].state;
    return dropped == NULL || !dropped[slot] || state == MS__SLOT_HELD || state == MS__SLOT_REBUILT;
}

void ms__sim_fetch(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t slot = node->profile->slot_of[storage];
    if (slot != UINT32_MAX) {
        ms__bits_unpack(sim, node, storage, &sim->slots[node->first_slot + slot]);
    }
    if (slot != UINT32_MAX && sim->slots[node->first_slot + slot].state == MS__SLOT_AWAY) {
        ms__io_need(sim, sim->slots[node->first_slot + slot].entry);
    }
}

void ms__sim_begin_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    again_alloc(sim, node, storage);
}

void ms__sim_hold_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t slot = node->profile->slot_of[storage];
    if (slot != UINT32_MAX && sim->slots[node->first_slot + slot].state == MS__SLOT_LOST) {
        ms__sim_hold_slot(sim, &sim->slots[node->first_slot + slot], node->first_replay + storage, MS__SLOT_REBUILT);
    }
}

void ms__sim_end_recomputed(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    ms__sim_end_life(sim, node->first_replay + storage);
}
