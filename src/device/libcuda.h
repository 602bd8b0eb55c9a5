/*
 * libcuda.h - the driver library behind torch's device "cuda", found at run time: CUDA's, or ROCm's HIP behind the
 * same table. Used by cuda.c and cuda_probe.c. A machine without either counts as one without a GPU.
 *
 * Tests: tests/c/device/test_libcuda.c, test_libhip.c.
 */
#ifndef MS_DEVICE_LIBCUDA_H
#define MS_DEVICE_LIBCUDA_H

#include "memscale/base.h"

/* The driver's types in its ABI. */
typedef int ms__cu_result;
typedef int ms__cu_device;
typedef void *ms__cu_context;
typedef void *ms__cu_stream; /* NULL: the legacy default stream */
typedef void *ms__cu_event;
typedef unsigned long long ms__cu_pointer;

/* Results, flags and attributes that memscale uses. CUDA_SUCCESS is 0. HIP has the same results and flags. */
enum {
    MS__CU_NOT_READY = 600,
    MS__CU_STREAM_NON_BLOCKING = 1,
    MS__CU_EVENT_BLOCKING_SYNC = 1,
    MS__CU_EVENT_DISABLE_TIMING = 2,
    MS__CU_MEMHOSTREGISTER_PORTABLE = 1,
    MS__CU_ATTRIBUTE_CLOCK_KHZ = 13,
    MS__CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    MS__CU_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
    MS__CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
    MS__CU_ATTRIBUTE_COPY_ENGINES = 40,
    MS__CU_ATTRIBUTE_COMPUTE_MAJOR = 75,
    MS__CU_ATTRIBUTE_COMPUTE_MINOR = 76
};

typedef struct ms__libcuda {
    bool is_hip;
    ms__cu_result (*init)(unsigned flags);
    ms__cu_result (*device_get_count)(int *count);
    ms__cu_result (*device_get)(ms__cu_device *device, int ordinal);
    ms__cu_result (*device_get_name)(char *name, int size, ms__cu_device device);
    ms__cu_result (*device_total_mem)(size_t *bytes, ms__cu_device device);
    ms__cu_result (*device_get_attribute)(int *value, int attribute, ms__cu_device device);
    ms__cu_result (*primary_context_retain)(ms__cu_context *context, ms__cu_device device);
    ms__cu_result (*primary_context_release)(ms__cu_device device);
    ms__cu_result (*context_push)(ms__cu_context context);
    ms__cu_result (*context_pop)(ms__cu_context *context);
    ms__cu_result (*stream_create)(ms__cu_stream *stream, unsigned flags);
    ms__cu_result (*stream_destroy)(ms__cu_stream stream);
    ms__cu_result (*stream_synchronize)(ms__cu_stream stream);
    ms__cu_result (*stream_wait_event)(ms__cu_stream stream, ms__cu_event event, unsigned flags);
    ms__cu_result (*event_create)(ms__cu_event *event, unsigned flags);
    ms__cu_result (*event_destroy)(ms__cu_event event);
    ms__cu_result (*event_record)(ms__cu_event event, ms__cu_stream stream);
    ms__cu_result (*event_synchronize)(ms__cu_event event);
    ms__cu_result (*event_query)(ms__cu_event event);
    ms__cu_result (*copy_to_host)(void *to, ms__cu_pointer from, size_t bytes, ms__cu_stream stream);
    ms__cu_result (*copy_to_device)(ms__cu_pointer to, const void *from, size_t bytes, ms__cu_stream stream);
    ms__cu_result (*host_register)(void *memory, size_t bytes, unsigned flags);
    ms__cu_result (*host_unregister)(void *memory);
} ms__libcuda;

/*
 * The library's functions. The first that is there of: the file that the environment variable MEMSCALE_LIBCUDA names
 * (a double, in tests; no other is tried then); HIP, if the process has loaded it, as torch for ROCm does; libcuda.so.1;
 * an installed HIP. Loads a library at most once and never unloads it; after a failure the next call tries again. Calls
 * no function of the driver, not even cuInit. MS_ENOTSUP if the library or one of the functions is missing; the error
 * is CUDA's if there is neither. Thread-safe.
 */
MS_NODISCARD int ms__libcuda_get(const ms__libcuda **out, ms_error *err);

/* libhip.c: the functions of HIP's library, by the same rules. `loaded_only`: not if the process has yet to load it,
 * because torch must use the same copy. */
MS_NODISCARD int ms__libhip_get(bool loaded_only, const ms__libcuda **out, ms_error *err);

#endif
