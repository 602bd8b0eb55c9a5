/*
 * The replay proper: runs the nodes' programs forward and back under the chosen
 * techniques and reads the result off. ms_simulate() and the solver call it. What
 * is resident when is sim_memory.c's, transfers are sim_io.c's.
 *
 * Times of candidates that are compared with each other are those of a plan whose
 * cache has a stated size that does not depend on the budget (select.c), so that the
 * choice stays monotone in the budget.
 */
#include <string.h>

#include "base/units.h"
#include "plan/sim.h"

enum { NO_INSTANCE = UINT32_MAX };

static uint32_t instance_of(const ms__sim_node *node, uint32_t storage)
{
    uint32_t externals = node->profile->external_count;
    return storage < externals ? node->externals[storage] : node->first_local + (storage - externals);
}

static ms_technique technique_of(const ms__sim *sim, uint32_t index)
{
    return (ms_technique)sim->choices->technique[index];
}

static uint32_t tier_of(const ms__sim *sim, ms_technique technique)
{
    if (technique == MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT) {
        return sim->on_host ? MS__DISK_TIER : MS__HOST_TIER;
    }
    return ms_technique_rest(technique) == MS_TECHNIQUE_OFFLOAD_HOST ? MS__HOST_TIER : MS__DISK_TIER;
}

/* ---- natural life ------------------------------------------------------------- */

static uint32_t role_of(const ms__sim *sim, uint32_t instance)
{
    return instance < sim->graph->storage_count ? sim->graph->storages[instance].role : MS_STORAGE_ACTIVATION;
}

static void end_life(ms__sim *sim, uint32_t instance)
{
    if (sim->instances[instance].natural) {
        sim->instances[instance].natural = 0;
        ms__sim_release(sim, instance);
    }
}

static void begin_life(ms__sim *sim, uint32_t instance)
{
    end_life(sim, instance);
    /* Added to the gradient that is there already, one at a time. */
    if (role_of(sim, instance) == MS_STORAGE_GRADIENT && ms__sim_accumulates(&sim->graph->loop)) {
        if (sim->adding_gradient != NO_INSTANCE) {
            end_life(sim, sim->adding_gradient);
        }
        sim->adding_gradient = instance;
    }
    sim->instances[instance].natural = 1;
    ms__sim_acquire(sim, instance);
}

static void free_natural(ms__sim *sim, uint32_t instance)
{
    /* The caller holds outputs longer than the trace saw. */
    if (!sim->graph->loop.outputs_held || role_of(sim, instance) != MS_STORAGE_OUTPUT) {
        end_life(sim, instance);
    }
}

/* ---- what backward counts on --------------------------------------------------- */

/* The storage as the replay sees it: a fresh one where the layer makes it. */
static uint32_t replay_instance(const ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    return node->profile->made[storage] ? sim->replay_base + storage : instance_of(node, storage);
}

/* Arguments never become bits. */
static uint64_t bits_of(const ms__sim *sim, const ms__sim_node *node, const ms__slot *slot)
{
    size_t index = (size_t)(slot - &sim->slots[node->first_slot]);
    return index < node->profile->save_count ? node->profile->bit_bytes[index] : 0;
}

static void drop(ms__sim *sim, const ms__sim_node *node, uint32_t storage, ms__slot *slot)
{
    switch ((ms__slot_state)slot->state) {
    case MS__SLOT_HELD:
        ms__sim_release(sim, instance_of(node, storage));
        break;
    case MS__SLOT_REBUILT:
        ms__sim_release(sim, replay_instance(sim, node, storage));
        break;
    case MS__SLOT_UNPACKED:
        ms__sim_release(sim, instance_of(node, storage));
        ms__sim_give_small(sim, bits_of(sim, node, slot));
        break;
    case MS__SLOT_BITS:
        ms__sim_give_small(sim, bits_of(sim, node, slot));
        break;
    case MS__SLOT_AWAY:
        ms__io_drop(sim, slot->entry);
        break;
    default:
        break;
    }
    slot->state = MS__SLOT_NONE;
}

