/*
 * Runs a node again in backward: whole, as far as its last saved storage; the layers
 * before it for its first argument, where they are one segment; or single operators
 * of a selective layer (selective.c says which). sim_replay.c calls it.
 */
#include "base/units.h"
#include "sim/sim_nodes.h"

/* ---- running a node again --------------------------------------------------------- */

static void replay_alloc(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t fresh = node->first_replay + storage, original = ms__sim_instance_of(node, storage);
    sim->instance_bytes[fresh] = sim->instance_bytes[original];
    sim->instance_class[fresh] = sim->instance_class[original];
    ms__sim_begin_life(sim, fresh);
}

static void replay_save(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
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

static void run_op_again(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    switch (op->kind) {
    case MS_EVENT_ALLOC:
        replay_alloc(sim, node, op->storage);
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

/* ---- making the arguments of a segment's layers again -------------------------------- */

static ms__slot *first_argument(ms__sim *sim, const ms__sim_node *node)
{
    return &sim->slots[node->first_slot + node->profile->save_count];
}

static bool lacks_argument(ms__sim *sim, const ms__sim_node *node)
{
    return node->profile->input_count > 0 && first_argument(sim, node)->state == MS__SLOT_LOST;
}

static ms_technique technique_of(const ms__sim *sim, const ms__sim_node *node)
{
    return ms__sim_technique_of(sim, (uint32_t)(node - sim->nodes));
}

static void end_all(ms__sim *sim, const ms__sim_node *node)
{
    for (uint32_t storage = 0; storage < node->profile->storage_count; storage++) {
        ms__sim_end_life(sim, node->first_replay + storage);
    }
}

/* Where the layer before a node puts a storage when it runs for the node's argument. */
static uint32_t made_instance(const ms__sim_node *node, uint32_t storage)
{
    return storage == node->link ? ms__sim_instance_of(node->before, storage) : node->before->first_replay + storage;
}

/* The graph of that run goes, with all that it saved, and what else it made. */
static void end_making(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_profile *profile = node->before->profile;
    for (uint32_t i = 0; i < profile->save_count; i++) {
        if (profile->made[profile->saved[i]]) {
            ms__sim_release(sim, made_instance(node, profile->saved[i]));
        }
    }
    end_all(sim, node->before);
}

/* What a run for its result saves: all of it until the run's end, or what its backward will
 * ask for until then. */
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
        replay_save(sim, before, op);
    }
}

/* Runs the layer before a node whole, for the node's argument. With `stays`, what it saves is
 * what its own backward will ask for. */
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
            run_op_again(sim, before, op);
        }
    }
    if (stays) {
        end_all(sim, before);
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

/* Layers are linked backwards: the one after `node`, of those that lead to `last`. */
static const ms__sim_node *after(const ms__sim_node *node, const ms__sim_node *last)
{
    while (last->before != node) {
        last = last->before;
    }
    return last;
}

/* One run: from the nearest layer before that has its argument, up to the last of the least
 * nesting, the node at the latest; see memscale/technique.h. */
static void run_up_to(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_node *last = node, *from = node, *start;
    uint32_t least = UINT32_MAX;
    for (; lacks_argument(sim, from); from = from->before) {
        uint32_t nesting = ms_technique_of(technique_of(sim, from))->nesting;
        if (nesting > 0 && nesting < least) {
            least = nesting;
            last = from;
        }
    }
    start = from;
    while (from != last) {
        const ms__sim_node *next = after(from, last);
        make_argument(sim, next, false);
        if (from != start && ms_technique_of(technique_of(sim, from))->nesting != least) {
            forget_argument(sim, from);
        }
        from = next;
    }
}

/* Those of all layers that run again as one with it. */
static void make_arguments(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_node *head = node;
    while (lacks_argument(sim, head) && ms_technique_of(technique_of(sim, head))->joined) {
        head = head->before;
    }
    while (lacks_argument(sim, head)) {
        run_up_to(sim, head);
    }
    while (head != node) {
        head = after(head, node);
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
            replay_save(sim, node, &ops[i]);
        } else {
            run_op_again(sim, node, &ops[i]);
        }
    }
    /* The replay stops here: what it made and did not save dies. */
    end_all(sim, node);
    sim->again = false;
    sim->current_event = resumed;
}

/* ---- making single storages again: see selective.c ------------------------------------ */

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

void ms__sim_begin_remade(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    replay_alloc(sim, node, storage);
}

void ms__sim_hold_remade(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t slot = node->profile->slot_of[storage];
    if (slot != UINT32_MAX && sim->slots[node->first_slot + slot].state == MS__SLOT_LOST) {
        ms__sim_hold_slot(sim, &sim->slots[node->first_slot + slot], node->first_replay + storage, MS__SLOT_REBUILT);
    }
}

void ms__sim_end_remade(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    ms__sim_end_life(sim, node->first_replay + storage);
}
