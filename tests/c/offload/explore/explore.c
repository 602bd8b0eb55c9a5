/*
 * Explores schedules of the engine with thousands of seeds. Each seed has an engine, callers that use
 * it at random, and a slow device or disk; half of them have faults. In any order, fetched bytes equal
 * the stored ones or a call returns an error; no wait is endless, and nothing is left.
 *
 *   test_offload_explore                   3000 seeds
 *   test_offload_explore SEED              one seed, its schedule twice
 *   test_offload_explore SEED SECONDS      from this seed on, for that time
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_double.h"
#include "device/libcuda.h"
#include "fibres.h"
#include "offload/engine.h"

#if defined(__SANITIZE_THREAD__)
enum { HAS_THREADS_ONLY = 1 }; /* it does not know fibres */
#else
enum { HAS_THREADS_ONLY = 0 };
#endif

enum { SEEDS = 3000, CALLERS_MAX = 3, HELD = 3, STEPS = 14, PAGE = 4096, AREA = 8 * PAGE, SKIPPED = 77 };

typedef enum world { MEMORY, FILE_THREADS, CUDA_PINNED, CUDA_PAGEABLE, CUDA_LADDER, CUDA_DISK, WORLDS } world;
static const char *const world_names[] = {"memory", "file", "cuda pinned", "cuda pageable", "cuda ladder", "cuda disk"};

typedef struct holding {
    unsigned char *memory; /* host or device, for the whole run */
    unsigned char *landing;
    ms_ticket ticket;
    uint64_t bytes;
    uint64_t seed;
    bool is_cancelled;
} holding;

typedef struct caller {
    ms_offload *engine;
    void *stream;
    holding held[HELD];
    uint64_t random;
    ms__thread thread;
} caller;

/* Totals of the run. */
static caller callers[CALLERS_MAX];
static uint64_t seed_now;
static world world_now;
static bool faults_strike;
static uint64_t delivered, refused, joined; /* joined: how often a caller saw several in one request */
static char spill_dir[] = "/var/tmp/memscale-explore-XXXXXX";
static void *context;

static void wrong(const char *what)
{
    fprintf(stderr, "seed %" PRIu64 " on %s: %s\nagain: test_offload_explore %" PRIu64 "\n", seed_now,
            world_names[world_now], what, seed_now);
    rmdir(spill_dir);
    _exit(1);
}

static void stuck(void)
{
    wrong("nobody can go on: a circle of waits");
}

static bool is_device(void)
{
    return world_now >= CUDA_PINNED;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- the driver, linked in ------------------------------------------------------------ */

extern int cuInit(unsigned), cuDeviceGetCount(int *), cuDeviceGet(int *, int), cuDeviceGetName(char *, int, int),
    cuDeviceTotalMem_v2(size_t *, int), cuDeviceGetAttribute(int *, int, int), cuDevicePrimaryCtxRetain(void **, int),
    cuDevicePrimaryCtxRelease_v2(int), cuCtxPushCurrent_v2(void *), cuCtxPopCurrent_v2(void **),
    cuStreamCreate(void **, unsigned), cuStreamDestroy_v2(void *), cuStreamSynchronize(void *),
    cuStreamWaitEvent(void *, void *, unsigned), cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *),
    cuEventRecord(void *, void *), cuEventSynchronize(void *), cuEventQuery(void *),
    cuMemcpyDtoHAsync_v2(void *, unsigned long long, size_t, void *),
    cuMemcpyHtoDAsync_v2(unsigned long long, const void *, size_t, void *),
    cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *),
    cuMemAlloc_v2(unsigned long long *, size_t);

int ms__libcuda_get(const ms__libcuda **out, ms_error *err)
{
    static const ms__libcuda table = {
        .init = cuInit,
        .device_get_count = cuDeviceGetCount,
        .device_get = cuDeviceGet,
        .device_get_name = cuDeviceGetName,
        .device_total_mem = cuDeviceTotalMem_v2,
        .device_get_attribute = cuDeviceGetAttribute,
        .primary_context_retain = cuDevicePrimaryCtxRetain,
        .primary_context_release = cuDevicePrimaryCtxRelease_v2,
        .context_push = cuCtxPushCurrent_v2,
        .context_pop = cuCtxPopCurrent_v2,
        .stream_create = cuStreamCreate,
        .stream_destroy = cuStreamDestroy_v2,
        .stream_synchronize = cuStreamSynchronize,
        .stream_wait_event = cuStreamWaitEvent,
        .event_create = cuEventCreate,
        .event_destroy = cuEventDestroy_v2,
        .event_record = cuEventRecord,
        .event_synchronize = cuEventSynchronize,
        .event_query = cuEventQuery,
        .copy_to_host = cuMemcpyDtoHAsync_v2,
        .copy_to_device = cuMemcpyHtoDAsync_v2,
        .host_register = cuMemHostRegister_v2,
        .host_unregister = cuMemHostUnregister,
    };
    (void)err;
    *out = &table;
    return MS_OK;
}

