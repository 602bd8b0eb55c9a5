/*
 * The disk tier: one unnamed spill file per engine, pread and pwrite by the
 * engine's threads, direct I/O where the file system has it. Extents come from
 * extents.h; the file is given disk blocks ahead of its extents, because a full
 * disk then shows before a byte is written, and because first writes into
 * allocated blocks may run side by side (measured on ext4: 2.5 against 2.25 GB/s).
 */
#include "offload/backend.h"

#include <errno.h>
#include <stdio.h>

#include "base/os/file.h"
#include "base/thread.h"
#include "base/units.h"
#include "offload/extents.h"

/* Blocks are asked for in steps of this, or one by one near the cap or a full disk. */
#define GROWTH_BYTES (UINT64_C(64) << 20)

/* No file can be longer; a multiple of every block size. */
#define POSITION_MAX ((uint64_t)INT64_MAX & ~UINT64_C(0xFFFFF))

typedef struct file_backend {
    ms__backend base; /* first */
    ms__file file;
    uint64_t cap_bytes;
    ms__mutex lock; /* guards what follows */
    ms__extents extents;
    uint64_t allocated_bytes; /* of the file, from its start */
} file_backend;

/* Some file systems take the flag and refuse the transfers: only a write tells. */
static int check_direct(ms__file *file, const ms__backend_options *options, ms_error *err)
{
    if (!file->is_direct) {
        return MS_OK;
    }
    if (options->slab_bytes < file->align_bytes) {
        return ms_fail(err, MS_EINVAL, "slots are smaller than the %zu bytes of a block in %s",
                       file->align_bytes, options->dir);
    }
    ssize_t moved = ms__os_pwrite(file->fd, options->slab, file->align_bytes, 0);
    if (moved == -EINVAL) {
        ms__file_close(file);
        return ms__file_open_unnamed(options->dir, false, file, err);
    }
    if (moved < 0 && moved != -EINTR) {
        return ms_fail_errno(err, MS_EIO, (int)-moved, "disk tier in %s: the first write failed",
                             options->dir);
    }
    return MS_OK;
}

