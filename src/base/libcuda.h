/*
 * The CUDA driver library, found at run time. Used by the hardware probe now and
 * by the CUDA backend; a machine without it has no GPU, which is no error.
 */
#ifndef MS_BASE_LIBCUDA_H
#define MS_BASE_LIBCUDA_H

#include "memscale/base.h"

/* The driver's types, as its ABI has them. CUDA_SUCCESS is 0. */
typedef int ms__cu_result;
typedef int ms__cu_device;

typedef struct ms__libcuda {
    ms__cu_result (*init)(unsigned flags);
    ms__cu_result (*device_get_count)(int *count);
    ms__cu_result (*device_get)(ms__cu_device *device, int ordinal);
    ms__cu_result (*device_get_name)(char *name, int size, ms__cu_device device);
    ms__cu_result (*device_total_mem)(size_t *bytes, ms__cu_device device);
    ms__cu_result (*device_get_attribute)(int *value, int attribute, ms__cu_device device);
} ms__libcuda;

/*
 * The library's functions: libcuda.so.1, or the file named by the environment
 * variable MEMSCALE_LIBCUDA, which is how a test brings a double. Loaded at most
 * once and never unloaded; a failed try is repeated by the next call. Nothing of
 * the driver has been called, not even cuInit. MS_ENOTSUP where the library or
 * one of the functions is missing. Thread-safe.
 */
MS_NODISCARD int ms__libcuda_get(const ms__libcuda **out, ms_error *err);

#endif
