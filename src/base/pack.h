/*
 * pack.h - storages whose elements have only two values (dropout masks, which are
 * often kept as floats, comparisons, constants) as one bit per element, rebuilt bit
 * for bit. Elements are words of 8, 4, 2 or 1 bytes, found out by looking: no type is
 * asked for, and no value is interpreted, so zeros of either sign and NaNs are words
 * like any other. Used by the executor for saved tensors, and by the hardware probe for how
 * fast it is; takes no lock.
 */
#ifndef MS_BASE_PACK_H
#define MS_BASE_PACK_H

#include "memscale/base.h"

typedef struct ms__packed ms__packed;

/* Looks at the beginning only: false says that ms__pack() would be wasted on it. Stops
 * at the third value, that is, at once for most data. */
bool ms__pack_may(const void *data, uint64_t bytes);

/* The storage as bits, or NULL where a third value was met or memory is out. */
ms__packed *ms__pack(const void *data, uint64_t bytes);
void ms__packed_free(ms__packed *packed);

/* Writes the `bytes` that ms__pack() was given. */
void ms__unpack(const ms__packed *packed, void *data);

/* What the bits take. */
uint64_t ms__packed_bytes(const ms__packed *packed);

/* ---- the kernels --------------------------------------------------------------- */

/* `count` words of `width` bytes each (1, 2, 4 or 8). Bit i % 8 of byte i / 8 says that
 * word i is the second value; bits behind the last word are 0. */
typedef struct ms__pack_kernels {
    /* False where a word is neither value; `bits` is undefined then. */
    bool (*pack)(const unsigned char *data, uint64_t count, uint32_t width, const uint64_t values[2],
                 unsigned char *bits);
    void (*unpack)(const unsigned char *bits, uint64_t count, uint32_t width, const uint64_t values[2],
                   unsigned char *data);
} ms__pack_kernels;

/* The reference, for every processor. */
extern const ms__pack_kernels ms__pack_plain;
#ifdef MS_BASE_X86
/* Call only where the processor has AVX2. The same results. */
extern const ms__pack_kernels ms__pack_avx2;
#endif
/* The fastest of these on this processor. */
const ms__pack_kernels *ms__pack_select(void);

#endif
