/*
 * The disk tier by io_uring: one lane keeps several pieces of the spill file under way,
 * so one thread hashes while the device moves. The slab is the ring's fixed buffer;
 * storages that are direct are named by address. Where the kernel has no ring for us,
 * open() says MS_ENOTSUP and the engine takes the file backend.
 */
#include <errno.h>
#include <time.h>

#include "base/fault.h"
#include "base/os/uring.h"
#include "base/units.h"
#include "offload/spill.h"

enum {
    DEPTH_MAX = 16,
    /* One transfer's length has 31 bits; a longer piece is resumed. */
    STEP_MAX_BYTES = 1 << 30,
    BUSY_PAUSE_NS = 1000 * 1000,
};

typedef struct uring_backend {
    ms__spill spill; /* first */
    ms__uring ring;
    unsigned char *slab;
    uint64_t slab_bytes;
} uring_backend;

/* A transfer between start() and finish(). */
typedef struct under_way {
    ms__io *io;
    bool is_short; /* a test asked for a part only */
} under_way;

typedef struct uring_lane {
    ms__lane base; /* first */
    ms__io *refused; /* ended before the kernel had them; a list */
    under_way slots[DEPTH_MAX];
} uring_lane;

/* ---- open and close ------------------------------------------------------------ */

/* Setting a ring up may be allowed and using it forbidden: only a write tells. */
static int try_a_ring(const uring_backend *self, ms_error *err)
{
    uint64_t block_bytes = self->spill.base.block_bytes, tag = 0;
    int32_t result = -EIO;
    ms__uring ring;
    int rc = ms__uring_open(&ring, 1, self->slab, block_bytes, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__uring_queue(&ring, &(ms__uring_transfer){.fd = self->spill.file.fd,
                                                 .is_write = true,
                                                 .is_registered = true,
                                                 .memory = self->slab,
                                                 .bytes = (uint32_t)block_bytes});
    int failure = ms__uring_enter(&ring);
    while (failure == EINTR) {
        failure = ms__uring_enter(&ring);
    }
    if (failure == 0 && ms__uring_next(&ring, &tag, &result) && result < 0) {
        failure = -result;
    }
    ms__uring_close(&ring);
    if (failure == 0 && result != (int32_t)block_bytes) {
        failure = EIO;
    }
    if (failure != 0) {
        ms_fail_errno(err, MS_ENOTSUP, failure, "the first write through an io_uring");
        return MS_ENOTSUP;
    }
    return MS_OK;
}

static int open_ring(uring_backend *self, uint32_t depth, ms_error *err)
{
    int rc = try_a_ring(self, err);
    return rc != MS_OK ? rc : ms__uring_open(&self->ring, depth, self->slab, self->slab_bytes, err);
}

static int uring_open(const ms__backend_options *options, ms__backend **backend, ms_error *err)
{
    uring_backend *self = ms_calloc(1, sizeof *self);
    if (self == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for the io_uring backend");
    }
    int rc = ms__spill_open(&self->spill, &ms__backend_uring, options, "io_uring", err);
    if (rc != MS_OK) {
        ms_free(self);
        return rc;
    }
    self->slab = options->slab;
    self->slab_bytes = options->slab_bytes;
    self->spill.base.lane_depth = (uint32_t)ms__min_u64(options->depth, DEPTH_MAX);
    self->spill.base.lane_max = 1;
    rc = open_ring(self, self->spill.base.lane_depth, err);
    if (rc != MS_OK) {
        ms__spill_close(&self->spill);
        ms_free(self);
        return rc;
    }
    *backend = &self->spill.base;
    return MS_OK;
}

static void uring_forget(ms__backend *backend)
{
    uring_backend *self = (uring_backend *)backend;
    ms__uring_close(&self->ring);
    ms__spill_forget(&self->spill);
    ms_free(self);
}

static void uring_close(ms__backend *backend)
{
    uring_backend *self = (uring_backend *)backend;
    ms__uring_close(&self->ring);
    ms__spill_close(&self->spill);
    ms_free(self);
}

static int uring_lane_open(ms__backend *backend, ms__lane **lane, ms_error *err)
{
    uring_lane *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a lane of the io_uring backend");
    }
    made->base.backend = backend;
    *lane = &made->base;
    return MS_OK;
}

/* ---- start ------------------------------------------------------------------------ */

static void refuse(uring_lane *self, ms__io *io, int system_errno)
{
    io->system_errno = system_errno;
    io->next = self->refused;
    self->refused = io;
}

