/*
 * The controls for tests, the devices' properties, and the double's one global object.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* The memory of each device, in bytes. */
#define MEMORY_0 ((size_t)24000000000)
#define MEMORY_1 ((size_t)25000000000)

cuda_double the = {
    .lock = MS__MUTEX_INIT,
    .changed = {PTHREAD_COND_INITIALIZER},
    .registered_limit = SIZE_MAX,
    .copy_engines = 2,
    .memory = {{.total = MEMORY_0}, {.total = MEMORY_1}},
};

/* ---- control -------------------------------------------------------------------- */

EXPORT void cuda_double_reset(void)
{
    ms__mutex_lock(&the.lock);
    the.violations = 0;
    the.violation[0] = '\0';
    the.sticky = OK;
    the.failure.left = 0;
    the.most_delay_ns = 0;
    the.hangs = false;
    the.registered_limit = SIZE_MAX;
    the.copy_engines = 2;
    the.queue_limit = 0;
    the.memory[0].total = MEMORY_0;
    the.memory[1].total = MEMORY_1;
    the.memory[0].taken = the.memory[1].taken = 0;
    the.counts.pinned_copies = the.counts.pageable_copies = the.counts.cold_pages = 0;
    ms__cond_broadcast(&the.changed);
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_schedule(uint64_t seed, uint64_t most_ns)
{
    ms__mutex_lock(&the.lock);
    the.random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    the.most_delay_ns = most_ns;
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_fail(const char *function, uint64_t nth, int result)
{
    ms__mutex_lock(&the.lock);
    snprintf(the.failure.function, sizeof the.failure.function, "%s", function);
    the.failure.for_good = nth == 0;
    the.failure.left = nth == 0 ? 1 : nth;
    the.failure.result = result;
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_hang(int hangs)
{
    ms__mutex_lock(&the.lock);
    the.hangs = hangs != 0;
    ms__cond_broadcast(&the.changed);
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_queue_limit(uint64_t pieces)
{
    ms__mutex_lock(&the.lock);
    the.queue_limit = pieces;
    ms__cond_broadcast(&the.changed);
    ms__mutex_unlock(&the.lock);
}

EXPORT uint64_t cuda_double_pending(void *handle)
{
    ms__mutex_lock(&the.lock);
    const stream *one = stream_of(handle);
    uint64_t pieces = one != NULL ? one->queued - one->finished : 0;
    ms__mutex_unlock(&the.lock);
    return pieces;
}

EXPORT void cuda_double_memory(int device, size_t total, size_t taken)
{
    ms__mutex_lock(&the.lock);
    the.memory[device].total = total;
    the.memory[device].taken = taken;
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_limit_registered(size_t bytes)
{
    ms__mutex_lock(&the.lock);
    the.registered_limit = bytes > the.registered_bytes ? bytes : the.registered_bytes;
    ms__mutex_unlock(&the.lock);
}

EXPORT void cuda_double_copy_engines(int count)
{
    ms__mutex_lock(&the.lock);
    the.copy_engines = count;
    ms__mutex_unlock(&the.lock);
}

EXPORT uint64_t cuda_double_violations(char *text, size_t size)
{
    ms__mutex_lock(&the.lock);
    uint64_t count = the.violations;
    if (text != NULL) {
        snprintf(text, size, "%s", the.violation);
    }
    ms__mutex_unlock(&the.lock);
    return count;
}

EXPORT void cuda_double_count(cuda_double_counts *counts)
{
    ms__mutex_lock(&the.lock);
    *counts = the.counts;
    ms__mutex_unlock(&the.lock);
}

EXPORT int cuda_double_launch(void *handle, unsigned long long pointer, size_t bytes, int writes,
                              cuda_double_kernel *kernel, void *argument)
{
    int result = enter("launch");
    stream *one = stream_of(handle);
    unsigned char *view = result == OK ? device_view(pointer, bytes) : NULL;
    if (one != NULL && view != NULL) {
        stream_make_room(one);
        order_access(one, (const unsigned char *)(uintptr_t)pointer, bytes, writes != 0);
        result = stream_queue(
            one, &(work){.kind = WORK_KERNEL, .memory = view, .bytes = bytes, .kernel = kernel, .argument = argument});
    } else {
        result = result != OK ? result : INVALID_VALUE;
    }
    ms__mutex_unlock(&the.lock);
    return result;
}

/* The addresses at which a program reaches the ranges; NULL if one of them is not device memory. */
static unsigned char **views_of(const cuda_double_range *ranges, size_t count)
{
    unsigned char **views = malloc((count + 1) * sizeof *views);
    for (size_t i = 0; views != NULL && i < count; i++) {
        views[i] = device_view(ranges[i].pointer, ranges[i].bytes);
        if (views[i] == NULL) {
            free(views);
            return NULL;
        }
    }
    return views;
}

EXPORT int cuda_double_launch_ranges(void *handle, const cuda_double_range *ranges, size_t count,
                                     cuda_double_program *program, void *argument)
{
    int result = enter("launch");
    stream *one = stream_of(handle);
    unsigned char **views = result == OK && one != NULL ? views_of(ranges, count) : NULL;
    if (views == NULL) {
        ms__mutex_unlock(&the.lock);
        return result != OK ? result : INVALID_VALUE;
    }
    stream_make_room(one);
    for (size_t i = 0; i < count; i++) {
        order_access(one, (const unsigned char *)(uintptr_t)ranges[i].pointer, ranges[i].bytes, ranges[i].writes != 0);
    }
    result =
        stream_queue(one, &(work){.kind = WORK_PROGRAM, .memories = views, .program = program, .argument = argument});
    if (result != OK) {
        free(views);
    }
    ms__mutex_unlock(&the.lock);
    return result;
}

/* ---- devices ---------------------------------------------------------------------- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetName(char *name, int size, int device);
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);

static int asked(const char *function)
{
    int result = enter(function);
    ms__mutex_unlock(&the.lock);
    return result;
}

int cuInit(unsigned flags)
{
    return flags == 0 ? asked("cuInit") : INVALID_VALUE;
}

int cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return asked("cuDeviceGetCount");
}

int cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= DEVICES) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return asked("cuDeviceGet");
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Double GPU %d", device);
    return asked("cuDeviceGetName");
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int result = enter("cuDeviceTotalMem_v2");
    *bytes = the.memory[device].total;
    ms__mutex_unlock(&the.lock);
    return result;
}

/* 75 and 76 are the compute capability, 40 the copy engines. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 : attribute == 40 ? the.copy_engines : 0;
    return asked("cuDeviceGetAttribute");
}
