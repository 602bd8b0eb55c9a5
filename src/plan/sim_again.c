/*
 * Runs a node again in backward: whole, as far as its last saved storage; the layers
 * before it for its first argument, where they are one segment; or single operators
 * of a selective layer (selective.c says which). sim_replay.c calls it.
 */
#include "plan/sim_nodes.h"

/* ---- running a node again --------------------------------------------------------- */

static void replay_alloc(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t fresh = sim->replay_base + storage, original = ms__sim_instance_of(node, storage);
    sim->instance_bytes[fresh] = sim->instance_bytes[original];
    sim->instance_class[fresh] = sim->instance_class[original];
    ms__sim_begin_life(sim, fresh);
}

static void replay_save(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    if (slot->state == MS__SLOT_LOST) {
        ms__sim_hold_slot(sim, slot, ms__sim_replay_instance(sim, node, op->storage), MS__SLOT_REBUILT);
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

/* ---- making the arguments of a segment's layers again -------------------------------- */

static ms__slot *first_argument(ms__sim *sim, const ms__sim_node *node)
{
    return &sim->slots[node->first_slot + node->profile->save_count];
}

/* Where the layer before a node puts a storage when it runs for the node's argument. */
static uint32_t made_instance(const ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    return storage == node->link ? ms__sim_instance_of(node->before, storage) : sim->replay_base + storage;
}

/* The graph of that run goes, with all that it saved, and what else it made. */
static void end_making(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_profile *profile = node->before->profile;
    for (uint32_t i = 0; i < profile->save_count; i++) {
        if (profile->made[profile->saved[i]]) {
            ms__sim_release(sim, made_instance(sim, node, profile->saved[i]));
        }
    }
    for (uint32_t storage = 0; storage < profile->storage_count; storage++) {
        ms__sim_end_life(sim, sim->replay_base + storage);
    }
}

/* Runs the layer before a node whole, of which only the node's argument stays. */
static void make_argument(ms__sim *sim, const ms__sim_node *node)
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
            ms__sim_hold_slot(sim, first_argument(sim, node), ms__sim_instance_of(before, op->storage), MS__SLOT_REBUILT);
        } else if (op->kind == MS_EVENT_ALLOC) {
            replay_alloc(sim, before, op->storage);
        } else if (op->kind == MS_EVENT_FREE && profile->made[op->storage]) {
            ms__sim_end_life(sim, sim->replay_base + op->storage);
        } else if (op->kind == MS_EVENT_WORK) {
            sim->recompute_ns += op->value;
            ms__sim_spend(sim, op->value);
        } else if (op->kind == MS__OP_STRETCH) {
            sim->recompute_ns += profile->stretches[op->value].ns;
            ms__sim_stretch(sim, profile, &profile->stretches[op->value]);
        } else if (op->kind == MS_EVENT_SAVE && profile->made[op->storage]) {
            ms__sim_acquire(sim, made_instance(sim, node, op->storage));
        }
    }
    end_making(sim, node);
    sim->current_node = resumed;
    sim->current_event = 0;
}

/* From the last layer that still has its arguments on. */
static void make_arguments(ms__sim *sim, const ms__sim_node *node)
{
    while (first_argument(sim, node)->state == MS__SLOT_LOST) {
        const ms__sim_node *next = node;
        while (first_argument(sim, next->before)->state == MS__SLOT_LOST) {
            next = next->before;
        }
        make_argument(sim, next);
    }
}

void ms__sim_run_again(ms__sim *sim, const ms__sim_node *node)
{
    uint32_t resumed = sim->current_event;
    sim->again = true;
    sim->current_event = 0;
    if (node->profile->input_count > 0) {
        make_arguments(sim, node);
    }
    fetch_arguments(sim, node);
    ms__io_prefetch(sim);
    bool brief = ms__sim_runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_forward : node->profile->forward;
    uint32_t count = brief ? node->profile->short_replay_count : node->profile->replay_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        switch (op->kind) {
        case MS_EVENT_ALLOC:
            replay_alloc(sim, node, op->storage);
            break;
        case MS_EVENT_FREE:
            if (node->profile->made[op->storage]) {
                ms__sim_end_life(sim, sim->replay_base + op->storage);
            }
            break;
        case MS_EVENT_SAVE:
            replay_save(sim, node, op);
            break;
        case MS_EVENT_WORK:
            sim->recompute_ns += op->value;
            ms__sim_spend(sim, op->value);
            break;
        case MS__OP_STRETCH:
            sim->recompute_ns += node->profile->stretches[op->value].ns;
            ms__sim_stretch(sim, node->profile, &node->profile->stretches[op->value]);
            break;
        default:
            break;
        }
    }
    /* The replay stops here: what it made and did not save dies. */
    for (uint32_t storage = 0; storage < node->profile->storage_count; storage++) {
        ms__sim_end_life(sim, sim->replay_base + storage);
    }
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
        ms__sim_unpack(sim, node, storage, &sim->slots[node->first_slot + slot]);
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
        ms__sim_hold_slot(sim, &sim->slots[node->first_slot + slot], sim->replay_base + storage, MS__SLOT_REBUILT);
    }
}

void ms__sim_end_remade(ms__sim *sim, uint32_t storage)
{
    ms__sim_end_life(sim, sim->replay_base + storage);
}
