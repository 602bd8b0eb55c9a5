/*
 * The loader of libcuda.h: dlopen and one row per function.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/libcuda.h"
#include "base/thread.h"

typedef struct function_row {
    const char *symbol;
    size_t offset; /* of the pointer in ms__libcuda */
} function_row;

static const function_row function_rows[] = {
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
    {"cuMemcpyDtoHAsync_v2", offsetof(ms__libcuda, copy_to_host)},
    {"cuMemcpyHtoDAsync_v2", offsetof(ms__libcuda, copy_to_device)},
    {"cuMemHostRegister_v2", offsetof(ms__libcuda, host_register)},
    {"cuMemHostUnregister", offsetof(ms__libcuda, host_unregister)},
};

static ms__mutex load_lock = MS__MUTEX_INIT;
static ms__libcuda functions;
static bool is_loaded;

static const char *library_path(void)
{
    const char *chosen = getenv("MEMSCALE_LIBCUDA");
    return chosen != NULL && chosen[0] != '\0' ? chosen : "libcuda.so.1";
}

static int resolve_all(void *library, const char *path, ms_error *err)
{
    ms__libcuda found;
    for (size_t i = 0; i < sizeof function_rows / sizeof function_rows[0]; i++) {
        void *address = dlsym(library, function_rows[i].symbol);
        if (address == NULL) {
            return ms_fail(err, MS_ENOTSUP, "%s has no %s", path, function_rows[i].symbol);
        }
        memcpy((char *)&found + function_rows[i].offset, &address, sizeof address);
    }
    functions = found;
    return MS_OK;
}

static int load(ms_error *err)
{
    const char *path = library_path();
    if (ms__fault(MS_FAULT_DRIVER, NULL)) {
        return ms_fail(err, MS_ENOTSUP, "loading %s failed as a test asked", path);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        return ms_fail(err, MS_ENOTSUP, "no CUDA driver: %s", dlerror());
    }
    int rc = resolve_all(library, path, err);
    if (rc == MS_OK) {
        is_loaded = true;
    } else {
        dlclose(library);
    }
    return rc;
}

int ms__libcuda_get(const ms__libcuda **out, ms_error *err)
{
    ms__mutex_lock(&load_lock);
    int rc = is_loaded ? MS_OK : load(err);
    ms__mutex_unlock(&load_lock);
    if (rc == MS_OK) {
        *out = &functions;
    }
    return rc;
}
