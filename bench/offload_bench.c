/*
 * Measures how fast the offload engine moves bytes to disk and back, and compares it with fio (or dd) and
 * with a plain loop of pwrite and pread: same file system, block size and number of threads. Also times
 * checksums, packing, small storages, calls of the engine, and an urgent fetch while stores are queued.
 * Prints for each of the engine's targets whether it was met. Run: offload_bench [directory [gigabytes]].
 *
 * The storages are those of a transformer layer: 6 to 50 MB, 340 MB in all. Each figure is the median of
 * several rounds. Each round runs all variants, so that a slow phase of the machine slows all of them.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "disk_yardstick.h"
#include "memscale/offload.h"

/* Internal: the variants of the checksum. */
#include "base/checksum.h"
#include "base/pack.h"

#define MIB ((uint64_t)1 << 20)

enum { STORAGES_MAX = 4096, ROUNDS = 5, THREADS_MAX = 8 };

typedef struct storage {
    unsigned char *memory;
    uint64_t bytes;
} storage;

static storage storages[STORAGES_MAX];
static size_t storage_count;
static uint64_t total_bytes;
static const char *directory = "/var/tmp";

/* The engine's targets: least share of fio's rate, most processor time, longest call. */
#define LEAST_OF_FIO 0.95
#define MOST_CPU_S_PER_GB 0.12
#define MOST_CALL_US 20.0

/* One way to move the storages. */
typedef struct variant {
    const char *name;
    int threads;
    bool is_plain; /* without the engine: our plain loop, or the yardstick if `name` is NULL */
    uint64_t slot_bytes;
    bool no_verify;
    uint64_t shift; /* > 0: unaligned memory, which can't be written directly */
} variant;

static double seconds(void)
{
    return (double)ms_now_ns() * 1e-9;
}

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void die(const char *what, const ms_error *err)
{
    fprintf(stderr, "offload_bench: %s: %s\n", what, err != NULL ? err->text : "failed");
    exit(1);
}

/* ---- storages ----------------------------------------------------------------- */

static void add_storage(uint64_t bytes)
{
    uint64_t mapped = (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || storage_count == STORAGES_MAX) {
        die("memory for the storages", NULL);
    }
    madvise(memory, mapped, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < mapped / 8; i++) {
        ((uint64_t *)memory)[i] = (i + storage_count) * UINT64_C(0x9E3779B97F4A7C15);
    }
    storages[storage_count++] = (storage){memory, bytes};
    total_bytes += bytes;
}

static void make_storages(uint64_t wanted_bytes)
{
    const uint64_t layer_mb[] = {6, 6, 19, 50, 50, 50, 6, 6, 25, 25, 25, 25, 25, 6, 6, 6};
    while (total_bytes < wanted_bytes) {
        for (size_t i = 0; i < sizeof layer_mb / sizeof layer_mb[0]; i++) {
            add_storage(layer_mb[i] * 1000000 / 4096 * 4096);
        }
    }
}

/* ---- the plain loop ------------------------------------------------------------- */

typedef struct plain_loop {
    int fd;
    uint64_t block_bytes;
    int threads;
    bool is_read;
    _Atomic size_t next; /* the next block, counted over all storages */
} plain_loop;

/* The n-th block of all storages, and its position in the file. False if there is none. */
static bool find_block(const plain_loop *loop, size_t n, unsigned char **memory, uint64_t *bytes, uint64_t *position)
{
    uint64_t start = 0;
    for (size_t i = 0; i < storage_count; i++) {
        size_t blocks = (size_t)((storages[i].bytes + loop->block_bytes - 1) / loop->block_bytes);
        if (n < blocks) {
            uint64_t offset = n * loop->block_bytes;
            uint64_t left = storages[i].bytes - offset;
            *memory = storages[i].memory + offset;
            *bytes = left < loop->block_bytes ? left : loop->block_bytes;
            *position = start + offset;
            return true;
        }
        n -= blocks;
        start += storages[i].bytes;
    }
    return false;
}

static void *plain_thread(void *argument)
{
    plain_loop *loop = argument;
    unsigned char *memory;
    uint64_t bytes, position;
    while (find_block(loop, atomic_fetch_add(&loop->next, 1), &memory, &bytes, &position)) {
        ssize_t moved = loop->is_read ? pread(loop->fd, memory, bytes, (off_t)position)
                                      : pwrite(loop->fd, memory, bytes, (off_t)position);
        if (moved != (ssize_t)bytes) {
            die("plain transfer", NULL);
        }
    }
    return NULL;
}

