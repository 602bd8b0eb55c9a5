/*
 * Compiles a graph and a hardware description for the simulator: events get their times, storages the bytes
 * that the device's allocator takes for them. ms_simulate() and the search call it once per graph.
 */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "graph/graph_internal.h"
#include "sim/process.h"
#include "sim/sim.h"

static const uint64_t ns_per_s = 1000000000;

uint64_t ms__rate_ns(uint64_t amount, uint64_t per_second)
{
    return per_second == 0 ? 0 : ms__mul_div(amount, ns_per_s, per_second);
}

/* ---- the machine -------------------------------------------------------------- */

static uint64_t scaled_by(const ms_hardware *hardware, uint64_t ns)
{
    uint64_t permille = hardware->time_scale_permille;
    return permille == 0 || permille == 1000 ? ns : ms__mul_div(ns, permille, 1000);
}

uint64_t ms__scaled_ns(const ms__sim *sim, uint64_t ns)
{
    return scaled_by(sim->hardware, ns);
}

static uint64_t stream_rate(const ms_hardware *hardware)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    return gpu != NULL ? gpu->stream_bytes_per_s : hardware->cpu.stream_bytes_per_s;
}

/* Assumed for a description without the rate: one evaluation takes as long as this many floating-point
 * operations of a matrix product, on AVX-512 and on AVX2. */
enum { FLOPS_PER_EVALUATION = 30 };

static uint64_t evaluating_ns(const ms__sim *sim, uint64_t evaluations)
{
    const ms_cpu *cpu = &sim->hardware->cpu;
    if (!sim->on_host || evaluations == 0) {
        return 0; /* a GPU computes them while the bytes move */
    }
    return cpu->evaluations_per_s > 0
               ? ms__rate_ns(evaluations, cpu->evaluations_per_s)
               : ms__rate_ns(ms__mul_sat(evaluations, FLOPS_PER_EVALUATION), cpu->matmul_flops_per_s);
}

/* Of matrix products of the event's precision. */
static uint64_t product_rate(const ms__sim *sim, const ms_event *event)
{
    const ms_gpu *gpu = ms_hardware_gpu(sim->hardware);
    if (gpu == NULL) {
        return sim->hardware->cpu.matmul_flops_per_s;
    }
    uint64_t rate = event->precision == MS_PRECISION_BF16   ? gpu->bf16_flops_per_s
                    : event->precision == MS_PRECISION_FP16 ? gpu->fp16_flops_per_s
                                                            : 0;
    return rate > 0 ? rate : gpu->matmul_flops_per_s;
}

/* From another device. A host has none beside it. */
static uint64_t moving_ns(const ms__sim *sim, uint64_t bytes)
{
    uint64_t rate = bytes > 0 ? ms_hardware_peer_bytes_per_s(sim->hardware) : 0;
    return rate > 0 ? ms__rate_ns(bytes, rate) : 0;
}

uint64_t ms__work_ns(const ms__sim *sim, const ms_event *event)
{
    uint64_t arithmetic = ms__rate_ns(event->flops, product_rate(sim, event));
    uint64_t movement = ms__rate_ns(event->bytes, stream_rate(sim->hardware));
    uint64_t drawing = sim->on_host ? ms__mul_div(event->draws, MS__DRAW_PS, 1000) : 0;
    uint64_t work = ms__max_u64(ms__max_u64(arithmetic, movement), drawing);
    work = ms__max_u64(work, evaluating_ns(sim, event->evaluations));
    work = ms__max_u64(work, moving_ns(sim, event->moved_bytes));
    return ms__scaled_ns(sim, ms__add_sat(work, MS__OP_NS));
}

/* Without a process, the plan assumes one that holds the model and the runtime. */
static void compile_residents(ms__sim *sim)
{
    const ms_residents *residents = &sim->graph->residents;
    const ms_process *process = &sim->hardware->process;
    uint64_t held = ms__add_sat(residents->parameter_bytes, residents->buffer_bytes);
    /* Of streamed parameters only the window is resident. */
    held = ms__add_sat(ms__sub_sat(held, process->streamed_bytes), process->window_bytes);
    uint64_t baseline =
        process->baseline_bytes > 0 ? process->baseline_bytes : ms__add_sat(held, sim->device_kind->runtime_bytes);
    sim->parameter_bytes = held;
    sim->reserve_bytes = ms__add_sat(ms__process_reserve(process, sim->graph), process->window_reserve_bytes);
    uint64_t scratch = ms__add_sat(ms__process_scratch(process, sim->graph), process->window_reserve_bytes);
    sim->resident_bytes =
        ms__add_sat(ms__add_sat(baseline, scratch), sim->device_kind->rounded(residents->batch_bytes));
    sim->loss_bytes = sim->device_kind->rounded(sim->graph->loop.external_loss_bytes);
}

