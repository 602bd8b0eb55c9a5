/*
 * The functions of the driver that memscale and its tests use, with the driver's signatures. Each first
 * checks whether a test makes it fail, and whether the caller has a context.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

/* ---- contexts ---------------------------------------------------------------- */

enum { CALLERS_MAX = 256, NESTED_MAX = 8 };

static int contexts[DEVICES]; /* their addresses are the handles */
static struct {
    uintptr_t caller;
    int depth;
    int device[NESTED_MAX];
} stacks[CALLERS_MAX];

static uintptr_t system_thread(void)
{
    return (uintptr_t)pthread_self();
}

EXPORT uintptr_t (*cuda_double_caller)(void) = system_thread;

static int stack_of_caller(void)
{
    uintptr_t caller = cuda_double_caller();
    int unused = -1;
    for (int i = 0; i < CALLERS_MAX; i++) {
        if (stacks[i].depth > 0 && stacks[i].caller == caller) {
            return i;
        }
        unused = stacks[i].depth == 0 && unused < 0 ? i : unused;
    }
    stacks[unused].caller = caller;
    return unused;
}

int current_device(void)
{
    int stack = stack_of_caller();
    int depth = stacks[stack].depth;
    return depth > 0 ? stacks[stack].device[depth - 1] : -1;
}

/* Always takes the lock; leave() releases it. */
int enter(const char *function)
{
    ms__mutex_lock(&the.lock);
    planned_failure *plan = &the.failure;
    if (plan->left > 0 && strcmp(plan->function, function) == 0 && (plan->for_good || --plan->left == 0)) {
        return plan->result;
    }
    return the.sticky;
}

static int leave(int result)
{
    ms__mutex_unlock(&the.lock);
    return result;
}

static int enter_in_context(const char *function)
{
    int result = enter(function);
    if (result == OK && current_device() < 0) {
        violate("%s without a context", function);
        result = INVALID_CONTEXT;
    }
    return result;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int result = enter("cuDevicePrimaryCtxRetain");
    if (result == OK && (device < 0 || device >= DEVICES)) {
        result = INVALID_DEVICE;
    }
    if (result == OK) {
        the.context_uses[device]++;
        the.counts.contexts++;
        *context = &contexts[device];
    }
    return leave(result);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    int result = enter("cuDevicePrimaryCtxRelease_v2");
    bool goes_on = result == OK || result == the.sticky; /* a broken device's objects can be released */
    if (goes_on && (device < 0 || device >= DEVICES || the.context_uses[device] == 0)) {
        violate("released a context that was not retained");
        goes_on = false;
        result = INVALID_CONTEXT;
    }
    if (goes_on) {
        the.context_uses[device]--;
        the.counts.contexts--;
    }
    return leave(result);
}

int cuCtxPushCurrent_v2(void *context)
{
    int result = enter("cuCtxPushCurrent_v2");
    result = result == the.sticky ? OK : result; /* a broken device still exists */
    int device = (int)((int *)context - contexts);
    int stack = stack_of_caller();
    if (result == OK &&
        (device < 0 || device >= DEVICES || the.context_uses[device] == 0 || stacks[stack].depth == NESTED_MAX)) {
        violate("made a context current that does not exist");
        result = INVALID_CONTEXT;
    }
    if (result == OK) {
        stacks[stack].device[stacks[stack].depth++] = device;
    }
    return leave(result);
}

int cuCtxPopCurrent_v2(void **context)
{
    ms__mutex_lock(&the.lock);
    int stack = stack_of_caller();
    if (stacks[stack].depth == 0) {
        violate("popped a context from an empty stack");
        return leave(INVALID_CONTEXT);
    }
    int device = stacks[stack].device[--stacks[stack].depth];
    if (context != NULL) {
        *context = &contexts[device];
    }
    return leave(OK);
}

/* ---- streams and events --------------------------------------------------------- */

EXPORT int cuStreamCreate(void **made, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *handle);
EXPORT int cuStreamSynchronize(void *handle);
EXPORT int cuStreamWaitEvent(void *handle, void *which, unsigned flags);
EXPORT int cuEventCreate(void **made, unsigned flags);
EXPORT int cuEventDestroy_v2(void *which);
EXPORT int cuEventRecord(void *which, void *handle);
EXPORT int cuEventSynchronize(void *which);
EXPORT int cuStreamQuery(void *handle);
EXPORT int cuEventQuery(void *which);
EXPORT int cuCtxSynchronize(void);

int cuStreamCreate(void **made, unsigned flags)
{
    int result = enter_in_context("cuStreamCreate");
    stream *one = NULL;
    if (result == OK && flags != 1) {
        violate("made a stream that waits for the legacy default stream");
    }
    if (result == OK) {
        result = stream_new(current_device(), &one);
        *made = one;
    }
    return leave(result);
}

int cuStreamDestroy_v2(void *handle)
{
    int result = enter_in_context("cuStreamDestroy_v2");
    stream *one = handle != NULL ? stream_of(handle) : NULL;
    if (one == NULL) {
        return leave(INVALID_HANDLE);
    }
    if (result == OK || result == the.sticky) {
        stream_end(one);
    }
    return leave(result);
}

