/*
 * Extents: storages on the lower tier, from the first saved tensor of a storage to its last.
 * Called from pack (store, find), from the end of a handle (drop) and from every hook (poll).
 * fetch.c brings them back.
 */
#include <string.h>

#include "execute/execute_internal.h"

/* ---- the tier ---------------------------------------------------------------- */

bool ms__tier_usable(const ms_execute *execute)
{
    return execute->tier != NULL && !execute->tier_broken && !execute->tier_full;
}

/* The storage stays in memory; a full tier is tried again in the next step. */
void ms__tier_failed(ms_execute *execute, int code, const char *text)
{
    if (code == MS_ENOSPC) {
        execute->tier_full = true;
    } else {
        execute->tier_broken = true;
    }
    ms_counter_add(&execute->counters, MS_COUNTER_TIER_FALLBACKS, 1);
    if (!execute->tier_warned) {
        execute->tier_warned = true;
        ms_log(MS_LOG_WARNING, "%s; saved tensors stay in memory %s", text,
               code == MS_ENOSPC ? "until there is room" : "from now on");
    }
}

/* ---- lookup by identity ----------------------------------------------------------- */

static size_t bucket_of(const ms_execute *execute, uintptr_t identity)
{
    uint64_t hash = (uint64_t)identity * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash >> 32) & (execute->bucket_count - 1);
}

bool ms__extents_have_room(ms_execute *execute)
{
    if (execute->live_extents < execute->bucket_count) {
        return true;
    }
    size_t count = execute->bucket_count > 0 ? 2 * execute->bucket_count : 64;
    ms_extent **buckets = ms_calloc(count, sizeof(ms_extent *));
    if (buckets == NULL) {
        return execute->bucket_count > 0; /* longer chains work too */
    }
    ms_free(execute->buckets);
    execute->buckets = buckets;
    execute->bucket_count = count;
    /* Oldest first, so that the newest of a storage stands first in its bucket. */
    for (ms_extent *extent = execute->saved.first; extent != NULL; extent = extent->next) {
        size_t at = bucket_of(execute, extent->identity);
        extent->next_same = buckets[at];
        buckets[at] = extent;
    }
    return true;
}

static void bucket_remove(ms_execute *execute, ms_extent *extent)
{
    ms_extent **link = &execute->buckets[bucket_of(execute, extent->identity)];
    while (*link != extent) {
        link = &(*link)->next_same;
    }
    *link = extent->next_same;
}

ms_extent *ms_extent_find(ms_execute *execute, const ms_frame *frame, uintptr_t identity, uint64_t version)
{
    if (execute->bucket_count == 0) {
        return NULL;
    }
    ms_extent *extent = execute->buckets[bucket_of(execute, identity)];
    while (extent != NULL && extent->identity != identity) {
        extent = extent->next_same;
    }
    if (extent == NULL || extent->version != version || extent->is_canceled) {
        return NULL;
    }
    extent->handles++;
    extent->last_serial = ++execute->clock;
    extent->last_frame_serial = frame->serial;
    extent->pending += extent->state == MS__EXTENT_FETCHING || extent->state == MS__EXTENT_FETCHED;
    return extent;
}

/* ---- lists -------------------------------------------------------------------------- */

static void saved_append(ms_execute *execute, ms_extent *extent)
{
    extent->next = NULL;
    extent->previous = execute->saved.last;
    *(extent->previous != NULL ? &extent->previous->next : &execute->saved.first) = extent;
    execute->saved.last = extent;
}

static void saved_remove(ms_execute *execute, ms_extent *extent)
{
    *(extent->previous != NULL ? &extent->previous->next : &execute->saved.first) = extent->next;
    *(extent->next != NULL ? &extent->next->previous : &execute->saved.last) = extent->previous;
}

static void storing_append(ms_execute *execute, ms_extent *extent)
{
    extent->next_storing = NULL;
    extent->previous_storing = execute->storing.last;
    *(extent->previous_storing != NULL ? &extent->previous_storing->next_storing : &execute->storing.first) = extent;
    execute->storing.last = extent;
    execute->storing_bytes += extent->bytes;
}

static void storing_remove(ms_execute *execute, ms_extent *extent)
{
    *(extent->previous_storing != NULL ? &extent->previous_storing->next_storing : &execute->storing.first) =
        extent->next_storing;
    *(extent->next_storing != NULL ? &extent->next_storing->previous_storing : &execute->storing.last) =
        extent->previous_storing;
    execute->storing_bytes -= extent->bytes;
}

void ms__back_add(ms_execute *execute, ms_extent *extent)
{
    extent->next_back = NULL;
    extent->previous_back = execute->back.last;
    *(extent->previous_back != NULL ? &extent->previous_back->next_back : &execute->back.first) = extent;
    execute->back.last = extent;
    execute->back_bytes += extent->bytes;
}