/* An optimizer reads parameters, gradients and state, and writes parameters and state. An optimizer of
 * several operators, such as torch's Adam on a CPU, repeats the passes for each: 17 times the parameters,
 * measured. */
enum { STATE_PASSES_AT_ONCE = 2, STATE_PASSES = 7 };

uint64_t ms__sim_optimizer_ns(const ms_graph *graph, const ms_hardware *hardware)
{
    const ms_loop *loop = &graph->loop;
    bool at_once = ms_hardware_gpu(hardware) != NULL || loop->gradients_releasable || loop->optimizer_stream_bytes > 0;
    uint64_t trainable = ms__mul_sat(3, graph->residents.trainable_bytes);
    uint64_t state = ms__mul_sat(at_once ? STATE_PASSES_AT_ONCE : STATE_PASSES, loop->optimizer_state_bytes);
    return scaled_by(hardware, ms__rate_ns(ms__add_sat(trainable, state), stream_rate(hardware)));
}

/* ---- programs ----------------------------------------------------------------- */

static void compile_events(const ms__sim *sim, const ms_event *events, uint32_t count, const uint32_t *slot_of,
                           ms__op *ops)
{
    for (uint32_t i = 0; i < count; i++) {
        ops[i].kind = events[i].kind;
        ops[i].storage = events[i].storage;
        if (events[i].kind == MS_EVENT_WORK) {
            ops[i].value = ms__work_ns(sim, &events[i]);
        } else if (events[i].kind >= MS_EVENT_SAVE) {
            ops[i].value = slot_of[events[i].storage];
        }
    }
}

/* Lets the work of a program take the time that was measured for it, in the proportions that were computed. */
static void take_measured(const ms__sim *sim, ms__op *ops, uint32_t count, uint64_t measured_ns)
{
    uint64_t computed_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        computed_ns = ms__add_sat(computed_ns, ops[i].kind == MS_EVENT_WORK ? ops[i].value : 0);
    }
    for (uint32_t i = 0; measured_ns > 0 && computed_ns > 0 && i < count; i++) {
        if (ops[i].kind == MS_EVENT_WORK) {
            ops[i].value = ms__mul_div(ops[i].value, ms__scaled_ns(sim, measured_ns), computed_ns);
        }
    }
}

/* Numbers the saved storages in order of their first SAVE. */
static void number_slots(const ms_profile *from, uint32_t *slot_of, ms__sim_profile *to)
{
    memset(slot_of, 0xff, from->storage_count * sizeof *slot_of);
    for (uint32_t i = 0; i < from->forward_count; i++) {
        const ms_event *event = &from->forward[i];
        if (event->kind == MS_EVENT_SAVE) {
            to->replay_count = i + 1;
            if (slot_of[event->storage] == UINT32_MAX) {
                slot_of[event->storage] = to->save_count;
                to->saved[to->save_count++] = event->storage;
            }
        } else if (event->kind == MS_EVENT_ALLOC) {
            to->made[event->storage] = 1;
        }
    }
}

static int compile_profile(ms__sim *sim, const ms_profile *from, uint32_t *slot_of, ms__sim_profile *to)
{
    to->storage_count = from->storage_count;
    to->external_count = from->external_count;
    to->input_count = from->input_count;
    to->inputs = from->inputs;
    to->forward_count = from->forward_count;
    to->backward_count = from->backward_count;
    to->made = ms_calloc(from->storage_count, sizeof *to->made);
    to->saved = ms_calloc(from->storage_count, sizeof *to->saved);
    to->forward = ms_calloc(from->forward_count, sizeof *to->forward);
    to->backward = ms_calloc(from->backward_count, sizeof *to->backward);
    if (to->made == NULL || to->saved == NULL || to->forward == NULL || to->backward == NULL) {
        return MS_ENOMEM;
    }
    number_slots(from, slot_of, to);
    if (ms__bits_compile(sim, from, slot_of, to) != MS_OK) {
        return MS_ENOMEM;
    }
    sim->has_bits |= to->bits_count > 0;
    compile_events(sim, from->forward, from->forward_count, slot_of, to->forward);
    compile_events(sim, from->backward, from->backward_count, slot_of, to->backward);
    take_measured(sim, to->forward, from->forward_count, from->forward_ns);
    take_measured(sim, to->backward, from->backward_count, from->backward_ns);
    uint64_t work_count = 0;
    for (uint32_t i = 0; i < from->forward_count; i++) {
        work_count += from->forward[i].kind == MS_EVENT_WORK;
    }
    to->noting_ns = ms__scaled_ns(sim, work_count * MS__NOTE_NS);
    return ms__selective_compile(sim, from, to);
}

