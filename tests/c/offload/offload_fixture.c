#include "offload_fixture.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

const backend_case *tested;
char spill_dir[4096];
static uint64_t blocks_before;

static const backend_case backends[] = {
    {"memory", MS_TIER_HOST, false, false, false, false},
    {"file", MS_TIER_DISK, false, false, false, false},
    {"compressed file", MS_TIER_DISK, false, false, false, true},
    {"buffered file", MS_TIER_DISK, true, false, false, false},
    {"cuda", MS_TIER_HOST, false, true, false, false},
    {"cuda, pageable", MS_TIER_HOST, false, true, true, false},
    {"cuda and disk", MS_TIER_DISK, false, true, false, false},
};

uint64_t tested_private_slots(uint32_t pieces)
{
    return tested->from_device ? 2 * pieces : pieces;
}

size_t backend_number(void)
{
    return (size_t)(tested - backends);
}

void choose_backend(size_t number, const char *dir)
{
    tested = &backends[number % (sizeof backends / sizeof backends[0])];
    snprintf(spill_dir, sizeof spill_dir, "%s", dir);
}

ms_offload_options small_options(void)
{
    return (ms_offload_options){
        .tier = tested->tier,
        .dir = tested->from_device && tested->tier == MS_TIER_HOST ? NULL : spill_dir,
        .from_device = tested->from_device,
        .cap_bytes = UINT64_MAX,
        .slab_bytes = 8 * 64 * KIB,
        .slot_bytes = 64 * KIB,
        .worker_count = 2,
        .no_direct_io = tested->no_direct_io,
        .compression = tested->compresses ? MS_COMPRESSION_ALWAYS : MS_COMPRESSION_NEVER,
    };
}

ms_offload *open_engine(const ms_offload_options *options)
{
    ms_error err = {0};
    ms_offload *engine = NULL;
    assert_ms_ok(ms_offload_open(options, &engine, &err), err);
    return engine;
}

void refuse_unnamed_files(void)
{
    ms_fault_arm(MS_FAULT_OPEN, 2, EOPNOTSUPP); /* the first open reads the memory nodes */
}

/* ---- device memory ------------------------------------------------------------ */

static void *double_symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        fail_msg("the double has no %s", name);
    }
    return address;
}

const double_api *the_double(void)
{
    static double_api api;
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
        {"cuda_double_reset", offsetof(double_api, reset)},
        {"cuda_double_schedule", offsetof(double_api, schedule)},
        {"cuda_double_fail", offsetof(double_api, break_call)},
        {"cuda_double_hang", offsetof(double_api, hang)},
        {"cuda_double_limit_registered", offsetof(double_api, limit_registered)},
        {"cuda_double_copy_engines", offsetof(double_api, copy_engines)},
        {"cuda_double_violations", offsetof(double_api, violations)},
        {"cuda_double_count", offsetof(double_api, count)},
        {"cuda_double_launch", offsetof(double_api, launch)},
        {"cuDevicePrimaryCtxRetain", offsetof(double_api, retain)},
        {"cuDevicePrimaryCtxRelease_v2", offsetof(double_api, release)},
        {"cuCtxPushCurrent_v2", offsetof(double_api, push)},
        {"cuCtxPopCurrent_v2", offsetof(double_api, pop)},
        {"cuMemAlloc_v2", offsetof(double_api, alloc)},
        {"cuMemFree_v2", offsetof(double_api, free)},
        {"cuMemcpyHtoD_v2", offsetof(double_api, to_device)},
        {"cuMemcpyDtoH_v2", offsetof(double_api, to_host)},
        {"cuStreamCreate", offsetof(double_api, stream_create)},
        {"cuStreamDestroy_v2", offsetof(double_api, stream_destroy)},
        {"cuStreamSynchronize", offsetof(double_api, stream_synchronize)},
    };
    if (api.reset != NULL) {
        return &api;
    }
    const char *hip = getenv("MEMSCALE_TEST_LIBHIP"); /* set: test ROCm's driver, which memscale finds in the process */
    void *library = dlopen(hip != NULL ? hip : getenv("MEMSCALE_TEST_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fail_msg("%s", dlerror());
    }
    if (hip == NULL) {
        setenv("MEMSCALE_LIBCUDA", getenv("MEMSCALE_TEST_LIBCUDA"), 1);
    }
    for (size_t i = sizeof rows / sizeof rows[0]; i-- > 0;) {
        void *address = double_symbol(library, rows[i].name);
        memcpy((char *)&api + rows[i].offset, &address, sizeof address);
    }
    return &api;
}

void enter_device(void)
{
    void *context;
    assert_int_equal(the_double()->retain(&context, 0), 0);
    assert_int_equal(the_double()->push(context), 0);
}

