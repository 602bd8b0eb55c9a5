/*
 * The simulator's lower tier: a queue of stores and a queue of fetches, each in order. On a disk, and on a
 * GPU with one copy engine, both share the link: while both move, each moves at half its rate. Times are
 * integers in half nanoseconds, so that halving a rate loses nothing.
 */
#include <string.h>

#include "base/units.h"
#include "sim/sim.h"

/* Entries that one prefetch looks at. */
enum { LOOK_MOST = 256 };

static uint64_t io_rate(const ms__sim *sim, uint32_t instance, uint32_t tier, bool down)
{
    const ms_hardware *hardware = sim->hardware;
    uint64_t disk = down ? hardware->disk.write_bytes_per_s : hardware->disk.read_bytes_per_s;
    if (sim->on_host) {
        return disk;
    }
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    uint64_t link = down ? gpu->to_host_bytes_per_s : gpu->from_host_bytes_per_s;
    uint64_t pageable = down ? gpu->pageable_to_host_bytes_per_s : gpu->pageable_from_host_bytes_per_s;
    if (sim->instances[instance].pageable && pageable != 0) {
        return ms__min_u64(link, pageable);
    }
    return tier == MS__DISK_TIER ? ms__min_u64(disk, link) : link;
}

/* A transfer's cost on the compute threads: its bookkeeping and, on a host, where the same processors move
 * it, the checksum. */
static uint64_t io_handling_ns(const ms__sim *sim, uint64_t bytes)
{
    uint64_t checksum = 0;
    if (sim->on_host) {
        uint64_t cpus = ms__max_u64(sim->hardware->cpu.usable_cpus, 1);
        checksum = ms__rate_ns(bytes, ms__mul_sat(sim->hardware->cpu.checksum_bytes_per_s, cpus));
    }
    return ms__add_sat(MS__HANDLING_NS, checksum);
}

void ms__io_reset(ms__sim *sim)
{
    ms__io *io = &sim->io;
    struct ms__transfer *writes = io->writes.transfers, *reads = io->reads.transfers;
    memset(io, 0, sizeof *io);
    io->writes.transfers = writes;
    io->reads.transfers = reads;
    io->shared = sim->on_host || ms_hardware_gpu(sim->hardware)->copy_engines < 2;
    for (uint32_t i = 0; !io->shared && i < sim->node_count; i++) {
        io->shared = ms_technique_of((ms_technique)sim->choices->technique[i])->rest == MS_REST_DISK;
    }
    sim->fetch_count = 0;
    sim->prefetch_next = 0;
}

/* ---- queues ------------------------------------------------------------------- */

static bool queue_busy(const ms__queue *queue)
{
    return queue->next < queue->count;
}

static void queue_start_next(ms__queue *queue)
{
    if (queue_busy(queue)) {
        queue->left = ms__max_u64(ms__mul_sat(2, queue->transfers[queue->next].ns), 1);
    }
}

static void queue_push(ms__queue *queue, uint32_t instance, uint64_t ns)
{
    bool idle = !queue_busy(queue);
    queue->transfers[queue->count++] = (struct ms__transfer){.instance = instance, .ns = ns};
    if (idle) {
        queue_start_next(queue);
    }
}

/* The storage is released when the executor next polls: see ms__io_poll(). */
static void io_finish_write(ms__sim *sim)
{
    sim->io.writes.next++;
    queue_start_next(&sim->io.writes);
}

static void io_finish_read(ms__sim *sim)
{
    uint32_t instance = sim->io.reads.transfers[sim->io.reads.next++].instance;
    sim->instances[instance].fetching = 0;
    queue_start_next(&sim->io.reads);
}

/* Plays until the next completion, at most up to `until_ns`. Times saturate at UINT64_MAX; transfers still
 * in the queues then complete at that time. */