static int compile_profiles(ms__sim *sim)
{
    const ms_graph *graph = sim->graph;
    uint32_t most = 0;
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        most = graph->profiles[i].storage_count > most ? graph->profiles[i].storage_count : most;
    }
    uint32_t *slot_of = ms_calloc(most, sizeof *slot_of);
    sim->profiles = ms_calloc(graph->profile_count, sizeof *sim->profiles);
    int rc = slot_of == NULL || sim->profiles == NULL ? MS_ENOMEM : MS_OK;
    for (uint32_t i = 0; rc == MS_OK && i < graph->profile_count; i++) {
        sim->profile_count = i + 1;
        rc = compile_profile(sim, &graph->profiles[i], slot_of, &sim->profiles[i]);
    }
    ms_free(slot_of);
    uint32_t most_makers = 0;
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        uint32_t makers = graph->profiles[i].maker_count;
        most_makers = makers > most_makers ? makers : most_makers;
    }
    sim->maker_marks = ms_calloc(most_makers, 1);
    sim->last_reader = ms_calloc(most, sizeof *sim->last_reader);
    if (sim->maker_marks == NULL || sim->last_reader == NULL) {
        rc = MS_ENOMEM;
    }
    sim->replay_base = most; /* until compile_nodes(): the number of instances of one replay */
    return rc;
}

/* ---- instances ------------------------------------------------------------------ */

/* Layers of a chain may run again as one, so the instances of their replays lie side by side from `next`
 * on. All other nodes share the ones at `shared`. Returns the number of instances. */
static uint64_t place_replays(ms__sim *sim, uint64_t shared, uint64_t next)
{
    for (uint32_t i = 0; i < sim->node_count; i++) {
        if (sim->nodes[i].before != NULL) {
            sim->nodes[i].first_replay = sim->nodes[sim->nodes[i].before - sim->nodes].first_replay = 1;
        }
    }
    for (uint32_t i = 0; i < sim->node_count; i++) {
        bool is_chained = sim->nodes[i].first_replay != 0;
        sim->nodes[i].first_replay = (uint32_t)(is_chained ? next : shared);
        next += is_chained ? sim->nodes[i].profile->storage_count : 0;
    }
    return next;
}

/* Gives every storage of every node its instance, every saved storage and argument its slot. The instances
 * of replays come last. */
static int compile_nodes(ms__sim *sim)
{
    const ms_graph *graph = sim->graph;
    uint64_t instances = graph->storage_count, slots = 0;
    sim->nodes = ms_calloc(graph->node_count, sizeof *sim->nodes);
    if (sim->nodes == NULL) {
        return MS_ENOMEM;
    }
    sim->node_count = graph->node_count;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms__sim_profile *profile = &sim->profiles[graph->nodes[i].profile];
        sim->nodes[i] = (ms__sim_node){.profile = profile,
                                       .externals = graph->nodes[i].externals,
                                       .first_local = (uint32_t)instances,
                                       .first_slot = (uint32_t)slots,
                                       .is_root = graph->nodes[i].kind == MS_NODE_ROOT};
        instances += profile->storage_count - profile->external_count;
        const ms_node *before = ms__chain_before(graph, &graph->nodes[i], &sim->nodes[i].link);
        sim->nodes[i].before = before != NULL ? &sim->nodes[before - graph->nodes] : NULL;
        slots += (uint64_t)profile->save_count + profile->input_count;
        sim->event_count += (uint64_t)profile->forward_count + profile->backward_count;
    }
    uint64_t shared = instances;
    instances += sim->replay_base;
    instances = place_replays(sim, shared, instances);
    if (instances >= UINT32_MAX || slots >= UINT32_MAX) {
        return MS_EOVERFLOW;
    }
    sim->replay_base = (uint32_t)shared;
    sim->instance_count = (uint32_t)instances;
    sim->slot_count = (uint32_t)slots;
    return MS_OK;
}

