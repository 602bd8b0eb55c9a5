/*
 * Runs one node's programs, forward and backward, under its technique. sim_step.c calls it. Residency is in
 * sim_memory.c, transfers in sim_io.c, running a node again in sim_again.c.
 */
#include "base/units.h"
#include "sim/sim_nodes.h"

static uint32_t replay_tier(const ms__sim *sim, ms_technique technique)
{
    const ms_technique_row *row = ms_technique_of(technique);
    if (row->moves_input) {
        return sim->on_host ? MS__DISK_TIER : MS__HOST_TIER;
    }
    return row->rest == MS_REST_HOST ? MS__HOST_TIER : MS__DISK_TIER;
}

static void replay_free(ms__sim *sim, uint32_t instance)
{
    /* The caller holds outputs longer than the trace did. */
    if (!sim->graph->loop.outputs_held || ms__sim_role_of(sim, instance) != MS_STORAGE_OUTPUT) {
        ms__sim_end_life(sim, instance);
    }
}

/* ---- slots ----------------------------------------------------------------------- */

static void slot_drop(ms__sim *sim, const ms__sim_node *node, uint32_t storage, ms__slot *slot)
{
    switch ((ms__slot_state)slot->state) {
    case MS__SLOT_HELD:
        ms__sim_release(sim, ms__sim_instance_of(node, storage));
        break;
    case MS__SLOT_REBUILT:
        ms__sim_release(sim, ms__sim_replay_instance(node, storage));
        break;
    case MS__SLOT_UNPACKED:
        ms__sim_release(sim, ms__sim_instance_of(node, storage));
        ms__bits_drop(sim, node, slot);
        break;
    case MS__SLOT_BITS:
        ms__bits_drop(sim, node, slot);
        break;
    case MS__SLOT_AWAY:
        ms__io_drop(sim, slot->entry);
        break;
    default:
        break;
    }
    slot->state = MS__SLOT_NONE;
}

/* Autograd has finished with the node and releases everything of it. */
static void slot_drop_all(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_profile *profile = node->profile;
    ms__slot *slots = &sim->slots[node->first_slot];
    for (uint32_t i = 0; i < profile->save_count; i++) {
        slot_drop(sim, node, profile->saved[i], &slots[i]);
    }
    for (uint32_t i = 0; i < profile->input_count; i++) {
        slot_drop(sim, node, profile->inputs[i], &slots[profile->save_count + i]);
    }
}

/* ---- both directions --------------------------------------------------------------- */

/* Events that act alike in forward and backward. */
static void replay_run_op(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    switch (op->kind) {
    case MS_EVENT_ALLOC:
        ms__sim_begin_life(sim, ms__sim_instance_of(node, op->storage));
        break;
    case MS_EVENT_FREE:
        ms__sim_update(sim, ms__sim_instance_of(node, op->storage));
        replay_free(sim, ms__sim_instance_of(node, op->storage));
        break;
    case MS_EVENT_DROP:
        slot_drop(sim, node, op->storage, &sim->slots[node->first_slot + op->value]);
        break;
    case MS_EVENT_WORK:
        ms__sim_spend(sim, op->value);
        break;
    case MS__OP_STRETCH:
        ms__sim_stretch(sim, node->profile, &node->profile->stretches[op->value]);
        break;
    default:
        break;
    }
}

/* ---- forward -------------------------------------------------------------------- */

static void slot_store(ms__sim *sim, ms__slot *slot, uint32_t instance, uint32_t tier)
{
    if (sim->instance_bytes[instance] < ms__max_u64(sim->choices->offload_min_bytes, 1)) {
        ms__sim_hold_slot(sim, slot, instance, MS__SLOT_HELD);
        return;
    }
    slot->state = MS__SLOT_AWAY;
    slot->entry = ms__io_store(sim, instance, tier);
}

static void slot_save(ms__sim *sim, const ms__sim_node *node, ms_technique technique, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    uint32_t instance = ms__sim_instance_of(node, op->storage);
    if (slot->state != MS__SLOT_NONE) {
        return;
    }
    const uint8_t *dropped = ms__selective_set(node->profile, technique);
    if (dropped != NULL && dropped[op->value]) {
        ms__sim_hold_slot(sim, slot, instance, MS__SLOT_HELD); /* until the layer ends */
        return;
    }
    if (ms__bits_made(sim, node, (uint32_t)op->value, slot)) {
        return;
    }
    if (ms_technique_of(technique)->replays) {
        slot->state = MS__SLOT_LOST;
    } else if (ms_technique_moves(technique)) {
        slot_store(sim, slot, instance, replay_tier(sim, technique));
    } else {
        ms__sim_hold_slot(sim, slot, instance, MS__SLOT_HELD);
    }
}

