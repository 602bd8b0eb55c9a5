/*
 * Measures the rates of processors and memory: matrix products, elementary functions, element-wise work, first touch of
 * fresh pages, checksums, bit packing. Called by the hardware probe if its cache lacks this machine. Frees all its memory.
 */
#include "hardware/rates.h"

#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "base/checksum.h"
#include "base/os/map.h"
#include "base/pack.h"
#include "base/thread.h"
#include "base/units.h"
#include "hardware/evaluate_kernel.h"
#include "hardware/isa.h"
#include "hardware/matmul_kernel.h"

/* Rates of an ordinary machine, for descriptions made without measuring. */
#define DEFAULT_FLOPS_PER_CPU UINT64_C(50000000000)
#define DEFAULT_STREAM_BYTES_PER_S UINT64_C(10000000000)
#define DEFAULT_FAULT_BYTES_PER_S UINT64_C(5000000000)
#define DEFAULT_CHECKSUM_BYTES_PER_S UINT64_C(10000000000)

/* The rate of a library's matrix product, in percent of the bare inner loop's. Measured: fp32 products of a GPT-2 block
 * (2048 x 768 x 3072 and back) through torch with MKL on AVX-512 reach 75 to 88. */
enum { MATMUL_EFFICIENCY_PERCENT = 80 };

#define MATMUL_NS UINT64_C(80000000)
#define EVALUATE_NS UINT64_C(40000000)
#define STREAM_NS UINT64_C(80000000)
enum {
    MATMUL_CALLS_PER_TRY = 2000,
    EVALUATE_CALLS_PER_TRY = 200,
    FAULT_PART_BYTES = 16 << 20,
    FAULT_AGAIN_BYTES = 64 << 20,
    CHECKSUM_TRIES = 3,
    THREADS_MOST = 512,
    STREAM_BLOCK_BYTES = 4 << 20,
    CHECKSUM_BYTES = 64 << 20,
    PACK_TRIES = 3,
    PACK_BYTES = 64 << 20,
    MEMORY_LEAST_BYTES = 16 << 20,
};

void ms__rates_default_cpu(ms_cpu *cpu)
{
    cpu->matmul_flops_per_s = ms__mul_sat(DEFAULT_FLOPS_PER_CPU, cpu->usable_cpus);
    cpu->stream_bytes_per_s = DEFAULT_STREAM_BYTES_PER_S;
    cpu->fault_bytes_per_s = DEFAULT_FAULT_BYTES_PER_S;
    cpu->checksum_bytes_per_s = DEFAULT_CHECKSUM_BYTES_PER_S;
}

static uint64_t per_second(uint64_t amount, uint64_t ns)
{
    return ms__mul_div(amount, UINT64_C(1000000000), ns > 0 ? ns : 1);
}

/* ---- a team of threads that start together ------------------------------ */

typedef struct team team;

typedef struct team_member {
    team *owner;
    uint32_t index;
    uint64_t rate; /* this member's result */
} team_member;

struct team {
    uint64_t (*measure)(const team *, uint32_t index); /* returns a member's rate */
    uint32_t size;
    uint32_t isa;
    char *memory;
    size_t memory_bytes;
    atomic_uint waiting; /* members that have not reached the start yet */
    atomic_bool is_called_off;
};

static void member_main(void *argument)
{
    team_member *me = argument;
    team *owner = me->owner;
    atomic_fetch_sub(&owner->waiting, 1);
    while (atomic_load(&owner->waiting) > 0 && !atomic_load(&owner->is_called_off)) {
        sched_yield();
    }
    if (!atomic_load(&owner->is_called_off)) {
        me->rate = owner->measure(owner, me->index);
    }
}

/* All members measure at the same time; `*rate` is the sum. */
static int team_run(team *t, uint64_t *rate, ms_error *err)
{
    ms__thread *threads = ms_calloc(t->size, sizeof *threads);
    team_member *members = ms_calloc(t->size, sizeof *members);
    int rc = MS_OK;
    if (threads == NULL || members == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "measuring rates: out of memory");
        goto cleanup;
    }
    atomic_store(&t->waiting, t->size);
    atomic_store(&t->is_called_off, false);
    for (uint32_t i = 0; i < t->size && rc == MS_OK; i++) {
        members[i] = (team_member){.owner = t, .index = i};
        rc = ms__thread_start(&threads[i], "ms-measure", member_main, &members[i], err);
    }
    if (rc != MS_OK) {
        atomic_store(&t->is_called_off, true);
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->size; i++) {
        ms__thread_join(&threads[i]);
        sum = ms__add_sat(sum, members[i].rate);
    }
    if (rc == MS_OK) {
        *rate = sum;
    }
cleanup:
    ms_free(members);
    ms_free(threads);
    return rc;
}

/* ---- matrix products ---------------------------------------------------- */

