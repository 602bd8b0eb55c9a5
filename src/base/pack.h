/*
 * pack.h - bit packing: stores a storage whose elements have only two values (dropout masks, often kept as floats;
 * comparisons; constants) as one bit per element, and rebuilds it bit for bit. Elements are words of 8, 4, 2 or 1
 * bytes. The scan finds the width without a type. It interprets no value: zeros of either sign and NaNs are ordinary
 * words. Used by the executor for saved tensors; the hardware probe measures its rate. Takes no lock.
 * Tests: tests/c/base/test_pack.c.
 */
#ifndef MS_BASE_PACK_H
#define MS_BASE_PACK_H

#include "memscale/base.h"

typedef struct ms__packed ms__packed;

/* False if the first words already have a third value, so that ms__pack() would fail. Most data has one within a few
 * words. */
bool ms__pack_may(const void *data, uint64_t bytes);

/* The storage as bits; NULL if it has a third value or when out of memory. */
ms__packed *ms__pack(const void *data, uint64_t bytes);
void ms__packed_free(ms__packed *packed);

/* Writes the `bytes` bytes that ms__pack() read. */
void ms__unpack(const ms__packed *packed, void *data);

/* Size of the packed storage in bytes. */
uint64_t ms__packed_bytes(const ms__packed *packed);

/* ---- the kernels --------------------------------------------------------------- */

/* `count` words of `width` bytes each (1, 2, 4 or 8). Bit i % 8 of byte i / 8 is 1 if word i is the second value;
 * bits past the last word are 0. */
typedef struct ms__pack_kernels {
    /* False, with `bits` undefined, if a word is neither value. */
    bool (*pack)(const unsigned char *data, uint64_t count, uint32_t width, const uint64_t values[2],
                 unsigned char *bits);
    void (*unpack)(const unsigned char *bits, uint64_t count, uint32_t width, const uint64_t values[2],
                   unsigned char *data);
} ms__pack_kernels;

/* The reference, for every processor. */
extern const ms__pack_kernels ms__pack_plain;
#ifdef MS_BASE_X86
/* Gives the same results. Call only if the processor has AVX2. */
extern const ms__pack_kernels ms__pack_avx2;
#endif
/* The fastest of these on this processor. */
const ms__pack_kernels *ms__pack_select(void);

#endif
