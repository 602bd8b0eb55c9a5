/*
 * The simulator's memory: the bytes that occupy the device, and their peaks. Every change of live bytes goes
 * through acquire and release. Called by the replay and by the queues.
 */
#include "base/units.h"
#include "sim/sim.h"

void ms__sim_note_live(ms__sim *sim)
{
    ms__peak *peak = &sim->peaks[sim->phase];
    sim->tick++;
    if (sim->live_bytes > peak->bytes) {
        *peak = (ms__peak){.bytes = sim->live_bytes, .tick = sim->tick, .node = sim->current_node};
    }
    if (sim->tick == sim->watch.tick) {
        sim->watch.look(sim, sim->watch.context);
    }
}

static void memory_note_peak(ms__sim *sim)
{
    ms__sim_note_live(sim);
    if (sim->cache.on) {
        ms__cache_note_held(sim);
    }
}

/* libc keeps freed small tensors' memory for later ones: it stays at its peak. */
static void memory_take_small(ms__sim *sim, uint64_t bytes)
{
    sim->small_bytes += bytes;
    uint64_t growth = ms__sub_sat(sim->small_bytes, sim->small_peak_bytes);
    if (sim->cache.on && growth > 0) {
        ms__cache_squeeze(sim, growth);
    }
    sim->small_peak_bytes += growth;
}

/* A map comes out of the cache, or is made and faulted in. Fault time is added to the step as a whole and
 * moves no event, so a candidate has one timeline and one live peak, whatever its cache. */
static void memory_take_map(ms__sim *sim, uint32_t class_id)
{
    if (++sim->class_live[class_id] > sim->class_peak[class_id]) {
        sim->class_peak[class_id]++;
        sim->class_peak_bytes += sim->class_bytes[class_id];
    }
    uint64_t fault_ns = sim->class_fault_ns[class_id];
    if (sim->cache.on) {
        fault_ns = ms__mul_div(fault_ns, ms__cache_take(sim, class_id), sim->class_bytes[class_id]);
    }
    sim->fault_ns = ms__add_sat(sim->fault_ns, fault_ns);
}

static uint64_t taken_bytes(const ms__sim *sim, uint32_t instance)
{
    return sim->instance_bytes[instance] - (sim->skips_untouched ? sim->instance_untouched[instance] : 0);
}

void ms__sim_take_small(ms__sim *sim, uint64_t bytes)
{
    if (sim->on_host) {
        memory_take_small(sim, bytes);
    } else {
        sim->live_bytes += bytes;
    }
    memory_note_peak(sim);
}

void ms__sim_give_small(ms__sim *sim, uint64_t bytes)
{
    *(sim->on_host ? &sim->small_bytes : &sim->live_bytes) -= bytes;
}

void ms__sim_acquire(ms__sim *sim, uint32_t instance)
{
    if (sim->instances[instance].holds++ > 0) {
        return;
    }
    uint64_t bytes = taken_bytes(sim, instance);
    if (sim->instance_class[instance] != MS__NO_CLASS) {
        memory_take_map(sim, sim->instance_class[instance]);
        sim->live_bytes += bytes;
        memory_note_peak(sim);
    } else {
        ms__sim_take_small(sim, bytes);
    }
}

void ms__sim_release(ms__sim *sim, uint32_t instance)
{
    ms__instance *held = &sim->instances[instance];
    if (held->holds == 0 || --held->holds > 0) {
        return;
    }
    uint64_t bytes = taken_bytes(sim, instance);
    uint32_t class_id = sim->instance_class[instance];
    if (class_id == MS__NO_CLASS) {
        ms__sim_give_small(sim, bytes);
        return;
    }
    sim->live_bytes -= bytes;
    sim->class_live[class_id]--;
    if (sim->cache.on) {
        ms__cache_give(sim, class_id);
    }
}

void ms__sim_spend(ms__sim *sim, uint64_t ns)
{
    sim->now_ns = ms__add_sat(sim->now_ns, ns);
    ms__io_advance(sim);
}

void ms__sim_stretch(ms__sim *sim, const ms__sim_profile *profile, const ms__stretch *stretch)
{
    ms__peak *peak = &sim->peaks[sim->phase];
    uint64_t most_bytes = sim->live_bytes + (uint64_t)stretch->most_bytes;
    if (most_bytes > peak->bytes) {
        *peak = (ms__peak){.bytes = most_bytes, .tick = sim->tick, .node = sim->current_node};
    }
    sim->live_bytes += (uint64_t)stretch->after_bytes;
    sim->small_peak_bytes = ms__max_u64(sim->small_peak_bytes, sim->small_bytes + (uint64_t)stretch->small_most_bytes);
    sim->small_bytes += (uint64_t)stretch->small_after_bytes;
    for (uint32_t i = 0; i < stretch->change_count; i++) {
        const ms__class_change *change = &profile->changes[stretch->first_change + i];
        uint32_t *live = &sim->class_live[change->class_id], *most = &sim->class_peak[change->class_id];
        uint32_t reached = *live + (uint32_t)change->most;
        if (reached > *most) {
            sim->class_peak_bytes += (reached - *most) * sim->class_bytes[change->class_id];
            *most = reached;
        }
        *live += (uint32_t)change->after;
    }
    sim->fault_ns = ms__add_sat(sim->fault_ns, stretch->fault_ns);
    ms__sim_spend(sim, stretch->ns);
}