/* ---- bytes ------------------------------------------------------------------------------- */

static unsigned char byte_of(uint64_t seed, size_t at)
{
    return (unsigned char)((at * 167 + seed * 13) >> 2 ^ seed);
}

static void make_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    uint64_t seed = (uintptr_t)argument;
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = byte_of(seed, i);
    }
}

static void check_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    uint64_t seed = (uintptr_t)argument;
    for (size_t i = 0; i < bytes; i++) {
        if (memory[i] != byte_of(seed, i)) {
            wrong("bytes differ");
        }
    }
}

/* At once, or later on the caller's stream. */
static void touch(const caller *self, unsigned char *memory, uint64_t bytes, uint64_t seed, cuda_double_kernel *kernel)
{
    void *argument = (void *)(uintptr_t)seed;
    if (!is_device()) {
        kernel(argument, memory, bytes);
    } else {
        int writes = kernel == make_bytes;
        (void)cuda_double_launch(self->stream, (uintptr_t)memory, bytes, writes, kernel, argument);
    }
}

/* ---- callers ----------------------------------------------------------------------------------- */

/* Errors are allowed under faults, at the cap, and after the caller's own cancel. */
static void expect(const holding *held, int rc, const char *what)
{
    bool is_struck = faults_strike && (rc == MS_EIO || rc == MS_ECHECKSUM || rc == MS_ENOMEM || rc == MS_ESYSTEM);
    bool is_own = held->is_cancelled && rc == MS_ECANCELED;
    refused += rc != MS_OK;
    if (rc != MS_OK && rc != MS_ENOSPC && !is_struck && !is_own) {
        wrong(what);
    }
}

static void begin(caller *self, holding *held)
{
    uint64_t most_bytes = next_random(&self->random) % 2 == 0 ? AREA - PAGE : 2 * PAGE; /* large, or to be joined */
    held->bytes = 1 + next_random(&self->random) % most_bytes;
    held->seed = next_random(&self->random) & 0xFFFF;
    held->is_cancelled = false;
    touch(self, held->memory, held->bytes, held->seed, make_bytes);
    uint64_t spare = next_random(&self->random) % 2 == 0 ? PAGE : 0;
    int rc = is_device()
                 ? ms_offload_store_on(self->engine, self->stream, held->memory, held->bytes, &held->ticket, NULL)
                 : ms_offload_store(self->engine, held->memory, held->bytes, held->bytes + spare, &held->ticket, NULL);
    expect(held, rc, "a store is refused");
    held->ticket = rc == MS_OK ? held->ticket : 0;
}

/* Once stored, the source is the caller's again. */
static void overwrite(caller *self, holding *held)
{
    if (ms_offload_state(self->engine, held->ticket) == MS_TICKET_STORED) {
        touch(self, held->memory, held->bytes, held->seed + 1, make_bytes);
    }
}

static int ask_back(caller *self, holding *held)
{
    touch(self, held->landing, held->bytes, held->seed + 2, make_bytes);
    return is_device() ? ms_offload_fetch_on(self->engine, self->stream, held->ticket, held->landing, held->bytes, NULL)
                       : ms_offload_fetch(self->engine, held->ticket, held->landing,
                                          held->bytes + next_random(&self->random) % 2 * PAGE, NULL);
}

/* After ask_back() returned `rc`. */
static void take_back(caller *self, holding *held, int rc)
{
    if (rc == MS_OK) {
        rc = ms_offload_wait(self->engine, held->ticket, NULL);
    }
    expect(held, rc, "a fetch fails");
    if (rc == MS_OK) {
        delivered++;
        touch(self, held->landing, held->bytes, held->seed, check_bytes);
    }
}

static void bring_back(caller *self, holding *held)
{
    take_back(self, held, ask_back(self, held));
}

/* Whether a lane is moving several tickets by one request. */
static bool sees_joined(const ms_offload *engine)
{
    for (uint32_t i = 0; i < engine->worker_count; i++) {
        const ms__job *job = &engine->workers[i].jobs[0];
        if (job->is_running && job->ticket->joined != NULL) {
            return true;
        }
    }
    return false;
}

