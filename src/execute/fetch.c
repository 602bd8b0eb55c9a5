/*
 * Extents on their way back: handing out bytes in backward, prefetching, and releasing fetched
 * bytes. Called from unpack and between steps.
 */
#include "execute/execute_internal.h"

/* Extents examined when searching for one to prefetch; more would cost time at every saved tensor
 * if others keep many alive. */
enum { PREFETCH_LOOK_MAX = 256 };

/* ---- releasing ------------------------------------------------------------------- */

void ms__extent_release_landing(ms_execute *execute, ms_extent *extent, bool forget)
{
    void *landing = extent->landing;
    ms__back_remove(execute, extent);
    extent->state = MS__EXTENT_STORED;
    extent->pins++;
    if (forget) {
        extent->landing = NULL;
        execute->host.release(execute->host.context, landing);
    } else {
        execute->host.weaken(execute->host.context, landing);
    }
    extent->pins--;
    ms__extent_free_if_unused(execute, extent);
}

/* Releases extents that every live handle has taken, outside backward's current frame: only a
 * retained graph still has handles then. */
void ms__fetched_retire(ms_execute *execute, uint64_t current_frame)
{
    ms_extent *extent = execute->back.first;
    while (extent != NULL) {
        bool is_done = extent->state == MS__EXTENT_FETCHED && extent->pending == 0 && extent->pins == 0 &&
                       extent->frame_serial != current_frame;
        if (!is_done) {
            extent = extent->next_back;
            continue;
        }
        ms__extent_release_landing(execute, extent, false);
        extent = execute->back.first;
    }
}

void ms__fetched_release_all(ms_execute *execute)
{
    ms_extent *extent = execute->back.first;
    while (extent != NULL) {
        if (extent->pins > 0) {
            extent = extent->next_back;
            continue;
        }
        if (extent->state == MS__EXTENT_FETCHING) {
            extent->is_unwanted = true;
            extent = extent->next_back;
            continue;
        }
        /* A holder that took it may still use it: then it can be found again. */
        ms__extent_release_landing(execute, extent, extent->is_ahead);
        extent = execute->back.first;
    }
}

/* ---- the end of a fetch --------------------------------------------------------------- */

/* Handles the end of the transfer; releases the landing of a failed one. */
static int fetch_ended(ms_execute *execute, ms_extent *extent, ms_error *err)
{
    if (ms_offload_state(execute->tier, extent->ticket) == MS_TICKET_FAILED) {
        int rc = ms_offload_wait(execute->tier, extent->ticket, err);
        extent->is_unwanted = false;
        ms__extent_release_landing(execute, extent, true);
        return rc != MS_OK ? rc : MS_EIO;
    }
    extent->state = MS__EXTENT_FETCHED;
    ms_counter_add(&execute->counters, MS_COUNTER_FETCHED_BYTES, extent->bytes);
    /* A GPU's copy may only be queued. On the stream that the landing was allocated for, whatever uses it next
     * comes after the copy: so it may be released at any time. */
    return execute->host_is_device ? MS_OK : ms_offload_order(execute->tier, extent->stream, extent->ticket, err);
}

void ms__fetches_poll(ms_execute *execute)
{
    ms_extent *extent = execute->back.first;
    while (extent != NULL) {
        bool is_due = extent->is_unwanted && extent->state == MS__EXTENT_FETCHING && extent->pins == 0 &&
                      ms_offload_state(execute->tier, extent->ticket) != MS_TICKET_FETCHING;
        if (!is_due) {
            extent = extent->next_back;
            continue;
        }
        extent->is_unwanted = false;
        extent->pins++;
        if (fetch_ended(execute, extent, NULL) == MS_OK) {
            ms__extent_release_landing(execute, extent, true);
        }
        extent->pins--;
        ms__extent_free_if_unused(execute, extent);
        extent = execute->back.first;
    }
}

int ms__extent_wait(ms_execute *execute, ms_extent *extent, ms_counter stall, ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    uint64_t begun_ns = ms_now_ns();
    extent->pins++;
    if (host->unlock != NULL) {
        host->unlock(host->context);
    }
    int rc = ms_offload_wait_queued(execute->tier, extent->ticket, err);
    if (host->lock != NULL) {
        host->lock(host->context);
    }
    extent->pins--;
    ms_counter_add(&execute->counters, stall, ms_now_ns() - begun_ns);
    return rc;
}

/* ---- starting a fetch ------------------------------------------------------------------ */

