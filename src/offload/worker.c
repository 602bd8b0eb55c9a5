/*
 * The threads between the queues and a backend's lanes. A worker takes pieces while its
 * lane has room. It hashes each just before it is written or just after it was read, while
 * it is in the cache; a copied piece is hashed while it is copied. It resumes short
 * transfers and reports results.
 *
 * If bytes come from a device, the last worker takes fetches only, and a lane of the others never holds
 * fetches and stores at once: a fetch never waits behind stores that wait for the device's compute.
 *
 * A worker waits for two things only: for pieces when its lane is empty, and for the
 * transfers in its lane. It never waits for a slot (its own are private) nor for a caller,
 * so every accepted transfer ends without one.
 */
#include <errno.h>
#include <string.h>

#include "base/units.h"
#include "offload/engine.h"

enum { STALLS_MAX = 8 };

int ms__worker_open(ms__worker *worker, ms_offload *engine, uint32_t first_slot, ms_error *err)
{
    ms__backend *backend = engine->backend;
    worker->engine = engine;
    worker->jobs = ms_calloc(backend->lane_depth, sizeof *worker->jobs);
    if (worker->jobs == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a transfer thread");
    }
    for (uint32_t i = 0; i < backend->lane_depth; i++) {
        worker->jobs[i].bounce = ms__slot_address(&engine->slots, first_slot + i);
        worker->jobs[i].io.staging = worker->jobs[i].bounce;
    }
    if (engine->compression.is_on) {
        int rc = ms__codec_open(&worker->codec, err);
        if (rc != MS_OK) {
            return rc;
        }
    }
    return backend->ops->lane_open(backend, &worker->lane, err);
}

void ms__worker_close(ms__worker *worker)
{
    if (worker->lane != NULL) {
        worker->engine->backend->ops->lane_close(worker->lane);
    }
    ms__codec_close(worker->codec);
    ms_free(worker->jobs);
}

static ms__job *worker_free_job(ms__worker *worker)
{
    for (uint32_t i = 0; i < worker->engine->backend->lane_depth; i++) {
        if (!worker->jobs[i].is_running) {
            return &worker->jobs[i];
        }
    }
    return NULL;
}

/* A lane ends its transfers in order, and a store may wait for the device's compute: at its end, or if its host memory
 * isn't pinned, at its start. Under the lock. */
static ms__wish worker_wish(const ms__worker *worker)
{
    const ms_offload *engine = worker->engine;
    if (worker->only_fetches) {
        return MS__WISH_FETCH;
    }
    for (uint32_t i = 0; engine->has_fetcher && i < engine->backend->lane_depth; i++) {
        if (worker->jobs[i].is_running) {
            return worker->jobs[i].io.direction == MS__WRITE ? MS__WISH_STORE : MS__WISH_FETCH;
        }
    }
    return MS__WISH_ANY;
}

/* The bytes of a ticket and those joined to it, padding included. */
static uint64_t joined_bytes(const ms__ticket *ticket)
{
    uint64_t bytes = 0;
    for (; ticket != NULL; ticket = ticket->joined) {
        bytes += ticket->extent_bytes;
    }
    return bytes;
}

/* Sets the memory and position of a request. Under the lock, which guards the piece's copy. */
static void job_aim(ms__job *job, const ms_offload *engine)
{
    const ms__ticket *ticket = job->ticket;
    uint64_t offset = job->piece * engine->slot_bytes;
    const ms__piece *piece = &ticket->pieces[job->piece];
    bool is_compressed = piece->compressed_bytes != 0;
    job->bytes = ms__piece_bytes(engine, ticket, job->piece);
    job->io.direction = ticket->direction;
    job->io.position = ticket->position + offset;
    job->io.bytes = ticket->joined != NULL ? joined_bytes(ticket)
                                           : ms__align_up(is_compressed ? piece->compressed_bytes : job->bytes,
                                                          engine->backend->block_bytes);
    job->io.payload_bytes = job->bytes;
    job->io.checksum = piece->checksum;
    job->io.mark = ticket->mark;
    job->is_hashed = ticket->direction == MS__WRITE && piece->copy != NULL;
    job->memory = ticket->memory + offset;
    if (job->is_hashed) {
        job->memory = piece->copy;
    } else if (ticket->direction == MS__READ &&
               (is_compressed || ticket->joined != NULL ||
                !ms__memory_is_direct(engine->backend, job->memory, job->io.bytes, ticket->capacity - offset))) {
        job->memory = job->bounce;
    }
    job->io.memory = job->memory;
    job->io.moved_bytes = 0;
    job->io.system_errno = 0;
    job->io.end = NULL;
    job->moved_bytes = job->io.bytes;
    job->codec_ns = 0;
    job->stall_count = 0;
}