static int compare_bytes(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The distinct sizes of maps, ascending. */
static void compile_classes(ms__sim *sim)
{
    uint32_t count = 0;
    for (uint32_t i = 0; sim->on_host && i < sim->replay_base; i++) {
        if (sim->instance_bytes[i] >= MS__MAP_MIN_BYTES) {
            sim->class_bytes[count++] = sim->instance_bytes[i];
        }
    }
    qsort(sim->class_bytes, count, sizeof *sim->class_bytes, compare_bytes);
    for (uint32_t i = 0; i < count; i++) {
        if (sim->class_count == 0 || sim->class_bytes[sim->class_count - 1] != sim->class_bytes[i]) {
            sim->class_bytes[sim->class_count++] = sim->class_bytes[i];
        }
    }
    for (uint32_t i = 0; i < sim->class_count; i++) {
        uint64_t fault = ms__rate_ns(sim->class_bytes[i], sim->hardware->cpu.fault_bytes_per_s);
        sim->class_fault_ns[i] = ms__scaled_ns(sim, fault);
    }
}

static uint32_t class_of_bytes(const ms__sim *sim, uint64_t bytes)
{
    const uint64_t *found = sim->class_count == 0 ? NULL
                                                  : bsearch(&bytes, sim->class_bytes, sim->class_count,
                                                            sizeof *sim->class_bytes, compare_bytes);
    return found == NULL ? MS__NO_CLASS : (uint32_t)(found - sim->class_bytes);
}

/* State has the shapes of the gradients, so the same share of it is in small tensors. */
static uint64_t small_state_bytes(const ms__sim *sim, uint64_t small_gradient_bytes)
{
    uint64_t state_bytes = ms__sub_sat(sim->graph->loop.optimizer_state_bytes, sim->hardware->process.state_bytes);
    return sim->gradient_bytes > 0 ? ms__mul_div(state_bytes, small_gradient_bytes, sim->gradient_bytes) : 0;
}

/* An optimizer that goes parameter by parameter takes a few copies of the largest one; one that updates
 * all at once (foreach) takes more. */
enum { STEP_COPIES_MOST = 4 };

static uint32_t step_copies(const ms__sim *sim, uint64_t largest_bytes)
{
    uint64_t transient = sim->graph->loop.optimizer_transient_bytes;
    uint64_t copies = largest_bytes >= MS__MAP_MIN_BYTES ? transient / largest_bytes : 0;
    bool whole = copies > 0 && copies <= STEP_COPIES_MOST && transient - copies * largest_bytes < MS__MAP_MIN_BYTES;
    return whole && sim->on_host ? (uint32_t)copies : 0;
}

static void size_instances(ms__sim *sim)
{
    const ms_graph *graph = sim->graph;
    uint64_t small_gradient_bytes = 0, largest_bytes = 0;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        const ms_storage *storage = &graph->storages[i];
        /* The batch counts among the residents. */
        sim->instance_bytes[i] = storage->role == MS_STORAGE_BATCH ? 0 : sim->device_kind->rounded(storage->bytes);
        if (storage->role == MS_STORAGE_GRADIENT) {
            bool small = sim->instance_bytes[i] < MS__MAP_MIN_BYTES;
            small_gradient_bytes = ms__add_sat(small_gradient_bytes, small ? sim->instance_bytes[i] : 0);
            sim->gradient_bytes = ms__add_sat(sim->gradient_bytes, sim->instance_bytes[i]);
            largest_bytes = ms__max_u64(largest_bytes, storage->bytes);
        } else if (storage->role == MS_STORAGE_OUTPUT) {
            sim->output_bytes = ms__add_sat(sim->output_bytes, sim->instance_bytes[i]);
        }
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_profile *profile = &graph->profiles[graph->nodes[i].profile];
        uint64_t *bytes = &sim->instance_bytes[sim->nodes[i].first_local];
        for (uint32_t s = profile->external_count; s < profile->storage_count; s++) {
            *bytes++ = sim->device_kind->rounded(profile->storage_bytes[s]);
        }
        for (uint32_t k = 0; k < profile->untouched.count; k++) {
            const ms_storage_bytes *one = &profile->untouched.items[k];
            uint32_t instance = sim->nodes[i].first_local + (one->storage - profile->external_count);
            bool is_map = sim->instance_bytes[instance] >= MS__MAP_MIN_BYTES;
            sim->instance_untouched[instance] = is_map ? one->bytes : 0;
        }
    }
    sim->small_state_bytes = small_state_bytes(sim, small_gradient_bytes);
    sim->step_copies = step_copies(sim, largest_bytes);
}