static double plain_pass(plain_loop *loop, bool is_read)
{
    pthread_t threads[THREADS_MAX];
    double start = seconds();
    loop->is_read = is_read;
    atomic_store(&loop->next, 0);
    for (int i = 0; i < loop->threads; i++) {
        pthread_create(&threads[i], NULL, plain_thread, loop);
    }
    for (int i = 0; i < loop->threads; i++) {
        pthread_join(threads[i], NULL);
    }
    return (double)total_bytes / (seconds() - start) / 1e9;
}

static disk_rates run_plain(const variant *v)
{
    disk_rates result = {0};
    plain_loop loop = {.block_bytes = v->slot_bytes, .threads = v->threads};
    loop.fd = open(directory, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (loop.fd < 0 || fallocate(loop.fd, 0, 0, (off_t)total_bytes) != 0) {
        die("opening a file for direct I/O", NULL);
    }
    plain_pass(&loop, false);
    double cpu = processor_seconds();
    result.write_gb = plain_pass(&loop, false);
    result.read_gb = plain_pass(&loop, true);
    result.cpu = (processor_seconds() - cpu) / (2 * (double)total_bytes / 1e9);
    close(loop.fd);
    return result;
}

/* ---- the engine ------------------------------------------------------------------ */

static ms_ticket tickets[STORAGES_MAX];

static ms_offload *open_engine(const variant *v)
{
    ms_error err = {0};
    ms_offload *engine = NULL;
    ms_offload_options options = {
        .tier = MS_TIER_DISK,
        .dir = directory,
        .cap_bytes = UINT64_MAX,
        .slot_bytes = v->slot_bytes,
        .slab_bytes = (uint64_t)(v->threads + 4) * v->slot_bytes,
        .worker_count = (uint32_t)v->threads,
        .no_verify = v->no_verify,
    };
    if (ms_offload_open(&options, &engine, &err) != MS_OK) {
        die("opening", &err);
    }
    return engine;
}

/* `shift` > 0: unaligned memory, which passes through slots. */
static double store_all(ms_offload *engine, uint64_t shift)
{
    ms_error err = {0};
    double start = seconds();
    for (size_t i = 0; i < storage_count; i++) {
        uint64_t bytes = storages[i].bytes - shift;
        if (ms_offload_store(engine, storages[i].memory + shift, bytes, bytes, &tickets[i], &err) != MS_OK) {
            die("store", &err);
        }
    }
    if (ms_offload_quiesce(engine, &err) != MS_OK) {
        die("quiesce", &err);
    }
    return (double)total_bytes / (seconds() - start) / 1e9;
}

static double fetch_all(ms_offload *engine, uint64_t shift)
{
    ms_error err = {0};
    double start = seconds();
    for (size_t i = storage_count; i-- > 0;) {
        uint64_t bytes = storages[i].bytes - shift;
        if (ms_offload_fetch(engine, tickets[i], storages[i].memory + shift, bytes, &err) != MS_OK) {
            die("fetch", &err);
        }
    }
    for (size_t i = storage_count; i-- > 0;) {
        if (ms_offload_wait(engine, tickets[i], &err) != MS_OK) {
            die("wait", &err);
        }
    }
    return (double)total_bytes / (seconds() - start) / 1e9;
}

static void drop_all(ms_offload *engine)
{
    for (size_t i = storage_count; i-- > 0;) {
        ms_offload_drop(engine, tickets[i]);
    }
}

static disk_rates run_engine(const variant *v)
{
    disk_rates result = {0};
    uint64_t shift = v->shift;
    ms_offload *engine = open_engine(v);
    store_all(engine, shift); /* not counted: like the plain loop, it first writes fresh blocks */
    drop_all(engine);
    double cpu = processor_seconds();
    result.write_gb = store_all(engine, shift);
    result.read_gb = fetch_all(engine, shift);
    result.cpu = (processor_seconds() - cpu) / (2 * (double)total_bytes / 1e9);
    drop_all(engine);
    ms_offload_close(engine);
    return result;
}

/* Milliseconds that a fetch of 25 MB takes while stores of all other storages are queued. */
static double urgent_fetch_ms(const variant *v)
{
    ms_error err = {0};
    ms_ticket urgent = 0;
    uint64_t bytes = storages[8].bytes;
    ms_offload *engine = open_engine(v);
    store_all(engine, 0);
    drop_all(engine);
    if (ms_offload_store(engine, storages[8].memory, bytes, bytes, &urgent, &err) != MS_OK ||
        ms_offload_wait(engine, urgent, &err) != MS_OK) {
        die("store", &err);
    }
    for (size_t i = 9; i < storage_count; i++) {
        if (ms_offload_store(engine, storages[i].memory, storages[i].bytes, storages[i].bytes, &tickets[i], &err) !=
            MS_OK) {
            die("store", &err);
        }
    }
    usleep(20000);
    double start = seconds();
    if (ms_offload_fetch(engine, urgent, storages[8].memory, bytes, &err) != MS_OK ||
        ms_offload_wait(engine, urgent, &err) != MS_OK) {
        die("urgent fetch", &err);
    }
    double milliseconds = (seconds() - start) * 1e3;
    ms_offload_close(engine);
    return milliseconds;
}

/* ---- figures ----------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static const variant variants[] = {
    {NULL, 3, true, 4 * MIB, false, 0},
    {"plain loop", 2, true, 4 * MIB, false, 0},
    {"plain loop", 3, true, 4 * MIB, false, 0},
    {"threads", 2, false, 4 * MIB, false, 0},
    {"threads", 3, false, 4 * MIB, false, 0},
    {"threads", 4, false, 4 * MIB, false, 0},
    {"threads, no checksum", 3, false, 4 * MIB, true, 0},
    {"threads, small pieces", 3, false, 1 * MIB, false, 0},
    {"threads, large pieces", 3, false, 16 * MIB, false, 0},
    {"threads, a whole storage each", 3, false, 64 * MIB, false, 0},
    {"threads, through slots", 3, false, 4 * MIB, false, 64},
};
/* The yardstick, and the two variants compared with it: the default settings, with direct memory and
 * through slots. */
enum { YARDSTICK = 0, DIRECT = 4, THROUGH_SLOTS = 10, VARIANTS = sizeof variants / sizeof variants[0] };

static disk_rates measured[VARIANTS][ROUNDS];

static disk_rates run_variant(const variant *v)
{
    disk_rates result = {0};
    if (v->name == NULL) {
        (void)disk_yardstick_run(directory, total_bytes, v->slot_bytes, v->threads, &result);
        return result;
    }
    return v->is_plain ? run_plain(v) : run_engine(v);
}

static double median_of(int variant_index, double (*figure)(const disk_rates *of, const disk_rates *than))
{
    double values[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        values[round] = figure(&measured[variant_index][round], &measured[YARDSTICK][round]);
    }
    return median(values, ROUNDS);
}

static double writes(const disk_rates *of, const disk_rates *than)
{
    (void)than;
    return of->write_gb;
}

static double reads(const disk_rates *of, const disk_rates *than)
{
    (void)than;
    return of->read_gb;
}

static double processor(const disk_rates *of, const disk_rates *than)
{
    (void)than;
    return of->cpu;
}

static double writes_than(const disk_rates *of, const disk_rates *than)
{
    return than->write_gb > 0 ? of->write_gb / than->write_gb : 0;
}

static double reads_than(const disk_rates *of, const disk_rates *than)
{
    return than->read_gb > 0 ? of->read_gb / than->read_gb : 0;
}

static const char *verdict(bool is_held)
{
    return is_held ? "met" : "MISSED";
}

/* Ratios compare figures of the same round: a slow phase of the machine slows both. */
static void print_targets(int i)
{
    double written = median_of(i, writes_than), read = median_of(i, reads_than), cpu = median_of(i, processor);
    if (written > 0) {
        printf("%s, %d pieces, over %s: stores %.3f, fetches %.3f (target %.2f: %s)\n", variants[i].name,
               variants[i].threads, disk_yardstick_name(), written, read, LEAST_OF_FIO,
               verdict(written >= LEAST_OF_FIO && read >= LEAST_OF_FIO));
    }
    printf("%s: %.3f s of processor per GB (target %.2f: %s)\n", variants[i].name, cpu, MOST_CPU_S_PER_GB,
           verdict(cpu <= MOST_CPU_S_PER_GB));
}

static void print_bandwidths(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < VARIANTS; i++) {
            measured[i][round] = run_variant(&variants[i]);
        }
    }
    printf("%-30s %7s %6s %11s %11s %13s\n", "", "pieces", "block", "write GB/s", "read GB/s", "CPU s per GB");
    for (int i = 0; i < VARIANTS; i++) {
        const char *name = variants[i].name != NULL ? variants[i].name : disk_yardstick_name();
        if (name != NULL) {
            printf("%-30s %7d %6llu %11.2f %11.2f %13.3f\n", name, variants[i].threads,
                   (unsigned long long)(variants[i].slot_bytes / MIB), median_of(i, writes), median_of(i, reads),
                   median_of(i, processor));
        }
    }
    print_targets(DIRECT);
    print_targets(THROUGH_SLOTS);
}

