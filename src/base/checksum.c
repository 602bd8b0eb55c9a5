/*
 * The variant for every processor, and the choice between variants.
 */
#include "base/checksum.h"

#include "base/checksum_copy.h"

uint64_t ms__checksum_plain(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

static void copy_block(unsigned char *to, const unsigned char *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

uint64_t ms__checksum_copy_plain(void *to, const void *from, size_t bytes)
{
    return ms__copy_hashed(to, from, bytes, copy_block);
}

/* AVX2, not AVX-512: AVX-512 took as long, because memory bandwidth is the limit, and wider registers may lower
 * the clock of the training threads. */
ms__checksum_fn ms__checksum_select(void)
{
#ifdef MS_BASE_X86
    if (__builtin_cpu_supports("avx2")) {
        return ms__checksum_avx2;
    }
#endif
    return ms__checksum_plain;
}

ms__checksum_copy_fn ms__checksum_copy_select(void)
{
#ifdef MS_BASE_X86
    if (__builtin_cpu_supports("avx2")) {
        return ms__checksum_copy_avx2;
    }
#endif
    return ms__checksum_copy_plain;
}
