/*
 * The inner loop of the chain solver's table: a block of a segment's entries stays in
 * registers while everything that could give them goes by. Compiled once for every processor and
 * once with AVX2, under the name that MS_CHAIN_FILL gives; chain_select.c picks one.
 * Integers: the result is the same to the bit.
 */
#include "chain/chain_kernel.h"

void MS_CHAIN_FILL(const ms__chain_fill *fill);

/* ---- a block of entries ----------------------------------------------------------------- */

#ifdef __AVX2__
#include <immintrin.h>

enum { LANES = 8 };
typedef __m256i lanes;

static inline lanes read(const uint32_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static inline void write(uint32_t *to, lanes times)
{
    _mm256_storeu_si256((__m256i *)(void *)to, times);
}

static inline lanes every(uint32_t time)
{
    return _mm256_set1_epi32((int)time);
}

static inline lanes sum(lanes a, lanes b)
{
    return _mm256_add_epi32(a, b);
}

static inline lanes least(lanes a, lanes b)
{
    return _mm256_min_epu32(a, b);
}

static inline uint32_t first(lanes times)
{
    return (uint32_t)_mm256_cvtsi256_si32(times);
}

static inline lanes first_lanes(int32_t count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first `count` lanes are not read. */
static inline lanes read_behind(const uint32_t *from, int32_t count)
{
    lanes behind = _mm256_xor_si256(first_lanes(count), _mm256_set1_epi32(-1));
    return _mm256_maskload_epi32((const int *)(const void *)from, behind);
}

/* UINT32_MAX for the first `count` lanes. */
static inline lanes without(lanes times, int32_t count)
{
    return _mm256_or_si256(times, first_lanes(count));
}

#else

enum { LANES = 4 };
typedef struct lanes {
    uint32_t of[LANES];
} lanes;

static inline lanes read(const uint32_t *from)
{
    return (lanes){{from[0], from[1], from[2], from[3]}};
}

static inline void write(uint32_t *to, lanes times)
{
    for (int i = 0; i < LANES; i++) {
        to[i] = times.of[i];
    }
}

static inline lanes every(uint32_t time)
{
    return (lanes){{time, time, time, time}};
}

static inline lanes sum(lanes a, lanes b)
{
    for (int i = 0; i < LANES; i++) {
        a.of[i] += b.of[i];
    }
    return a;
}

static inline lanes least(lanes a, lanes b)
{
    for (int i = 0; i < LANES; i++) {
        a.of[i] = a.of[i] < b.of[i] ? a.of[i] : b.of[i];
    }
    return a;
}

static inline uint32_t first(lanes times)
{
    return times.of[0];
}

static inline lanes read_behind(const uint32_t *from, int32_t count)
{
    lanes times = every(0);
    for (int i = 0; i < LANES; i++) {
        if (i >= count) {
            times.of[i] = from[i];
        }
    }
    return times;
}

static inline lanes without(lanes times, int32_t count)
{
    for (int i = 0; i < LANES; i++) {
        times.of[i] |= i < count ? UINT32_MAX : 0;
    }
    return times;
}

#endif

enum { PARTS = MS__CHAIN_BLOCK / LANES };

typedef struct block {
    lanes part[PARTS];
} block;

/* ---- one block --------------------------------------------------------------------------- */

/* What begins at the block's end or behind it, begins inside it, or before it. */
static inline void take_rest(block *best, const ms__chain_rest *of, uint32_t at)
{
    lanes add = every(of->add);
    const uint32_t *rest = of->rest + at;
    if (at >= of->start) {
        for (int i = 0; i < PARTS; i++) {
            best->part[i] = least(best->part[i], sum(read(rest + i * LANES), add));
        }
    } else if (at + MS__CHAIN_BLOCK > of->start) {
        for (int i = 0; i < PARTS; i++) {
            int32_t left_out = (int32_t)(of->start - at) - i * LANES;
            lanes times = sum(read_behind(rest + i * LANES, left_out), add);
            best->part[i] = least(best->part[i], without(times, left_out));
        }
    }
}

static inline void take_sum(block *best, const ms__chain_sum *of, uint32_t at)
{
    lanes add = every(of->add);
    const uint32_t *left = of->left + at, *right = of->right + at;
    for (int i = 0; i < PARTS; i++) {
        lanes both = sum(read(left + i * LANES), read(right + i * LANES));
        best->part[i] = least(best->part[i], sum(both, add));
    }
}

static inline void take_part_of_sum(block *best, const ms__chain_sum *of, uint32_t at)
{
    lanes add = every(of->add);
    const uint32_t *left = of->left + at, *right = of->right + at;
    for (int i = 0; i < PARTS; i++) {
        int32_t left_out = (int32_t)(of->start - at) - i * LANES;
        lanes both = sum(read_behind(left + i * LANES, left_out), read_behind(right + i * LANES, left_out));
        best->part[i] = least(best->part[i], without(sum(both, add), left_out));
    }
}

/* Times fall with memory: no sum gives any entry of the block less than its rows' ends do, and
 * none of the block takes more than the first. */
static inline uint32_t at_least(const ms__chain_sum *of, uint32_t at)
{
    uint32_t left = of->left_ends[(at + MS__CHAIN_BLOCK - 1 - of->taken) / MS__CHAIN_BLOCK];
    return left + of->right_ends[at / MS__CHAIN_BLOCK] + of->add;
}

void MS_CHAIN_FILL(const ms__chain_fill *fill)
{
    for (uint32_t at = fill->begin; at < fill->end; at += MS__CHAIN_BLOCK) {
        block best;
        for (int i = 0; i < PARTS; i++) {
            best.part[i] = every(UINT32_MAX);
        }
        for (uint32_t k = 0; k < fill->rest_count; k++) {
            take_rest(&best, &fill->rests[k], at);
        }
        for (uint32_t k = 0; k < fill->sum_count; k++) {
            const ms__chain_sum *of = &fill->sums[k];
            uint32_t most = first(best.part[0]);
            if (most <= of->add) {
                break;
            }
            if (at >= of->start) {
                if (at_least(of, at) < most) {
                    take_sum(&best, of, at);
                }
            } else if (at + MS__CHAIN_BLOCK > of->start) {
                take_part_of_sum(&best, of, at);
            }
        }
        for (int i = 0; i < PARTS; i++) {
            write(fill->row + at + i * LANES, best.part[i]);
        }
    }
}