/* The next request for this lane. Waits for one only if the lane is empty; NULL if the lane is
 * busy and no piece waits, or if the engine closes. */
static ms__job *worker_next_job(ms__worker *worker)
{
    ms_offload *engine = worker->engine;
    ms__job *job = worker_free_job(worker);
    bool is_taken = false;
    if (job == NULL) {
        return NULL;
    }
    ms__mutex_lock(&engine->lock);
    ms__wish wish = worker_wish(worker);
    for (;;) {
        is_taken = ms__transfer_take(engine, wish, &job->ticket, &job->piece);
        if (is_taken || worker->running_count > 0 || engine->is_closing) {
            break;
        }
        ms__cond_wait(&engine->work_ready, &engine->lock);
        if (worker->only_fetches) {
            ms__cond_signal(&engine->work_ready); /* the wake-up may have been for a store */
        }
    }
    if (is_taken) {
        engine->free_places--;
        ms__job_take_along(engine, job);
        job_aim(job, engine);
    }
    ms__mutex_unlock(&engine->lock);
    return is_taken ? job : NULL;
}

static bool is_hashed_here(const ms_offload *engine)
{
    return engine->checksum != NULL && !engine->backend->device_memory;
}

static void worker_start_job(ms__worker *worker, ms__job *job)
{
    ms_offload *engine = worker->engine;
    job->is_running = true;
    worker->running_count++;
    job->started_ns = ms_now_ns();
    if (job->io.direction == MS__WRITE && !job->is_hashed && is_hashed_here(engine)) {
        job->ticket->pieces[job->piece].checksum = engine->checksum(job->memory, job->bytes);
    }
    if (job->io.direction == MS__WRITE && worker->codec != NULL) {
        ms__compression_compress(worker, job);
    }
    engine->backend->ops->start(worker->lane, &job->io);
}

static ms__failure job_failure(const ms__job *job, const ms_offload *engine, int code, int system_errno)
{
    return (ms__failure){
        .code = code,
        .system_errno = system_errno,
        .direction = job->io.direction,
        .offset = job->piece * engine->slot_bytes,
    };
}

/* Checks finish()'s result. True: `*failure` says how the request ended. False: a part was left
 * and has been started again. */
static bool request_has_ended(ms__worker *worker, ms__job *job, ms__failure *failure)
{
    ms_offload *engine = worker->engine;
    ms__io *io = &job->io;
    bool is_transient = io->system_errno == EINTR || io->system_errno == EAGAIN;
    *failure = (ms__failure){0};
    if (io->system_errno == EBADMSG && engine->backend->device_memory) {
        *failure = job_failure(job, engine, MS_ECHECKSUM, 0);
        return true;
    }
    if (io->system_errno != 0 && !is_transient) {
        *failure = job_failure(job, engine, MS_EIO, io->system_errno);
        return true;
    }
    if (io->moved_bytes >= io->bytes) {
        return true;
    }
    /* The next start must be at a whole block; a partly moved block is moved again. */
    uint64_t ahead_bytes = ms__align_down(io->moved_bytes, engine->backend->block_bytes);
    job->stall_count = ahead_bytes > 0 ? 0 : job->stall_count + 1;
    if (job->stall_count > STALLS_MAX) {
        *failure = job_failure(job, engine, MS_EIO, EIO);
        return true;
    }
    io->memory += ahead_bytes;
    io->position += ahead_bytes;
    io->bytes -= ahead_bytes;
    io->moved_bytes = 0;
    io->system_errno = 0;
    engine->backend->ops->start(worker->lane, io);
    return false;
}

static bool is_still_wanted(ms_offload *engine, const ms__ticket *ticket)
{
    ms__mutex_lock(&engine->lock);
    bool is_wanted = !ticket->is_canceled;
    ms__mutex_unlock(&engine->lock);
    return is_wanted;
}

