/*
 * The calls of offload.h that start transfers and report their results.
 *
 * engine.h shows why nothing deadlocks. Every wait also has a deadline, for devices that
 * never answer.
 */
#include <string.h>

#include "base/units.h"
#include "offload/engine.h"

/* ---- common parts ------------------------------------------------------- */

/* Takes the lock if the engine can be used. */
static int request_enter(ms_offload *engine, ms_error *err)
{
    if (engine == NULL) {
        return ms_fail(err, MS_EINVAL, "no offload engine was given");
    }
    ms__mutex_lock(&engine->lock);
    if (!engine->is_forked && !engine->is_closing) {
        return MS_OK;
    }
    bool is_forked = engine->is_forked;
    ms__mutex_unlock(&engine->lock);
    return ms_fail(err, MS_ESTATE, "%s: the engine %s", engine->backend->place,
                   is_forked ? "belongs to the parent process" : "is closed");
}

static uint64_t deadline_of(const ms_offload *engine)
{
    return ms__add_sat(ms_now_ns(), engine->timeout_ns);
}

static void request_leave(ms_offload *engine)
{
    engine->caller_count--;
    if (engine->is_closing) {
        ms__cond_broadcast(&engine->changed);
    }
}

/* One wait for any change; counts the caller so that close can wait for it. */
static bool wait_for_change(ms_offload *engine, uint64_t deadline_ns)
{
    engine->caller_count++;
    bool in_time = ms__cond_wait_until(&engine->changed, &engine->lock, deadline_ns);
    request_leave(engine);
    return in_time;
}

static int unknown_ticket(const ms_offload *engine, ms_ticket id, ms_error *err)
{
    return ms_fail(err, MS_EINVAL, "%s: ticket %#llx does not exist (dropped, or never issued)", engine->backend->place,
                   (unsigned long long)id);
}

void ms__ticket_retire(ms_offload *engine, ms__ticket *ticket)
{
    if (ms__list_linked(&ticket->reap_link)) {
        ms__list_remove(&ticket->reap_link);
        atomic_fetch_sub(&engine->ended_count, 1);
    }
    ms__transfer_forget_ends(engine, ticket);
    engine->stats.tier_bytes -= ticket->extent_bytes;
    engine->stats.live_tickets--;
    ms__tickets_release(&engine->tickets, ticket);
    ms__cond_broadcast(&engine->changed);
}

/* ---- store --------------------------------------------------------------- */

/* A store before it has a ticket. */
typedef struct store_request {
    uint64_t bytes;
    uint64_t padded_bytes;
    uint64_t position;
    uint32_t piece_count;
    void *mark;
} store_request;

static int store_measure(const ms_offload *engine, const void *source, uint64_t bytes, uint64_t capacity,
                         store_request *out, ms_error *err)
{
    if (source == NULL || bytes == 0 || capacity < bytes) {
        return ms_fail(err, MS_EINVAL, "storing %llu bytes of %llu at %p", (unsigned long long)bytes,
                       (unsigned long long)capacity, source);
    }
    uint64_t piece_count = ms__div_up(bytes, engine->slot_bytes);
    if (bytes > INT64_MAX || piece_count >= UINT32_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "storing %llu bytes", (unsigned long long)bytes);
    }
    out->bytes = bytes;
    out->padded_bytes = ms__align_up(bytes, engine->backend->block_bytes);
    out->piece_count = (uint32_t)piece_count;
    return MS_OK;
}

/* A ticket in state STORING, with no piece ready. Under the lock. */
static ms__ticket *store_new_ticket(ms_offload *engine, const store_request *request)
{
    ms__ticket *ticket = ms__tickets_new(&engine->tickets, request->piece_count);
    if (ticket == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < request->piece_count; i++) {
        ticket->pieces[i] = (ms__piece){0};
    }
    ticket->bytes = request->bytes;
    ticket->extent_bytes = request->padded_bytes;
    ticket->position = request->position;
    ticket->state = MS_TICKET_STORING;
    ticket->direction = MS__WRITE;
    ticket->mark = request->mark;
    engine->busy_count++;
    engine->stats.live_tickets++;
    engine->stats.stored_bytes += ticket->bytes;
    engine->stats.storing_bytes += ticket->bytes;
    engine->stats.tier_bytes += ticket->extent_bytes;
    engine->stats.peak_tier_bytes = ms__max_u64(engine->stats.peak_tier_bytes, engine->stats.tier_bytes);
    return ticket;
}