static void print_urgent(void)
{
    const uint64_t slots[] = {1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB};
    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        const variant v = {"urgent", 3, false, slots[i], false, 0};
        double ms[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            ms[round] = urgent_fetch_ms(&v);
        }
        printf("fetch of 25 MB while stores are queued, pieces of %3llu MiB: %.1f ms\n",
               (unsigned long long)(slots[i] / MIB), median(ms, ROUNDS));
    }
}

static void print_checksum(const char *name, ms__checksum_fn checksum)
{
    volatile uint64_t sink;
    uint64_t block = 4 * MIB;
    double start = seconds();
    for (int i = 0; i < 400; i++) {
        sink = checksum(storages[3].memory, block);
    }
    double warm = 400 * (double)block / (seconds() - start) / 1e9;
    start = seconds();
    for (size_t i = 0; i < storage_count; i++) {
        sink = checksum(storages[i].memory, storages[i].bytes);
    }
    (void)sink;
    printf("XXH3 %-8s %.1f GB/s on 4 MiB in the cache, %.1f GB/s from memory\n", name, warm,
           (double)total_bytes / (seconds() - start) / 1e9);
}

/* Packs and rebuilds a dropout mask of the size of GPT-2 small's attention, as floats or as bytes. */
static void print_packing(const char *name, uint64_t word, uint64_t width)
{
    double packs[ROUNDS], unpacks[ROUNDS];
    uint64_t bytes = storages[3].bytes;
    unsigned char *memory = storages[3].memory;
    for (int round = 0; round < ROUNDS; round++) {
        for (uint64_t at = 0; at < bytes; at += width) {
            uint64_t value = at * UINT64_C(0x9E3779B97F4A7C15) >> 60 == 0 ? 0 : word;
            memcpy(memory + at, &value, width);
        }
        double start = seconds();
        ms__packed *packed = ms__pack(memory, bytes);
        packs[round] = (double)bytes / (seconds() - start) / 1e9;
        start = seconds();
        if (packed == NULL) {
            die("packing", NULL);
        }
        ms__unpack(packed, memory);
        unpacks[round] = (double)bytes / (seconds() - start) / 1e9;
        ms__packed_free(packed);
    }
    printf("mask of %-6s packed at %.1f GB/s, rebuilt at %.1f GB/s\n", name, median(packs, ROUNDS),
           median(unpacks, ROUNDS));
}

