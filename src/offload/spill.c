/*
 * The spill file. Extents come from extents.h. The file's disk blocks are allocated ahead of
 * its extents, so that a full disk shows before a byte is written, and because first writes
 * into allocated blocks may run in parallel (measured on ext4: 2.5 against 2.25 GB/s).
 */
#include "offload/spill.h"

#include <errno.h>
#include <stdio.h>

#include "base/units.h"

/* Blocks are allocated in steps of this, or one by one near the cap or on a nearly full disk. */
#define GROWTH_BYTES (UINT64_C(64) << 20)

/* No file can be longer; a multiple of every block size. */
#define POSITION_MAX ((uint64_t)INT64_MAX & ~UINT64_C(0xFFFFF))

/* Some file systems accept the flag and refuse the transfers: only a write shows it. */
static int check_direct(ms__file *file, const ms__backend_options *options, ms_error *err)
{
    if (!file->is_direct) {
        return MS_OK;
    }
    if (options->slab_bytes < file->align_bytes) {
        return ms_fail(err, MS_EINVAL, "slots are smaller than the %zu bytes of a block in %s", file->align_bytes,
                       options->dir);
    }
    ssize_t moved = ms__os_pwrite(file->fd, options->slab, file->align_bytes, 0);
    if (moved == -EINVAL) {
        ms__file_close(file);
        return ms__file_open_unnamed(options->dir, false, file, err);
    }
    if (moved < 0 && moved != -EINTR) {
        return ms_fail_errno(err, MS_EIO, (int)-moved, "disk tier in %s: the first write failed", options->dir);
    }
    return MS_OK;
}

/* A hardware description may name a directory that does not exist yet, or was deleted since the
 * probe. */
static int open_or_make(ms__file *file, const ms__backend_options *options, ms_error *err)
{
    ms_error first = {0};
    int rc = ms__file_open_unnamed(options->dir, !options->no_direct_io, file, &first);
    if (rc != MS_OK && first.system_errno == ENOENT) {
        rc = ms__directory_make(options->dir, err);
        return rc == MS_OK ? ms__file_open_unnamed(options->dir, !options->no_direct_io, file, err) : rc;
    }
    if (rc != MS_OK && err != NULL) {
        *err = first;
    }
    return rc;
}

static int open_spill_file(ms__spill *self, const ms__backend_options *options, ms_error *err)
{
    int rc = open_or_make(&self->file, options, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = check_direct(&self->file, options, err);
    if (rc != MS_OK) {
        ms__file_close(&self->file);
    }
    return rc;
}

static void spill_describe(ms__spill *self, const ms__backend_options *options, const char *means)
{
    char cap[64] = "no cap";
    if (options->cap_bytes != UINT64_MAX) {
        snprintf(cap, sizeof cap, "cap %s", ms__text_bytes(options->cap_bytes).text);
    }
    /* A path may be longer than a message; its beginning is enough. */
    snprintf(self->base.place, sizeof self->base.place, "disk tier in %.400s", options->dir);
    snprintf(self->base.description, sizeof self->base.description, "unnamed file in %.400s, %s I/O by %s, %s",
             options->dir, self->file.is_direct ? "direct" : "buffered", means, cap);
}

int ms__spill_open(ms__spill *self, const ms__backend_ops *ops, const ms__backend_options *options, const char *means,
                   ms_error *err)
{
    int rc = open_spill_file(self, options, err);
    if (rc != MS_OK) {
        return rc;
    }
    self->base.ops = ops;
    /* Buffered transfers use whole blocks too: one rule for callers, and whether memory is direct
     * does not depend on the file system. */
    self->base.block_bytes = self->file.align_bytes;
    self->base.address_alignment = self->file.align_bytes;
    self->base.joins_neighbours = true;
    self->cap_bytes = options->cap_bytes;
    uint64_t limit_bytes = ms__min_u64(options->cap_bytes, POSITION_MAX);
    ms__extents_init(&self->extents, ms__align_down(limit_bytes, self->base.block_bytes));
    ms__mutex_init(&self->lock);
    spill_describe(self, options, means);
    return MS_OK;
}

void ms__spill_forget(ms__spill *self)
{
    ms__file_close(&self->file);
    ms__extents_destroy(&self->extents);
}

void ms__spill_close(ms__spill *self)
{
    ms__mutex_destroy(&self->lock);
    ms__spill_forget(self);
}

/* Allocates disk blocks up to the end of the last extent. */
static int spill_grow(ms__spill *self, ms_error *err)
{
    uint64_t end_bytes = self->extents.end_bytes;
    if (end_bytes <= self->allocated_bytes) {
        return MS_OK;
    }
    uint64_t ahead_bytes = ms__min_u64(ms__align_up(end_bytes, GROWTH_BYTES), self->extents.limit_bytes);
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

static int spill_reserve_locked(ms__spill *self, uint64_t bytes, uint64_t *position, ms_error *err)
{
    int rc = ms__extents_reserve(&self->extents, bytes, position);
    if (rc == MS_ENOSPC) {
        return ms_fail(err, MS_ENOSPC, "%s: %s more would exceed the cap of %s", self->base.place,
                       ms__text_bytes(bytes).text, ms__text_bytes(self->cap_bytes).text);
    }
    if (rc != MS_OK) {
        return ms_fail(err, rc, "%s: no memory for the list of free extents", self->base.place);
    }
    ms_error cause = {0};
    rc = spill_grow(self, &cause);
    if (rc != MS_OK) {
        ms__extents_release(&self->extents, *position, bytes);
        return ms_fail_errno(err, rc, cause.system_errno, "%s: making room for %s failed", self->base.place,
                             ms__text_bytes(bytes).text);
    }
    return MS_OK;
}

int ms__spill_reserve(ms__backend *backend, uint64_t bytes, uint64_t *position, ms_error *err)
{
    ms__spill *self = (ms__spill *)backend;
    uint64_t taken = 0;
    ms__mutex_lock(&self->lock);
    int rc = spill_reserve_locked(self, bytes, &taken, err);
    ms__mutex_unlock(&self->lock);
    if (rc == MS_OK) {
        *position = taken;
    }
    return rc;
}

/* The blocks stay allocated for the next step: freeing them and allocating them again costs
 * more than their space is worth while training runs. */
void ms__spill_release(ms__backend *backend, uint64_t position, uint64_t bytes)
{
    ms__spill *self = (ms__spill *)backend;
    ms__mutex_lock(&self->lock);
    ms__extents_release(&self->extents, position, bytes);
    ms__mutex_unlock(&self->lock);
}