void ms__back_remove(ms_execute *execute, ms_extent *extent)
{
    *(extent->previous_back != NULL ? &extent->previous_back->next_back : &execute->back.first) = extent->next_back;
    *(extent->next_back != NULL ? &extent->next_back->previous_back : &execute->back.last) = extent->previous_back;
    execute->back_bytes -= extent->bytes;
    if (extent->is_ahead) {
        extent->is_ahead = false;
        execute->ahead_bytes -= extent->bytes;
    }
}

/* ---- life ------------------------------------------------------------------------------ */

/* Frees an extent without handles, pins and transfers. The host's references are released last,
 * since releasing them may run any code. */
void ms__extent_free_if_unused(ms_execute *execute, ms_extent *extent)
{
    if (extent->handles > 0 || extent->pins > 0 || extent->state == MS__EXTENT_STORING ||
        extent->state == MS__EXTENT_FETCHING) {
        return;
    }
    if (extent->state == MS__EXTENT_FETCHED) {
        ms__back_remove(execute, extent);
    }
    bucket_remove(execute, extent);
    saved_remove(execute, extent);
    execute->live_extents--;
    if (extent->ticket != 0) {
        ms_offload_drop(execute->tier, extent->ticket);
    }
    ms__extent_forget_bits(execute, extent);
    void *source = extent->source, *landing = extent->landing;
    ms_free(extent);
    if (landing != NULL) {
        execute->host.release(execute->host.context, landing);
    }
    execute->host.release(execute->host.context, source);
}

/* Called when its store has ended. */
static void extent_store_ended(ms_execute *execute, ms_extent *extent)
{
    storing_remove(execute, extent);
    if (ms_offload_state(execute->tier, extent->ticket) == MS_TICKET_FAILED) {
        ms_error err = {0};
        int rc = ms_offload_wait(execute->tier, extent->ticket, &err);
        ms_offload_drop(execute->tier, extent->ticket);
        extent->ticket = 0;
        extent->state = MS__EXTENT_HELD;
        if (!extent->is_canceled) {
            ms__tier_failed(execute, rc, err.text);
        }
    } else {
        extent->state = MS__EXTENT_STORED;
        ms_counter_add(&execute->counters, MS_COUNTER_OFFLOADED_STORAGES, 1);
        ms_counter_add(&execute->counters, MS_COUNTER_OFFLOADED_BYTES, extent->bytes);
        if (ms_offload_tier_of(execute->tier, extent->ticket) == MS_TIER_DISK) {
            ms_counter_add(&execute->counters, MS_COUNTER_DISK_BYTES, extent->bytes);
        }
        extent->pins++;
        execute->host.weaken(execute->host.context, extent->source);
        extent->pins--;
    }
    ms__extent_free_if_unused(execute, extent);
}

static ms_extent *storing_find(const ms_execute *execute, ms_ticket ticket)
{
    ms_extent *extent = execute->storing.first;
    while (extent != NULL && extent->ticket != ticket) {
        extent = extent->next_storing;
    }
    return extent;
}

void ms_execute_poll(ms_execute *execute)
{
    if (execute->tier == NULL) {
        return;
    }
    ms_ticket tickets[32];
    size_t count;
    while (execute->storing.first != NULL && (count = ms_offload_reap(execute->tier, tickets, 32)) > 0) {
        for (size_t i = 0; i < count; i++) {
            ms_extent *extent = storing_find(execute, tickets[i]);
            if (extent != NULL) {
                extent_store_ended(execute, extent);
            }
        }
    }
    if (execute->back.first != NULL) {
        ms__fetches_poll(execute);
    }
}

/* Handles the end of `extent`'s store after a wait, success or not. */
static void extent_settle(ms_execute *execute, ms_extent *extent)
{
    if (extent->state == MS__EXTENT_STORING && ms_offload_state(execute->tier, extent->ticket) != MS_TICKET_STORING) {
        extent_store_ended(execute, extent);
    } else {
        ms__extent_free_if_unused(execute, extent);
    }
    ms_execute_poll(execute);
}

/* may wait: for room in the write window. */
static void write_window_wait(ms_execute *execute, uint64_t bytes)
{
    ms_execute_poll(execute);
    while (execute->storing.first != NULL && execute->storing_bytes + bytes > execute->write_window_bytes) {
        ms_error err;
        /* extent_settle() handles a failed store. */
        ms_extent *oldest = execute->storing.first;
        int rc = ms__extent_wait(execute, oldest, MS_COUNTER_FORWARD_STALL_NS, &err);
        extent_settle(execute, oldest);
        if (rc == MS_ETIMEDOUT) {
            break; /* the tier hangs: the window cannot be kept */
        }
    }
}