/* Stores all items that aren't stored yet, then fetches them all, so that many wait at a time. */
static void move_all(caller *self)
{
    int rc[HELD] = {0};
    for (int i = 0; i < HELD; i++) {
        if (self->held[i].ticket == 0) {
            begin(self, &self->held[i]);
        }
    }
    for (int i = HELD; i-- > 0;) {
        rc[i] = self->held[i].ticket != 0 ? ask_back(self, &self->held[i]) : MS_OK;
    }
    joined += sees_joined(self->engine);
    for (int i = HELD; i-- > 0;) {
        if (self->held[i].ticket != 0) {
            take_back(self, &self->held[i], rc[i]);
        }
    }
}

static void end(caller *self, holding *held)
{
    ms_offload_drop(self->engine, held->ticket);
    touch(self, held->memory, held->bytes, held->seed + 3, make_bytes); /* nobody reads it now */
    held->ticket = 0;
}

static void step(caller *self)
{
    joined += sees_joined(self->engine);
    holding *held = &self->held[next_random(&self->random) % HELD];
    ms_ticket ended[2];
    if (held->ticket == 0) {
        begin(self, held);
        return;
    }
    switch (next_random(&self->random) % 10) {
    case 0:
        end(self, held);
        break;
    case 1:
        expect(held, ms_offload_wait(self->engine, held->ticket, NULL), "a wait fails");
        break;
    case 2:
        (void)ms_offload_reap(self->engine, ended, 2);
        break;
    case 3:
        expect(held, ms_offload_quiesce(self->engine, NULL), "quiesce fails");
        break;
    case 4:
        held->is_cancelled = true;
        ms_offload_cancel(self->engine, held->ticket);
        break;
    case 5:
        overwrite(self, held);
        break;
    case 6:
        move_all(self);
        break;
    default:
        bring_back(self, held);
    }
}

