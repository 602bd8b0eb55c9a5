/*
 * The list of kinds, and look-ups in it.
 */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

#include "device/kinds.h"

const ms__device_kind *const ms__device_kinds[MS_DEVICE_KIND_COUNT] = {&ms__device_cpu, &ms__device_cuda};

const ms__device_kind *ms__device_kind_of(ms_device_kind id)
{
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        if (ms__device_kinds[i]->id == id) {
            return ms__device_kinds[i];
        }
    }
    return &ms__device_cpu;
}

const char *ms_device_kind_name(ms_device_kind kind)
{
    return (unsigned)kind < MS_DEVICE_KIND_COUNT ? ms__device_kind_of(kind)->name : "unknown";
}

bool ms_device_host_is_device(ms_device_kind kind)
{
    return ms__device_kind_of(kind)->host_is_device;
}

static int fail_unknown(const char *name, ms_error *err)
{
    char known[128] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT && used < sizeof known; i++) {
        const char *between = i == 0 ? "" : i + 1 == MS_DEVICE_KIND_COUNT ? " and " : ", ";
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", between, ms__device_kinds[i]->name);
    }
    return ms_fail(err, MS_ENOTSUP, "memscale trains on %s, not on devices of kind \"%.64s\"", known, name);
}

int ms_device_kind_named(const char *name, ms_device_kind *kind, ms_error *err)
{
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        if (strcmp(ms__device_kinds[i]->name, name) == 0) {
            *kind = ms__device_kinds[i]->id;
            return MS_OK;
        }
    }
    return fail_unknown(name, err);
}

int ms__device_fail(const ms__device *device, int failure, const char *what, ms_error *err)
{
    return ms_fail(err, failure == MS__DEVICE_UNKNOWN ? MS_ESYSTEM : MS_ENOTSUP, "%s %u: %s (driver error %d%s)",
                   device->kind->label, device->number, what, failure, device->kind->means(failure));
}