/* The time until the scan finds that ordinary numbers can't be packed. */
static void print_looking(void)
{
    volatile bool sink;
    double start = seconds();
    for (int i = 0; i < 1000; i++) {
        sink = ms__pack_may(storages[4].memory, storages[4].bytes);
    }
    (void)sink;
    printf("the scan of ordinary numbers stops after %.0f ns\n", (seconds() - start) * 1e6);
}

/* Small storages, which are copied and share slots and requests: stored as fast as the engine takes
 * them, then fetched in reverse order. */
static void print_small(uint64_t bytes)
{
    enum { SMALL = 2000 };
    double walls[ROUNDS], cpus[ROUNDS];
    ms_error err = {0};
    const variant v = {"small", 3, false, 4 * MIB, false, 0};
    ms_offload *engine = open_engine(&v);
    for (int round = -1; round < ROUNDS; round++) { /* round -1 writes fresh blocks and isn't counted */
        double cpu = processor_seconds(), start = seconds();
        for (uint64_t i = 0; i < SMALL; i++) {
            const unsigned char *source = storages[3].memory + 64 + i * 16384 % (32 * MIB);
            if (ms_offload_store(engine, source, bytes, bytes, &tickets[i], &err) != MS_OK) {
                die("storing a small storage", &err);
            }
        }
        if (ms_offload_quiesce(engine, &err) != MS_OK) {
            die("quiesce", &err);
        }
        for (uint64_t i = SMALL; i-- > 0;) {
            unsigned char *to = storages[4].memory + 64 + i * 16384 % (32 * MIB);
            if (ms_offload_fetch(engine, tickets[i], to, bytes, &err) != MS_OK) {
                die("fetching a small storage", &err);
            }
        }
        if (ms_offload_quiesce(engine, &err) != MS_OK) {
            die("quiesce", &err);
        }
        walls[round < 0 ? 0 : round] = (seconds() - start) / SMALL * 1e6;
        cpus[round < 0 ? 0 : round] = (processor_seconds() - cpu) / SMALL * 1e6;
        for (int i = 0; i < SMALL; i++) {
            ms_offload_drop(engine, tickets[i]);
        }
    }
    ms_offload_stats stats;
    ms_offload_get_stats(engine, &stats);
    double moves = (double)SMALL * (ROUNDS + 1);
    printf("storages of %3llu KB: %.1f us each to disk and back, %.1f us of processor; %.2f writes and %.2f reads\n",
           (unsigned long long)(bytes / 1000), median(walls, ROUNDS), median(cpus, ROUNDS),
           (double)stats.write_count / moves, (double)stats.read_count / moves);
    ms_offload_close(engine);
}

