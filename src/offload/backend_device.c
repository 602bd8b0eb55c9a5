/*
 * Moves bytes between a device's memory and host memory or the spill file (device_host.h).
 *
 * Streams and order. Copies run on streams of the engine that do not wait for the legacy
 * default stream. A transfer begins after an event that its call recorded on the caller's
 * stream: by then the bytes are computed, and memory that torch reused is no longer read.
 *
 * A store has ended only when a lane has waited for the event after its copy. The caller holds the
 * storage until it learns of the end. Work that it queues afterwards comes later on every stream, so
 * torch may then reuse the storage.
 *
 * A fetch from pinned memory is handed over as soon as its copy is queued, with the event after the
 * copy: streams wait for that event, and no thread does. A store may get the
 * fetch's host memory before the copy has read it; so each copy to the host begins after all copies
 * to the device that were queued before. Other fetches end like stores, because the disk's staging
 * memory is reused and pageable memory is unmapped.
 *
 * Bytes on their way to disk are hashed here, since the engine cannot read a device's memory: when
 * they have arrived on the host, and again before they go back. Bytes that stay in host memory are
 * not: a core hashes 10 GB/s, and a link moves 55.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/os/map.h"
#include "base/units.h"
#include "offload/device_host.h"
#include "offload/slab.h"

/* Two, so that a lane's next copy is on the link while the host checks the previous one. */
enum { LANE_DEPTH = 2, LANES_MAX = 8, STREAMS_MAX = 64, STALLS_MAX = 8 };

/* Of a wait for an event. */
enum { POLL_FIRST_NS = 10 * 1000, POLL_MOST_NS = 500 * 1000 };

/* A pooled event, for marks and transfers. */
typedef struct device_event {
    void *event;
    struct device_event *next_free;
    struct device_event *next_made;
} device_event;

typedef struct device_backend {
    ms__backend base; /* first */
    ms__device device;
    ms__device_host host;
    ms__checksum_fn checksum;
    unsigned char *slab; /* pinned, for bytes on their way to disk; NULL: not pinned */
    void *streams[STREAMS_MAX];
    void *reads[STREAMS_MAX]; /* events after the last copy to the device on each stream */
    uint32_t stream_count;
    uint32_t lane_count; /* lanes opened so far */
    ms__mutex lock;      /* guards the events */
    device_event *made, *free;
} device_backend;

typedef struct under_way {
    ms__io *io;
    device_event *done;
    int system_errno; /* of its start; 0: the copy is on the stream */
} under_way;

typedef struct device_lane {
    ms__lane base; /* first */
    void *streams[2]; /* [ms__direction] */
    under_way entries[LANE_DEPTH]; /* in the order of their start */
    uint32_t count;
} device_lane;

/* ---- events ---------------------------------------------------------------------- */

/* Called in the context. NULL if the driver or memory refuses. */
static device_event *event_take(device_backend *self)
{
    ms__mutex_lock(&self->lock);
    device_event *event = self->free;
    if (event != NULL) {
        self->free = event->next_free;
    }
    ms__mutex_unlock(&self->lock);
    if (event != NULL) {
        return event;
    }
    event = ms_calloc(1, sizeof *event);
    if (event == NULL || MS__DEVICE_CALL(&self->device, event_open, &event->event) != 0) {
        ms_free(event);
        return NULL;
    }
    ms__mutex_lock(&self->lock);
    event->next_made = self->made;
    self->made = event;
    ms__mutex_unlock(&self->lock);
    return event;
}

static void event_give(device_backend *self, device_event *event)
{
    ms__mutex_lock(&self->lock);
    event->next_free = self->free;
    self->free = event;
    ms__mutex_unlock(&self->lock);
}