/* Checks a ticket's bytes, read to `from`, and copies them to their destination in the same pass:
 * after a failed fetch the destination's contents are unspecified. */
static void job_deliver(ms__worker *worker, ms__job *job, const ms__ticket *ticket, const unsigned char *from,
                        ms__failure *failure)
{
    ms_offload *engine = worker->engine;
    uint64_t bytes = ms__piece_bytes(engine, ticket, job->piece);
    bool is_to_copy = job->memory == job->bounce;
    if (engine->backend->device_memory || !is_still_wanted(engine, ticket)) {
        return;
    }
    unsigned char *to = ticket->memory + job->piece * engine->slot_bytes;
    if (ticket->pieces[job->piece].compressed_bytes != 0) {
        if (!ms__compression_decompress(worker, job, to)) {
            *failure = job_failure(job, engine, MS_ECHECKSUM, 0);
        }
        return;
    }
    if (engine->checksum == NULL) {
        memcpy(to, from, is_to_copy ? bytes : 0);
        return;
    }
    uint64_t found = is_to_copy ? engine->checksum_copy(to, from, bytes) : engine->checksum(from, bytes);
    if (found != ticket->pieces[job->piece].checksum) {
        *failure = job_failure(job, engine, MS_ECHECKSUM, 0);
    }
}

/* Counts a request whose last piece has ended. Under the lock; true if compression has something
 * to report. */
static bool job_count(ms_offload *engine, const ms__job *job, bool is_moved)
{
    uint64_t moved_bytes = is_moved ? job->moved_bytes : 0;
    uint64_t busy_ns = ms_now_ns() - job->started_ns;
    engine->free_places++;
    if (job->io.direction == MS__WRITE) {
        engine->stats.write_count++;
        engine->stats.write_ns += busy_ns;
        engine->stats.written_bytes += moved_bytes;
    } else {
        engine->stats.read_count++;
        engine->stats.read_ns += busy_ns;
        engine->stats.read_bytes += moved_bytes;
    }
    return job->codec_ns > 0 && ms__compression_count(engine, job);
}

/* Ends one ticket's part of a request; its bytes are at `memory`. */
static void job_end_piece(ms__worker *worker, ms__job *job, ms__ticket *ticket, const unsigned char *memory,
                          const ms__failure *request_failure, bool is_last)
{
    ms_offload *engine = worker->engine;
    ms__failure failure = *request_failure;
    bool is_to_tell = false;
    if (failure.code == MS_OK && job->io.direction == MS__READ) {
        job_deliver(worker, job, ticket, memory, &failure);
    }
    ms__mutex_lock(&engine->lock);
    if (is_last) {
        is_to_tell = job_count(engine, job, request_failure->code == MS_OK);
    }
    ms__transfer_piece_ended(engine, ticket, job->piece, &failure);
    ms__mutex_unlock(&engine->lock);
    if (is_to_tell) {
        ms__compression_report(engine);
    }
}

static void worker_finish_one(ms__worker *worker)
{
    ms__job *job = (ms__job *)worker->engine->backend->ops->finish(worker->lane);
    ms__failure failure;
    if (!request_has_ended(worker, job, &failure)) {
        return;
    }
    if (worker->engine->backend->device_memory && job->io.direction == MS__WRITE) {
        /* Only a fetch reads it again, and that comes after job_end_piece(). */
        job->ticket->pieces[job->piece].checksum = job->io.checksum;
    }
    /* Such a backend joins no tickets: the request is this piece. */
    job->ticket->pieces[job->piece].end = job->io.end;
    const unsigned char *memory = job->memory;
    for (ms__ticket *ticket = job->ticket, *next; ticket != NULL; ticket = next) {
        uint64_t extent_bytes = ticket->extent_bytes; /* the struct may be reused once it ended */
        next = ticket->joined;
        job_end_piece(worker, job, ticket, memory, &failure, next == NULL);
        memory += extent_bytes;
    }
    job->is_running = false;
    worker->running_count--;
}

void ms__worker_run(void *argument)
{
    ms__worker *worker = argument;
    for (;;) {
        ms__job *job;
        while ((job = worker_next_job(worker)) != NULL) {
            worker_start_job(worker, job);
        }
        if (worker->running_count == 0) {
            return;
        }
        worker_finish_one(worker);
    }
}