/* Whether the layer before recomputes the node's first argument. */
static bool argument_is_recomputed(const ms__sim *sim, const ms__sim_node *node, ms_technique technique)
{
    return node->before != NULL && ms_technique_is_chained(technique) &&
           ms_technique_of(ms__sim_technique_of(sim, (uint32_t)(node->before - sim->nodes)))->replays;
}

/* A node that will run again keeps its arguments, in memory or on the lower tier. */
static void keep_arguments(ms__sim *sim, const ms__sim_node *node, ms_technique technique)
{
    ms__slot *slots = &sim->slots[node->first_slot + node->profile->save_count];
    for (uint32_t i = 0; i < node->profile->input_count; i++) {
        uint32_t instance = ms__sim_instance_of(node, node->profile->inputs[i]);
        if (i == 0 && argument_is_recomputed(sim, node, technique)) {
            slots[i].state = MS__SLOT_LOST;
        } else if (!ms_technique_of(technique)->moves_input) {
            ms__sim_hold_slot(sim, &slots[i], instance, MS__SLOT_HELD);
        } else {
            slot_store(sim, &slots[i], instance, replay_tier(sim, technique));
        }
    }
}

/* A selective layer has ended, and no operator wrote to the tensors of its set: they are released. */
static void release_set(ms__sim *sim, const ms__sim_node *node, ms_technique technique)
{
    const uint8_t *dropped = ms__selective_set(node->profile, technique);
    for (uint32_t i = 0; dropped != NULL && i < node->profile->save_count; i++) {
        ms__slot *slot = &sim->slots[node->first_slot + i];
        if (dropped[i] && slot->state == MS__SLOT_HELD) {
            ms__sim_release(sim, ms__sim_instance_of(node, node->profile->saved[i]));
            slot->state = MS__SLOT_LOST;
        }
    }
}

void ms__sim_run_forward(ms__sim *sim, uint32_t index)
{
    const ms__sim_node *node = &sim->nodes[index];
    ms_technique technique = ms__sim_technique_of(sim, index);
    sim->current_node = index;
    sim->current_event = 0;
    if (!node->is_root) {
        ms__io_poll(sim);
    }
    if (ms_technique_of(technique)->replays) {
        keep_arguments(sim, node, technique);
    } else if (ms_technique_of(technique)->set > 0) {
        ms__sim_spend(sim, node->profile->noting_ns);
    }
    bool brief = ms__sim_runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_forward : node->profile->forward;
    uint32_t count = brief ? node->profile->short_forward_count : node->profile->forward_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        if (op->kind == MS_EVENT_SAVE) {
            slot_save(sim, node, technique, op);
        } else {
            replay_run_op(sim, node, op);
        }
    }
    release_set(sim, node, technique);
    if (!node->is_root) {
        ms__io_end_layer(sim);
    }
}

/* ---- backward ------------------------------------------------------------------- */

static void slot_need(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    uint32_t index = (uint32_t)(node - sim->nodes);
    if (slot->state == MS__SLOT_LOST && ms_technique_of(ms__sim_technique_of(sim, index))->set > 0) {
        ms__selective_recompute(sim, node, op->storage);
    } else if (slot->state == MS__SLOT_LOST) {
        ms__sim_run_again(sim, node);
    } else if (slot->state == MS__SLOT_AWAY) {
        ms__io_need(sim, slot->entry);
    }
    ms__bits_unpack(sim, node, op->storage, slot);
}

void ms__sim_leave_loss(ms__sim *sim)
{
    sim->live_bytes -= sim->loss_held ? sim->loss_bytes : 0;
    sim->loss_held = false;
}

void ms__sim_run_backward(ms__sim *sim, uint32_t index)
{
    const ms__sim_node *node = &sim->nodes[index];
    sim->current_node = index;
    bool brief = ms__sim_runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_backward : node->profile->backward;
    uint32_t count = brief ? node->profile->short_backward_count : node->profile->backward_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        if (op->kind == MS_EVENT_NEED) {
            slot_need(sim, node, op);
        } else {
            replay_run_op(sim, node, op);
        }
        if (sim->expects && op->kind == MS_EVENT_ALLOC) {
            ms__sim_leave_loss(sim);
        }
    }
    slot_drop_all(sim, node);
}