static int device_mark(ms__backend *backend, void *stream, void **mark, ms_error *err)
{
    device_backend *self = (device_backend *)backend;
    if (!ms__device_enter(&self->device)) {
        return ms_fail(err, MS_EIO, "%s: its context cannot be used", backend->place);
    }
    device_event *event = event_take(self);
    int failure =
        event == NULL ? MS__DEVICE_UNKNOWN : MS__DEVICE_CALL(&self->device, event_record, event->event, stream);
    ms__device_leave(&self->device);
    if (failure != 0) {
        if (event != NULL) {
            event_give(self, event);
        }
        return ms_fail(err, MS_EIO, "%s: no event on the caller's stream (driver error %d%s)", backend->place, failure,
                       self->device.kind->means(failure));
    }
    *mark = event;
    return MS_OK;
}

static void device_unmark(ms__backend *backend, void *mark)
{
    event_give((device_backend *)backend, mark);
}

/* Asks again and again: the driver's own wait has no deadline. The pauses grow with the wait: other threads need
 * the processor. After an error it goes on as long as the driver answers, because the copy still uses memory. */
static int event_await(const device_backend *self, const device_event *event, uint64_t deadline_ns, bool *has_ended)
{
    int first = MS__DEVICE_CALL(&self->device, event_query, event->event, has_ended), later = 0;
    for (uint64_t pause_ns = POLL_FIRST_NS; !*has_ended && later == 0 && ms_now_ns() < deadline_ns;
         pause_ns = ms__min_u64(2 * pause_ns, POLL_MOST_NS)) {
        ms__sleep_ns(pause_ns);
        later = self->device.kind->driver->event_query(&self->device, event->event, has_ended);
    }
    return first != 0 ? first : later;
}

static int device_await(ms__backend *backend, void *end, uint64_t deadline_ns, ms_error *err)
{
    device_backend *self = (device_backend *)backend;
    bool has_ended = false, is_refused = !ms__device_enter(&self->device);
    if (is_refused && self->device.kind->driver->enter(&self->device) != 0) { /* the first try may be a test's fault */
        return ms_fail(err, MS_EIO, "%s: its context cannot be used", backend->place);
    }
    int failure = event_await(self, end, deadline_ns, &has_ended);
    ms__device_leave(&self->device);
    if (failure == 0 && is_refused) {
        failure = MS__DEVICE_UNKNOWN;
    }
    if (!has_ended && failure == 0) {
        return ms_fail(err, MS_ETIMEDOUT, "%s: a queued fetch did not end in time", backend->place);
    }
    return failure == 0 ? MS_OK
                        : ms_fail(err, MS_EIO, "%s: a fetch failed (driver error %d%s)", backend->place, failure,
                                  self->device.kind->means(failure));
}

static int device_order(ms__backend *backend, void *stream, void *end, uint64_t deadline_ns, ms_error *err)
{
    device_backend *self = (device_backend *)backend;
    const device_event *event = end;
    int failure = MS__DEVICE_UNKNOWN;
    if (ms__device_enter(&self->device)) {
        failure = MS__DEVICE_CALL(&self->device, stream_wait, stream, event->event);
        ms__device_leave(&self->device);
    }
    /* Whatever it returns, the caller may use the fetch's memory: no copy may still write it. */
    return failure == 0 ? MS_OK : device_await(backend, end, deadline_ns, err);
}

/* ---- open and close ------------------------------------------------------------------ */

/* One per direction, so that the link is used both ways; one in all if the GPU has a single copy
 * engine. */
static uint32_t wanted_streams(const device_backend *self, const ms__backend_options *options)
{
    int engines = 0;
    if (options->stream_count > 0) {
        return (uint32_t)ms__min_u64(options->stream_count, STREAMS_MAX);
    }
    int failure = MS__DEVICE_CALL(&self->device, copy_engines, &engines);
    return failure == 0 && engines >= 2 ? 2 : 1;
}

/* Recorded at once: there is always one to wait for. */
static int open_read_event(device_backend *self, uint32_t stream)
{
    int failure = MS__DEVICE_CALL(&self->device, event_open, &self->reads[stream]);
    return failure != 0 ? failure
                        : MS__DEVICE_CALL(&self->device, event_record, self->reads[stream], self->streams[stream]);
}