static void io_play(ms__sim *sim, uint64_t until_ns)
{
    ms__io *io = &sim->io;
    bool writes = queue_busy(&io->writes), reads = queue_busy(&io->reads);
    uint64_t per_ns = writes && reads && io->shared ? 1 : 2;
    uint64_t step = until_ns == UINT64_MAX ? UINT64_MAX : until_ns - io->at_ns;
    step = writes ? ms__min_u64(step, ms__div_up(io->writes.left, per_ns)) : step;
    step = reads ? ms__min_u64(step, ms__div_up(io->reads.left, per_ns)) : step;
    io->at_ns = ms__add_sat(io->at_ns, step);
    if (writes) {
        io->writes.left = ms__sub_sat(io->writes.left, ms__mul_sat(step, per_ns));
    }
    if (reads) {
        io->reads.left = ms__sub_sat(io->reads.left, ms__mul_sat(step, per_ns));
    }
    if (writes && io->writes.left == 0) {
        io_finish_write(sim);
    }
    if (reads && io->reads.left == 0) {
        io_finish_read(sim);
    }
}

void ms__io_advance(ms__sim *sim)
{
    ms__io *io = &sim->io;
    while (io->at_ns < sim->now_ns) {
        if (!queue_busy(&io->writes) && !queue_busy(&io->reads)) {
            io->at_ns = sim->now_ns;
            return;
        }
        io_play(sim, sim->now_ns);
    }
}

void ms__io_pause(ms__sim *sim, uint64_t ns)
{
    ms__io_advance(sim);
    sim->io.at_ns = ms__add_sat(sim->io.at_ns, ns);
}

/* Releases the oldest storage whose write has finished; false if there is none. */
static bool io_release_oldest(ms__sim *sim)
{
    ms__io *io = &sim->io;
    if (io->released == io->writes.next) {
        return false;
    }
    uint32_t instance = io->writes.transfers[io->released++].instance;
    io->in_flight_bytes -= sim->instance_bytes[instance];
    ms__sim_release(sim, instance);
    return true;
}

void ms__io_poll(ms__sim *sim)
{
    bool sees_no_end = sim->host_leads && !sim->choices->waits;
    ms__io_advance(sim);
    while (!sees_no_end && io_release_oldest(sim)) {
    }
}

/* Compute waits for the next completion; returns the time. The queues have been played up to now. */
static uint64_t io_stall(ms__sim *sim)
{
    uint64_t before = sim->now_ns;
    io_play(sim, UINT64_MAX);
    sim->now_ns = sim->io.at_ns;
    return sim->now_ns - before;
}

void ms__io_end_layer(ms__sim *sim)
{
    ms__io_poll(sim);
    while (sim->choices->waits && queue_busy(&sim->io.writes)) {
        sim->stall_forward_ns = ms__add_sat(sim->stall_forward_ns, io_stall(sim));
        ms__io_poll(sim);
    }
}

/* ---- down ----------------------------------------------------------------------- */

static void io_start_store(ms__sim *sim, uint32_t instance, uint32_t tier)
{
    ms__io *io = &sim->io;
    uint64_t bytes = sim->instance_bytes[instance];
    ms__sim_spend(sim, io_handling_ns(sim, bytes));
    ms__io_poll(sim);
    while (io->in_flight_bytes + bytes > sim->choices->write_window_bytes) {
        if (io_release_oldest(sim)) {
            continue;
        }
        if (!queue_busy(&io->writes)) {
            break;
        }
        sim->stall_forward_ns = ms__add_sat(sim->stall_forward_ns, io_stall(sim));
        ms__io_poll(sim);
    }
    ms__sim_acquire(sim, instance);
    io->tier_bytes[tier] += bytes;
    sim->instances[instance].pageable =
        tier == MS__HOST_TIER && sim->choices->pinned_bytes != 0 && io->tier_bytes[tier] > sim->choices->pinned_bytes;
    queue_push(&io->writes, instance, ms__rate_ns(bytes, io_rate(sim, instance, tier, true)));
    io->in_flight_bytes += bytes;
    io->moved_bytes += bytes;
    io->tier_peak_bytes[tier] = ms__max_u64(io->tier_peak_bytes[tier], io->tier_bytes[tier]);
}

