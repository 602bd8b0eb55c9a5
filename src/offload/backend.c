/*
 * The choice of a backend, and what backends that work in the calling thread share.
 */
#include "offload/backend.h"

#include <stdlib.h>
#include <string.h>

#include "ms_config.h"

/* Threads unless somebody asks: an io_uring cost a tenth less processor time and moved 5%
 * less where other work shares the cores (docs/results), and it pins the slab, which an
 * ordinary user's limit on locked memory seldom allows. */
static const ms__backend_ops *disk_backend(ms_disk_io disk_io)
{
#ifdef MS_HAVE_URING
    const char *wish = disk_io == MS_DISK_IO_AUTO ? getenv("MEMSCALE_DISK_IO") : NULL;
    if (disk_io == MS_DISK_IO_URING || (wish != NULL && strcmp(wish, "io_uring") == 0)) {
        return &ms__backend_uring;
    }
#endif
    (void)disk_io;
    return &ms__backend_file;
}

const ms__backend_ops *ms__backend_choose(const ms__backend_options *options)
{
    if (options->from_device && options->tier != MS_TIER_DEVICE) {
        return &ms__backend_cuda;
    }
    switch (options->tier) {
    case MS_TIER_HOST:
        return &ms__backend_memory;
    case MS_TIER_DISK:
        return disk_backend(options->disk_io);
    default:
        return NULL;
    }
}

const char *ms_tier_name(ms_tier tier)
{
    static const char *const names[MS_TIER_COUNT] = {"device", "host", "disk"};
    return (unsigned)tier < MS_TIER_COUNT ? names[tier] : "unknown";
}

int ms__plain_lane_open(ms__backend *backend, ms__lane **lane, ms_error *err)
{
    ms__lane *made = ms_calloc(1, sizeof *made);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a lane of the %s backend", backend->ops->name);
    }
    made->backend = backend;
    *lane = made;
    return MS_OK;
}

void ms__plain_lane_close(ms__lane *lane)
{
    ms_free(lane);
}

void ms__plain_start(ms__lane *lane, ms__io *io)
{
    lane->started = io;
}