static uint64_t measure_matmul(const team *t, uint32_t index)
{
    alignas(64) float a[MS__KERNEL_PANEL_FLOATS];
    alignas(64) float b[MS__KERNEL_PANEL_FLOATS];
    alignas(64) float tile[MS__KERNEL_TILE_FLOATS];
    ms__matmul_kernel kernel = ms__matmul_kernel_for(ms__isa_of_products(t->isa));
    (void)index;
    for (size_t i = 0; i < MS__KERNEL_PANEL_FLOATS; i++) {
        a[i] = 1.0f / (float)(i % 97 + 1);
        b[i] = 1.0f / (float)(i % 89 + 1);
    }
    uint64_t best = 0;
    uint64_t begun_ns = ms_now_ns();
    uint64_t now_ns = begun_ns;
    while (now_ns - begun_ns < MATMUL_NS) {
        uint64_t try_ns = now_ns;
        for (int i = 0; i < MATMUL_CALLS_PER_TRY; i++) {
            kernel.run(a, b, tile);
        }
        now_ns = ms_now_ns();
        best = ms__max_u64(best, per_second(kernel.flops * MATMUL_CALLS_PER_TRY, now_ns - try_ns));
    }
    return best;
}

/* ---- elementary functions ------------------------------------------------ */

static uint64_t measure_evaluations(const team *t, uint32_t index)
{
    alignas(64) float values[MS__EVALUATE_FLOATS];
    void (*evaluate)(float *) = ms__evaluate_kernel_for(t->isa);
    (void)index;
    for (size_t i = 0; i < MS__EVALUATE_FLOATS; i++) {
        values[i] = (float)(i % 97) / 97.0f;
    }
    uint64_t best = 0;
    uint64_t begun_ns = ms_now_ns();
    uint64_t now_ns = begun_ns;
    while (now_ns - begun_ns < EVALUATE_NS) {
        uint64_t try_ns = now_ns;
        for (int i = 0; i < EVALUATE_CALLS_PER_TRY; i++) {
            evaluate(values);
        }
        now_ns = ms_now_ns();
        best = ms__max_u64(best, per_second(MS__EVALUATE_FLOATS * EVALUATE_CALLS_PER_TRY, now_ns - try_ns));
    }
    return best;
}

/* ---- element-wise work -------------------------------------------------- */

typedef float vector4 __attribute__((vector_size(16)));

static void scale_block(const char *from, char *to, size_t bytes)
{
    const vector4 *x = (const vector4 *)from;
    vector4 *y = (vector4 *)to;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        y[i] = x[i] * 1.5f;
    }
}

/* Reads this member's part of the memory's first half and writes its part of the second, block by block. The fastest
 * pass counts. */
static uint64_t measure_stream(const team *t, uint32_t index)
{
    size_t half_bytes = t->memory_bytes / 2;
    size_t part_bytes = (size_t)ms__align_down(half_bytes / t->size, sizeof(vector4));
    const char *from = t->memory + index * part_bytes;
    char *to = t->memory + half_bytes + index * part_bytes;
    uint64_t best = 0;
    uint64_t begun_ns = ms_now_ns();
    uint64_t now_ns = begun_ns;
    while (now_ns - begun_ns < STREAM_NS) {
        uint64_t pass_ns = now_ns;
        for (size_t done = 0; done < part_bytes; done += STREAM_BLOCK_BYTES) {
            size_t left = part_bytes - done;
            scale_block(from + done, to + done, left < STREAM_BLOCK_BYTES ? left : STREAM_BLOCK_BYTES);
        }
        now_ns = ms_now_ns();
        best = ms__max_u64(best, per_second(2 * part_bytes, now_ns - pass_ns));
    }
    return best;
}

/* ---- pages and checksums ------------------------------------------------ */

/* Touches every page of a fresh map, which the caller then owns. The fastest part counts, because the kernel may pause to
 * gather huge pages. Raises `*rate` if it was lower. */
