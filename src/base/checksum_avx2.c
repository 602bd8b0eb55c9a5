/*
 * The variants for processors with AVX2: the same source, built with -mavx2, from
 * which xxHash chooses its vectors; and a copy that does not read what it overwrites.
 * Nothing else belongs in this file: the flag would reach it.
 */
#include "base/checksum_copy.h"

#include <immintrin.h>

/* From here on a copy is larger than what a core's caches would keep of it. */
enum { STREAM_LEAST_BYTES = 256 << 10, LINE_BYTES = 64 };

uint64_t ms__checksum_avx2(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static void copy_block(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Whole cache lines past the caches; what is left at the end like any copy. `to` begins a
 * line. */
static void stream_block(unsigned char *to, const unsigned char *from, size_t bytes)
{
    size_t at = 0;
    for (; at + LINE_BYTES <= bytes; at += LINE_BYTES) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + LINE_BYTES / 2));
        _mm256_stream_si256((__m256i *)(void *)(to + at), low);
        _mm256_stream_si256((__m256i *)(void *)(to + at + LINE_BYTES / 2), high);
    }
    memcpy(to + at, from + at, bytes - at);
}

uint64_t ms__checksum_copy_avx2(void *to, const void *from, size_t bytes)
{
    if (bytes < STREAM_LEAST_BYTES || (uintptr_t)to % LINE_BYTES != 0) {
        return ms__copy_hashed(to, from, bytes, copy_block);
    }
    uint64_t checksum = ms__copy_hashed(to, from, bytes, stream_block);
    _mm_sfence(); /* other threads may be told of the copy now */
    return checksum;
}