/* may wait */
void ms__stores_finish(ms_execute *execute)
{
    if (!execute->host_is_device && execute->is_in_step) {
        write_window_wait(execute, UINT64_MAX - execute->storing_bytes);
    }
}

static int extent_store_start(ms_execute *execute, ms_extent *extent, const void *address, uint64_t capacity,
                              ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    void *stream = !execute->host_is_device ? host->stream(host->context) : NULL;
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    int rc = !execute->host_is_device
                 ? ms_offload_store_on(execute->tier, stream, address, extent->bytes, &extent->ticket, err)
                 : ms_offload_store(execute->tier, address, extent->bytes, capacity, &extent->ticket, err);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
    return rc;
}

void ms__extent_enroll(ms_execute *execute, ms_extent *extent)
{
    (void)ms__extents_have_room(execute); /* grows the buckets for extents that came meanwhile */
    extent->serial = extent->last_serial = ++execute->clock;
    extent->last_frame_serial = extent->frame_serial;
    size_t at = bucket_of(execute, extent->identity);
    extent->next_same = execute->buckets[at];
    execute->buckets[at] = extent;
    saved_append(execute, extent);
    execute->live_extents++;
}

int ms_extent_store(ms_execute *execute, ms_frame *frame, uintptr_t identity, uint64_t version, const void *address,
                    uint64_t bytes, uint64_t capacity, void *memory, ms_extent **extent, ms_error *err)
{
    *extent = NULL;
    (void)err;
    uint64_t frame_serial = frame->serial;
    bool is_kept = ms_frame_rest_stays(frame);
    *extent = ms__extent_pack(execute, frame, identity, version, address, bytes, memory);
    if (*extent != NULL || is_kept) {
        return MS_OK;
    }
    write_window_wait(execute, bytes);
    if (!ms__tier_usable(execute)) {
        ms_counter_add(&execute->counters, MS_COUNTER_TIER_FALLBACKS, 1);
        return MS_OK;
    }
    /* Allocate first: once the store runs only the store itself may fail, because undoing it would
     * mean waiting for it. */
    ms_extent *made = ms__extents_have_room(execute) ? ms_calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        ms__tier_failed(execute, MS_ENOSPC, "out of memory");
        return MS_OK;
    }
    made->identity = identity;
    made->version = version;
    made->bytes = bytes;
    made->frame_serial = frame_serial;
    made->source = memory;
    made->handles = 1;
    ms_error store_err = {0};
    int rc = extent_store_start(execute, made, address, capacity, &store_err);
    if (rc != MS_OK) {
        ms_free(made);
        ms__tier_failed(execute, rc, store_err.text);
        return MS_OK;
    }
    made->state = MS__EXTENT_STORING;
    ms__extent_enroll(execute, made);
    storing_append(execute, made);
    if (ms_offload_state(execute->tier, made->ticket) != MS_TICKET_STORING) {
        /* Another thread may have reaped the ticket before it was in the list. */
        extent_store_ended(execute, made);
    }
    *extent = made;
    return MS_OK;
}

void *ms_extent_source(const ms_extent *extent)
{
    return extent->source;
}

bool ms_extent_is_packed(const ms_extent *extent)
{
    return extent->packed != NULL || extent->bits != NULL;
}

void ms_extent_drop(ms_execute *execute, ms_extent *extent, uint64_t mark)
{
    bool is_back = extent->state == MS__EXTENT_FETCHING || extent->state == MS__EXTENT_FETCHED;
    if (is_back && mark != extent->epoch) {
        extent->pending--;
    }
    bool is_in_flight = extent->state == MS__EXTENT_STORING || extent->state == MS__EXTENT_FETCHING;
    if (--extent->handles == 0 && is_in_flight) {
        /* After an exception, or for a graph that was never used, waiting transfers are cancelled. */
        extent->is_unwanted = extent->state == MS__EXTENT_FETCHING;
        extent->is_canceled = true;
        ms_offload_cancel(execute->tier, extent->ticket);
    }
    ms__extent_free_if_unused(execute, extent);
}

/* may wait */
void ms__extents_drain(ms_execute *execute)
{
    ms_execute_poll(execute);
    ms_extent *extent = execute->saved.first;
    while (extent != NULL) {
        bool in_flight = extent->state == MS__EXTENT_STORING || extent->state == MS__EXTENT_FETCHING;
        if (extent->handles > 0 || extent->pins > 0 || !in_flight) {
            extent = extent->next;
            continue;
        }
        ms_error err;
        int rc = ms__extent_wait(execute, extent, MS_COUNTER_BACKWARD_STALL_NS, &err);
        extent_settle(execute, extent);
        if (rc == MS_ETIMEDOUT) {
            return;
        }
        extent = execute->saved.first;
    }
}
