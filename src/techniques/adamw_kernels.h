/*
 * adamw_kernels.h - the source of the AdamW kernels, plain C that compilers vectorise. Each
 * adamw_<set>.c defines MS_ADAMW_TABLE, the name of the table, and MS_ADAMW_NAME, and includes it
 * once; the build gives each its instruction set.
 *
 * Every operation is an IEEE one that all sets round correctly (+ - * /, square root, explicit
 * fused multiply-add), and no sum runs over elements. So all tables give the same bits, and a tail
 * gives those of a full vector.
 *
 * Tests: tests/c/techniques/test_adamw.c.
 */
#include <string.h>

#include "techniques/adamw.h"
#include "techniques/float_bits.h"

/* Elements in a buffer that holds part of a block. */
enum { QUANTIZE_MAX = 256 };

/* ---- the update --------------------------------------------------------------- */

/* torch's lerp: fused, from the nearer end. */
static inline float first_moment(float m, float g, const ms__adamw_constants *c)
{
    return __builtin_fmaf(c->lerp, g - m, c->lerp_from_gradient ? g : m);
}

static inline float second_moment(float v, float g, const ms__adamw_constants *c)
{
    return __builtin_fmaf(c->one_minus_beta2 * g, g, v * c->beta2);
}

static inline float updated(float p, float m, float v, const ms__adamw_constants *c)
{
    float denominator = __builtin_sqrtf(v) * c->root_scale + c->eps;
    return p * c->decay + c->minus_step_size * m / denominator;
}

static void update_plain_v(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                           size_t count, const ms__adamw_constants *constants)
{
    const ms__adamw_constants c = *constants;
    for (size_t i = 0; i < count; i++) {
        float gradient = g[i] * c.sign;
        m[i] = first_moment(m[i], gradient, &c);
        v[i] = second_moment(v[i], gradient, &c);
        p[i] = updated(p[i], m[i], v[i], &c);
    }
}

static void update_amsgrad(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                           float *restrict peak, size_t count, const ms__adamw_constants *constants)
{
    const ms__adamw_constants c = *constants;
    for (size_t i = 0; i < count; i++) {
        float gradient = g[i] * c.sign;
        m[i] = first_moment(m[i], gradient, &c);
        v[i] = second_moment(v[i], gradient, &c);
        /* A NaN on either side is kept. */
        peak[i] = v[i] > peak[i] || v[i] != v[i] ? v[i] : peak[i];
        p[i] = updated(p[i], m[i], peak[i], &c);
    }
}

static void update(float *p, const float *g, float *m, float *v, float *peak, size_t count,
                   const ms__adamw_constants *c)
{
    if (peak != NULL) {
        update_amsgrad(p, g, m, v, peak, count, c);
    } else {
        update_plain_v(p, g, m, v, count, c);
    }
}

static void divide(float *values, size_t count, float divisor)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = values[i] / divisor;
    }
}

/* ---- bf16 ----------------------------------------------------------------------- */

static inline bool bits_are_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

/* To nearest even; every NaN becomes torch's. */
static inline uint16_t bf16_of(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)(bits_are_nan(bits) ? 0x7fc0u : rounded);
}

static void bf16_load(const uint16_t *restrict bf16, float *restrict values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = float_of((uint32_t)bf16[i] << 16);
    }
}

static void bf16_store(const float *restrict values, uint16_t *restrict bf16, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bf16[i] = bf16_of(values[i]);
    }
}

static void master_adopt(const uint16_t *restrict bf16, float *restrict master, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float own = master[i];
        master[i] = bf16_of(own) == bf16[i] ? own : float_of((uint32_t)bf16[i] << 16);
    }
}

/* Other code may have written a weight, to which the low bits do not belong. A zero has none below it, an infinity none
 * above it: with them, both would become NaN. split_store() makes no such pairs. */
static void split_load(const uint16_t *restrict bf16, const int16_t *restrict low, float *restrict values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t high = bf16[i];
        int32_t rest = low[i];
        bool is_below_zero = (high & 0x7fffu) == 0 && rest < 0;
        bool is_above_infinity = (high & 0x7f80u) == 0x7f80u && rest > 0;
        values[i] = float_of((high << 16) + (is_below_zero || is_above_infinity ? 0u : (uint32_t)rest));
    }
}

static void split_store(const float *restrict values, uint16_t *restrict bf16, int16_t *restrict low, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]);
        bool is_nan = bits_are_nan(bits);
        uint32_t high = is_nan ? 0x7fc0u : (bits + 0x8000u) >> 16;
        bf16[i] = (uint16_t)high;
        low[i] = (int16_t)(is_nan ? 0u : bits);
    }
}

/* ---- 8 bits ----------------------------------------------------------------------- */

static void dequantize(const uint8_t *restrict codes, float absmax, const ms__q8_table *table, float *restrict values,
                       size_t count)
{
    const float *restrict map = table->value;
    for (size_t i = 0; i < count; i++) {
        values[i] = map[codes[i]] * absmax;
    }
}

/* Compares the bits without the sign, so that NaN is the largest. */
static float largest_magnitude(const float *restrict values, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(values[i]) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most > 0x7f800000u ? float_of(0x7fc00000u) : float_of(most);
}

/* The number of boundaries below the magnitude of `x` within [-1, 1] (NaN counts as 1). */
static inline int32_t rank_of(float x, const int32_t *restrict rank, const float *restrict boundary)
{
    uint32_t bits = bits_of(x) & 0x7fffffffu;
    int32_t bucket = (int32_t)(bits >> MS__Q8_BUCKET_SHIFT) - MS__Q8_FIRST;
    bucket = bucket < 0 ? 0 : bucket;
    bucket = bucket < MS__Q8_BUCKETS ? bucket : MS__Q8_BUCKETS - 1;
    int32_t below = rank[bucket];
    return below + (float_of(bits) > boundary[below]);
}

static float quantize(const float *restrict values, const ms__q8_table *table, uint8_t *restrict codes, size_t count)
{
    const int32_t zero = table->zero, least = table->least, most_negative = table->most_negative;
    const float absmax = largest_magnitude(values, count);
    const float divisor = absmax > 0.0f || absmax != absmax ? absmax : 1.0f;
    int32_t wide[QUANTIZE_MAX];
    for (size_t i = 0; i < count; i++) {
        float x = values[i] / divisor;
        int32_t rank = rank_of(x, table->rank, table->boundary);
        int32_t floor = values[i] != 0.0f ? least : 0;
        rank = rank > floor ? rank : floor;
        int32_t negative = rank < most_negative ? rank : most_negative;
        wide[i] = zero + (x < 0.0f ? -negative : rank);
    }
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)wide[i];
    }
    return absmax;
}

const ms__adamw_kernels MS_ADAMW_TABLE = {
    .name = MS_ADAMW_NAME,
    .update = update,
    .divide = divide,
    .bf16_load = bf16_load,
    .bf16_store = bf16_store,
    .master_adopt = master_adopt,
    .split_load = split_load,
    .split_store = split_store,
    .dequantize = dequantize,
    .quantize = quantize,
};
