/*
 * One step, from forward to optimizer, and a run of two steps with its result. ms_simulate() and the search call
 * it; sim_replay.c runs the nodes.
 *
 * Candidates are compared by their times with a cache whose size does not depend on the budget (select.c). So
 * the choice is monotone in the budget.
 */
#include <string.h>

#include "base/units.h"
#include "sim/sim_nodes.h"

/* ---- a pass over one step ---------------------------------------------------------- */

static bool steps_in_maps(const ms__sim *sim)
{
    return sim->cache.on && sim->step_copies > 0;
}

/* Live bytes grew without an allocation event. */
static void note_more(ms__sim *sim)
{
    ms__sim_note_live(sim);
    if (sim->cache.on) {
        ms__cache_squeeze(sim, 0);
        ms__cache_note_held(sim);
    }
}

static void enter_phase(ms__sim *sim, ms__phase phase, bool first)
{
    sim->phase = phase;
    sim->extra_bytes = ms__sim_carried_bytes(sim, phase, first);
    if (phase == MS__OPTIMIZER && steps_in_maps(sim)) {
        sim->extra_bytes -= ms__sim_carried(sim, phase, first).transient_bytes;
    }
    sim->peaks[phase].node = sim->current_node;
    sim->current_event = 0;
    note_more(sim);
}

/* The optimizer goes through the parameters in their order, which is not backward's. Its temporaries are
 * maps of each parameter's size, taken from the cache and returned to it. Without a cache they are bytes
 * of the phase. They count in its peak either way (sim_outcome.c). */
static void step_parameters(ms__sim *sim)
{
    const ms_graph *graph = sim->graph;
    for (uint32_t i = graph->storage_count; i-- > 0;) {
        uint32_t class_id = sim->instance_class[i];
        if (graph->storages[i].role != MS_STORAGE_GRADIENT || class_id == MS__NO_CLASS) {
            continue;
        }
        for (uint32_t k = 0; k < sim->step_copies; k++) {
            (void)ms__cache_take(sim, class_id);
            sim->live_bytes += sim->class_bytes[class_id];
            ms__cache_note_held(sim);
        }
        for (uint32_t k = 0; k < sim->step_copies; k++) {
            sim->live_bytes -= sim->class_bytes[class_id];
            ms__cache_give(sim, class_id);
        }
    }
}

static void note_sample(ms__sim *sim, uint64_t fixed_bytes, ms_sample **samples)
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
        .recompute_ns = sim->recompute_ns,
    };
    ms__sim_owners(sim, fixed_bytes, (*samples)->device_bytes, (*samples)->owner_bytes);
    ++*samples;
}

static void hold_bytes(ms__sim *sim, uint64_t bytes)
{
    sim->live_bytes += bytes;
    note_more(sim);
}

/* A loss outside the model: the bytes that it may hold are live from the end of forward until the backward
 * of the model's work after its last layer ends. The expected loss is a cross entropy: it holds half of
 * them, the log-softmax, in forward, and all until the model's first own gradient exists. */
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
            ms__sim_end_life(sim, i);
        }
    }
    enter_loss(sim);
    sim->boundary_bytes = sim->live_bytes + sim->small_bytes;
    if (sim->watch.at_boundary) {
        sim->watch.look(sim, sim->watch.context);
    }
}

/* Frees everything of the step: the optimizer has run and zero_grad was called. */
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
    sim->packing_ns = 0;
    sim->packed_bytes = 0;
    sim->stall_forward_ns = 0;
    sim->stall_backward_ns = 0;
    sim->current_node = 0;
    sim->tick = 0;
    sim->adding_gradient = MS__NO_INSTANCE;
    memset(sim->peaks, 0, sizeof sim->peaks);
    ms__sim_begin_updates(sim);
}

/* The index of the root's last work, whose backward ends the loss. */
static uint32_t loss_node(const ms__sim *sim)
{
    uint32_t last = sim->node_count;
    while (last > 0 && !sim->nodes[last - 1].is_root) {
        last--;
    }
    return last > 0 ? last - 1 : sim->node_count - 1;
}

static void run_forward(ms__sim *sim, bool first, uint64_t fixed_bytes, ms_sample **samples)
{
    begin_step(sim);
    enter_phase(sim, MS__FORWARD, first);
    for (uint32_t i = 0; i < sim->node_count; i++) {
        ms__sim_run_forward(sim, i);
        note_sample(sim, fixed_bytes, samples);
    }
    end_forward(sim);
}