/* Times a call that stores 4 KiB, of direct memory or of memory that must be copied; then checks that
 * the tickets left no memory behind. */
static void print_calls(ms_tier tier, uint64_t shift, int calls)
{
    enum { CALLS_MOST = 1000000, LIVE = 64 };
    static double taken[CALLS_MOST];
    ms_error err = {0};
    ms_offload *engine = NULL;
    ms_ticket held[LIVE] = {0};
    uint64_t settled_bytes = 0;
    ms_offload_options options = {.tier = tier, .dir = directory, .cap_bytes = UINT64_MAX};
    if (ms_offload_open(&options, &engine, &err) != MS_OK) {
        die("opening", &err);
    }
    for (int i = 0; i < calls; i++) {
        ms_offload_drop(engine, held[i % LIVE]);
        if (shift > 0 && i % 4 == 0) { /* else the call would wait for a slot, so for the disk */
            (void)ms_offload_quiesce(engine, NULL);
        }
        double start = seconds();
        if (ms_offload_store(engine, storages[0].memory + shift, 4096, 4096, &held[i % LIVE], &err) != MS_OK) {
            die("store", &err);
        }
        taken[i] = seconds() - start;
        settled_bytes = i == calls / 10 ? ms_memory_live_bytes() : settled_bytes;
    }
    double call_us = median(taken, (size_t)calls) * 1e6;
    long long grown = (long long)(ms_memory_live_bytes() - settled_bytes);
    printf("a store call to the %s tier%s takes %.2f us (median; target %.0f: %s); %d tickets later the library "
           "holds %+lld bytes more (target 0: %s)\n",
           ms_tier_name(tier), shift > 0 ? ", copied," : "", call_us, MOST_CALL_US, verdict(call_us <= MOST_CALL_US),
           calls - calls / 10, grown, verdict(grown <= 0));
    ms_offload_close(engine);
}

int main(int argc, char **argv)
{
    directory = argc > 1 ? argv[1] : directory;
    make_storages((uint64_t)((argc > 2 ? atof(argv[2]) : 1.0) * 1e9));
    printf("%zu storages, %.2f GB, %s\n", storage_count, (double)total_bytes / 1e9, directory);
    print_checksum("plain", ms__checksum_plain);
    print_checksum("chosen", ms__checksum_select());
    print_packing("floats", 0x3F8E38E4, 4);
    print_packing("bools", 1, 1);
    print_looking();
    print_calls(MS_TIER_DISK, 0, 100000);
    print_calls(MS_TIER_HOST, 0, 1000000);
    print_calls(MS_TIER_DISK, 8, 100000);
    print_calls(MS_TIER_HOST, 8, 100000);
    print_small(4096);
    print_small(16000);
    print_small(98000);
    print_bandwidths();
    print_urgent();
    return 0;
}