/* Called in the context. */
static int open_streams(device_backend *self, const ms__backend_options *options, ms_error *err)
{
    uint32_t wanted = wanted_streams(self, options);
    while (self->stream_count < wanted) {
        int failure = MS__DEVICE_CALL(&self->device, stream_open, &self->streams[self->stream_count]);
        if (failure != 0) {
            return ms__device_fail(&self->device, failure, "no stream", err);
        }
        self->stream_count++;
        failure = open_read_event(self, self->stream_count - 1);
        if (failure != 0) {
            return ms__device_fail(&self->device, failure, "no event", err);
        }
    }
    return MS_OK;
}

/* Called in the context. Copies through pageable memory work too, only slower. */
static void pin_slab(device_backend *self, const ms__backend_options *options)
{
    if (!self->host.has_disk) {
        return;
    }
    ms__touch(options->slab, options->slab_bytes); /* for the same reason as in device_host.c */
    if (MS__DEVICE_CALL(&self->device, pin, options->slab, options->slab_bytes) == 0) {
        self->slab = options->slab;
    } else {
        ms__untouch(options->slab, options->slab_bytes);
    }
}

static void device_describe(device_backend *self)
{
    char memory[200] = "no host memory", disk[240] = "";
    const ms__device_host *host = &self->host;
    const ms__device *device = &self->device;
    if (host->cap_bytes == UINT64_MAX) {
        snprintf(memory, sizeof memory, "host memory, up to %s of it pinned", ms__text_bytes(host->pool_bytes).text);
    } else if (host->cap_bytes > 0) {
        snprintf(memory, sizeof memory, "%s of host memory, up to %s of it pinned",
                 ms__text_bytes(host->cap_bytes).text, ms__text_bytes(host->pool_bytes).text);
    }
    if (host->has_disk) {
        snprintf(disk, sizeof disk, ", then %.220s", host->spill.base.description);
    }
    snprintf(self->base.place, sizeof self->base.place, "%s of %s %u%s%.400s",
             host->cap_bytes > 0 ? "host tier" : "lower tier", device->kind->label, device->number,
             host->has_disk ? ", " : "", host->has_disk ? host->spill.base.place : "");
    snprintf(self->base.description, sizeof self->base.description, "%s %u to %s%s; %u copy stream%s",
             device->kind->label, device->number, memory, disk, self->stream_count, self->stream_count == 1 ? "" : "s");
}

static void close_driver_parts(device_backend *self)
{
    const ms__device *device = &self->device;
    const ms__device_driver *driver = device->kind->driver;
    bool is_entered = driver->enter(device) == 0;
    for (uint32_t i = 0; i < self->stream_count; i++) {
        (void)driver->stream_synchronize(device, self->streams[i]); /* for queued fetches: their memory goes */
        (void)driver->stream_close(device, self->streams[i]);
        if (self->reads[i] != NULL) {
            (void)driver->event_close(device, self->reads[i]);
        }
    }
    while (self->made != NULL) {
        device_event *event = self->made;
        self->made = event->next_made;
        (void)driver->event_close(device, event->event);
        ms_free(event);
    }
    if (self->slab != NULL) {
        (void)driver->unpin(device, self->slab);
    }
    if (is_entered) {
        ms__device_leave(&self->device);
    }
}

static void device_close(ms__backend *backend)
{
    device_backend *self = (device_backend *)backend;
    close_driver_parts(self);
    ms__device_host_close(&self->host);
    self->device.kind->driver->close(&self->device);
    ms__mutex_destroy(&self->lock);
    ms_free(self);
}

/* The driver is the parent's: nothing of it may be called here. */
static void device_forget(ms__backend *backend)
{
    device_backend *self = (device_backend *)backend;
    while (self->made != NULL) {
        device_event *event = self->made;
        self->made = event->next_made;
        ms_free(event);
    }
    ms__device_host_forget(&self->host);
    ms_free(self);
}