void leave_device(void)
{
    assert_int_equal(the_double()->pop(NULL), 0);
    assert_int_equal(the_double()->release(0), 0);
}

unsigned char *pages_new(uint64_t bytes)
{
    if (tested->from_device) {
        unsigned long long pointer = 0;
        enter_device();
        assert_int_equal(the_double()->alloc(&pointer, bytes), 0);
        leave_device();
        return (unsigned char *)(uintptr_t)pointer;
    }
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    return pages;
}

void pages_free(unsigned char *pages, uint64_t bytes)
{
    if (tested->from_device) {
        enter_device();
        assert_int_equal(the_double()->free((uintptr_t)pages), 0);
        leave_device();
        return;
    }
    munmap(pages, bytes);
}

/* Host memory to write to instead of `memory`; put_back() copies its bytes to `memory`. */
static unsigned char *stand_in(unsigned char *memory, uint64_t bytes)
{
    unsigned char *host = tested->from_device ? malloc(bytes) : memory;
    assert_non_null(host);
    return host;
}

static void put_back(unsigned char *memory, unsigned char *host, uint64_t bytes)
{
    if (host != memory) {
        enter_device();
        assert_int_equal(the_double()->to_device((uintptr_t)memory, host, bytes), 0);
        leave_device();
        free(host);
    }
}

static const unsigned char *take_copy(const unsigned char *memory, uint64_t bytes)
{
    if (!tested->from_device || bytes == 0) {
        return memory;
    }
    unsigned char *host = malloc(bytes);
    assert_non_null(host);
    enter_device();
    assert_int_equal(the_double()->to_host(host, (uintptr_t)memory, bytes), 0);
    leave_device();
    return host;
}

static void forget_copy(const unsigned char *memory, const unsigned char *copy)
{
    if (copy != memory) {
        free((void *)(uintptr_t)copy);
    }
}

void fill(unsigned char *memory, int value, uint64_t bytes)
{
    unsigned char *host = stand_in(memory, bytes);
    memset(host, value, bytes);
    put_back(memory, host, bytes);
}

bool is_filled(const unsigned char *memory, int value, uint64_t bytes)
{
    const unsigned char *copy = take_copy(memory, bytes);
    bool is_same = bytes == 0 || (copy[0] == value && memcmp(copy, copy + 1, bytes - 1) == 0);
    forget_copy(memory, copy);
    return is_same;
}

/* A part of a pattern. Sanitizers make single words slow, so that words are made and compared by the block. */
typedef struct pattern_block {
    uint64_t words[512];
} pattern_block;

/* The block from byte `at` on; each word depends on seed and index. The thread sanitizer need not see it: it is on the
 * caller's stack. */
__attribute__((no_sanitize("thread"))) static void make_block(pattern_block *block, uint64_t seed, uint64_t at)
{
    for (uint64_t i = 0; i < sizeof block->words / sizeof block->words[0]; i++) {
        uint64_t index = at / sizeof block->words[0] + i;
        block->words[i] = (index + seed * UINT64_C(0x9E3779B97F4A7C15) + 1) * UINT64_C(0xD6E8FEB86659FD93);
    }
}

static size_t block_part(uint64_t bytes, uint64_t at)
{
    return bytes - at < sizeof(pattern_block) ? (size_t)(bytes - at) : sizeof(pattern_block);
}

void pattern(unsigned char *memory, uint64_t bytes, uint64_t seed)
{
    unsigned char *host = stand_in(memory, bytes);
    pattern_block block;
    for (uint64_t at = 0; at < bytes; at += sizeof block) {
        make_block(&block, seed, at);
        memcpy(host + at, block.words, block_part(bytes, at));
    }
    put_back(memory, host, bytes);
}

bool has_pattern(const unsigned char *memory, uint64_t bytes, uint64_t seed)
{
    const unsigned char *copy = take_copy(memory, bytes);
    pattern_block block;
    bool is_same = true;
    for (uint64_t at = 0; at < bytes && is_same; at += sizeof block) {
        make_block(&block, seed, at);
        is_same = memcmp(copy + at, block.words, block_part(bytes, at)) == 0;
    }
    forget_copy(memory, copy);
    return is_same;
}

