/*
 * The kernels of pack.h for processors with AVX2: vectors for words of 4 bytes and 1 byte; the reference packs other
 * widths and the tail. Keep other code out of this file: it would be built with -mavx2.
 */
#include "base/pack.h"

#include <immintrin.h>
#include <string.h>

static __m256i load(const unsigned char *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

static void store(unsigned char *to, __m256i words)
{
    _mm256_storeu_si256((__m256i *)(void *)to, words);
}

/* ---- floats: 8 words to a byte ----------------------------------------------------- */

/* Returns the number of words packed, a multiple of 8; it stops at a third value. */
static uint64_t pack_floats(const unsigned char *data, uint64_t count, const uint64_t values[2], unsigned char *bits)
{
    const __m256i first = _mm256_set1_epi32((int)values[0]);
    const __m256i second = _mm256_set1_epi32((int)values[1]);
    uint64_t done = 0;
    for (; done + 8 <= count; done += 8) {
        __m256i words = load(data + done * 4);
        /* If both values are equal, no word counts as the second. */
        __m256i is_first = _mm256_cmpeq_epi32(words, first);
        __m256i is_second = _mm256_andnot_si256(is_first, _mm256_cmpeq_epi32(words, second));
        if (_mm256_movemask_epi8(_mm256_or_si256(is_first, is_second)) != -1) {
            break;
        }
        bits[done / 8] = (unsigned char)_mm256_movemask_ps(_mm256_castsi256_ps(is_second));
    }
    return done;
}

static uint64_t unpack_floats(const unsigned char *bits, uint64_t count, const uint64_t values[2], unsigned char *data)
{
    const __m256i first = _mm256_set1_epi32((int)values[0]);
    const __m256i second = _mm256_set1_epi32((int)values[1]);
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    uint64_t done = 0;
    for (; done + 8 <= count; done += 8) {
        __m256i mine = _mm256_and_si256(_mm256_set1_epi32(bits[done / 8]), bit);
        __m256i is_second = _mm256_cmpeq_epi32(mine, bit);
        store(data + done * 4, _mm256_blendv_epi8(first, second, is_second));
    }
    return done;
}

/* ---- bytes: 32 words to four bytes ------------------------------------------------- */

static uint64_t pack_bytes(const unsigned char *data, uint64_t count, const uint64_t values[2], unsigned char *bits)
{
    const __m256i first = _mm256_set1_epi8((char)values[0]);
    const __m256i second = _mm256_set1_epi8((char)values[1]);
    uint64_t done = 0;
    for (; done + 32 <= count; done += 32) {
        __m256i words = load(data + done);
        __m256i is_first = _mm256_cmpeq_epi8(words, first);
        __m256i is_second = _mm256_andnot_si256(is_first, _mm256_cmpeq_epi8(words, second));
        if (_mm256_movemask_epi8(_mm256_or_si256(is_first, is_second)) != -1) {
            break;
        }
        int mask = _mm256_movemask_epi8(is_second);
        memcpy(bits + done / 8, &mask, sizeof mask);
    }
    return done;
}

static uint64_t unpack_bytes(const unsigned char *bits, uint64_t count, const uint64_t values[2], unsigned char *data)
{
    const __m256i first = _mm256_set1_epi8((char)values[0]);
    const __m256i second = _mm256_set1_epi8((char)values[1]);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    /* Copies byte i / 8 of the four to byte i. A shuffle stays within its half; both halves hold all four. */
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3,
                                            3, 3, 3, 3, 3, 3, 3);
    uint64_t done = 0;
    for (; done + 32 <= count; done += 32) {
        int mask;
        memcpy(&mask, bits + done / 8, sizeof mask);
        __m256i mine = _mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread);
        __m256i is_second = _mm256_cmpeq_epi8(_mm256_and_si256(mine, bit), bit);
        store(data + done, _mm256_blendv_epi8(first, second, is_second));
    }
    return done;
}

/* ---- the table ------------------------------------------------------------------------ */

static bool pack(const unsigned char *data, uint64_t count, uint32_t width, const uint64_t values[2],
                 unsigned char *bits)
{
    uint64_t done = width == 4   ? pack_floats(data, count, values, bits)
                    : width == 1 ? pack_bytes(data, count, values, bits)
                                 : 0;
    return ms__pack_plain.pack(data + done * width, count - done, width, values, bits + done / 8);
}

static void unpack(const unsigned char *bits, uint64_t count, uint32_t width, const uint64_t values[2],
                   unsigned char *data)
{
    uint64_t done = width == 4   ? unpack_floats(bits, count, values, data)
                    : width == 1 ? unpack_bytes(bits, count, values, data)
                                 : 0;
    ms__pack_plain.unpack(bits + done / 8, count - done, width, values, data + done * width);
}

const ms__pack_kernels ms__pack_avx2 = {.pack = pack, .unpack = unpack};