/* Autograd is done with the node: nothing of it stays. */
static void drop_all(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_profile *profile = node->profile;
    ms__slot *slots = &sim->slots[node->first_slot];
    for (uint32_t i = 0; i < profile->save_count; i++) {
        drop(sim, node, profile->saved[i], &slots[i]);
    }
    for (uint32_t i = 0; i < profile->input_count; i++) {
        drop(sim, node, profile->inputs[i], &slots[profile->save_count + i]);
    }
}

/* ---- forward -------------------------------------------------------------------- */

static void hold_slot(ms__sim *sim, ms__slot *slot, uint32_t instance, ms__slot_state state)
{
    slot->state = state;
    ms__sim_acquire(sim, instance);
}

static void store_slot(ms__sim *sim, ms__slot *slot, uint32_t instance, uint32_t tier)
{
    if (sim->instance_bytes[instance] < ms__max_u64(sim->choices->offload_min_bytes, 1)) {
        hold_slot(sim, slot, instance, MS__SLOT_HELD);
        return;
    }
    slot->state = MS__SLOT_AWAY;
    slot->entry = ms__io_store(sim, instance, tier);
}

/* The executor looks at what stays or moves, not at what runs again nor at the root's work. */
static bool becomes_bits(const ms__sim *sim, const ms__sim_node *node, ms_technique technique, const ms__slot *slot,
                         uint32_t instance)
{
    ms_technique rest = ms_technique_rest(technique);
    bool looked_at = rest == MS_TECHNIQUE_KEEP || rest == MS_TECHNIQUE_OFFLOAD_DISK;
    return sim->packs && looked_at && !node->is_root && bits_of(sim, node, slot) > 0 &&
           sim->instance_bytes[instance] >= ms__max_u64(sim->choices->offload_min_bytes, 1);
}

static void save(ms__sim *sim, const ms__sim_node *node, ms_technique technique, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    uint32_t instance = instance_of(node, op->storage);
    if (slot->state != MS__SLOT_NONE) {
        return;
    }
    const uint8_t *dropped = ms__selective_set(node->profile, technique);
    if (dropped != NULL && dropped[op->value]) {
        hold_slot(sim, slot, instance, MS__SLOT_HELD); /* until the layer has ended */
        return;
    }
    if (becomes_bits(sim, node, technique, slot, instance)) {
        slot->state = MS__SLOT_BITS;
        ms__sim_take_small(sim, bits_of(sim, node, slot));
        return;
    }
    switch (ms_technique_rest(technique)) {
    case MS_TECHNIQUE_RECOMPUTE:
    case MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT:
    case MS_TECHNIQUE_RECOMPUTE_SEGMENT:
        slot->state = MS__SLOT_LOST;
        return;
    case MS_TECHNIQUE_OFFLOAD_HOST:
    case MS_TECHNIQUE_OFFLOAD_DISK:
        store_slot(sim, slot, instance, tier_of(sim, technique));
        return;
    default:
        hold_slot(sim, slot, instance, MS__SLOT_HELD);
        return;
    }
}

/* Whether the node's first argument is made again by the layer before it. */
static bool is_joined(const ms__sim *sim, const ms__sim_node *node)
{
    return node->before != NULL && technique_of(sim, (uint32_t)(node - sim->nodes)) == MS_TECHNIQUE_RECOMPUTE_SEGMENT &&
           ms_technique_replays(technique_of(sim, (uint32_t)(node->before - sim->nodes)));
}

/* A node that will run again keeps its arguments, here or on the lower tier. */
static void keep_arguments(ms__sim *sim, const ms__sim_node *node, ms_technique technique)
{
    ms__slot *slots = &sim->slots[node->first_slot + node->profile->save_count];
    for (uint32_t i = 0; i < node->profile->input_count; i++) {
        uint32_t instance = instance_of(node, node->profile->inputs[i]);
        if (i == 0 && is_joined(sim, node)) {
            slots[i].state = MS__SLOT_LOST;
        } else if (technique != MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT) {
            hold_slot(sim, &slots[i], instance, MS__SLOT_HELD);
        } else {
            store_slot(sim, &slots[i], instance, tier_of(sim, technique));
        }
    }
}

