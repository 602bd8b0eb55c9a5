/*
 * quantize8.h - the dynamic 8-bit maps and the tables that find a code without a search. Used only
 * by the AdamW kernels.
 *
 * The map is the dynamic tree type of "8-bit Optimizers via Block-wise Quantization"
 * (Dettmers et al., arXiv 2110.02861) as bitsandbytes publishes it: seven decades
 * below one, each cut linearly into twice as many values as the decade below it.
 *
 * Tests: tests/c/techniques/test_quantize8.c.
 */
#ifndef MS_TECHNIQUES_QUANTIZE8_H
#define MS_TECHNIQUES_QUANTIZE8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A magnitude's upper 16 bits (sign, exponent, 7 bits of fraction) are the number of a bucket, which
 * holds at most one boundary between neighbouring values. Buckets span 2^-23 to 1; smaller
 * magnitudes are zero.
 */
enum {
    MS__Q8_BUCKET_SHIFT = 16,
    MS__Q8_FIRST = (127 - 23) << 7,
    MS__Q8_BUCKETS = (23 << 7) + 1,
    MS__Q8_VALUES = 256,
};

typedef struct ms__q8_table {
    float value[MS__Q8_VALUES]; /* ascending */
    /* Of magnitudes: [k] between the k-th and the next one; infinite after the last one. */
    float boundary[MS__Q8_VALUES];
    int32_t rank[MS__Q8_BUCKETS]; /* number of boundaries below the bucket */
    int32_t zero;          /* code of zero */
    int32_t least;         /* lowest rank of a magnitude above zero */
    int32_t most_negative; /* highest rank of a negative value */
} ms__q8_table;

/* The table of a map; computed at the first call. Thread-safe. */
const ms__q8_table *ms__q8(bool is_signed);

#endif
