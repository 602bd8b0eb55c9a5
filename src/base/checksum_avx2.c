/*
 * The variants for processors with AVX2: xxHash chooses its vectors by the flag -mavx2, and the copy does not read
 * the lines that it overwrites. Keep other code out of this file: it would be built with -mavx2.
 */
#include "base/checksum_copy.h"

#include <immintrin.h>

/* Copies of this size and more do not fit a core's caches. */
enum { STREAM_LEAST_BYTES = 256 << 10, LINE_BYTES = 64 };

uint64_t ms__checksum_avx2(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static void copy_block(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

/* Writes whole cache lines past the caches and copies the rest as usual. `to` begins a cache line. */
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
    _mm_sfence(); /* makes the copy visible to other threads */
    return checksum;
}
