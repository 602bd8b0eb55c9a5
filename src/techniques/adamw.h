/*
 * adamw.h - the kernels of the AdamW update: one table of functions per instruction set, all
 * compiled from adamw_kernels.h. Used by adamw.c and by the tests that compare every table with
 * the plain one.
 *
 * Tests: tests/c/techniques/test_adamw.c.
 */
#ifndef MS_TECHNIQUES_ADAMW_H
#define MS_TECHNIQUES_ADAMW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "techniques/quantize8.h"

/* The constants of one update of one tensor, rounded to float as in torch. */
typedef struct ms__adamw_constants {
    float decay; /* 1 - lr * weight_decay */
    float sign;  /* -1 to maximize */
    /* 1 - beta1, or -beta1 if torch interpolates from the gradient's side. */
    float lerp;
    bool lerp_from_gradient;
    float beta2;
    float one_minus_beta2;
    float root_scale;      /* 1 / sqrt(1 - beta2^step) */
    float eps;
    float minus_step_size; /* -lr / (1 - beta1^step) */
} ms__adamw_constants;

/* No pointer is aligned beyond its element's size; no two arrays overlap. */
typedef struct ms__adamw_kernels {
    const char *name;
    /* The update. `peak` is max_exp_avg_sq or NULL. */
    void (*update)(float *p, const float *g, float *m, float *v, float *peak, size_t count,
                   const ms__adamw_constants *c);
    void (*divide)(float *values, size_t count, float divisor);
    void (*bf16_load)(const uint16_t *bf16, float *values, size_t count);
    void (*bf16_store)(const float *values, uint16_t *bf16, size_t count);
    /* If a bf16 differs from the master's rounded value, the master takes it over. */
    void (*master_adopt)(const uint16_t *bf16, float *master, size_t count);
    void (*split_load)(const uint16_t *bf16, const int16_t *low, float *values, size_t count);
    void (*split_store)(const float *values, uint16_t *bf16, int16_t *low, size_t count);
    void (*dequantize)(const uint8_t *codes, float absmax, const ms__q8_table *table, float *values, size_t count);
    /* Makes the codes of one block; returns its largest magnitude, NaN if it holds one. */
    float (*quantize)(const float *values, const ms__q8_table *table, uint8_t *codes, size_t count);
} ms__adamw_kernels;

/* Plain C, without vector instructions: the reference for the others. */
extern const ms__adamw_kernels ms__adamw_plain;
#if defined(__x86_64__)
extern const ms__adamw_kernels ms__adamw_avx2;
extern const ms__adamw_kernels ms__adamw_avx512;
#endif
#if defined(__aarch64__)
extern const ms__adamw_kernels ms__adamw_neon;
#endif

/* The widest of the tables above that MS_ISA_... bits `isa` allow. */
const ms__adamw_kernels *ms__adamw_select(uint32_t isa);

#endif
