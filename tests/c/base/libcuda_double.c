/*
 * A double of the CUDA driver library with two devices, loaded by tests through
 * MEMSCALE_LIBCUDA. It answers what the hardware probe asks and nothing more.
 */
#include <stddef.h>
#include <stdio.h>

enum { DEVICES = 2, INVALID_DEVICE = 101 };

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetName(char *name, int size, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}

int cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= DEVICES) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Double GPU %d", device);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = device == 0 ? (size_t)24000000000 : (size_t)25000000000;
    return 0;
}

/* 75 and 76 are the compute capability, 40 the copy engines. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 : attribute == 40 ? 2 : 0;
    return 0;
}
