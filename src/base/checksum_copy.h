/*
 * The loop that copies and hashes in one pass, for the variants of checksum.h. Hashing brings a block into the
 * nearest cache, and the copy reads it from there.
 * Tests: tests/c/base/test_checksum.c.
 */
#ifndef MS_BASE_CHECKSUM_COPY_H
#define MS_BASE_CHECKSUM_COPY_H

#include <string.h>

#include <xxhash.h>

#include "base/checksum.h"

/* The fastest size from 2 to 32 KiB: smaller blocks pay for calls, blocks of 8 KiB and more are 10 to 20% slower. */
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
