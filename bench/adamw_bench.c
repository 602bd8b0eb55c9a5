/*
 * Measures how fast the AdamW update moves memory, and compares it with a plain loop that
 * reads four streams and writes three. Covers every instruction set of this processor,
 * fp32 and bf16 parameters, fp32 and 8-bit moments. Run: adamw_bench [million elements
 * [threads]].
 *
 * Each round runs all variants, so that a slow phase of the machine slows all of them.
 * Each figure is the best of several rounds.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memscale/optimizer.h"

/* Internal: the tables of kernels. */
#include "hardware/isa.h"
#include "techniques/adamw.h"

enum { ROUNDS = 7, THREADS_MAX = 64 };

static size_t elements = 32 << 20;
static unsigned threads = 2;
static float *p, *g, *m, *v;
static uint16_t *bf16, *bf16_gradient;
static int16_t *low;
static uint8_t *codes_m, *codes_v;
static float *absmax_m, *absmax_v;

static void *filled(size_t bytes)
{
    void *memory = aligned_alloc(2 << 20, (bytes + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    if (memory == NULL) {
        fprintf(stderr, "adamw_bench: out of memory\n");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void fill(void)
{
    p = filled(elements * 4);
    g = filled(elements * 4);
    m = filled(elements * 4);
    v = filled(elements * 4);
    bf16 = filled(elements * 2);
    bf16_gradient = filled(elements * 2);
    low = filled(elements * 2);
    codes_m = filled(elements);
    codes_v = filled(elements);
    absmax_m = filled(elements / MS_ADAMW_BLOCK * 4 + 4);
    absmax_v = filled(elements / MS_ADAMW_BLOCK * 4 + 4);
    uint32_t seed = 1;
    for (size_t i = 0; i < elements; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed * 0x1p-31f;
        g[i] = (float)(int32_t)(seed * 2654435761u) * 0x1p-31f;
        memcpy(&bf16[i], (char *)&p[i] + 2, 2);
        memcpy(&bf16_gradient[i], (char *)&g[i] + 2, 2);
    }
    memset(codes_m, 127, elements);
}

/* ---- the plain loop --------------------------------------------------------------- */

typedef struct range {
    pthread_t thread;
    size_t begin, end;
} range;

__attribute__((optimize("O3"))) static void *stream(void *argument)
{
    const range *r = argument;
    float *restrict a = p, *restrict b = m, *restrict c = v;
    const float *restrict d = g;
    for (size_t i = r->begin; i < r->end; i++) {
        float x = a[i], y = b[i], z = c[i], w = d[i];
        a[i] = x + w;
        b[i] = y + w;
        c[i] = z + w;
    }
    return NULL;
}

static void stream_all(void)
{
    range parts[THREADS_MAX];
    for (unsigned i = 0; i < threads; i++) {
        parts[i].begin = elements / threads * i;
        parts[i].end = i + 1 < threads ? elements / threads * (i + 1) : elements;
        pthread_create(&parts[i].thread, NULL, stream, &parts[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(parts[i].thread, NULL);
    }
}

/* ---- the updates ------------------------------------------------------------------- */

static void step(ms_adamw_weights weights, ms_adamw_moments moments)
{
    static uint64_t number;
    const ms_adamw_group group = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .grad_scale = 1.0};
    bool is_fp32 = weights == MS_ADAMW_FP32;
    bool is_8bit = moments == MS_ADAMW_MOMENTS_8BIT;
    const ms_adamw_tensor tensor = {
        .weights = weights,
        .moments = moments,
        .count = elements,
        .step = ++number,
        .parameter = is_fp32 ? (void *)p : bf16,
        .gradient = is_fp32 ? (void *)g : bf16_gradient,
        .extra = weights == MS_ADAMW_BF16_MASTER ? (void *)p : low,
        .exp_avg = is_8bit ? (void *)codes_m : m,
        .exp_avg_sq = is_8bit ? (void *)codes_v : v,
        .exp_avg_absmax = absmax_m,
        .exp_avg_sq_absmax = absmax_v,
    };
    ms_error err;
    if (ms_adamw_step(&group, &tensor, 1, threads, &err) != MS_OK) {
        fprintf(stderr, "adamw_bench: %s\n", err.text);
        exit(1);
    }
}

typedef struct variant {
    const char *name;
    ms_adamw_weights weights;
    ms_adamw_moments moments;
    double bytes; /* per element */
    double best_s;
} variant;

static double seconds(void)
{
    return (double)ms_now_ns() * 1e-9;
}

/* ---- arithmetic alone ---------------------------------------------------------------- */

enum { CACHED = 1024, BATCHES = 400, CALLS = 8 };

static float cached_values[CACHED];
static uint8_t cached_codes[CACHED];

static void call_update(const ms__adamw_kernels *k)
{
    const ms__adamw_constants c = {.decay = 1.0f,
                                   .sign = 1.0f,
                                   .lerp = 0.1f,
                                   .beta2 = 0.999f,
                                   .one_minus_beta2 = 0.001f,
                                   .root_scale = 1.0f,
                                   .eps = 1e-8f,
                                   .minus_step_size = -1e-3f};
    k->update(p, g, m, v, NULL, CACHED, &c);
}

static void call_quantize(const ms__adamw_kernels *k)
{
    for (size_t at = 0; at < CACHED; at += MS_ADAMW_BLOCK) {
        k->quantize(g + at, ms__q8(true), cached_codes + at, MS_ADAMW_BLOCK);
    }
}

static void call_dequantize(const ms__adamw_kernels *k)
{
    k->dequantize(cached_codes, 1.0f, ms__q8(true), cached_values, CACHED);
}

/* The best of many short batches: at least one of them runs without interruption. */
static double best_ns(void (*call)(const ms__adamw_kernels *), const ms__adamw_kernels *k)
{
    double best = 1e9;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t start = ms_now_ns();
        for (int i = 0; i < CALLS; i++) {
            call(k);
        }
        double took = (double)(ms_now_ns() - start) / CALLS / CACHED;
        best = took < best ? took : best;
    }
    return best;
}

/* Measures the arithmetic alone: one thread, with data that stays in the cache. */
static void show_kernels(void)
{
    const ms__adamw_kernels *tables[] = {
        &ms__adamw_plain,
#if defined(__x86_64__)
        ms__isa_detect() & MS_ISA_AVX2 ? &ms__adamw_avx2 : NULL,
        ms__isa_detect() & MS_ISA_AVX512F ? &ms__adamw_avx512 : NULL,
#endif
#if defined(__aarch64__)
        &ms__adamw_neon,
#endif
    };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (tables[i] != NULL) {
            printf("%-8s update %6.3f  quantize %6.3f  dequantize %6.3f ns per element\n", tables[i]->name,
                   best_ns(call_update, tables[i]), best_ns(call_quantize, tables[i]),
                   best_ns(call_dequantize, tables[i]));
        }
    }
}

int main(int argc, char **argv)
{
    variant variants[] = {
        {"fp32, fp32 moments", MS_ADAMW_FP32, MS_ADAMW_MOMENTS_FP32, 28, 1e9},
        {"bf16 + master, fp32 moments", MS_ADAMW_BF16_MASTER, MS_ADAMW_MOMENTS_FP32, 30, 1e9},
        {"bf16 split, fp32 moments", MS_ADAMW_BF16_SPLIT, MS_ADAMW_MOMENTS_FP32, 26, 1e9},
        {"fp32, 8-bit moments", MS_ADAMW_FP32, MS_ADAMW_MOMENTS_8BIT, 16, 1e9},
        {"bf16 split, 8-bit moments", MS_ADAMW_BF16_SPLIT, MS_ADAMW_MOMENTS_8BIT, 14, 1e9},
    };
    enum { VARIANTS = sizeof variants / sizeof variants[0] };
    if (argc > 1) {
        elements = (size_t)(atof(argv[1]) * 1e6);
    }
    if (argc > 2) {
        threads = (unsigned)atoi(argv[2]);
    }
    if (elements < 4096 || threads < 1 || threads > THREADS_MAX) {
        fprintf(stderr, "usage: adamw_bench [million elements [threads]]\n");
        return 1;
    }
    fill();
    show_kernels();
    double stream_s = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = seconds();
        stream_all();
        double took = seconds() - start;
        stream_s = took < stream_s ? took : stream_s;
        for (size_t i = 0; i < VARIANTS; i++) {
            start = seconds();
            step(variants[i].weights, variants[i].moments);
            took = seconds() - start;
            variants[i].best_s = took < variants[i].best_s ? took : variants[i].best_s;
        }
    }
    double stream_gb = 28e-9 * (double)elements / stream_s;
    printf("%zu elements, %u threads\n%-30s %7.1f ms  %6.1f GB/s\n", elements, threads, "plain loop, 4 read 3 written",
           stream_s * 1e3, stream_gb);
    for (size_t i = 0; i < VARIANTS; i++) {
        double gb = variants[i].bytes * 1e-9 * (double)elements / variants[i].best_s;
        printf("%-30s %7.1f ms  %6.1f GB/s  %.2f of the plain loop's rate\n", variants[i].name,
               variants[i].best_s * 1e3, gb, gb / stream_gb);
    }
    return 0;
}
