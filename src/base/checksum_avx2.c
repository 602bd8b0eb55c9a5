/*
 * The variant for processors with AVX2: the same source, built with -mavx2, from
 * which xxHash chooses its vectors. Nothing else belongs in this file: the flag
 * would reach it.
 */
#include "base/checksum.h"

#include <xxhash.h>

uint64_t ms__checksum_avx2(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}