static void extent_bring_back(ms_execute *execute, ms_extent *extent, void *memory, ms__extent_state state)
{
    extent->landing = memory;
    extent->state = (uint8_t)state;
    extent->is_unwanted = false;
    extent->epoch++;
    extent->pending = extent->handles;
    ms__back_add(execute, extent);
}

/* may wait. Unpacks bits, without a transfer: the bytes are there on return, or on a GPU come next on this stream. */
static int unpack_into(ms_execute *execute, ms_extent *extent, void *memory, void *address, ms_error *err)
{
    int rc = ms__extent_unpack(execute, extent, memory, address, err);
    if (rc != MS_OK) {
        execute->host.release(execute->host.context, memory);
        return rc;
    }
    if (extent->state != MS__EXTENT_STORED || extent->landing != NULL) {
        /* Another thread unpacked it at the same time. */
        execute->host.release(execute->host.context, memory);
        return MS_OK;
    }
    extent_bring_back(execute, extent, memory, MS__EXTENT_FETCHED);
    return MS_OK;
}

static int fetch_into(ms_execute *execute, ms_extent *extent, void *address, uint64_t capacity, ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    if (execute->host_is_device) {
        return ms_offload_fetch(execute->tier, extent->ticket, address, capacity, err);
    }
    extent->stream = host->stream(host->context);
    return ms_offload_fetch_on(execute->tier, extent->stream, extent->ticket, address, capacity, err);
}

/* The calling thread may work on another stream than the one that the landing was allocated for. */
static int order_here(ms_execute *execute, const ms_extent *extent, const void *found, ms_error *err)
{
    const ms_execute_host *host = &execute->host;
    if (execute->host_is_device || found != extent->landing) {
        return MS_OK;
    }
    if (extent->bits != NULL) {
        return host->order(host->context, extent->bits, err);
    }
    void *stream = host->stream(host->context);
    return stream == extent->stream ? MS_OK : ms_offload_order(execute->tier, stream, extent->ticket, err);
}