/* With device and host open. */
static int open_driver_parts(device_backend *self, const ms__backend_options *options, ms_error *err)
{
    if (!ms__device_enter(&self->device)) {
        return ms__device_fail(&self->device, MS__DEVICE_UNKNOWN, "its context cannot be used", err);
    }
    int rc = open_streams(self, options, err);
    if (rc == MS_OK) {
        pin_slab(self, options);
    }
    ms__device_leave(&self->device);
    return rc;
}

static int device_open(const ms__backend_options *options, ms__backend **backend, ms_error *err)
{
    const ms__device_kind *kind = ms__device_kind_of(options->device_kind);
    device_backend *self = ms_calloc(1, sizeof *self);
    if (self == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for the %s backend", kind->api);
    }
    self->device = (ms__device){.kind = kind, .number = options->device};
    int rc = kind->driver->open(&self->device, err);
    if (rc != MS_OK) {
        ms_free(self);
        return rc;
    }
    rc = ms__device_host_open(&self->host, &self->device, &ms__backend_device, options, err);
    if (rc != MS_OK) {
        self->device.kind->driver->close(&self->device);
        ms_free(self);
        return rc;
    }
    ms__mutex_init(&self->lock);
    self->checksum = options->checksum;
    rc = open_driver_parts(self, options, err);
    if (rc != MS_OK) {
        device_close(&self->base);
        return rc;
    }
    self->base.ops = &ms__backend_device;
    self->base.block_bytes = self->host.has_disk ? self->host.spill.base.block_bytes : ms__page_bytes();
    self->base.address_alignment = 1;
    self->base.lane_depth = LANE_DEPTH;
    self->base.lane_max = LANES_MAX;
    self->base.device_memory = true;
    device_describe(self);
    *backend = &self->base;
    return MS_OK;
}

static int device_reserve(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err)
{
    return ms__device_host_reserve(&((device_backend *)backend)->host, bytes, position, err);
}

static void device_release(ms__backend *backend, uint64_t position, uint64_t bytes)
{
    ms__device_host_release(&((device_backend *)backend)->host, position, bytes);
}

static ms_tier device_tier_of(uint64_t position)
{
    return ms__rung_of(position) == MS__RUNG_DISK ? MS_TIER_DISK : MS_TIER_HOST;
}

/* Lanes share the streams: half of the streams go down, half up. */
static int device_lane_open(ms__backend *backend, ms__lane **lane, ms_error *err)
{
    device_backend *self = (device_backend *)backend;
    device_lane *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a lane of the %s backend", self->device.kind->api);
    }
    uint32_t pair = self->lane_count++ % (uint32_t)ms__max_u64(self->stream_count / 2, 1);
    made->base.backend = backend;
    made->streams[MS__WRITE] = self->streams[2 * pair];
    made->streams[MS__READ] = self->streams[self->stream_count > 1 ? 2 * pair + 1 : 0];
    *lane = &made->base;
    return MS_OK;
}

/* ---- the host's side of a transfer ------------------------------------------------------ */

/* Moves a piece to or from the spill file, in whole blocks, to its end. 0 or an errno. */
static int move_file(device_backend *self, const ms__io *io)
{
    const ms__file *file = &self->host.spill.file;
    uint64_t position = ms__device_offset(io->position), done = 0;
    uint32_t stalls = 0;
    while (done < io->bytes) {
        unsigned char *memory = io->staging + done;
        ssize_t moved = io->direction == MS__WRITE ? ms__os_pwrite(file->fd, memory, io->bytes - done, position + done)
                                                   : ms__os_pread(file->fd, memory, io->bytes - done, position + done);
        if (moved < 0) {
            return (int)-moved;
        }
        uint64_t ahead_bytes = (uint64_t)moved == io->bytes - done
                                   ? (uint64_t)moved
                                   : ms__align_down((uint64_t)moved, self->base.block_bytes);
        stalls = ahead_bytes > 0 ? 0 : stalls + 1;
        if (stalls > STALLS_MAX) {
            return EIO;
        }
        done += ahead_bytes;
    }
    return 0;
}

