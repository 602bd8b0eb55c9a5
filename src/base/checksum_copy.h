/*
 * The loop that copies and hashes at the same time, for the variants of checksum.h:
 * each block is hashed, which brings it into the nearest cache, and copied from there.
 */
#ifndef MS_BASE_CHECKSUM_COPY_H
#define MS_BASE_CHECKSUM_COPY_H

#include <string.h>

#include <xxhash.h>

#include "base/checksum.h"

/* Measured from 2 to 32 KiB: smaller blocks cost calls, from 8 on it is a tenth to a fifth slower. */
enum { MS__CHECKSUM_BLOCK_BYTES = 4096 };

static inline uint64_t ms__copy_hashed(unsigned char *to, const unsigned char *from, size_t bytes,
                                       void (*copy_block)(unsigned char *to, const unsigned char *from, size_t bytes))
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (size_t at = 0; at < bytes;) {
        size_t left = bytes - at;
        size_t block = left < MS__CHECKSUM_BLOCK_BYTES ? left : MS__CHECKSUM_BLOCK_BYTES;
        XXH3_64bits_update(&state, from + at, block);
        copy_block(to + at, from + at, block);
        at += block;
    }
    return XXH3_64bits_digest(&state);
}

#endif