static void run_pass(ms__sim *sim, bool first, uint64_t fixed_bytes, ms_sample *samples)
{
    run_forward(sim, first, fixed_bytes, &samples);
    enter_phase(sim, MS__BACKWARD, first);
    enter_loss_backward(sim);
    uint32_t loss = loss_node(sim);
    for (uint32_t i = sim->node_count; i-- > 0;) {
        ms__sim_run_backward(sim, i);
        if (sim->watch.again_ns != NULL) {
            sim->watch.again_ns[i] = sim->recompute_ns;
        }
        if (i == loss) {
            ms__sim_leave_loss(sim);
        }
        note_sample(sim, fixed_bytes, &samples);
    }
    if (sim->adding_gradient != MS__NO_INSTANCE) {
        ms__sim_end_life(sim, sim->adding_gradient);
    }
    sim->current_node = sim->node_count;
    enter_phase(sim, MS__OPTIMIZER, first);
    if (steps_in_maps(sim)) {
        step_parameters(sim);
    }
    ms__sim_end_updates(sim);
}

/* ---- a whole run ------------------------------------------------------------------- */

/* What the step's earlier forwards hold: each as much as one alone at its end. A loss that is outside of the model waits
 * for all of them. */
static uint64_t pending_bytes(ms__sim *sim, uint64_t fixed_bytes)
{
    uint64_t forwards = sim->graph->loop.pending_forwards;
    sim->pending_bytes = 0;
    if (forwards == 0) {
        return 0;
    }
    ms__watch watch = sim->watch; /* looks at the step's last forward only */
    ms_sample *none = NULL;
    sim->watch = (ms__watch){0};
    ms__cache_reset(sim, 0);
    run_forward(sim, false, fixed_bytes, &none);
    uint64_t held = ms__sub_sat(sim->boundary_bytes, sim->loss_held ? sim->loss_bytes : 0);
    end_step(sim);
    sim->watch = watch;
    return ms__mul_sat(held, forwards);
}

static bool moves_anything(const ms__sim *sim)
{
    for (uint32_t i = 0; i < sim->node_count; i++) {
        if (ms_technique_moves(ms__sim_technique_of(sim, i))) {
            return true;
        }
    }
    return false;
}

static _Thread_local uint64_t events_replayed;

uint64_t ms__sim_events_replayed(void)
{
    return events_replayed;
}

void ms__sim_run(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome, ms_sample *samples)
{
    memset(outcome, 0, sizeof *outcome);
    if (sim->node_count == 0) {
        return;
    }
    sim->choices = choices;
    events_replayed += sim->event_count * (choices->ceiling_bytes > 0 ? 2 : 1);
    /* A GPU's slab is in host memory. */
    bool moves = moves_anything(sim);
    sim->state.is_alone = !moves;
    uint64_t slab = sim->on_host && moves ? ms__slab_bytes(true, choices->offload_min_bytes) : 0;
    slab = sim->expects ? ms__slab_expected(slab, choices->offload_min_bytes) : slab;
    outcome->fixed_bytes = ms__add_sat(sim->resident_bytes, slab);
    sim->host_leads = choices->host_leads && !sim->on_host && !sim->expects;
    sim->pending_bytes = pending_bytes(sim, outcome->fixed_bytes);
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
        ms__add_sat(ms__add_sat(sim->class_peak_bytes, carried), ms__add_sat(sim->small_peak_bytes, sim->loss_bytes));
    outcome->held_most_bytes = ms__max_u64(outcome->held_most_bytes, outcome->live_peak_bytes);
    if (sim->cache.on) {
        outcome->replay.peak_bytes = ms__add_sat(outcome->fixed_bytes, sim->cache.held_peak_bytes);
        outcome->replay.first_step_peak_bytes = ms__add_sat(outcome->fixed_bytes, first_held);
    }
    end_step(sim);
}

void ms__sim_run_unmodified(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome)
{
    sim->skips_untouched = sim->on_host;
    ms__sim_run_expected(sim, choices, outcome);
    sim->skips_untouched = false;
}

void ms__sim_run_expected(ms__sim *sim, const ms_choices *choices, ms__outcome *outcome)
{
    bool in_full = sim->in_full;
    sim->expects = sim->in_full = true;
    ms__sim_run(sim, choices, outcome, NULL);
    sim->expects = false;
    sim->in_full = in_full;
}