int cuStreamSynchronize(void *handle)
{
    int result = enter_in_context("cuStreamSynchronize");
    stream *one = stream_of(handle);
    if ((result == OK || result == the.sticky) && one != NULL) {
        /* Even on a broken device nothing runs once this has returned. */
        clock_vector clock = one->clock;
        stream_wait_finished(one, one->queued);
        clock_join(&the.host, &clock);
        result = the.sticky;
    }
    return leave(result);
}

int cuStreamWaitEvent(void *handle, void *which, unsigned flags)
{
    int result = enter_in_context("cuStreamWaitEvent");
    stream *one = stream_of(handle);
    event *awaited = which;
    if (result == OK && (one == NULL || flags != 0)) {
        result = INVALID_HANDLE;
    }
    if (result == OK && awaited->on == NULL) {
        violate("a stream waits for an event that was never recorded");
    } else if (result == OK) {
        result = stream_queue(one, &(work){.kind = WORK_WAIT, .after = awaited->on, .at = awaited->at});
        if (result == OK) {
            clock_join(&one->clock, &awaited->clock);
        }
    }
    return leave(result);
}

int cuEventCreate(void **made, unsigned flags)
{
    int result = enter_in_context("cuEventCreate");
    (void)flags;
    if (result == OK) {
        *made = calloc(1, sizeof(event));
        result = *made != NULL ? OK : OUT_OF_MEMORY;
        the.counts.events += result == OK;
    }
    return leave(result);
}

int cuEventDestroy_v2(void *which)
{
    int result = enter_in_context("cuEventDestroy_v2");
    event *one = which;
    if (result == OK || result == the.sticky) {
        free(one);
        the.counts.events--;
    }
    return leave(result);
}

int cuEventRecord(void *which, void *handle)
{
    int result = enter_in_context("cuEventRecord");
    stream *one = stream_of(handle);
    event *recorded = which;
    if (result == OK && one == NULL) {
        result = INVALID_HANDLE;
    }
    if (result == OK) {
        result = stream_queue(one, &(work){.kind = WORK_RECORD});
    }
    if (result == OK) {
        recorded->on = one;
        recorded->at = one->queued;
        recorded->clock = one->clock;
    }
    return leave(result);
}

int cuEventSynchronize(void *which)
{
    int result = enter_in_context("cuEventSynchronize");
    const event *one = which;
    if (result == OK && one->on == NULL) {
        violate("the host waits for an event that was never recorded");
    } else if (result == OK) {
        const stream *on = one->on;
        uint64_t at = one->at;
        clock_vector clock = one->clock;
        while (on->finished < at) {
            ms__cond_wait(&the.changed, &the.lock);
        }
        clock_join(&the.host, &clock);
        result = the.sticky;
    }
    return leave(result);
}

int cuStreamQuery(void *handle)
{
    int result = enter_in_context("cuStreamQuery");
    const stream *one = stream_of(handle);
    if (result == OK && one != NULL) {
        result = one->finished < one->queued ? NOT_READY : OK;
    }
    if (result == OK && one != NULL) {
        clock_join(&the.host, &one->clock);
    }
    return leave(result);
}

int cuEventQuery(void *which)
{
    int result = enter_in_context("cuEventQuery");
    const event *one = which;
    if (result == OK) {
        result = one->on != NULL && one->on->finished < one->at ? NOT_READY : OK;
    }
    if (result == OK) {
        clock_join(&the.host, &one->clock);
    }
    return leave(result);
}

int cuCtxSynchronize(void)
{
    int result = enter_in_context("cuCtxSynchronize");
    int device = current_device();
    for (int i = 0; i < STREAMS_MAX && (result == OK || result == the.sticky); i++) {
        stream *one = &the.streams[i];
        if (one->is_used && one->device == device) {
            clock_vector clock = one->clock;
            stream_wait_finished(one, one->queued);
            clock_join(&the.host, &clock);
            result = the.sticky;
        }
    }
    return leave(result);
}

/* ---- memory ------------------------------------------------------------------------ */

EXPORT int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
EXPORT int cuMemFree_v2(unsigned long long pointer);
EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
EXPORT int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
EXPORT int cuMemHostUnregister(void *memory);
EXPORT int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *handle);
EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *handle);

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes)
{
    int result = enter_in_context("cuMemAlloc_v2");
    unsigned char *address = NULL;
    if (result == OK) {
        result = device_memory_new(bytes, &address);
        *pointer = (uintptr_t)address;
    }
    return leave(result);
}

int cuMemFree_v2(unsigned long long pointer)
{
    int result = enter_in_context("cuMemFree_v2");
    if (result == OK && !device_memory_free((unsigned char *)(uintptr_t)pointer)) {
        violate("freed device memory that was not allocated");
        result = INVALID_VALUE;
    }
    return leave(result);
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    int result = enter_in_context("cuMemGetInfo_v2");
    if (result == OK) {
        int device = current_device();
        *free_bytes = device_memory_left(device);
        *total = the.memory[device].total;
    }
    return leave(result);
}

