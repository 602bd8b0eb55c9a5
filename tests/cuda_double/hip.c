/*
 * HIP's names for the double of the driver: libamdhip64.so is the same double with these functions. A thread has a current
 * device, initially 0, and no stack of contexts. Numbers of attributes are those of hip_runtime_api.h.
 */
#include "internal.h"

/* driver.c, control.c */
int cuInit(unsigned flags), cuDeviceGetCount(int *count), cuDeviceGet(int *device, int ordinal),
    cuDeviceGetName(char *name, int size, int device), cuDeviceTotalMem_v2(size_t *bytes, int device),
    cuDeviceGetAttribute(int *value, int attribute, int device), cuDevicePrimaryCtxRetain(void **context, int device),
    cuDevicePrimaryCtxRelease_v2(int device), cuCtxPushCurrent_v2(void *context), cuCtxPopCurrent_v2(void **context),
    cuStreamCreate(void **made, unsigned flags), cuStreamDestroy_v2(void *handle), cuStreamSynchronize(void *handle),
    cuStreamWaitEvent(void *handle, void *which, unsigned flags), cuEventCreate(void **made, unsigned flags),
    cuEventDestroy_v2(void *which), cuEventRecord(void *which, void *handle), cuEventSynchronize(void *which),
    cuEventQuery(void *which), cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags),
    cuMemHostUnregister(void *memory),
    cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *handle),
    cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *handle);

/* A function with the same arguments under another name. */
#define SAME(hip_name, name, parameters, ...) \
    EXPORT int hip_name parameters; \
    int hip_name parameters \
    { \
        return name(__VA_ARGS__); \
    }

SAME(hipInit, cuInit, (unsigned flags), flags)
SAME(hipGetDeviceCount, cuDeviceGetCount, (int *count), count)
SAME(hipDeviceGet, cuDeviceGet, (int *device, int ordinal), device, ordinal)
SAME(hipDeviceGetName, cuDeviceGetName, (char *name, int size, int device), name, size, device)
SAME(hipDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *bytes, int device), bytes, device)
SAME(hipStreamCreateWithFlags, cuStreamCreate, (void **made, unsigned flags), made, flags)
SAME(hipStreamDestroy, cuStreamDestroy_v2, (void *handle), handle)
SAME(hipStreamSynchronize, cuStreamSynchronize, (void *handle), handle)
SAME(hipStreamWaitEvent, cuStreamWaitEvent, (void *handle, void *which, unsigned flags), handle, which, flags)
SAME(hipEventCreateWithFlags, cuEventCreate, (void **made, unsigned flags), made, flags)
SAME(hipEventDestroy, cuEventDestroy_v2, (void *which), which)
SAME(hipEventRecord, cuEventRecord, (void *which, void *handle), which, handle)
SAME(hipEventSynchronize, cuEventSynchronize, (void *which), which)
SAME(hipEventQuery, cuEventQuery, (void *which), which)
SAME(hipHostRegister, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), memory, bytes, flags)
SAME(hipHostUnregister, cuMemHostUnregister, (void *memory), memory)
SAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t bytes, void *handle), to,
     from, bytes, handle)
SAME(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t bytes, void *handle),
     to, from, bytes, handle)

EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int hipGetDevice(int *device);
EXPORT int hipSetDevice(int device);

/* AsyncEngineCount, ComputeCapabilityMajor and -Minor; the double has no clocks. */
int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    return cuDeviceGetAttribute(value, attribute == 2 ? 40 : attribute == 23 ? 75 : attribute == 61 ? 76 : 0, device);
}

int hipGetDevice(int *device)
{
    int result = enter("hipGetDevice");
    *device = current_device() < 0 ? 0 : current_device();
    ms__mutex_unlock(&the.lock);
    return result;
}

int hipSetDevice(int device)
{
    void *context = NULL, *popped = NULL;
    int result = enter("hipSetDevice");
    bool has_one = current_device() >= 0;
    ms__mutex_unlock(&the.lock);
    if (result == OK || result == the.sticky) { /* a broken device still exists */
        result = cuDevicePrimaryCtxRetain(&context, device);
    }
    if (result != OK) {
        return result;
    }
    if (has_one) {
        (void)cuCtxPopCurrent_v2(&popped);
    }
    result = cuCtxPushCurrent_v2(context);
    (void)cuDevicePrimaryCtxRelease_v2(device);
    return result;
}
