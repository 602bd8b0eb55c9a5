/*
 * Opening, closing and describing an engine.
 *
 * Opens slab, backend, slots, workers, threads, and closes them in reverse. A closing
 * engine cancels what is queued, lets lanes finish their pieces (callers' memory is in
 * them) and only then frees anything.
 */
#include "offload/engine.h"

#include <stdio.h>

#include "base/os/map.h"
#include "base/units.h"

/* Measured on a two-core machine whose cores also compute: a third thread raises a loaded
 * disk from 1.2 to 2.0 GB/s, because two write while one hashes; a fourth gains nothing.
 * Pieces of 1 MiB cost a tenth of the bandwidth; pieces of 16 MiB gain nothing and double
 * the wait for an urgent fetch. */
enum { DEFAULT_WORKERS = 3 };
#define DEFAULT_SLAB_BYTES (UINT64_C(32) << 20)
#define DEFAULT_SLOT_BYTES (UINT64_C(4) << 20)
#define DEFAULT_TIMEOUT_NS (UINT64_C(120) * 1000 * 1000 * 1000)

/* ---- opening --------------------------------------------------------------- */

static uint64_t value_or(uint64_t value, uint64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static uint32_t depth_of(const ms_offload_options *options)
{
    return options->worker_count != 0 ? options->worker_count : DEFAULT_WORKERS;
}

static int check_options(const ms_offload_options *options, ms_error *err)
{
    uint64_t slot_bytes = value_or(options->slot_bytes, DEFAULT_SLOT_BYTES);
    if (slot_bytes % ms__page_bytes() != 0) {
        return ms_fail(err, MS_EINVAL, "slots of %llu bytes are not whole pages", (unsigned long long)slot_bytes);
    }
    if (options->tier == MS_TIER_DISK && (options->dir == NULL || options->dir[0] == '\0')) {
        return ms_fail(err, MS_EINVAL, "the disk tier needs a directory");
    }
    return MS_OK;
}

static int open_backend(ms_offload *engine, const ms_offload_options *options, ms_error *err)
{
    ms__backend_options backend_options = {
        .tier = options->tier,
        .dir = options->dir,
        .cap_bytes = options->cap_bytes,
        .no_direct_io = options->no_direct_io,
        .depth = depth_of(options),
        .slab = engine->slab.address,
        .slab_bytes = engine->slab.bytes,
        .from_device = options->from_device,
        .device_kind = options->device_kind,
        .device = options->device,
        .pinned_bytes = options->pinned_bytes,
        .pageable_write_bytes_per_s = options->pageable_write_bytes_per_s,
        .pageable_read_bytes_per_s = options->pageable_read_bytes_per_s,
        .disk_cap_bytes = value_or(options->disk_cap_bytes, UINT64_MAX),
        .stream_count = options->stream_count,
        .checksum = engine->checksum,
    };
    const ms__backend_ops *ops = ms__backend_choose(&backend_options);
    if (ops == NULL) {
        return ms_fail(err, MS_ENOTSUP, "this build has no backend for the %s tier", ms_tier_name(options->tier));
    }
    int rc = ops->open(&backend_options, &engine->backend, err);
    if (rc == MS_OK && engine->slot_bytes % engine->backend->block_bytes != 0) {
        return ms_fail(err, MS_EINVAL, "slots of %llu bytes are not whole blocks of %llu",
                       (unsigned long long)engine->slot_bytes, (unsigned long long)engine->backend->block_bytes);
    }
    return rc;
}

static int open_workers(ms_offload *engine, uint32_t wanted, ms_error *err)
{
    uint32_t depth = engine->backend->lane_depth;
    engine->workers = ms_calloc(wanted, sizeof *engine->workers);
    if (engine->workers == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for %u transfer threads", wanted);
    }
    while (engine->worker_count < wanted) {
        uint32_t index = engine->worker_count++; /* so that a half-open one is closed too */
        engine->workers[index].only_fetches =
            engine->backend->device_memory && index > 0 && index + 1 == wanted; /* the first is sure to start */
        int rc = ms__worker_open(&engine->workers[index], engine, index * depth, err);
        if (rc != MS_OK) {
            return rc;
        }
    }
    return MS_OK;
}

/* One thread is enough; fewer than requested only makes the engine slower. */
static int start_threads(ms_offload *engine, ms_error *err)
{
    for (uint32_t i = 0; i < engine->worker_count; i++) {
        char name[32];
        ms_error cause = {0};
        snprintf(name, sizeof name, "ms-offload-%u", i);
        int rc = ms__thread_start(&engine->workers[i].thread, name, ms__worker_run, &engine->workers[i], &cause);
        if (rc != MS_OK && i == 0) {
            if (err != NULL) {
                *err = cause;
            }
            return rc;
        }
        if (rc != MS_OK) {
            ms_log(MS_LOG_WARNING, "%s: %u of %u transfer threads: %s", engine->backend->place, i, engine->worker_count,
                   cause.text);
            ms__mutex_lock(&engine->lock);
            engine->free_places -= (engine->worker_count - i) * engine->backend->lane_depth;
            ms__mutex_unlock(&engine->lock);
            return MS_OK;
        }
        ms__mutex_lock(&engine->lock);
        engine->has_fetcher |= engine->workers[i].only_fetches;
        ms__mutex_unlock(&engine->lock);
    }
    return MS_OK;
}

/* One more for a device, which takes fetches only, if the slab has slots for it. */
static uint32_t wanted_workers(const ms_offload *engine, uint32_t asked)
{
    uint64_t places = ms__max_u64((engine->slab.bytes / engine->slot_bytes - 1) / engine->backend->lane_depth, asked);
    uint64_t wanted = engine->backend->device_memory ? ms__min_u64(asked + 1, places) : asked;
    return (uint32_t)ms__min_u64(wanted, engine->backend->lane_max);
}

static int open_parts(ms_offload *engine, const ms_offload_options *options, ms_error *err)
{
    uint64_t slab_bytes = value_or(options->slab_bytes, DEFAULT_SLAB_BYTES);
    slab_bytes = ms__max_u64(ms__align_down(slab_bytes, engine->slot_bytes), engine->slot_bytes);
    int rc = ms__slab_open(&engine->slab, slab_bytes, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = open_backend(engine, options, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = ms__compression_open(engine, options, err);
    if (rc != MS_OK) {
        return rc;
    }
    uint32_t worker_count = wanted_workers(engine, depth_of(options));
    uint32_t private_count = worker_count * engine->backend->lane_depth;
    rc = ms__slots_open(&engine->slots, &engine->slab, engine->slot_bytes, private_count, err);
    if (rc != MS_OK) {
        return rc;
    }
    engine->free_places = private_count;
    rc = open_workers(engine, worker_count, err);
    if (rc != MS_OK) {
        return rc;
    }
    snprintf(engine->description, sizeof engine->description, "%.440s; %u pieces at a time, %u slots of %s",
             engine->backend->description, private_count, engine->slots.count, ms__text_bytes(engine->slot_bytes).text);
    return start_threads(engine, err);
}

/* Frees the memory of an engine whose threads have ended or never started. */
static void free_parts(ms_offload *engine)
{
    for (uint32_t i = 0; i < engine->worker_count; i++) {
        ms__worker_close(&engine->workers[i]);
    }
    ms_free(engine->workers);
    ms__slots_close(&engine->slots);
    ms__tickets_destroy(&engine->tickets);
}

static void engine_destroy(ms_offload *engine)
{
    ms__backend *backend = engine->backend;
    for (uint32_t i = 0; i < engine->tickets.count; i++) {
        const ms__ticket *ticket = engine->tickets.all[i];
        if (ticket->id != 0) {
            backend->ops->release(backend, ticket->position, ticket->extent_bytes);
        }
    }
    free_parts(engine);
    if (backend != NULL) {
        backend->ops->close(backend);
    }
    ms__slab_close(&engine->slab);
    ms__cond_destroy(&engine->changed);
    ms__cond_destroy(&engine->work_ready);
    ms__mutex_destroy(&engine->lock);
    ms_free(engine);
}

int ms_offload_open(const ms_offload_options *options, ms_offload **engine, ms_error *err)
{
    int rc = check_options(options, err);
    if (rc == MS_OK) {
        rc = ms__fork_prepare(err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms_offload *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for an offload engine");
    }
    made->slot_bytes = value_or(options->slot_bytes, DEFAULT_SLOT_BYTES);
    made->timeout_ns = value_or(options->timeout_ns, DEFAULT_TIMEOUT_NS);
    made->tier = options->tier;
    made->checksum = options->no_verify ? NULL : ms__checksum_select();
    made->checksum_copy = ms__checksum_copy_select();
    ms__mutex_init(&made->lock);
    ms__cond_init(&made->work_ready);
    ms__cond_init(&made->changed);
    ms__tickets_init(&made->tickets);
    ms__list_init(&made->ended);
    for (int queue = 0; queue < MS__QUEUE_COUNT; queue++) {
        ms__list_init(&made->queues[queue]);
    }
    rc = open_parts(made, options, err);
    if (rc != MS_OK) {
        engine_destroy(made);
        return rc;
    }
    ms__fork_register(made);
    *engine = made;
    return MS_OK;
}

/* ---- closing --------------------------------------------------------------- */

/* In a forked child: threads and maps exist in the parent only, and conditions that parent
 * threads waited for cannot be destroyed here. */
static void engine_forget(ms_offload *engine)
{
    free_parts(engine);
    engine->backend->ops->forget(engine->backend);
    ms__slab_forget(&engine->slab);
    ms_free(engine);
}

static void cancel_transfers(ms_offload *engine)
{
    for (uint32_t i = 0; i < engine->tickets.count; i++) {
        ms__ticket *ticket = engine->tickets.all[i];
        if (ticket->id != 0 && !ms__ticket_is_idle(ticket) && !ticket->is_canceled) {
            ms__transfer_cancel(engine, ticket);
        }
    }
}

/* Waits for what fetches have queued. False: the device does not answer. */
static bool engine_await_ends(ms_offload *engine, uint64_t deadline_ns)
{
    ms__backend *backend = engine->backend;
    for (uint32_t i = 0; backend->ops->await != NULL && i < engine->tickets.count; i++) {
        const ms__ticket *ticket = engine->tickets.all[i];
        for (uint32_t k = 0; ticket->id != 0 && k < ticket->piece_count; k++) {
            void *end = ticket->pieces[k].end;
            if (end != NULL && backend->ops->await(backend, end, deadline_ns, NULL) == MS_ETIMEDOUT) {
                return false;
            }
        }
    }
    return true;
}

/* True once no piece is in a lane, none is queued, and no caller waits; the threads then end. */
static bool engine_pause_for_close(ms_offload *engine)
{
    ms__mutex_lock(&engine->lock);
    uint64_t deadline_ns = ms__add_sat(ms_now_ns(), engine->timeout_ns);
    engine->is_closing = true;
    cancel_transfers(engine);
    ms__cond_broadcast(&engine->changed);
    ms__cond_broadcast(&engine->work_ready);
    while ((engine->running_count > 0 || engine->caller_count > 0) &&
           ms__cond_wait_until(&engine->changed, &engine->lock, deadline_ns)) {
    }
    bool is_at_rest = engine->running_count == 0 && engine->caller_count == 0;
    ms__mutex_unlock(&engine->lock);
    return is_at_rest && engine_await_ends(engine, deadline_ns);
}

void ms_offload_close(ms_offload *engine)
{
    if (engine == NULL) {
        return;
    }
    ms__fork_unregister(engine);
    if (engine->is_forked) {
        engine_forget(engine);
        return;
    }
    bool is_at_rest = engine_pause_for_close(engine);
    if (!is_at_rest) {
        /* A thread hangs in a system call that uses the engine's memory, or the device does. */
        ms_log(MS_LOG_ERROR, "%s: a transfer does not end; the engine is left behind", engine->backend->place);
    }
    for (uint32_t i = 0; i < engine->worker_count; i++) {
        if (is_at_rest) {
            ms__thread_join(&engine->workers[i].thread);
        } else {
            ms__thread_detach(&engine->workers[i].thread);
        }
    }
    if (is_at_rest) {
        engine_destroy(engine);
    }
}

/* ---- reporting ------------------------------------------------------------- */

void ms_offload_get_stats(ms_offload *engine, ms_offload_stats *stats)
{
    ms__mutex_lock(&engine->lock);
    *stats = engine->stats;
    ms__mutex_unlock(&engine->lock);
    stats->slab_bytes = ms__slab_resident_bytes(&engine->slab);
}

bool ms_offload_is_inherited(const ms_offload *engine)
{
    return engine->is_forked; /* written in a child before it has a second thread */
}

const char *ms_offload_description(const ms_offload *engine)
{
    return engine->description;
}