static void caller_body(void *argument)
{
    caller *self = argument;
    for (int i = 0; i < STEPS; i++) {
        step(self);
    }
    for (int i = 0; i < HELD; i++) {
        if (self->held[i].ticket != 0 && next_random(&self->random) % 4 > 0) {
            end(self, &self->held[i]); /* closing the engine ends the others */
        }
        self->held[i].ticket = 0;
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

static ms_offload_options random_options(uint64_t *random)
{
    ms_offload_options options = {
        .tier = world_now == FILE_THREADS || world_now == CUDA_DISK ? MS_TIER_DISK : MS_TIER_HOST,
        .dir = world_now == FILE_THREADS || world_now >= CUDA_LADDER ? spill_dir : NULL,
        .from_device = is_device(),
        .slot_bytes = PAGE << next_random(random) % 4,
        .worker_count = 1 + (uint32_t)(next_random(random) % 3),
        .cap_bytes = world_now == CUDA_LADDER       ? 12 * PAGE
                     : next_random(random) % 4 == 0 ? 20 * PAGE
                                                    : 1 << 20,
        .pinned_bytes = world_now == CUDA_LADDER ? 6 * PAGE : 1 << 20,
        .disk_cap_bytes = 1 << 20,
        .stream_count = (uint32_t)(next_random(random) % 4),
        .no_direct_io = true,
        .no_verify = !faults_strike && next_random(random) % 4 == 0,
    };
    options.slab_bytes = options.slot_bytes * (2 * options.worker_count + 1 + next_random(random) % 3);
    return options;
}

static void arm(uint64_t *random)
{
    const ms_fault kinds[] = {MS_FAULT_WRITE, MS_FAULT_READ,  MS_FAULT_SHORT,
                              MS_FAULT_FLIP,  MS_FAULT_ALLOC, MS_FAULT_DRIVER};
    const int numbers[] = {EIO, EINTR, 0, 0, ENOMEM, 0};
    size_t kind = next_random(random) % (sizeof kinds / sizeof kinds[0]);
    ms_fault_arm(kinds[kind], 1 + next_random(random) % 40, numbers[kind]);
    if (is_device() && next_random(random) % 4 == 0) {
        cuda_double_fail("work", 1 + next_random(random) % 60, 700); /* from then on the device is gone */
    }
}

static void give_memory(caller *self)
{
    for (int i = 0; i < 2 * HELD; i++) {
        unsigned long long pointer = 0;
        unsigned char **place = i < HELD ? &self->held[i].memory : &self->held[i - HELD].landing;
        static unsigned char *pool[2][CALLERS_MAX][2 * HELD];
        unsigned char **pooled = &pool[is_device()][self - callers][i];
        if (*pooled == NULL && is_device()) {
            (void)cuMemAlloc_v2(&pointer, AREA);
            *pooled = (unsigned char *)(uintptr_t)pointer;
        } else if (*pooled == NULL) {
            *pooled = aligned_alloc(PAGE, AREA);
        }
        *place = *pooled;
    }
}

static void check_after(const cuda_double_counts *before, uint64_t blocks)
{
    char text[256];
    cuda_double_counts after;
    cuda_double_count(&after);
    if (cuda_double_violations(text, sizeof text) != 0) {
        wrong(text);
    }
    if (after.streams != before->streams || after.events != before->events || after.contexts != before->contexts ||
        after.registered_ranges != before->registered_ranges) {
        wrong("something is left in the driver");
    }
    if (ms_memory_live_blocks() != blocks) {
        wrong("memory is left");
    }
}

static void use_engine(ms_offload *engine, uint64_t *random)
{
    int count = 1 + (int)(next_random(random) % CALLERS_MAX);
    for (int i = 0; i < count; i++) {
        caller *self = &callers[i];
        self->engine = engine;
        self->random = next_random(random) | 1;
        self->stream = NULL;
        if (is_device() && i > 0) {
            (void)cuStreamCreate(&self->stream, 1);
        }
        if (ms__thread_start(&self->thread, "caller", caller_body, self, NULL) != MS_OK) {
            wrong("there are not enough fibres");
        }
    }
    for (int i = 0; i < count; i++) {
        ms__thread_join(&callers[i].thread);
    }
    ms_fault_disarm_all();
    ms_offload_close(engine);
    for (int i = 0; i < count && is_device(); i++) {
        (void)cuStreamSynchronize(callers[i].stream);
        if (callers[i].stream != NULL) {
            (void)cuStreamDestroy_v2(callers[i].stream);
        }
    }
}

static uint64_t run(uint64_t seed)
{
    uint64_t random = seed * UINT64_C(0xD6E8FEB86659FD93) + 1;
    cuda_double_counts before;
    (void)next_random(&random);
    (void)next_random(&random);
    seed_now = seed;
    world_now = (world)(next_random(&random) % WORLDS);
    faults_strike = next_random(&random) % 2 == 0;
    for (int i = 0; i < CALLERS_MAX; i++) {
        give_memory(&callers[i]);
    }
    cuda_double_reset();
    (void)cuStreamSynchronize(NULL);
    cuda_double_count(&before);
    fibres_seed(seed);
    cuda_double_schedule(seed, next_random(&random) % 3 * 30000);
    cuda_double_limit_registered(world_now == CUDA_PAGEABLE ? 0 : SIZE_MAX);
    uint64_t blocks = ms_memory_live_blocks();
    ms_offload *engine = NULL;
    ms_error err = {0};
    ms_offload_options options = random_options(&random);
    if (ms_offload_open(&options, &engine, &err) != MS_OK) {
        wrong(err.text);
    }
    if (faults_strike) {
        arm(&random);
    }
    use_engine(engine, &random);
    check_after(&before, blocks);
    return fibres_trace();
}

/* Allocated once: memory of both kinds, and the legacy default stream. */
static void warm_up(void)
{
    for (int i = 0; i < WORLDS; i++) {
        world_now = (world)i;
        for (int j = 0; j < CALLERS_MAX; j++) {
            give_memory(&callers[j]);
        }
    }
    touch(&callers[0], callers[0].held[0].landing, AREA, 1, make_bytes);
    (void)cuStreamSynchronize(NULL);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t count = argc == 2 ? 1 : argc > 2 ? UINT64_MAX : SEEDS;
    double until = argc > 2 ? seconds_now() + atof(argv[2]) : 1e300;
    if (HAS_THREADS_ONLY) {
        return SKIPPED;
    }
    if (mkdtemp(spill_dir) == NULL) {
        perror(spill_dir);
        return 1;
    }
    fibres_stuck = stuck;
    cuda_double_pass_time = fibres_sleep;
    cuda_double_caller = fibres_self;
    (void)cuDevicePrimaryCtxRetain(&context, 0);
    (void)cuCtxPushCurrent_v2(context);
    warm_up();
    uint64_t done = 0;
    for (; done < count && seconds_now() < until; done++) {
        uint64_t trace = run(first + done);
        if (done % 100 == 0 && run(first + done) != trace) {
            wrong("the same seed went another way");
        }
    }
    rmdir(spill_dir);
    printf("%" PRIu64 " seeds, %" PRIu64 " fetches delivered, %" PRIu64 " calls refused, %" PRIu64
           " requests of several seen\n",
           done, delivered, refused, joined);
    return delivered > done && (count < 100 || (refused > 0 && joined > 0)) ? 0 : 1;
}