/* Pages not in memory yet: the real driver would fault them in on one thread. */
static uint64_t cold_pages(unsigned char *memory, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *first = memory - (uintptr_t)memory % page, state = 0;
    uint64_t cold = 0;
    for (unsigned char *at = first; at < memory + bytes; at += page) {
        cold += mincore(at, page, &state) == 0 && (state & 1) == 0;
    }
    return cold;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    int result = enter_in_context("cuMemHostRegister_v2");
    (void)flags;
    if (result == OK && range_touches(the.registered, memory, bytes)) {
        result = ALREADY_REGISTERED;
    }
    if (result == OK && bytes > the.registered_limit - the.registered_bytes) {
        result = OUT_OF_MEMORY;
    }
    if (result == OK) {
        result = range_add(&the.registered, memory, bytes, NULL) ? OK : OUT_OF_MEMORY;
    }
    if (result == OK) {
        the.registered_bytes += bytes;
        the.counts.registered_ranges++;
        the.counts.cold_pages += cold_pages(memory, bytes);
    }
    return leave(result);
}

int cuMemHostUnregister(void *memory)
{
    int result = enter_in_context("cuMemHostUnregister");
    range *found = result == OK || result == the.sticky ? range_remove(&the.registered, memory) : NULL;
    if (found != NULL) {
        order_check_idle(found->begin, found->bytes, "host memory unregistered");
        the.registered_bytes -= found->bytes;
        the.counts.registered_ranges--;
        free(found);
    } else if (result == OK) {
        result = NOT_REGISTERED;
    }
    return leave(result);
}

/* True if one registration holds all of it. A copy that crosses its end fails in the driver. */
static bool is_pinned(const unsigned char *memory, size_t bytes)
{
    if (range_find(the.registered, memory, bytes) != NULL) {
        return true;
    }
    if (range_touches(the.registered, memory, bytes)) {
        violate("a copy crosses the end of registered memory");
    }
    return false;
}

/* Pageable memory is copied before the call returns. */
static int queue_copy(stream *one, const work *copy, bool host_is_pinned, bool to_host)
{
    int result = stream_queue(one, copy);
    the.counts.pinned_copies += host_is_pinned;
    the.counts.pageable_copies += !host_is_pinned;
    if (result == OK && !host_is_pinned) {
        clock_vector clock = one->clock;
        stream_wait_finished(one, one->queued);
        if (to_host) {
            clock_join(&the.host, &clock);
        }
        result = the.sticky;
    }
    return result;
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t bytes, void *handle)
{
    int result = enter_in_context("cuMemcpyDtoHAsync_v2");
    stream *one = stream_of(handle);
    const unsigned char *view = result == OK ? device_view(from, bytes) : NULL;
    if (result != OK || one == NULL || view == NULL) {
        return leave(result != OK ? result : INVALID_VALUE);
    }
    bool pinned = is_pinned(to, bytes);
    bool is_poisoned = pinned && !copies_use(to, bytes);
    order_access(one, (const unsigned char *)(uintptr_t)from, bytes, false);
    if (pinned) {
        order_access(one, to, bytes, true);
    }
    if (is_poisoned) {
        memset(to, POISON, bytes);
    }
    work copy = {.kind = WORK_COPY, .to = to, .from = view, .bytes = bytes, .is_poisoned = is_poisoned};
    return leave(queue_copy(one, &copy, pinned, true));
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t bytes, void *handle)
{
    int result = enter_in_context("cuMemcpyHtoDAsync_v2");
    stream *one = stream_of(handle);
    unsigned char *view = result == OK ? device_view(to, bytes) : NULL;
    if (result != OK || one == NULL || view == NULL) {
        return leave(result != OK ? result : INVALID_VALUE);
    }
    bool pinned = is_pinned(from, bytes);
    bool is_fingerprinted = pinned && !copies_use(from, bytes); /* one that is queued may yet write there */
    work copy = {.kind = WORK_COPY, .to = view, .from = from, .bytes = bytes, .is_fingerprinted = is_fingerprinted};
    order_access(one, (const unsigned char *)(uintptr_t)to, bytes, true);
    if (pinned) {
        order_access(one, from, bytes, false);
        copy.fingerprint = is_fingerprinted ? fingerprint_of(from, bytes) : 0;
    }
    return leave(queue_copy(one, &copy, pinned, false));
}

/* Like the driver's: copies on the legacy default stream, and returns when the copy is done. */
EXPORT int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes);
EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes);

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes)
{
    int result = cuMemcpyDtoHAsync_v2(to, from, bytes, NULL);
    return result != OK ? result : cuStreamSynchronize(NULL);
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes)
{
    int result = cuMemcpyHtoDAsync_v2(to, from, bytes, NULL);
    return result != OK ? result : cuStreamSynchronize(NULL);
}