static int compile_instances(ms__sim *sim)
{
    size_t instances = sim->instance_count, slots = sim->slot_count;
    sim->instance_bytes = ms_calloc(instances, sizeof *sim->instance_bytes);
    sim->instance_untouched = ms_calloc(instances, sizeof *sim->instance_untouched);
    sim->instance_class = ms_calloc(instances, sizeof *sim->instance_class);
    sim->class_bytes = ms_calloc(instances, sizeof *sim->class_bytes);
    sim->class_fault_ns = ms_calloc(instances, sizeof *sim->class_fault_ns);
    sim->class_live = ms_calloc(instances, sizeof *sim->class_live);
    sim->class_peak = ms_calloc(instances, sizeof *sim->class_peak);
    sim->cache.top = ms_calloc(instances, sizeof *sim->cache.top);
    sim->cache.entries = ms_calloc(instances, sizeof *sim->cache.entries);
    sim->instances = ms_calloc(instances, sizeof *sim->instances);
    sim->slots = ms_calloc(slots, sizeof *sim->slots);
    sim->fetches = ms_calloc(slots, sizeof *sim->fetches);
    sim->io.writes.transfers = ms_calloc(slots, sizeof *sim->io.writes.transfers);
    sim->io.reads.transfers = ms_calloc(slots, sizeof *sim->io.reads.transfers);
    bool complete = sim->instance_bytes != NULL && sim->instance_untouched != NULL && sim->instance_class != NULL &&
                    sim->class_bytes != NULL && sim->class_fault_ns != NULL && sim->class_live != NULL &&
                    sim->class_peak != NULL && sim->cache.top != NULL && sim->cache.entries != NULL &&
                    sim->instances != NULL && sim->slots != NULL && sim->fetches != NULL &&
                    sim->io.writes.transfers != NULL && sim->io.reads.transfers != NULL;
    if (!complete) {
        return MS_ENOMEM;
    }
    size_instances(sim);
    compile_classes(sim);
    for (uint32_t i = 0; i < sim->replay_base; i++) {
        sim->instance_class[i] = class_of_bytes(sim, sim->instance_bytes[i]);
    }
    return MS_OK;
}

int ms__sim_new(const ms_graph *graph, const ms_hardware *hardware, ms__sim **sim, ms_error *err)
{
    ms__sim *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "simulator: out of memory");
    }
    made->graph = graph;
    made->hardware = hardware;
    made->on_host = ms_hardware_gpu(hardware) == NULL;
    made->device_kind = ms__device_kind_of(made->on_host ? MS_DEVICE_CPU : ms_hardware_device_kind(hardware));
    compile_residents(made);
    made->optimizer_ns = ms__sim_optimizer_ns(graph, hardware);
    int rc = compile_profiles(made);
    if (rc == MS_OK) {
        rc = compile_nodes(made);
    }
    if (rc == MS_OK) {
        rc = compile_instances(made);
    }
    if (rc == MS_OK) {
        rc = ms__stretches_compile(made);
    }
    if (rc != MS_OK) {
        ms__sim_free(made);
        return ms_fail(err, rc, "simulator: %s for %u nodes", ms_error_text(rc), graph->node_count);
    }
    *sim = made;
    return MS_OK;
}

void ms__sim_free(ms__sim *sim)
{
    if (sim == NULL) {
        return;
    }
    for (uint32_t i = 0; i < sim->profile_count; i++) {
        ms_free(sim->profiles[i].made);
        ms_free(sim->profiles[i].saved);
        ms_free(sim->profiles[i].bits);
        ms_free(sim->profiles[i].forward);
        ms_free(sim->profiles[i].backward);
        ms__stretches_clear(&sim->profiles[i]);
        ms__selective_clear(&sim->profiles[i]);
    }
    ms_free(sim->maker_marks);
    ms_free(sim->last_reader);
    ms_free(sim->profiles);
    ms_free(sim->nodes);
    ms_free(sim->instance_bytes);
    ms_free(sim->instance_untouched);
    ms_free(sim->instance_class);
    ms_free(sim->class_bytes);
    ms_free(sim->class_fault_ns);
    ms_free(sim->class_live);
    ms_free(sim->class_peak);
    ms_free(sim->cache.top);
    ms_free(sim->cache.entries);
    ms_free(sim->instances);
    ms_free(sim->slots);
    ms_free(sim->fetches);
    ms_free(sim->io.writes.transfers);
    ms_free(sim->io.reads.transfers);
    ms_graph_free(sim->owned_graph);
    ms_free(sim->released);
    ms_free(sim);
}
