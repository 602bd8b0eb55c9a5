#include "offload_fixture.h"

#include <dirent.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

const backend_case *tested;
char spill_dir[4096];
static uint64_t blocks_before;

static const backend_case backends[] = {
    {"memory", MS_TIER_HOST, false, MS_DISK_IO_AUTO},
    {"file", MS_TIER_DISK, false, MS_DISK_IO_THREADS},
    {"buffered file", MS_TIER_DISK, true, MS_DISK_IO_THREADS},
    {"io_uring", MS_TIER_DISK, false, MS_DISK_IO_URING},
    {"buffered io_uring", MS_TIER_DISK, true, MS_DISK_IO_URING},
};

bool tested_is_uring(void)
{
    return tested->disk_io == MS_DISK_IO_URING;
}

const char *tested_backend(void)
{
    return tested->tier == MS_TIER_HOST ? "memory" : tested_is_uring() ? "io_uring" : "file";
}

size_t tested_threads(size_t pieces)
{
    return tested_is_uring() ? 1 : pieces;
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
        .dir = spill_dir,
        .cap_bytes = UINT64_MAX,
        .slab_bytes = 8 * 64 * KIB,
        .slot_bytes = 64 * KIB,
        .worker_count = 2,
        .disk_io = tested->disk_io,
        .no_direct_io = tested->no_direct_io,
    };
}

ms_offload *open_engine(const ms_offload_options *options)
{
    ms_error err = {0};
    ms_offload *engine = NULL;
    assert_ms_ok(ms_offload_open(options, &engine, &err), err);
    return engine;
}

unsigned char *pages_new(uint64_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    return pages;
}

void pages_free(unsigned char *pages, uint64_t bytes)
{
    munmap(pages, bytes);
}

/* Eight bytes that depend on seed and place. */
static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
    return (index + seed * UINT64_C(0x9E3779B97F4A7C15) + 1) * UINT64_C(0xD6E8FEB86659FD93);
}

void pattern(unsigned char *memory, uint64_t bytes, uint64_t seed)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = pattern_word(seed, at / 8);
        memcpy(memory + at, &word, bytes - at < 8 ? bytes - at : 8);
    }
}

bool has_pattern(const unsigned char *memory, uint64_t bytes, uint64_t seed)
{
    for (uint64_t at = 0; at < bytes; at += 8) {
        uint64_t word = pattern_word(seed, at / 8);
        if (memcmp(memory + at, &word, bytes - at < 8 ? bytes - at : 8) != 0) {
            return false;
        }
    }
    return true;
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

/* io_uring moves what would block in threads that the kernel makes and ends as it likes. */
size_t count_threads_now(void)
{
    DIR *stream = opendir("/proc/self/task");
    size_t count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file != NULL) {
            count += fgets(name, sizeof name, file) != NULL && strncmp(name, "iou-", 4) != 0;
            fclose(file);
        }
    }
    closedir(stream);
    return count;
}

size_t count_threads(size_t expected)
{
    size_t count = 0;
    for (int tries = 0; tries < 100; tries++) {
        count = count_threads_now();
        if (count == expected) {
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    return count;
}

int fixture_setup(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    blocks_before = ms_memory_live_blocks();
    return 0;
}

int fixture_teardown(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    if (ms_memory_live_blocks() != blocks_before) {
        print_error("%llu blocks of memory are left\n",
                    (unsigned long long)(ms_memory_live_blocks() - blocks_before));
        return -1;
    }
    if (count_entries(spill_dir) != 0) {
        print_error("something is left in %s\n", spill_dir);
        return -1;
    }
    return 0;
}

/* The kernel may forbid io_uring here, which is no fault of ours. */
static bool is_allowed(void)
{
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    bool is_allowed = strcmp(ms_offload_backend(engine), tested_backend()) == 0;
    ms_offload_close(engine);
    return is_allowed;
}

static int run_on(const backend_case *backend, const char *topic, const struct CMUnitTest *tests,
                  size_t count)
{
    char name[128];
    tested = backend;
    if (!is_allowed()) {
        print_message("%s: not on %s, which is not allowed here\n", topic, tested->name);
        return 0;
    }
    snprintf(name, sizeof name, "%s on %s", topic, tested->name);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}

static bool make_spill_dir(void)
{
    const char *parent = getenv("MEMSCALE_TEST_SPILL_DIR");
    snprintf(spill_dir, sizeof spill_dir, "%s/memscale-test-XXXXXX",
             parent != NULL ? parent : "/var/tmp");
    if (mkdtemp(spill_dir) == NULL) {
        perror(spill_dir);
        return false;
    }
    return true;
}

int run_on_backend(const char *name, const char *topic, const struct CMUnitTest *tests,
                   size_t count)
{
    int failures = 0;
    if (!make_spill_dir()) {
        return 1;
    }
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (name == NULL || strcmp(name, backends[i].name) == 0) {
            failures += run_on(&backends[i], topic, tests, count);
        }
    }
    rmdir(spill_dir);
    return failures;
}

int run_on_every_backend(const char *topic, const struct CMUnitTest *tests, size_t count)
{
    return run_on_backend(NULL, topic, tests, count);
}
