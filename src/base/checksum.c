/*
 * The variant for every processor, and the choice between variants.
 */
#include "base/checksum.h"

#include <xxhash.h>

uint64_t ms__checksum_plain(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

/* AVX2 and no wider: with AVX-512 the same data took as long (it is memory that
 * limits), and wider registers may lower the clock under the training's feet. */
ms__checksum_fn ms__checksum_select(void)
{
#ifdef MS_CHECKSUM_X86
    if (__builtin_cpu_supports("avx2")) {
        return ms__checksum_avx2;
    }
#endif
    return ms__checksum_plain;
}
