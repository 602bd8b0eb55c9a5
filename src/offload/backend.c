/*
 * The choice of a backend, and the functions of backends that work in the calling thread.
 */
#include "offload/backend.h"

const ms__backend_ops *ms__backend_choose(const ms__backend_options *options)
{
    if (options->from_device && options->tier != MS_TIER_DEVICE) {
        return ms_device_host_is_device(options->device_kind) ? NULL : &ms__backend_device;
    }
    switch (options->tier) {
    case MS_TIER_HOST:
        return &ms__backend_memory;
    case MS_TIER_DISK:
        return &ms__backend_file;
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