/* Waits for room for the piece, padding included. */
static int wait_for_slot(ms_offload *engine, const ms__ticket *ticket, uint32_t piece, uint64_t deadline_ns,
                         unsigned char **copy, ms_error *err)
{
    uint64_t bytes = ms__align_up(ms__piece_bytes(engine, ticket, piece), engine->backend->block_bytes);
    for (;;) {
        if (ticket->is_canceled) {
            return ms_fail(err, MS_ECANCELED, "%s: the engine was closed during a store", engine->backend->place);
        }
        *copy = ms__slots_take(&engine->slots, bytes);
        if (*copy != NULL) {
            return MS_OK;
        }
        if (!wait_for_change(engine, deadline_ns)) {
            return ms_fail(err, MS_ETIMEDOUT, "%s: no transfer slot came free within %s", engine->backend->place,
                           ms__text_ns(engine->timeout_ns).text);
        }
    }
}

/* Copies a piece into its slot and pads it with zeros, so that the disk never gets the
 * slot's earlier contents. Returns the checksum, computed while copying: the piece is read
 * from memory once instead of twice. */
static uint64_t store_fill_slot(const ms_offload *engine, const ms__ticket *ticket, uint32_t piece, unsigned char *to,
                                const unsigned char *source)
{
    uint64_t bytes = ms__piece_bytes(engine, ticket, piece), checksum = 0;
    uint64_t padded_bytes = ms__align_up(bytes, engine->backend->block_bytes);
    const unsigned char *from = source + piece * engine->slot_bytes;
    if (engine->checksum != NULL) {
        checksum = engine->checksum_copy(to, from, bytes);
    } else {
        memcpy(to, from, bytes);
    }
    memset(to + bytes, 0, padded_bytes - bytes);
    return checksum;
}

/* Copies the source into slots, piece by piece, while lanes already write the first ones.
 * On an error the ticket is released when its transfer ends. Under the lock, which is
 * released while bytes are copied. */
static int store_through_slots(ms_offload *engine, ms__ticket *ticket, const unsigned char *source, ms_error *err)
{
    uint64_t deadline_ns = deadline_of(engine);
    int rc = MS_OK;
    ticket->is_filling = true;
    engine->caller_count++;
    for (uint32_t piece = 0; piece < ticket->piece_count; piece++) {
        unsigned char *copy = NULL;
        if (ticket->failure.code != MS_OK && !ticket->is_canceled) {
            break; /* the ticket reports the failure */
        }
        rc = wait_for_slot(engine, ticket, piece, deadline_ns, &copy, err);
        if (rc != MS_OK) {
            break;
        }
        ms__mutex_unlock(&engine->lock);
        uint64_t checksum = store_fill_slot(engine, ticket, piece, copy, source);
        ms__mutex_lock(&engine->lock);
        ticket->pieces[piece].checksum = checksum;
        ticket->pieces[piece].copy = copy;
        ms__transfer_enqueue(engine, ticket, 1);
    }
    ticket->is_filling = false;
    request_leave(engine);
    if (rc != MS_OK) {
        ticket->is_orphan = true;
        ms__transfer_cancel(engine, ticket);
        return rc;
    }
    ms__transfer_settle(engine, ticket);
    return MS_OK;
}

static void store_directly(ms_offload *engine, ms__ticket *ticket, const void *source, uint64_t capacity)
{
    /* Only read: the direction is MS__WRITE. */
    ticket->memory = (unsigned char *)(uintptr_t)source;
    ticket->capacity = capacity;
    ms__transfer_enqueue(engine, ticket, ticket->piece_count);
}

/* Marks the work queued on the caller's stream, if callers' memory is a device's. */
static int take_mark(ms_offload *engine, void *stream, void **mark, ms_error *err)
{
    ms__backend *backend = engine->backend;
    *mark = NULL;
    return backend->ops->mark != NULL ? backend->ops->mark(backend, stream, mark, err) : MS_OK;
}

