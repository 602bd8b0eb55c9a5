/*
 * The host tier: an extent is a private map, a transfer a copy. Takes what leaves a device
 * with its own memory, and lets every test of the engine run without a disk.
 */
#include "offload/backend.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/os/map.h"
#include "base/thread.h"
#include "base/units.h"

typedef struct memory_backend {
    ms__backend base; /* first */
    uint64_t cap_bytes;
    ms__mutex lock; /* guards used_bytes */
    uint64_t used_bytes;
} memory_backend;

static int memory_open(const ms__backend_options *options, ms__backend **backend, ms_error *err)
{
    memory_backend *self = ms_calloc(1, sizeof *self);
    if (self == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for the memory backend");
    }
    self->base.ops = &ms__backend_memory;
    self->base.block_bytes = ms__page_bytes();
    self->base.address_alignment = ms__page_bytes();
    self->base.lane_depth = 1;
    self->base.lane_max = 16;
    self->cap_bytes = options->cap_bytes;
    ms__mutex_init(&self->lock);
    snprintf(self->base.place, sizeof self->base.place, "host tier");
    snprintf(self->base.description, sizeof self->base.description, "private maps in host memory");
    *backend = &self->base;
    return MS_OK;
}

static void memory_close(ms__backend *backend)
{
    memory_backend *self = (memory_backend *)backend;
    ms__mutex_destroy(&self->lock);
    ms_free(self);
}

static void memory_forget(ms__backend *backend)
{
    ms_free(backend);
}

static bool memory_count_in(memory_backend *self, uint64_t bytes)
{
    ms__mutex_lock(&self->lock);
    bool fits = bytes <= ms__sub_sat(self->cap_bytes, self->used_bytes);
    if (fits) {
        self->used_bytes += bytes;
    }
    ms__mutex_unlock(&self->lock);
    return fits;
}

static void memory_count_out(memory_backend *self, uint64_t bytes)
{
    ms__mutex_lock(&self->lock);
    self->used_bytes -= bytes;
    ms__mutex_unlock(&self->lock);
}

static int memory_reserve(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err)
{
    memory_backend *self = (memory_backend *)backend;
    if (!memory_count_in(self, bytes)) {
        return ms_fail(err, MS_ENOSPC, "host tier: %s more would exceed the cap of %s", ms__text_bytes(bytes).text,
                       ms__text_bytes(self->cap_bytes).text);
    }
    void *address = NULL;
    bool is_large = bytes >= MS__HUGE_PAGE_BYTES;
    int rc = ms__map(bytes, is_large ? MS__HUGE_PAGE_BYTES : ms__page_bytes(), &address, err);
    if (rc != MS_OK) {
        memory_count_out(self, bytes);
        return rc;
    }
    if (is_large) {
        (void)ms__map_want_huge_pages(address, bytes);
    }
    (void)ms__map_no_fork(address, bytes);
    *position = (uintptr_t)address;
    return MS_OK;
}

static void memory_release(ms__backend *backend, uint64_t position, uint64_t bytes)
{
    ms__unmap((void *)(uintptr_t)position, bytes);
    memory_count_out((memory_backend *)backend, bytes);
}

/* The copy; fails as a test asks. */
static void memory_move(ms__io *io)
{
    bool is_write = io->direction == MS__WRITE;
    int failure = EIO;
    if (ms__fault(is_write ? MS_FAULT_WRITE : MS_FAULT_READ, &failure)) {
        io->system_errno = failure != 0 ? failure : EIO;
        return;
    }
    uint64_t bytes = ms__fault(MS_FAULT_SHORT, NULL) ? io->bytes / 2 : io->bytes;
    unsigned char *extent = (unsigned char *)(uintptr_t)io->position;
    memcpy(is_write ? extent : io->memory, is_write ? io->memory : extent, bytes);
    if (!is_write && bytes > 0 && ms__fault(MS_FAULT_FLIP, NULL)) {
        io->memory[bytes / 2] ^= 0x10;
    }
    io->moved_bytes = bytes;
}

static ms__io *memory_finish(ms__lane *lane)
{
    ms__io *io = lane->started;
    lane->started = NULL;
    memory_move(io);
    return io;
}

const ms__backend_ops ms__backend_memory = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .forget = memory_forget,
    .reserve = memory_reserve,
    .release = memory_release,
    .lane_open = ms__plain_lane_open,
    .lane_close = ms__plain_lane_close,
    .start = ms__plain_start,
    .finish = memory_finish,
};