static int measure_faults(size_t bytes, char **memory, uint64_t *rate, ms_error *err)
{
    void *map;
    int rc = ms__map(bytes, MS__HUGE_PAGE_BYTES, &map, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__map_want_huge_pages(map, bytes);
    size_t page_bytes = ms__page_bytes();
    for (size_t part = 0; part < bytes; part += FAULT_PART_BYTES) {
        size_t end = part + FAULT_PART_BYTES < bytes ? part + FAULT_PART_BYTES : bytes;
        uint64_t begun_ns = ms_now_ns();
        for (size_t at = part; at < end; at += page_bytes) {
            ((volatile char *)map)[at] = 1;
        }
        *rate = ms__max_u64(*rate, per_second(end - part, ms_now_ns() - begun_ns));
    }
    *memory = map;
    return MS_OK;
}

/* Measured again later: of all rates this one varies most with the machine's load. */
static void measure_faults_again(const team *t, uint64_t *rate)
{
    size_t bytes = t->memory_bytes < FAULT_AGAIN_BYTES ? t->memory_bytes : FAULT_AGAIN_BYTES;
    char *memory;
    if (measure_faults(bytes, &memory, rate, NULL) == MS_OK) {
        ms__unmap(memory, bytes);
    }
}

static uint64_t measure_checksum(const char *memory, size_t bytes)
{
    ms__checksum_fn checksum = ms__checksum_select();
    size_t part_bytes = (size_t)ms__min_u64(bytes, CHECKSUM_BYTES);
    uint64_t best = 0;
    volatile uint64_t sink = 0;
    for (int i = 0; i < CHECKSUM_TRIES; i++) {
        uint64_t begun_ns = ms_now_ns();
        sink ^= checksum(memory, part_bytes);
        best = ms__max_u64(best, per_second(part_bytes, ms_now_ns() - begun_ns));
    }
    (void)sink; /* keeps the compiler from removing the work */
    return best;
}

/* ---- bit packing ------------------------------------------------------------ */

/* A mask like dropout's: floats, about one in eight of them 0. */
static void draw_mask(char *memory, size_t bytes)
{
    static const float values[] = {1.125f, 0.0f};
    uint64_t state = 1;
    for (size_t at = 0; at + sizeof values[0] <= bytes; at += sizeof values[0]) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(memory + at, &values[state >> 61 == 0], sizeof values[0]);
    }
}

/* Packing writes to fresh memory, as it does in a step. Unpacking writes to resident memory, because the plan counts the
 * tensor's page faults separately. */
static int measure_packing(char *memory, size_t bytes, ms_cpu *cpu, ms_error *err)
{
    size_t part_bytes = (size_t)ms__align_down(ms__min_u64(bytes, PACK_BYTES), sizeof(float));
    uint64_t pack_rate = 0, unpack_rate = 0;
    draw_mask(memory, part_bytes);
    for (int i = 0; i < PACK_TRIES; i++) {
        uint64_t begun_ns = ms_now_ns();
        ms__packed *packed = ms__pack_may(memory, part_bytes) ? ms__pack(memory, part_bytes) : NULL;
        uint64_t packed_ns = ms_now_ns();
        if (packed == NULL) {
            return ms_fail(err, MS_ENOMEM, "measuring rates: out of memory");
        }
        ms__unpack(packed, memory);
        uint64_t unpacked_ns = ms_now_ns();
        ms__packed_free(packed);
        pack_rate = ms__max_u64(pack_rate, per_second(part_bytes, packed_ns - begun_ns));
        unpack_rate = ms__max_u64(unpack_rate, per_second(part_bytes, unpacked_ns - packed_ns));
    }
    cpu->pack_bytes_per_s = pack_rate;
    cpu->unpack_bytes_per_s = unpack_rate;
    return MS_OK;
}

/* ---- all of them -------------------------------------------------------- */

int ms__rates_measure_cpu(ms_cpu *cpu, uint64_t memory_bytes, ms_error *err)
{
    memory_bytes = ms__max_u64(memory_bytes, MEMORY_LEAST_BYTES);
    team t = {
        .size = (uint32_t)ms__min_u64(cpu->usable_cpus, THREADS_MOST),
        .isa = cpu->isa,
        .memory_bytes = (size_t)ms__align_down(memory_bytes, MS__HUGE_PAGE_BYTES),
    };
    ms_cpu found = *cpu;
    found.fault_bytes_per_s = 0;
    int rc = measure_faults(t.memory_bytes, &t.memory, &found.fault_bytes_per_s, err);
    if (rc != MS_OK) {
        return rc;
    }
    found.checksum_bytes_per_s = measure_checksum(t.memory, t.memory_bytes);
    t.measure = measure_stream;
    rc = team_run(&t, &found.stream_bytes_per_s, err);
    if (rc == MS_OK) {
        measure_faults_again(&t, &found.fault_bytes_per_s);
        t.measure = measure_matmul;
        rc = team_run(&t, &found.matmul_flops_per_s, err);
    }
    if (rc == MS_OK) {
        t.measure = measure_evaluations;
        rc = team_run(&t, &found.evaluations_per_s, err);
    }
    if (rc == MS_OK) {
        measure_faults_again(&t, &found.fault_bytes_per_s);
    }
    if (rc == MS_OK) {
        rc = measure_packing(t.memory, t.memory_bytes, &found, err);
    }
    if (rc == MS_OK) {
        found.matmul_flops_per_s = ms__mul_div(found.matmul_flops_per_s, MATMUL_EFFICIENCY_PERCENT, 100);
        *cpu = found;
    }
    ms__unmap(t.memory, t.memory_bytes);
    return rc;
}