static uint32_t free_slot(const uring_lane *self)
{
    uint32_t slot = 0;
    while (self->slots[slot].io != NULL) {
        slot++; /* there is one: at most lane_depth are started */
    }
    return slot;
}

/* Half of it, in whole blocks, where a test asks for a short transfer. */
static uint64_t bytes_to_ask_for(const ms__io *io, uint64_t block_bytes, bool *is_short)
{
    uint64_t bytes = ms__min_u64(io->bytes, STEP_MAX_BYTES);
    *is_short = ms__fault(MS_FAULT_SHORT, NULL);
    return *is_short ? ms__max_u64(ms__align_down(bytes / 2, block_bytes), block_bytes) : bytes;
}

static bool is_in_slab(const uring_backend *backend, const ms__io *io)
{
    uintptr_t slab = (uintptr_t)backend->slab, memory = (uintptr_t)io->memory;
    return memory >= slab && memory - slab < backend->slab_bytes;
}

static void uring_start(ms__lane *lane, ms__io *io)
{
    uring_lane *self = (uring_lane *)lane;
    uring_backend *backend = (uring_backend *)lane->backend;
    bool is_write = io->direction == MS__WRITE;
    int failure = EIO;
    if (ms__fault(is_write ? MS_FAULT_WRITE : MS_FAULT_READ, &failure)) {
        refuse(self, io, failure != 0 ? failure : EIO);
        return;
    }
    uint32_t slot = free_slot(self);
    under_way *entry = &self->slots[slot];
    entry->io = io;
    ms__uring_queue(&backend->ring,
                    &(ms__uring_transfer){
                        .fd = backend->spill.file.fd,
                        .is_write = is_write,
                        .is_registered = is_in_slab(backend, io),
                        .memory = io->memory,
                        .bytes = (uint32_t)bytes_to_ask_for(io, backend->spill.base.block_bytes, &entry->is_short),
                        .position = io->position,
                        .tag = slot,
                    });
}

/* ---- finish ----------------------------------------------------------------------- */

static ms__io *next_refused(uring_lane *self)
{
    ms__io *io = self->refused;
    if (io != NULL) {
        self->refused = io->next;
    }
    return io;
}

static ms__io *conclude(uring_lane *self, uint64_t slot, int32_t result)
{
    under_way *entry = &self->slots[slot];
    ms__io *io = entry->io;
    entry->io = NULL;
    io->system_errno = result < 0 ? -result : 0;
    io->moved_bytes = result > 0 ? (uint64_t)result : 0;
    if (io->moved_bytes > 0 && io->direction == MS__READ && ms__fault(MS_FAULT_FLIP, NULL)) {
        io->memory[io->moved_bytes / 2] ^= 0x10;
    }
    /* From an odd place, as a test's short transfer of the file backend goes on. */
    io->moved_bytes -= entry->is_short && io->moved_bytes > 0;
    return io;
}

/* The kernel did not take what was queued: it ends here. What it has taken is still its
 * own, and waited for in the next round. */
static void refuse_queued(uring_lane *self, ms__uring *ring, int failure)
{
    uint64_t slot;
    bool is_busy = failure == EAGAIN || failure == EBUSY;
    while (ms__uring_unqueue(ring, &slot)) {
        refuse(self, self->slots[slot].io, is_busy ? EAGAIN : failure);
        self->slots[slot].io = NULL;
    }
    if (is_busy || self->refused == NULL) {
        (void)nanosleep(&(struct timespec){.tv_nsec = BUSY_PAUSE_NS}, NULL);
    }
}

static ms__io *uring_finish(ms__lane *lane)
{
    uring_lane *self = (uring_lane *)lane;
    ms__uring *ring = &((uring_backend *)lane->backend)->ring;
    for (;;) {
        uint64_t slot;
        int32_t result;
        ms__io *io = next_refused(self);
        if (io != NULL) {
            return io;
        }
        if (ms__uring_next(ring, &slot, &result)) {
            return conclude(self, slot, result);
        }
        int failure = ms__uring_enter(ring);
        if (failure != 0 && failure != EINTR) {
            refuse_queued(self, ring, failure);
        }
    }
}

const ms__backend_ops ms__backend_uring = {
    .name = "io_uring",
    .fallback = &ms__backend_file,
    .open = uring_open,
    .close = uring_close,
    .forget = uring_forget,
    .reserve = ms__spill_reserve,
    .release = ms__spill_release,
    .lane_open = uring_lane_open,
    .lane_close = ms__plain_lane_close,
    .start = uring_start,
    .finish = uring_finish,
};