/* The extent is pinned. Another fetch of it may already run on return. */
static int fetch_start(ms_execute *execute, ms_extent *extent, ms_error *err)
{
    void *memory, *address;
    uint64_t capacity;
    if (extent->landing != NULL) {
        void *landing = extent->landing;
        extent->landing = NULL;
        execute->host.release(execute->host.context, landing);
    }
    int rc = execute->host.obtain(execute->host.context, extent->bytes, &memory, &address, &capacity, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (extent->state != MS__EXTENT_STORED || extent->landing != NULL) {
        /* Another thread started the fetch while the host allocated. */
        execute->host.release(execute->host.context, memory);
        return MS_OK;
    }
    if (ms_extent_is_packed(extent)) {
        return unpack_into(execute, extent, memory, address, err);
    }
    rc = fetch_into(execute, extent, address, capacity, err);
    if (rc != MS_OK) {
        execute->host.release(execute->host.context, memory);
        return rc;
    }
    extent_bring_back(execute, extent, memory, MS__EXTENT_FETCHING);
    return MS_OK;
}
/* Whether the bytes are still in memory without a fetch. The caller has one pin. */
static bool extent_is_alive(ms_execute *execute, ms_extent *extent)
{
    const ms_execute_host *host = &execute->host;
    if (extent->pins > 1) {
        return true; /* being handed out */
    }
    if (host->strengthen(host->context, extent->source)) {
        host->weaken(host->context, extent->source);
        return true;
    }
    if (extent->landing != NULL && host->strengthen(host->context, extent->landing)) {
        host->weaken(host->context, extent->landing);
        return true;
    }
    return false;
}

/* Prefetches one pinned extent if that is due. False if the window has no room. */
static bool prefetch_one(ms_execute *execute, ms_extent *extent, uint64_t serial, uint64_t frame_serial)
{
    /* A layer's backward starts with the tensors it saved first, so all of its own are fetched before
     * other layers'. */
    bool is_ahead = extent->serial < serial || extent->frame_serial == frame_serial;
    bool is_due = is_ahead && extent->state == MS__EXTENT_STORED && extent->handles > 0 &&
                  !ms_extent_is_packed(extent); /* bits need no transfer */
    if (!is_due || extent_is_alive(execute, extent)) {
        return true;
    }
    if (execute->ahead_bytes + extent->bytes > execute->read_window_bytes) {
        return false;
    }
    uint64_t epoch = extent->epoch;
    int rc = fetch_start(execute, extent, NULL);
    if (rc == MS_OK && extent->epoch == epoch + 1 && extent->state == MS__EXTENT_FETCHING) {
        extent->is_ahead = true;
        execute->ahead_bytes += extent->bytes;
    }
    return rc == MS_OK;
}

void ms__prefetch_before(ms_execute *execute, uint64_t serial, uint64_t frame_serial)
{
    if (execute->read_window_bytes == 0 || (!execute->host_is_device && execute->is_in_step)) {
        return;
    }
    ms_extent *extent = execute->saved.last;
    bool goes_on = true;
    for (uint32_t looked = 0; goes_on && extent != NULL && looked < PREFETCH_LOOK_MAX; looked++) {
        /* Allocating may let other threads in: the pin keeps the place in the list. */
        extent->pins++;
        goes_on =
            execute->ahead_bytes < execute->read_window_bytes && prefetch_one(execute, extent, serial, frame_serial);
        ms_extent *before = extent->previous;
        if (before != NULL) {
            before->pins++;
        }
        extent->pins--;
        ms__extent_free_if_unused(execute, extent);
        if (before != NULL) {
            before->pins--;
        }
        extent = before;
    }
    if (extent != NULL) {
        ms__extent_free_if_unused(execute, extent);
    }
}

/* ---- taking ---------------------------------------------------------------------------- */

/* Bytes that are in memory already, or NULL. */
static void *extent_find_alive(ms_execute *execute, ms_extent *extent, bool *weak_again)
{
    const ms_execute_host *host = &execute->host;
    *weak_again = false;
    if (extent->state == MS__EXTENT_STORING || extent->state == MS__EXTENT_HELD) {
        return extent->source;
    }
    if (extent->state == MS__EXTENT_FETCHED) {
        return extent->landing;
    }
    *weak_again = true;
    if (host->strengthen(host->context, extent->source)) {
        return extent->source;
    }
    if (extent->state == MS__EXTENT_STORED && extent->landing != NULL &&
        host->strengthen(host->context, extent->landing)) {
        return extent->landing;
    }
    return NULL;
}

/* may wait: until the bytes are there or the fetch has failed. */
static int extent_fetch_now(ms_execute *execute, ms_extent *extent, ms_error *err)
{
    int rc = extent->state == MS__EXTENT_STORED ? fetch_start(execute, extent, err) : MS_OK;
    if (rc != MS_OK || extent->state != MS__EXTENT_FETCHING) {
        return rc;
    }
    extent->is_unwanted = false;
    rc = ms__extent_wait(execute, extent, MS_COUNTER_BACKWARD_STALL_NS, err);
    if (extent->state != MS__EXTENT_FETCHING) {
        return MS_OK; /* another thread handled its end: check again */
    }
    if (ms_offload_state(execute->tier, extent->ticket) == MS_TICKET_FETCHING) {
        return rc != MS_OK ? rc : ms_fail(err, MS_ETIMEDOUT, "a fetch did not end");
    }
    return fetch_ended(execute, extent, err);
}

int ms_extent_take(ms_execute *execute, ms_extent *extent, void **memory, ms_error *err)
{
    bool weak_again;
    int rc = MS_OK;
    extent->pins++;
    ms__enter_backward_frame(execute, extent->frame_serial);
    ms_execute_poll(execute);
    if (extent->state == MS__EXTENT_STORED && !extent_is_alive(execute, extent)) {
        rc = fetch_start(execute, extent, err);
    }
    if (rc == MS_OK) {
        ms__prefetch_before(execute, extent->last_serial, extent->last_frame_serial);
    }
    /* No other thread can run between a successful find and the return. */
    void *found = NULL;
    while (rc == MS_OK && (found = extent_find_alive(execute, extent, &weak_again)) == NULL) {
        rc = extent_fetch_now(execute, extent, err);
    }
    if (rc == MS_OK) {
        rc = order_here(execute, extent, found, err);
    }
    if (rc != MS_OK) {
        extent->pins--;
        ms__extent_free_if_unused(execute, extent);
        return rc;
    }
    if (weak_again) {
        extent->lent = found; /* the last taken() weakens it */
    }
    *memory = found;
    return MS_OK;
}

void ms_extent_taken(ms_execute *execute, ms_extent *extent, uint64_t *mark)
{
    bool is_back = extent->state == MS__EXTENT_FETCHING || extent->state == MS__EXTENT_FETCHED;
    if (is_back && *mark != extent->epoch) {
        *mark = extent->epoch;
        extent->pending--;
        if (extent->is_ahead) {
            extent->is_ahead = false;
            execute->ahead_bytes -= extent->bytes;
        }
    }
    if (extent->pins == 1 && extent->lent != NULL) {
        void *lent = extent->lent;
        extent->lent = NULL;
        execute->host.weaken(execute->host.context, lent);
    }
    extent->pins--;
    ms__extent_free_if_unused(execute, extent);
}
