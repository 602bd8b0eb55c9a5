/*
 * loss.h - the kernels of the row-wise loss head: one table of functions per instruction set, all
 * compiled from loss_kernels.h. Used by loss.c and by the tests.
 *
 * Tests: tests/c/techniques/test_loss.c.
 */
#ifndef MS_TECHNIQUES_LOSS_H
#define MS_TECHNIQUES_LOSS_H

#include <stddef.h>
#include <stdint.h>

typedef struct ms__loss_kernels {
    const char *name;
    /* NaN if any value is NaN. `count` is not 0. */
    float (*largest)(const float *values, size_t count);
    /* out = exp(logits - most) */
    void (*exponentials)(const float *logits, float most, float *out, size_t count);
    /* out = 0 - exp(logits - most - log_sum) * sum; `out` may be `logits`. */
    void (*gradient)(const float *logits, float most, float log_sum, float sum, float *out, size_t count);
} ms__loss_kernels;

/* Plain C, without vector instructions: the reference for the others. */
extern const ms__loss_kernels ms__loss_plain;
#if defined(__x86_64__)
extern const ms__loss_kernels ms__loss_avx2;
extern const ms__loss_kernels ms__loss_avx512;
#endif
#if defined(__aarch64__)
extern const ms__loss_kernels ms__loss_neon;
#endif

/* Sleef_logf_u10, for numbers from 1 on (NaN gives NaN). */
float ms__loss_log(float value);

/* Sum as torch does with vectors of `lanes` floats. add() adds `values` to a running sum per lane;
 * fold() adds halves of the lanes to each other until one sum is left. */
void ms__loss_add_lanes(float *running, uint32_t lanes, const float *values, size_t count);
float ms__loss_fold_lanes(float *running, uint32_t lanes);

#endif
