/*
 * checksum.h - the checksum of every extent: XXH3, 64 bits, seed 0. Used by the
 * offload engine, and by the hardware probe to tell plans what it costs.
 *
 * Hashing runs on the cores that training computes on, so the vectors of the
 * processor are used as far as that helps. Every variant gives the same value:
 * XXH3 is defined without reference to an instruction set. What has to be copied as well
 * is hashed on the way.
 */
#ifndef MS_BASE_CHECKSUM_H
#define MS_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t (*ms__checksum_fn)(const void *data, size_t bytes);

/* With the instructions that every processor of this build's family has. */
uint64_t ms__checksum_plain(const void *data, size_t bytes);

#ifdef MS_BASE_X86
/* Call only where the processor has AVX2. */
uint64_t ms__checksum_avx2(const void *data, size_t bytes);
#endif

/* The fastest of these on this processor. */
ms__checksum_fn ms__checksum_select(void);

/* Copies `bytes` (the ranges do not overlap) and gives the checksum of `from`, reading it
 * from memory once. What the copy leaves in the caches is not said. */
typedef uint64_t (*ms__checksum_copy_fn)(void *to, const void *from, size_t bytes);

uint64_t ms__checksum_copy_plain(void *to, const void *from, size_t bytes);
#ifdef MS_BASE_X86
uint64_t ms__checksum_copy_avx2(void *to, const void *from, size_t bytes);
#endif
ms__checksum_copy_fn ms__checksum_copy_select(void);

#endif