static int open_spill_file(file_backend *self, const ms__backend_options *options, ms_error *err)
{
    int rc = ms__file_open_unnamed(options->dir, !options->no_direct_io, &self->file, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = check_direct(&self->file, options, err);
    if (rc != MS_OK) {
        ms__file_close(&self->file);
    }
    return rc;
}

static void describe(file_backend *self, const ms__backend_options *options)
{
    char cap[64] = "no cap";
    if (options->cap_bytes != UINT64_MAX) {
        snprintf(cap, sizeof cap, "cap %s", ms__text_bytes(options->cap_bytes).text);
    }
    /* A path may be longer than a message; its beginning says enough. */
    snprintf(self->base.place, sizeof self->base.place, "disk tier in %.400s", options->dir);
    snprintf(self->base.description, sizeof self->base.description,
             "unnamed file in %.400s, %s I/O, %s", options->dir,
             self->file.is_direct ? "direct" : "buffered", cap);
}

static int file_open(const ms__backend_options *options, ms__backend **backend, ms_error *err)
{
    file_backend *self = ms_calloc(1, sizeof *self);
    if (self == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for the file backend");
    }
    int rc = open_spill_file(self, options, err);
    if (rc != MS_OK) {
        ms_free(self);
        return rc;
    }
    self->base.ops = &ms__backend_file;
    /* Buffered transfers keep to blocks as well: one rule for callers, and what is
     * direct does not depend on the file system. */
    self->base.block_bytes = self->file.align_bytes;
    self->base.address_alignment = self->file.align_bytes;
    self->base.lane_depth = 1;
    self->base.lane_max = 16;
    self->cap_bytes = options->cap_bytes;
    uint64_t limit_bytes = ms__min_u64(options->cap_bytes, POSITION_MAX);
    ms__extents_init(&self->extents, ms__align_down(limit_bytes, self->base.block_bytes));
    ms__mutex_init(&self->lock);
    describe(self, options);
    *backend = &self->base;
    return MS_OK;
}

static void file_forget(ms__backend *backend)
{
    file_backend *self = (file_backend *)backend;
    ms__file_close(&self->file);
    ms__extents_destroy(&self->extents);
    ms_free(self);
}

static void file_close(ms__backend *backend)
{
    ms__mutex_destroy(&((file_backend *)backend)->lock);
    file_forget(backend);
}

/* Disk blocks up to the end of the last extent. */
static int grow(file_backend *self, ms_error *err)
{
    uint64_t end_bytes = self->extents.end_bytes;
    if (end_bytes <= self->allocated_bytes) {
        return MS_OK;
    }
    uint64_t ahead_bytes =
        ms__min_u64(ms__align_up(end_bytes, GROWTH_BYTES), self->extents.limit_bytes);
    if (ms__file_reserve(&self->file, ahead_bytes, NULL) == MS_OK) {
        self->allocated_bytes = ahead_bytes;
        return MS_OK;
    }
    int rc = ms__file_reserve(&self->file, end_bytes, err);
    if (rc == MS_OK) {
        self->allocated_bytes = end_bytes;
    }
    return rc;
}

static int reserve_locked(file_backend *self, uint64_t bytes, uint64_t *position, ms_error *err)
{
    int rc = ms__extents_reserve(&self->extents, bytes, position);
    if (rc == MS_ENOSPC) {
        return ms_fail(err, MS_ENOSPC, "%s: %s more would pass the cap of %s", self->base.place,
                       ms__text_bytes(bytes).text, ms__text_bytes(self->cap_bytes).text);
    }
    if (rc != MS_OK) {
        return ms_fail(err, rc, "%s: no memory for the list of free extents", self->base.place);
    }
    ms_error cause = {0};
    rc = grow(self, &cause);
    if (rc != MS_OK) {
        ms__extents_release(&self->extents, *position, bytes);
        return ms_fail_errno(err, rc, cause.system_errno, "%s: making room for %s failed",
                             self->base.place, ms__text_bytes(bytes).text);
    }
    return MS_OK;
}

static int file_reserve(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err)
{
    file_backend *self = (file_backend *)backend;
    uint64_t taken = 0;
    ms__mutex_lock(&self->lock);
    int rc = reserve_locked(self, bytes, &taken, err);
    ms__mutex_unlock(&self->lock);
    if (rc == MS_OK) {
        *position = taken;
    }
    return rc;
}

/* The blocks stay with the file for the next step: giving them back and asking
 * again costs more than they are worth while training runs. */
static void file_release(ms__backend *backend, uint64_t position, uint64_t bytes)
{
    file_backend *self = (file_backend *)backend;
    ms__mutex_lock(&self->lock);
    ms__extents_release(&self->extents, position, bytes);
    ms__mutex_unlock(&self->lock);
}

static ms__io *file_finish(ms__lane *lane)
{
    ms__io *io = lane->started;
    const ms__file *file = &((file_backend *)lane->backend)->file;
    lane->started = NULL;
    ssize_t moved = io->direction == MS__WRITE
                        ? ms__os_pwrite(file->fd, io->memory, io->bytes, io->position)
                        : ms__os_pread(file->fd, io->memory, io->bytes, io->position);
    io->moved_bytes = moved > 0 ? (uint64_t)moved : 0;
    io->system_errno = moved < 0 ? (int)-moved : 0;
    return io;
}

const ms__backend_ops ms__backend_file = {
    .name = "file",
    .open = file_open,
    .close = file_close,
    .forget = file_forget,
    .reserve = file_reserve,
    .release = file_release,
    .lane_open = ms__plain_lane_open,
    .lane_close = ms__plain_lane_close,
    .start = ms__plain_start,
    .finish = file_finish,
};
