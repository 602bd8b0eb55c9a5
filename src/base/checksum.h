/*
 * checksum.h - the checksum of every extent: XXH3, 64 bits, seed 0. Used by the offload engine; the hardware probe
 * measures its rate.
 *
 * Hashing competes with training for cores, so there is a variant with vector instructions. Every variant gives the
 * same value: XXH3 does not depend on the instruction set. Copying and hashing together take one pass over memory.
 * Tests: tests/c/base/test_checksum.c.
 */
#ifndef MS_BASE_CHECKSUM_H
#define MS_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t (*ms__checksum_fn)(const void *data, size_t bytes);

/* Uses only instructions that every processor of this build's family has. */
uint64_t ms__checksum_plain(const void *data, size_t bytes);

#ifdef MS_BASE_X86
/* Call only if the processor has AVX2. */
uint64_t ms__checksum_avx2(const void *data, size_t bytes);
#endif

/* The fastest of these on this processor. */
ms__checksum_fn ms__checksum_select(void);

/* Copies `bytes` (the ranges do not overlap) and returns the checksum of `from`, in one
 * pass over memory. The state of the caches afterwards is unspecified. */
typedef uint64_t (*ms__checksum_copy_fn)(void *to, const void *from, size_t bytes);

uint64_t ms__checksum_copy_plain(void *to, const void *from, size_t bytes);
#ifdef MS_BASE_X86
uint64_t ms__checksum_copy_avx2(void *to, const void *from, size_t bytes);
#endif
ms__checksum_copy_fn ms__checksum_copy_select(void);

#endif