/* The host's end of the copy on the link. */
static unsigned char *host_side(device_backend *self, const ms__io *io)
{
    return ms__rung_of(io->position) == MS__RUNG_DISK ? io->staging : ms__device_address(&self->host, io->position);
}

static bool is_intact(const device_backend *self, const ms__io *io, const unsigned char *memory)
{
    return self->checksum == NULL || self->checksum(memory, io->payload_bytes) == io->checksum;
}

/* Before bytes of the disk go up: reads them to the host and checks them. 0 or an errno. */
static int read_disk(device_backend *self, const ms__io *io, const unsigned char *memory)
{
    int failure = move_file(self, io);
    return failure != 0 ? failure : is_intact(self, io, memory) ? 0 : EBADMSG;
}

/* After bytes for the disk came down: hashes and writes them. 0 or an errno. */
static int write_disk(device_backend *self, ms__io *io, unsigned char *memory)
{
    if (self->checksum != NULL) {
        io->checksum = self->checksum(memory, io->payload_bytes);
    }
    memset(memory + io->payload_bytes, 0, io->bytes - io->payload_bytes);
    return move_file(self, io);
}

/* ---- the link ------------------------------------------------------------------------------ */

/* The fault points that memory and file have in their calls; the disk has its own. */
static int refused_by_test(const ms__io *io)
{
    int failure = EIO;
    if (ms__rung_of(io->position) == MS__RUNG_DISK ||
        !ms__fault(io->direction == MS__WRITE ? MS_FAULT_WRITE : MS_FAULT_READ, &failure)) {
        return 0;
    }
    return failure != 0 ? failure : EIO;
}

static int copy_step(device_backend *self, void *stream, const ms__io *io, unsigned char *memory, uint64_t offset,
                     uint64_t bytes)
{
    uintptr_t device = (uintptr_t)io->memory + offset;
    return io->direction == MS__WRITE
               ? MS__DEVICE_CALL(&self->device, copy_to_host, memory + offset, device, bytes, stream)
               : MS__DEVICE_CALL(&self->device, copy_to_device, device, memory + offset, bytes, stream);
}

/* Queues the copy, in steps that registrations (and tests) bound. */
static int copy_queue(device_backend *self, void *stream, const ms__io *io, unsigned char *memory)
{
    int failure = 0;
    bool is_on_disk = ms__rung_of(io->position) == MS__RUNG_DISK;
    uint64_t step_bytes = !is_on_disk && io->payload_bytes > 1 && ms__fault(MS_FAULT_SHORT, NULL)
                              ? io->payload_bytes / 2
                              : io->payload_bytes;
    for (uint64_t at = 0; failure == 0 && at < io->payload_bytes;) {
        uint64_t bytes = ms__min_u64(step_bytes, io->payload_bytes - at);
        bytes = is_on_disk ? bytes : ms__device_reach(&self->host, io->position + at, bytes);
        failure = copy_step(self, stream, io, memory, at, bytes);
        at += bytes;
    }
    return failure;
}

/* The host memory that a copy is about to write may still be read by fetches: see the top. */
static int wait_for_reads(device_backend *self, void *stream)
{
    int failure = 0;
    for (uint32_t i = 0; failure == 0 && i < self->stream_count; i++) {
        if (self->streams[i] != stream) {
            failure = MS__DEVICE_CALL(&self->device, stream_wait, stream, self->reads[i]);
        }
    }
    return failure;
}

static int record_read(device_backend *self, void *stream)
{
    uint32_t i = 0;
    while (self->streams[i] != stream) {
        i++;
    }
    return MS__DEVICE_CALL(&self->device, event_record, self->reads[i], stream);
}