/* A selective layer has ended: now it is known that nobody wrote to what it dropped. */
static void let_go_of_set(ms__sim *sim, const ms__sim_node *node, ms_technique technique)
{
    const uint8_t *dropped = ms__selective_set(node->profile, technique);
    for (uint32_t i = 0; dropped != NULL && i < node->profile->save_count; i++) {
        ms__slot *slot = &sim->slots[node->first_slot + i];
        if (dropped[i] && slot->state == MS__SLOT_HELD) {
            ms__sim_release(sim, instance_of(node, node->profile->saved[i]));
            slot->state = MS__SLOT_LOST;
        }
    }
}

/* Which program is run: with a cache it matters what is freed when. */
static bool runs_short(const ms__sim *sim)
{
    return !sim->cache.on && !sim->in_full;
}

static void run_forward(ms__sim *sim, uint32_t index)
{
    const ms__sim_node *node = &sim->nodes[index];
    ms_technique technique = technique_of(sim, index);
    sim->current_node = index;
    sim->current_event = 0;
    if (!node->is_root) {
        ms__io_poll(sim);
    }
    if (ms_technique_replays(technique)) {
        keep_arguments(sim, node, technique);
    } else if (ms_technique_set(technique) != 0) {
        ms__sim_spend(sim, node->profile->noting_ns);
    }
    bool brief = runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_forward : node->profile->forward;
    uint32_t count = brief ? node->profile->short_forward_count : node->profile->forward_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        switch (op->kind) {
        case MS_EVENT_ALLOC:
            begin_life(sim, instance_of(node, op->storage));
            break;
        case MS_EVENT_FREE:
            free_natural(sim, instance_of(node, op->storage));
            break;
        case MS_EVENT_SAVE:
            save(sim, node, technique, op);
            break;
        case MS_EVENT_DROP:
            drop(sim, node, op->storage, &sim->slots[node->first_slot + op->value]);
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
    let_go_of_set(sim, node, technique);
    if (!node->is_root) {
        ms__io_poll(sim);
    }
}

/* ---- running a node again --------------------------------------------------------- */

static void replay_alloc(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t fresh = sim->replay_base + storage, original = instance_of(node, storage);
    sim->instance_bytes[fresh] = sim->instance_bytes[original];
    sim->instance_class[fresh] = sim->instance_class[original];
    begin_life(sim, fresh);
}

static void replay_save(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    if (slot->state == MS__SLOT_LOST) {
        hold_slot(sim, slot, replay_instance(sim, node, op->storage), MS__SLOT_REBUILT);
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
    return storage == node->link ? instance_of(node->before, storage) : sim->replay_base + storage;
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
        end_life(sim, sim->replay_base + storage);
    }
}

/* Runs the layer before a node whole, of which only the node's argument stays. */
static void make_argument(ms__sim *sim, const ms__sim_node *node)
{
    const ms__sim_node *before = node->before;
    const ms__sim_profile *profile = before->profile;
    bool brief = runs_short(sim);
    const ms__op *ops = brief ? profile->short_forward : profile->forward;
    uint32_t count = brief ? profile->short_forward_count : profile->forward_count;
    uint32_t resumed = sim->current_node;
    sim->current_node = (uint32_t)(before - sim->nodes);
    fetch_arguments(sim, before);
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        if (op->kind == MS_EVENT_ALLOC && op->storage == node->link) {
            hold_slot(sim, first_argument(sim, node), instance_of(before, op->storage), MS__SLOT_REBUILT);
        } else if (op->kind == MS_EVENT_ALLOC) {
            replay_alloc(sim, before, op->storage);
        } else if (op->kind == MS_EVENT_FREE && profile->made[op->storage]) {
            end_life(sim, sim->replay_base + op->storage);
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

static void run_again(ms__sim *sim, const ms__sim_node *node)
{
    uint32_t resumed = sim->current_event;
    sim->again = true;
    sim->current_event = 0;
    if (node->profile->input_count > 0) {
        make_arguments(sim, node);
    }
    fetch_arguments(sim, node);
    ms__io_prefetch(sim);
    bool brief = runs_short(sim);
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
                end_life(sim, sim->replay_base + op->storage);
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
        end_life(sim, sim->replay_base + storage);
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
    const uint8_t *dropped = ms__selective_set(node->profile, technique_of(sim, (uint32_t)(node - sim->nodes)));
    uint32_t state = sim->slots[node->first_slot + slot].state;
    return dropped == NULL || !dropped[slot] || state == MS__SLOT_HELD || state == MS__SLOT_REBUILT;
}

static void unpack(ms__sim *sim, const ms__sim_node *node, uint32_t storage, ms__slot *slot)
{
    if (slot->state == MS__SLOT_BITS) {
        hold_slot(sim, slot, instance_of(node, storage), MS__SLOT_UNPACKED);
    }
}

void ms__sim_fetch(ms__sim *sim, const ms__sim_node *node, uint32_t storage)
{
    uint32_t slot = node->profile->slot_of[storage];
    if (slot != UINT32_MAX) {
        unpack(sim, node, storage, &sim->slots[node->first_slot + slot]);
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
        hold_slot(sim, &sim->slots[node->first_slot + slot], sim->replay_base + storage, MS__SLOT_REBUILT);
    }
}

void ms__sim_end_remade(ms__sim *sim, uint32_t storage)
{
    end_life(sim, sim->replay_base + storage);
}

/* ---- backward ------------------------------------------------------------------- */

static void need(ms__sim *sim, const ms__sim_node *node, const ms__op *op)
{
    ms__slot *slot = &sim->slots[node->first_slot + op->value];
    uint32_t index = (uint32_t)(node - sim->nodes);
    if (slot->state == MS__SLOT_LOST && ms_technique_set(technique_of(sim, index)) != 0) {
        ms__selective_remake(sim, node, op->storage);
    } else if (slot->state == MS__SLOT_LOST) {
        run_again(sim, node);
    } else if (slot->state == MS__SLOT_AWAY) {
        ms__io_need(sim, slot->entry);
    }
    unpack(sim, node, op->storage, slot);
}

static void leave_loss(ms__sim *sim)
{
    sim->live_bytes -= sim->loss_held ? sim->loss_bytes : 0;
    sim->loss_held = false;
}

static void run_backward(ms__sim *sim, uint32_t index)
{
    const ms__sim_node *node = &sim->nodes[index];
    sim->current_node = index;
    bool brief = runs_short(sim);
    const ms__op *ops = brief ? node->profile->short_backward : node->profile->backward;
    uint32_t count = brief ? node->profile->short_backward_count : node->profile->backward_count;
    for (uint32_t i = 0; i < count; i++) {
        const ms__op *op = &ops[i];
        sim->current_event = i;
        switch (op->kind) {
        case MS_EVENT_ALLOC:
            begin_life(sim, instance_of(node, op->storage));
            if (sim->expects) {
                leave_loss(sim);
            }
            break;
        case MS_EVENT_FREE:
            free_natural(sim, instance_of(node, op->storage));
            break;
        case MS_EVENT_NEED:
            need(sim, node, op);
            break;
        case MS_EVENT_DROP:
            drop(sim, node, op->storage, &sim->slots[node->first_slot + op->value]);
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
    drop_all(sim, node);
}

/* ---- a pass over one step ---------------------------------------------------------- */

static void enter_phase(ms__sim *sim, ms__phase phase, bool first)
{
    sim->phase = phase;
    sim->extra_bytes = ms__sim_carried_bytes(sim, phase, first);
    sim->peaks[phase].node = sim->current_node;
    sim->current_event = 0;
    ms__sim_note_live(sim);
    if (sim->cache.on) {
        ms__cache_squeeze(sim, 0);
        uint64_t held = ms__sim_resident(sim) + sim->cache.cached_bytes;
        sim->cache.held_peak_bytes = ms__max_u64(sim->cache.held_peak_bytes, held);
    }
}

static void note_sample(const ms__sim *sim, uint64_t fixed_bytes, ms_sample **samples)
{
    if (*samples == NULL) {
        return;
    }
    **samples = (ms_sample){
        .at_ns = sim->now_ns,
        .device_bytes = fixed_bytes + ms__sim_resident(sim) + sim->cache.cached_bytes,
        .lower_tier_bytes = sim->io.tier_bytes[MS__HOST_TIER] + sim->io.tier_bytes[MS__DISK_TIER],
        .node = sim->current_node,
        .in_backward = sim->phase != MS__FORWARD,
    };
    ++*samples;
}

static void hold_bytes(ms__sim *sim, uint64_t bytes)
{
    sim->live_bytes += bytes;
    ms__sim_note_live(sim);
    if (sim->cache.on) {
        ms__cache_squeeze(sim, 0);
        uint64_t held = ms__sim_resident(sim) + sim->cache.cached_bytes;
        sim->cache.held_peak_bytes = ms__max_u64(sim->cache.held_peak_bytes, held);
    }
}

/* A loss outside the model: what it may hold is alive from the end of forward until the
 * model's backward has ended what came after its last layer. A cross entropy, which is what
 * is expected, holds half of it, the log-softmax, in forward, and all of it no longer than
 * until the first gradient of the model's own is there. */
static void enter_loss(ms__sim *sim)
{
    if (sim->expects) {
        hold_bytes(sim, sim->loss_bytes / 2);
        sim->live_bytes -= sim->loss_bytes / 2;
    } else {
        hold_bytes(sim, sim->loss_bytes);
        sim->loss_held = true;
    }
}

static void enter_loss_backward(ms__sim *sim)
{
    if (sim->expects) {
        hold_bytes(sim, sim->loss_bytes);
        sim->loss_held = true;
    }
}

static void end_forward(ms__sim *sim)
{
    ms__io_poll(sim);
    for (uint32_t i = 0; i < sim->graph->storage_count; i++) {
        if (!sim->graph->loop.outputs_held && sim->graph->storages[i].role == MS_STORAGE_OUTPUT) {
            end_life(sim, i);
        }
    }
    enter_loss(sim);
    sim->boundary_bytes = sim->live_bytes + sim->small_bytes;
    if (sim->watch.at_boundary) {
        sim->watch.look(sim, sim->watch.context);
    }
}

/* Everything of the step goes; the optimizer has run and zero_grad was called. */
static void end_step(ms__sim *sim)
{
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        if (sim->instances[i].holds > 0) {
            sim->instances[i].holds = 1;
            ms__sim_release(sim, i);
        }
    }
    memset(sim->instances, 0, sim->instance_count * sizeof *sim->instances);
    memset(sim->slots, 0, sim->slot_count * sizeof *sim->slots);
    memset(sim->class_live, 0, sim->class_count * sizeof *sim->class_live);
    sim->live_bytes = 0;
    sim->small_bytes = 0;
    sim->loss_held = false;
}

static void begin_step(ms__sim *sim)
{
    ms__io_reset(sim);
    sim->now_ns = 0;
    sim->fault_ns = 0;
    sim->recompute_ns = 0;
    sim->stall_forward_ns = 0;
    sim->stall_backward_ns = 0;
    sim->current_node = 0;
    sim->tick = 0;
    sim->adding_gradient = NO_INSTANCE;
    memset(sim->peaks, 0, sizeof sim->peaks);
}

/* Index of the root's last piece of work, the one whose backward ends the loss. */
static uint32_t loss_node(const ms__sim *sim)
{
    uint32_t last = sim->node_count;
    while (last > 0 && !sim->nodes[last - 1].is_root) {
        last--;
    }
    return last > 0 ? last - 1 : sim->node_count - 1;
}

static void run_pass(ms__sim *sim, bool first, uint64_t fixed_bytes, ms_sample *samples)
{
    begin_step(sim);
    enter_phase(sim, MS__FORWARD, first);
    for (uint32_t i = 0; i < sim->node_count; i++) {
        run_forward(sim, i);
        note_sample(sim, fixed_bytes, &samples);
    }
    end_forward(sim);
    enter_phase(sim, MS__BACKWARD, first);
    enter_loss_backward(sim);
    uint32_t loss = loss_node(sim);
    for (uint32_t i = sim->node_count; i-- > 0;) {
        run_backward(sim, i);
        if (sim->watch.again_ns != NULL) {
            sim->watch.again_ns[i] = sim->recompute_ns;
        }
        if (i == loss) {
            leave_loss(sim);
        }
        note_sample(sim, fixed_bytes, &samples);
    }
    if (sim->adding_gradient != NO_INSTANCE) {
        end_life(sim, sim->adding_gradient);
    }
    sim->current_node = sim->node_count;
    enter_phase(sim, MS__OPTIMIZER, first);
    ms__sim_spend(sim, sim->optimizer_ns);
}

/* ---- a whole run ------------------------------------------------------------------- */

static bool moves_anything(const ms__sim *sim)
{
    for (uint32_t i = 0; i < sim->node_count; i++) {
        if (ms_technique_moves(technique_of(sim, i))) {
            return true;
        }
    }
    return false;
}

void ms__sim_run(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome, ms_sample *samples)
{
    memset(outcome, 0, sizeof *outcome);
    if (sim->node_count == 0) {
        return;
    }
    sim->choices = choices;
    sim->packs = sim->expects && !sim->without_bits && sim->on_host && moves_anything(sim);
    /* A GPU's slab lies in host memory. */
    uint64_t slab = sim->on_host && moves_anything(sim) ? MS__SLAB_BYTES : 0;
    slab = sim->expects ? ms__slab_expected(slab, choices->offload_min_bytes) : slab;
    outcome->fixed_bytes = ms__add_sat(sim->resident_bytes, slab);
    sim->class_peak_bytes = 0;
    sim->small_peak_bytes = 0;
    memset(sim->class_peak, 0, sim->class_count * sizeof *sim->class_peak);
    ms__cache_reset(sim, choices->ceiling_bytes);
    uint64_t first_held = 0;
    if (sim->cache.on) {
        run_pass(sim, true, outcome->fixed_bytes, NULL);
        first_held = sim->cache.held_peak_bytes;
        end_step(sim);
    }
    run_pass(sim, false, outcome->fixed_bytes, samples);
    ms__sim_read(sim, outcome);
    outcome->boundary_bytes = sim->boundary_bytes;
    uint64_t carried = ms__sim_carried_bytes(sim, MS__FORWARD, false);
    carried = ms__max_u64(carried, ms__sim_carried_bytes(sim, MS__OPTIMIZER, false));
    outcome->held_most_bytes =
        ms__add_sat(ms__add_sat(sim->class_peak_bytes, carried),
                    ms__add_sat(sim->small_peak_bytes, sim->loss_bytes));
    outcome->held_most_bytes = ms__max_u64(outcome->held_most_bytes, outcome->live_peak_bytes);
    if (sim->cache.on) {
        outcome->replay.peak_bytes = ms__add_sat(outcome->fixed_bytes, sim->cache.held_peak_bytes);
        outcome->replay.first_step_peak_bytes = ms__add_sat(outcome->fixed_bytes, first_held);
    }
    end_step(sim);
}

void ms__sim_run_expected(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome)
{
    bool in_full = sim->in_full;
    sim->expects = sim->in_full = true;
    ms__sim_run(sim, choices, outcome, NULL);
    sim->expects = false;
    sim->in_full = in_full;
}
