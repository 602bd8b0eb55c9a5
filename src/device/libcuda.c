/*
 * The CUDA driver's functions, one row each, and the choice between CUDA and HIP; library.c loads them.
 */
#include "device/libcuda.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/library.h"

static const ms__library_function function_rows[] = {
    {"cuInit", offsetof(ms__libcuda, init)},
    {"cuDeviceGetCount", offsetof(ms__libcuda, device_get_count)},
    {"cuDeviceGet", offsetof(ms__libcuda, device_get)},
    {"cuDeviceGetName", offsetof(ms__libcuda, device_get_name)},
    {"cuDeviceTotalMem_v2", offsetof(ms__libcuda, device_total_mem)},
    {"cuDeviceGetAttribute", offsetof(ms__libcuda, device_get_attribute)},
    {"cuDevicePrimaryCtxRetain", offsetof(ms__libcuda, primary_context_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(ms__libcuda, primary_context_release)},
    {"cuCtxPushCurrent_v2", offsetof(ms__libcuda, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(ms__libcuda, context_pop)},
    {"cuStreamCreate", offsetof(ms__libcuda, stream_create)},
    {"cuStreamDestroy_v2", offsetof(ms__libcuda, stream_destroy)},
    {"cuStreamSynchronize", offsetof(ms__libcuda, stream_synchronize)},
    {"cuStreamWaitEvent", offsetof(ms__libcuda, stream_wait_event)},
    {"cuEventCreate", offsetof(ms__libcuda, event_create)},
    {"cuEventDestroy_v2", offsetof(ms__libcuda, event_destroy)},
    {"cuEventRecord", offsetof(ms__libcuda, event_record)},
    {"cuEventSynchronize", offsetof(ms__libcuda, event_synchronize)},
    {"cuEventQuery", offsetof(ms__libcuda, event_query)},
    {"cuMemcpyDtoHAsync_v2", offsetof(ms__libcuda, copy_to_host)},
    {"cuMemcpyHtoDAsync_v2", offsetof(ms__libcuda, copy_to_device)},
    {"cuMemHostRegister_v2", offsetof(ms__libcuda, host_register)},
    {"cuMemHostUnregister", offsetof(ms__libcuda, host_unregister)},
};

static ms__libcuda functions;

static ms__library library = {
    .what = "CUDA driver",
    .functions = function_rows,
    .count = sizeof function_rows / sizeof function_rows[0],
    .table = &functions,
    .lock = MS__MUTEX_INIT,
};

static int load_cuda(const char *path, const ms__libcuda **out, ms_error *err)
{
    int rc = ms__library_load(&library, path, err);
    if (rc == MS_OK) {
        *out = &functions;
    }
    return rc;
}

int ms__libcuda_get(const ms__libcuda **out, ms_error *err)
{
    const char *chosen = getenv("MEMSCALE_LIBCUDA");
    if (chosen != NULL && chosen[0] != '\0') {
        return load_cuda(chosen, out, err);
    }
    if (ms__libhip_get(true, out, NULL) == MS_OK) {
        return MS_OK;
    }
    int rc = load_cuda("libcuda.so.1", out, err);
    return rc == MS_OK || ms__libhip_get(false, out, NULL) == MS_OK ? MS_OK : rc;
}