uint32_t ms__io_store(ms__sim *sim, uint32_t instance, uint32_t tier)
{
    uint32_t entry = sim->fetch_count++;
    sim->fetches[entry] = (ms__fetch){.instance = instance, .state = MS__FETCH_WAITING, .tier = tier};
    sim->prefetch_next = sim->fetch_count;
    if (sim->instances[instance].tier_users++ == 0) {
        io_start_store(sim, instance, tier);
    }
    return entry;
}

/* ---- back ------------------------------------------------------------------------- */

/* A storage that is in memory needs one more hold and no transfer. A fetched one stays until the last user
 * of the tier's copy has finished. */
static void io_issue(ms__sim *sim, ms__fetch *fetch)
{
    ms__instance *instance = &sim->instances[fetch->instance];
    bool absent = instance->holds == 0;
    fetch->state = MS__FETCH_ISSUED;
    ms__sim_acquire(sim, fetch->instance);
    if (absent) {
        uint64_t bytes = sim->instance_bytes[fetch->instance];
        fetch->moved = true;
        instance->holds++;
        instance->landed = 1;
        instance->fetching = 1;
        sim->io.moved_bytes += bytes;
        queue_push(&sim->io.reads, fetch->instance,
                   ms__rate_ns(bytes, io_rate(sim, fetch->instance, fetch->tier, false)));
    }
}

/* Entries from prefetch_next on are issued. Below it, entries whose storage is in memory are skipped, and
 * looked at again the next time. */
void ms__io_prefetch(ms__sim *sim)
{
    ms__io_advance(sim);
    uint32_t look = sim->choices->waits ? 0 : LOOK_MOST;
    for (uint32_t at = sim->prefetch_next; at > 0 && look > 0; at--, look--) {
        ms__fetch *fetch = &sim->fetches[at - 1];
        if (fetch->state == MS__FETCH_WAITING && sim->instances[fetch->instance].holds == 0) {
            uint64_t bytes = sim->instance_bytes[fetch->instance];
            if (sim->io.ahead_bytes + bytes > sim->choices->read_window_bytes) {
                return;
            }
            io_issue(sim, fetch);
            fetch->counted_ahead = true;
            sim->io.ahead_bytes += bytes;
        }
        if (fetch->state != MS__FETCH_WAITING && at == sim->prefetch_next) {
            sim->prefetch_next--;
        }
    }
}

static void io_end_ahead(ms__sim *sim, ms__fetch *fetch)
{
    if (fetch->counted_ahead) {
        fetch->counted_ahead = false;
        sim->io.ahead_bytes -= sim->instance_bytes[fetch->instance];
    }
}

void ms__io_need(ms__sim *sim, uint32_t entry)
{
    ms__fetch *fetch = &sim->fetches[entry];
    ms__io_poll(sim);
    if (fetch->state == MS__FETCH_WAITING) {
        io_issue(sim, fetch);
    }
    ms__io_prefetch(sim);
    ms__io_advance(sim);
    while (sim->instances[fetch->instance].fetching && queue_busy(&sim->io.reads)) {
        sim->stall_backward_ns = ms__add_sat(sim->stall_backward_ns, io_stall(sim));
    }
    if (fetch->state == MS__FETCH_ISSUED) {
        fetch->state = MS__FETCH_USED;
        io_end_ahead(sim, fetch);
        if (fetch->moved) {
            ms__sim_spend(sim, io_handling_ns(sim, sim->instance_bytes[fetch->instance]));
        }
    }
}

void ms__io_drop(ms__sim *sim, uint32_t entry)
{
    ms__fetch *fetch = &sim->fetches[entry];
    if (fetch->state == MS__FETCH_DROPPED) {
        return;
    }
    bool held = fetch->state != MS__FETCH_WAITING;
    fetch->state = MS__FETCH_DROPPED;
    io_end_ahead(sim, fetch);
    if (held) {
        ms__sim_release(sim, fetch->instance);
    }
    ms__instance *instance = &sim->instances[fetch->instance];
    if (instance->tier_users > 0 && --instance->tier_users == 0) {
        sim->io.tier_bytes[fetch->tier] -= sim->instance_bytes[fetch->instance];
        if (instance->landed) {
            instance->landed = 0;
            ms__sim_release(sim, fetch->instance);
        }
    }
}