/* The part of a store that needs no lock; store_abandon() undoes it. */
static int store_prepare(ms_offload *engine, void *stream, store_request *request, ms_error *err)
{
    ms__backend *backend = engine->backend;
    int rc = backend->ops->reserve(backend, request->padded_bytes, &request->position, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = take_mark(engine, stream, &request->mark, err);
    if (rc != MS_OK) {
        backend->ops->release(backend, request->position, request->padded_bytes);
    }
    return rc;
}

static void store_abandon(ms_offload *engine, store_request *request)
{
    ms__transfer_unmark(engine, &request->mark);
    engine->backend->ops->release(engine->backend, request->position, request->padded_bytes);
}

static int store_on(ms_offload *engine, void *stream, const void *source, uint64_t bytes, uint64_t capacity,
                    ms_ticket *ticket, ms_error *err)
{
    store_request request = {0};
    int rc = request_enter(engine, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__mutex_unlock(&engine->lock);
    rc = store_measure(engine, source, bytes, capacity, &request, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = store_prepare(engine, stream, &request, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = request_enter(engine, err);
    if (rc != MS_OK) {
        store_abandon(engine, &request);
        return rc;
    }
    ms__ticket *made = store_new_ticket(engine, &request);
    if (made == NULL) {
        ms__mutex_unlock(&engine->lock);
        store_abandon(engine, &request);
        return ms_fail(err, MS_ENOMEM, "no memory for a ticket");
    }
    ms_ticket id = made->id;
    if (ms__memory_is_direct(engine->backend, source, request.padded_bytes, capacity)) {
        store_directly(engine, made, source, capacity);
    } else {
        rc = store_through_slots(engine, made, source, err);
    }
    ms__mutex_unlock(&engine->lock);
    if (rc == MS_OK) {
        *ticket = id;
    }
    return rc;
}

int ms_offload_store(ms_offload *engine, const void *source, uint64_t bytes, uint64_t capacity, ms_ticket *ticket,
                     ms_error *err)
{
    return store_on(engine, NULL, source, bytes, capacity, ticket, err);
}

static int refuse_stream(const ms_offload *engine, ms_error *err)
{
    if (engine == NULL || engine->backend->device_memory) {
        return MS_OK;
    }
    return ms_fail(err, MS_EINVAL, "%s: a stream was given for host memory", engine->backend->place);
}

int ms_offload_store_on(ms_offload *engine, void *stream, const void *source, uint64_t bytes, ms_ticket *ticket,
                        ms_error *err)
{
    int rc = refuse_stream(engine, err);
    return rc != MS_OK ? rc : store_on(engine, stream, source, bytes, bytes, ticket, err);
}

/* ---- fetch ---------------------------------------------------------------- */

/* Under the lock. Owns the mark on success. */
static int fetch_start(ms_offload *engine, ms__ticket *ticket, void *destination, uint64_t capacity, void *mark,
                       ms_error *err)
{
    if (destination == NULL || capacity < ticket->bytes) {
        return ms_fail(err, MS_EINVAL, "%s: fetching %s into %llu bytes at %p", engine->backend->place,
                       ms__text_bytes(ticket->bytes).text, (unsigned long long)capacity, destination);
    }
    if (ticket->is_canceled || ticket->fetch_is_wanted || ticket->state == MS_TICKET_FETCHING ||
        ticket->follower_count > 0) {
        return ms_fail(err, MS_ESTATE, "%s: a fetch of the ticket is already under way", engine->backend->place);
    }
    if (ticket->state == MS_TICKET_STORING) {
        ticket->fetch_is_wanted = true;
        ticket->wanted_memory = destination;
        ticket->wanted_capacity = capacity;
        ticket->wanted_mark = mark;
        return MS_OK;
    }
    if (!ticket->is_stored) {
        return ms__transfer_error(engine, ticket, err);
    }
    ms__transfer_start_fetch(engine, ticket, destination, capacity, mark);
    return MS_OK;
}

static int fetch_on(ms_offload *engine, void *stream, ms_ticket id, void *destination, uint64_t capacity, ms_error *err)
{
    void *mark = NULL;
    int rc = request_enter(engine, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__mutex_unlock(&engine->lock);
    rc = take_mark(engine, stream, &mark, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = request_enter(engine, err);
    if (rc != MS_OK) {
        ms__transfer_unmark(engine, &mark);
        return rc;
    }
    ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    rc = ticket == NULL ? unknown_ticket(engine, id, err)
                        : fetch_start(engine, ticket, destination, capacity, mark, err);
    ms__mutex_unlock(&engine->lock);
    if (rc != MS_OK) {
        ms__transfer_unmark(engine, &mark);
    }
    return rc;
}

int ms_offload_fetch(ms_offload *engine, ms_ticket id, void *destination, uint64_t capacity, ms_error *err)
{
    return fetch_on(engine, NULL, id, destination, capacity, err);
}

int ms_offload_fetch_on(ms_offload *engine, void *stream, ms_ticket id, void *destination, uint64_t capacity,
                        ms_error *err)
{
    int rc = refuse_stream(engine, err);
    return rc != MS_OK ? rc : fetch_on(engine, stream, id, destination, capacity, err);
}

/* ---- waiting -------------------------------------------------------------- */

/* Under the lock. */
static int wait_until_idle(ms_offload *engine, ms_ticket id, uint64_t deadline_ns, ms_error *err)
{
    ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    if (ticket == NULL) {
        return unknown_ticket(engine, id, err);
    }
    if (!ms__ticket_is_idle(ticket)) {
        ms__transfer_promote(engine, ticket);
    }
    while (!ms__ticket_is_idle(ticket)) {
        bool in_time = wait_for_change(engine, deadline_ns);
        ticket = ms__tickets_find(&engine->tickets, id);
        if (ticket == NULL) {
            return ms_fail(err, MS_ECANCELED, "%s: the ticket was dropped during the wait", engine->backend->place);
        }
        if (!in_time && !ms__ticket_is_idle(ticket)) {
            return ms_fail(err, MS_ETIMEDOUT, "%s: a transfer of %s did not end within %s", engine->backend->place,
                           ms__text_bytes(ticket->bytes).text, ms__text_ns(engine->timeout_ns).text);
        }
    }
    return ticket->state == MS_TICKET_FAILED ? ms__transfer_error(engine, ticket, err) : MS_OK;
}

/* What is done about a queued fetch: the host waits for it, or a stream does. */
typedef struct after_fetch {
    bool is_stream;
    void *stream;
    uint64_t deadline_ns;
} after_fetch;

static int follow_end(ms_offload *engine, void *end, const after_fetch *after, ms_error *err)
{
    ms__backend *backend = engine->backend;
    return after->is_stream ? backend->ops->order(backend, after->stream, end, after->deadline_ns, err)
                            : backend->ops->await(backend, end, after->deadline_ns, err);
}

/* Follows the queued pieces of an idle ticket. Under the lock, which is released meanwhile: as long as it has
 * followers, the ticket is neither dropped nor fetched again. */
static int follow_ends(ms_offload *engine, ms__ticket *ticket, const after_fetch *after, ms_error *err)
{
    int rc = MS_OK;
    if (engine->backend->ops->await == NULL) {
        return MS_OK;
    }
    engine->caller_count++;
    ticket->follower_count++;
    ms__mutex_unlock(&engine->lock);
    /* All of them, although one failed: the caller may use the memory next. */
    for (uint32_t i = 0; i < ticket->piece_count; i++) {
        void *end = ticket->pieces[i].end;
        int followed = end != NULL ? follow_end(engine, end, after, rc == MS_OK ? err : NULL) : MS_OK;
        if (rc == MS_OK) {
            rc = followed;
        }
    }
    ms__mutex_lock(&engine->lock);
    ticket->is_followed = ticket->is_followed || rc == MS_OK;
    ticket->follower_count--;
    ms__cond_broadcast(&engine->changed);
    request_leave(engine);
    return rc;
}

/* Waits until the ticket is idle, then follows what its fetch has queued: some pieces of a failed one may be on
 * their way too. */
static int wait_and_follow(ms_offload *engine, ms_ticket id, after_fetch after, ms_error *err)
{
    int rc = request_enter(engine, err);
    if (rc != MS_OK) {
        return rc;
    }
    after.deadline_ns = deadline_of(engine);
    rc = wait_until_idle(engine, id, after.deadline_ns, err);
    ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    if (ticket != NULL && ms__ticket_is_idle(ticket)) {
        int followed = follow_ends(engine, ticket, &after, rc == MS_OK ? err : NULL);
        if (rc == MS_OK) {
            rc = followed;
        }
    }
    ms__mutex_unlock(&engine->lock);
    return rc;
}

int ms_offload_wait(ms_offload *engine, ms_ticket id, ms_error *err)
{
    return wait_and_follow(engine, id, (after_fetch){0}, err);
}

int ms_offload_wait_queued(ms_offload *engine, ms_ticket id, ms_error *err)
{
    int rc = request_enter(engine, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = wait_until_idle(engine, id, deadline_of(engine), err);
    ms__mutex_unlock(&engine->lock);
    return rc;
}

int ms_offload_order(ms_offload *engine, void *stream, ms_ticket id, ms_error *err)
{
    return wait_and_follow(engine, id, (after_fetch){.is_stream = true, .stream = stream}, err);
}

ms_ticket_state ms_offload_state(ms_offload *engine, ms_ticket id)
{
    if (request_enter(engine, NULL) != MS_OK) {
        return MS_TICKET_FAILED;
    }
    const ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    ms_ticket_state state = ticket == NULL ? MS_TICKET_FAILED : ticket->state;
    ms__mutex_unlock(&engine->lock);
    return state;
}

ms_tier ms_offload_tier_of(ms_offload *engine, ms_ticket id)
{
    if (request_enter(engine, NULL) != MS_OK) {
        return MS_TIER_COUNT;
    }
    const ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    ms_tier tier = MS_TIER_COUNT;
    if (ticket != NULL) {
        tier = engine->backend->ops->tier_of != NULL ? engine->backend->ops->tier_of(ticket->position) : engine->tier;
    }
    ms__mutex_unlock(&engine->lock);
    return tier;
}

int ms_offload_quiesce(ms_offload *engine, ms_error *err)
{
    int rc = request_enter(engine, err);
    if (rc != MS_OK) {
        return rc;
    }
    uint64_t deadline_ns = deadline_of(engine);
    while (engine->busy_count > 0 && rc == MS_OK) {
        if (!wait_for_change(engine, deadline_ns) && engine->busy_count > 0) {
            rc = ms_fail(err, MS_ETIMEDOUT, "%s: %u transfers did not end within %s", engine->backend->place,
                         engine->busy_count, ms__text_ns(engine->timeout_ns).text);
        }
    }
    ms__mutex_unlock(&engine->lock);
    return rc;
}

/* ---- cancel, drop and reap --------------------------------------------------------- */

void ms_offload_cancel(ms_offload *engine, ms_ticket id)
{
    if (request_enter(engine, NULL) != MS_OK) {
        return;
    }
    ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    if (ticket != NULL && !ms__ticket_is_idle(ticket)) {
        ms__transfer_stop(engine, ticket);
    }
    ms__mutex_unlock(&engine->lock);
}

/* Under the lock. False: a piece of it is still in a lane at the deadline. */
static bool stop_transfer(ms_offload *engine, ms__ticket *ticket, uint64_t deadline_ns)
{
    ms__transfer_cancel(engine, ticket);
    while (!ms__ticket_is_idle(ticket)) {
        if (!wait_for_change(engine, deadline_ns) && !ms__ticket_is_idle(ticket)) {
            ticket->is_orphan = true;
            return false;
        }
    }
    return true;
}

/* Under the lock. True: nothing uses the ticket's memory any more, and nobody waits for it. */
static bool drop_await(ms_offload *engine, ms__ticket *ticket)
{
    after_fetch after = {.deadline_ns = deadline_of(engine)};
    if (!ms__ticket_is_idle(ticket) && !stop_transfer(engine, ticket, after.deadline_ns)) {
        return false;
    }
    ticket->is_canceled = true; /* nobody else drops it meanwhile */
    if (!ticket->is_followed && follow_ends(engine, ticket, &after, NULL) == MS_ETIMEDOUT) {
        return false;
    }
    while (ticket->follower_count > 0) {
        if (!wait_for_change(engine, after.deadline_ns) && ticket->follower_count > 0) {
            return false;
        }
    }
    return true;
}

void ms_offload_drop(ms_offload *engine, ms_ticket id)
{
    if (request_enter(engine, NULL) != MS_OK) {
        return;
    }
    ms__ticket *ticket = ms__tickets_find(&engine->tickets, id);
    if (ticket == NULL || ticket->is_canceled) {
        ms__mutex_unlock(&engine->lock);
        return;
    }
    bool is_stopped = drop_await(engine, ticket);
    if (engine->is_closing) { /* since the wait began: closing frees the ticket */
        ms__mutex_unlock(&engine->lock);
        return;
    }
    uint64_t position = ticket->position;
    uint64_t extent_bytes = ticket->extent_bytes;
    if (is_stopped) {
        ms__ticket_retire(engine, ticket);
    }
    ms__mutex_unlock(&engine->lock);
    if (is_stopped) {
        engine->backend->ops->release(engine->backend, position, extent_bytes);
    } else {
        ms_log(MS_LOG_ERROR, "%s: a dropped transfer does not end: its memory is still in use", engine->backend->place);
    }
}

size_t ms_offload_reap(ms_offload *engine, ms_ticket *tickets, size_t max)
{
    if (engine == NULL || atomic_load_explicit(&engine->ended_count, memory_order_acquire) == 0 ||
        request_enter(engine, NULL) != MS_OK) {
        return 0;
    }
    size_t count = 0;
    while (count < max && !ms__list_empty(&engine->ended)) {
        ms__ticket *ticket = MS__LIST_MEMBER(engine->ended.next, ms__ticket, reap_link);
        ms__list_remove(&ticket->reap_link);
        tickets[count++] = ticket->id;
    }
    atomic_fetch_sub(&engine->ended_count, count);
    ms__mutex_unlock(&engine->lock);
    return count;
}