void assert_engine_works(ms_offload *engine)
{
    ms_error err = {0};
    ms_ticket ticket = 0;
    uint64_t bytes = 300 * KIB + 5;
    uint64_t capacity = 304 * KIB;
    unsigned char *source = pages_new(capacity);
    unsigned char *destination = pages_new(capacity);
    pattern(source, bytes, 77);
    assert_ms_ok(ms_offload_store(engine, source, bytes, capacity, &ticket, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    assert_ms_ok(ms_offload_fetch(engine, ticket, destination, capacity, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    assert_true(has_pattern(destination, bytes, 77));
    ms_offload_drop(engine, ticket);
    pages_free(source, capacity);
    pages_free(destination, capacity);
}

size_t count_entries(const char *dir)
{
    DIR *stream = opendir(dir);
    size_t count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(stream);
    return count;
}

size_t count_fds(void)
{
    return count_entries("/proc/self/fd");
}

/* The kernel's PF_EXITING, in the ninth field of a task's stat file. */
enum { TASK_EXITING = 0x4 };

/* True for an entry of /proc/self/task of one of the program's threads. */
static bool is_thread(const char *entry)
{
    char path[300], text[512] = "";
    unsigned flags = TASK_EXITING; /* if it ended during the scan */
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry);
    FILE *file = entry[0] != '.' ? fopen(path, "r") : NULL;
    if (file != NULL) {
        const char *fields = fgets(text, sizeof text, file) != NULL ? strrchr(text, ')') : NULL;
        if (fields != NULL) {
            (void)sscanf(fields, ") %*c %*d %*d %*d %*d %*d %u", &flags);
        }
        fclose(file);
    }
    return (flags & TASK_EXITING) == 0;
}

static size_t count_once(void)
{
    DIR *stream = opendir("/proc/self/task");
    size_t count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        count += is_thread(entry->d_name);
    }
    closedir(stream);
    return count;
}

/* A listing may be incomplete if a thread ends meanwhile, so it counts until two counts agree. */
size_t count_threads_now(void)
{
    size_t count = count_once(), before;
    do {
        before = count;
        count = count_once();
    } while (count != before);
    return count;
}

size_t count_threads(size_t expected)
{
    uint64_t until_ns = ms_now_ns() + PATIENCE_NS;
    size_t count = count_threads_now();
    while (count != expected && ms_now_ns() < until_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
        count = count_threads_now();
    }
    return count;
}

int fixture_setup(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    if (tested->from_device) {
        static uint64_t seed;
        the_double()->reset();
        the_double()->schedule(++seed, 20000);
        if (tested->no_pinning) {
            the_double()->limit_registered(0);
        }
    }
    blocks_before = ms_memory_live_blocks();
    return 0;
}

/* Reports broken rules of the driver and objects left in it. */
static bool device_is_clean(void)
{
    char text[256];
    cuda_double_counts counts;
    the_double()->count(&counts);
    if (the_double()->violations(text, sizeof text) != 0) {
        print_error("the double: %s\n", text);
        return false;
    }
    uint64_t left = counts.streams + counts.events + counts.contexts + counts.registered_ranges + counts.allocations;
    if (left != 0) {
        print_error("left in the driver: %llu streams, %llu events, %llu contexts, %llu ranges, %llu "
                    "allocations\n",
                    (unsigned long long)counts.streams, (unsigned long long)counts.events,
                    (unsigned long long)counts.contexts, (unsigned long long)counts.registered_ranges,
                    (unsigned long long)counts.allocations);
    }
    return left == 0;
}

int fixture_teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    if (ms_memory_live_blocks() != blocks_before) {
        print_error("%llu blocks of memory are left\n", (unsigned long long)(ms_memory_live_blocks() - blocks_before));
        return -1;
    }
    if (tested->from_device && !device_is_clean()) {
        return -1;
    }
    if (count_entries(spill_dir) != 0) {
        print_error("something is left in %s\n", spill_dir);
        return -1;
    }
    return 0;
}

static int run_on(const backend_case *backend, const char *topic, const struct CMUnitTest *tests, size_t count)
{
    char name[128];
    tested = backend;
    if (tested->from_device) {
        the_double(); /* loads the double before the library looks for a driver */
    }
    snprintf(name, sizeof name, "%s on %s", topic, tested->name);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}

static bool make_spill_dir(void)
{
    const char *parent = getenv("MEMSCALE_TEST_SPILL_DIR");
    snprintf(spill_dir, sizeof spill_dir, "%s/memscale-test-XXXXXX", parent != NULL ? parent : "/var/tmp");
    if (mkdtemp(spill_dir) == NULL) {
        perror(spill_dir);
        return false;
    }
    return true;
}

static int run_where(const char *name, const char *topic, const struct CMUnitTest *tests, size_t count)
{
    int failures = 0;
    if (!make_spill_dir()) {
        return 1;
    }
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        bool is_wanted = name == NULL || strcmp(name, backends[i].name) == 0;
        if (is_wanted) {
            failures += run_on(&backends[i], topic, tests, count);
        }
    }
    rmdir(spill_dir);
    return failures;
}

int run_on_backend(const char *name, const char *topic, const struct CMUnitTest *tests, size_t count)
{
    return run_where(name, topic, tests, count);
}

int run_on_every_backend(const char *topic, const struct CMUnitTest *tests, size_t count)
{
    return run_where(NULL, topic, tests, count);
}