/* Called in the context. Waits for copies queued before a failure: the caller frees their memory. */
static int queue_all(device_backend *self, void *stream, under_way *entry, unsigned char *memory)
{
    const ms__io *io = entry->io;
    const device_event *mark = io->mark;
    entry->done = event_take(self);
    if (entry->done == NULL) {
        return EIO;
    }
    if (mark != NULL && MS__DEVICE_CALL(&self->device, stream_wait, stream, mark->event) != 0) {
        return EIO;
    }
    if (io->direction == MS__WRITE && wait_for_reads(self, stream) != 0) {
        return EIO;
    }
    if (copy_queue(self, stream, io, memory) == 0 &&
        MS__DEVICE_CALL(&self->device, event_record, entry->done->event, stream) == 0 &&
        (io->direction == MS__WRITE || record_read(self, stream) == 0)) {
        return 0;
    }
    (void)self->device.kind->driver->stream_synchronize(&self->device, stream);
    return EIO;
}

/* Starts the transfer. 0 or an errno. */
static int copy_begin(device_backend *self, void *stream, under_way *entry)
{
    unsigned char *memory = host_side(self, entry->io);
    int failure = refused_by_test(entry->io);
    if (failure == 0 && entry->io->direction == MS__READ && ms__rung_of(entry->io->position) == MS__RUNG_DISK) {
        failure = read_disk(self, entry->io, memory);
    }
    if (failure != 0) {
        return failure;
    }
    if (!ms__device_enter(&self->device)) {
        return EIO;
    }
    failure = queue_all(self, stream, entry, memory);
    ms__device_leave(&self->device);
    return failure;
}

static void device_start(ms__lane *lane, ms__io *io)
{
    device_lane *self = (device_lane *)lane;
    under_way *entry = &self->entries[self->count++];
    *entry = (under_way){.io = io};
    entry->system_errno = copy_begin((device_backend *)lane->backend, self->streams[io->direction], entry);
}

/* Waits for the copy. 0 or an errno. */
static int copy_await(device_backend *self, void *stream, const under_way *entry)
{
    if (!ms__device_enter(&self->device)) {
        /* Either a test's fault, or the context is gone and the copy with it. */
        if (self->device.kind->driver->enter(&self->device) != 0) {
            return EIO;
        }
        (void)self->device.kind->driver->stream_synchronize(&self->device, stream);
        ms__device_leave(&self->device);
        return EIO;
    }
    int failure = MS__DEVICE_CALL(&self->device, event_synchronize, entry->done->event);
    if (failure != 0) {
        (void)self->device.kind->driver->stream_synchronize(&self->device, stream);
    }
    ms__device_leave(&self->device);
    return failure != 0 ? EIO : 0;
}

static ms__io *device_finish(ms__lane *lane)
{
    device_lane *self = (device_lane *)lane;
    device_backend *backend = (device_backend *)lane->backend;
    under_way entry = self->entries[0];
    self->entries[0] = self->entries[1];
    self->count--;
    ms__io *io = entry.io;
    int failure = entry.system_errno;
    if (failure == 0 && io->direction == MS__READ && ms__rung_of(io->position) == MS__RUNG_PINNED) {
        io->end = entry.done;
        entry.done = NULL;
    } else if (failure == 0) {
        failure = copy_await(backend, self->streams[io->direction], &entry);
    }
    if (entry.done != NULL) {
        event_give(backend, entry.done);
    }
    if (failure == 0 && io->direction == MS__WRITE && ms__rung_of(io->position) == MS__RUNG_DISK) {
        failure = write_disk(backend, io, io->staging);
    }
    io->system_errno = failure;
    io->moved_bytes = failure == 0 ? io->bytes : 0;
    return io;
}

const ms__backend_ops ms__backend_device = {
    .name = "device",
    .open = device_open,
    .close = device_close,
    .forget = device_forget,
    .reserve = device_reserve,
    .release = device_release,
    .lane_open = device_lane_open,
    .lane_close = ms__plain_lane_close,
    .mark = device_mark,
    .unmark = device_unmark,
    .await = device_await,
    .order = device_order,
    .tier_of = device_tier_of,
    .start = device_start,
    .finish = device_finish,
};
