/*
 * The disk tier: pread and pwrite in the engine's threads, on the spill file of spill.h.
 * Works on every file system.
 */
#include "offload/spill.h"

#include <errno.h>

static int file_open(const ms__backend_options *options, ms__backend **backend, ms_error *err)
{
    ms__spill *self = ms_calloc(1, sizeof *self);
    if (self == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for the file backend");
    }
    int rc = ms__spill_open(self, &ms__backend_file, options, "threads", err);
    if (rc != MS_OK) {
        ms_free(self);
        return rc;
    }
    self->base.lane_depth = 1;
    self->base.lane_max = 16;
    *backend = &self->base;
    return MS_OK;
}

static void file_forget(ms__backend *backend)
{
    ms__spill_forget((ms__spill *)backend);
    ms_free(backend);
}

static void file_close(ms__backend *backend)
{
    ms__spill_close((ms__spill *)backend);
    ms_free(backend);
}

static ms__io *file_finish(ms__lane *lane)
{
    ms__io *io = lane->started;
    const ms__file *file = &((ms__spill *)lane->backend)->file;
    lane->started = NULL;
    ssize_t moved = io->direction == MS__WRITE ? ms__os_pwrite(file->fd, io->memory, io->bytes, io->position)
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
    .reserve = ms__spill_reserve,
    .release = ms__spill_release,
    .lane_open = ms__plain_lane_open,
    .lane_close = ms__plain_lane_close,
    .start = ms__plain_start,
    .finish = file_finish,
};
