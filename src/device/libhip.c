/*
 * HIP, ROCm's driver library, behind the table of libcuda.h. Most functions map one to one. Attributes have other
 * numbers. There are no contexts: a thread has a current device (hipCtxPopCurrent does not restore it).
 */
#include <stddef.h>
#include <stdint.h>

#include "base/library.h"
#include "device/libcuda.h"

typedef struct libhip {
    ms__libcuda common;
    ms__cu_result (*get_device)(int *device);
    ms__cu_result (*set_device)(int device);
    ms__cu_result (*get_attribute)(int *value, int attribute, int device);
} libhip;

#define COMMON(function) (offsetof(libhip, common) + offsetof(ms__libcuda, function))

static const ms__library_function function_rows[] = {
    {"hipInit", COMMON(init)},
    {"hipGetDeviceCount", COMMON(device_get_count)},
    {"hipDeviceGet", COMMON(device_get)},
    {"hipDeviceGetName", COMMON(device_get_name)},
    {"hipDeviceTotalMem", COMMON(device_total_mem)},
    {"hipStreamCreateWithFlags", COMMON(stream_create)},
    {"hipStreamDestroy", COMMON(stream_destroy)},
    {"hipStreamSynchronize", COMMON(stream_synchronize)},
    {"hipStreamWaitEvent", COMMON(stream_wait_event)},
    {"hipEventCreateWithFlags", COMMON(event_create)},
    {"hipEventDestroy", COMMON(event_destroy)},
    {"hipEventRecord", COMMON(event_record)},
    {"hipEventSynchronize", COMMON(event_synchronize)},
    {"hipEventQuery", COMMON(event_query)},
    {"hipMemcpyDtoHAsync", COMMON(copy_to_host)},
    {"hipMemcpyHtoDAsync", COMMON(copy_to_device)},
    {"hipHostRegister", COMMON(host_register)},
    {"hipHostUnregister", COMMON(host_unregister)},
    {"hipGetDevice", offsetof(libhip, get_device)},
    {"hipSetDevice", offsetof(libhip, set_device)},
    {"hipDeviceGetAttribute", offsetof(libhip, get_attribute)},
};

static libhip hip; /* its other functions are set below */

/* ---- what HIP has in another form ------------------------------------------------ */

/* hipDeviceAttribute_t's number for CUdevice_attribute's; -1: none. */
static int attribute_of(int cuda_attribute)
{
    static const int numbers[][2] = {
        {MS__CU_ATTRIBUTE_CLOCK_KHZ, 5},         {MS__CU_ATTRIBUTE_MULTIPROCESSORS, 63},
        {MS__CU_ATTRIBUTE_MEMORY_CLOCK_KHZ, 60}, {MS__CU_ATTRIBUTE_MEMORY_BUS_BITS, 59},
        {MS__CU_ATTRIBUTE_COPY_ENGINES, 2},      {MS__CU_ATTRIBUTE_COMPUTE_MAJOR, 23},
        {MS__CU_ATTRIBUTE_COMPUTE_MINOR, 61},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i][0] == cuda_attribute) {
            return numbers[i][1];
        }
    }
    return -1;
}

static ms__cu_result hip_attribute(int *value, int attribute, ms__cu_device device)
{
    return hip.get_attribute(value, attribute_of(attribute), device);
}

/* A "context" is the device's number + 1; a device needs no retaining. */
static ms__cu_result hip_retain(ms__cu_context *context, ms__cu_device device)
{
    *context = (ms__cu_context)((uintptr_t)device + 1);
    return 0;
}

static ms__cu_result hip_release(ms__cu_device device)
{
    (void)device;
    return 0;
}

static _Thread_local int previous_device; /* between push and pop, which are never nested */

static ms__cu_result hip_push(ms__cu_context context)
{
    ms__cu_result result = hip.get_device(&previous_device);
    return result != 0 ? result : hip.set_device((int)((uintptr_t)context - 1));
}

static ms__cu_result hip_pop(ms__cu_context *context)
{
    *context = NULL;
    return hip.set_device(previous_device);
}

static libhip hip = {
    .common =
        {
            .is_hip = true,
            .device_get_attribute = hip_attribute,
            .primary_context_retain = hip_retain,
            .primary_context_release = hip_release,
            .context_push = hip_push,
            .context_pop = hip_pop,
        },
};

/* ---- the library ------------------------------------------------------------------- */

static ms__library library = {
    .what = "ROCm driver",
    .functions = function_rows,
    .count = sizeof function_rows / sizeof function_rows[0],
    .table = &hip,
    .lock = MS__MUTEX_INIT,
};

int ms__libhip_get(bool loaded_only, const ms__libcuda **out, ms_error *err)
{
    static const char *const installed[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
    char path[4096];
    int rc = MS_ENOTSUP;
    if (ms__library_is_in_process("libamdhip64.so", path, sizeof path)) {
        rc = ms__library_load(&library, path, err);
    } else if (loaded_only) {
        return ms_fail(err, MS_ENOTSUP, "the process has no ROCm driver");
    }
    for (size_t i = 0; rc != MS_OK && !loaded_only && i < sizeof installed / sizeof installed[0]; i++) {
        rc = ms__library_load(&library, installed[i], err);
    }
    if (rc == MS_OK) {
        *out = &hip.common;
    }
    return rc;
}
