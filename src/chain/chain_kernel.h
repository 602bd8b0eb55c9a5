/*
 * What the inner loops of the chain solver's table (chain_kernel.c) are given by
 * chain_class.c: one segment's entries, and the rows of other segments that they are made of.
 * A header of its own because the loops are compiled without the rest of the solver.
 */
#ifndef MS_CHAIN_CHAIN_KERNEL_H
#define MS_CHAIN_CHAIN_KERNEL_H

#include <stdint.h>

enum { MS__CHAIN_BLOCK = 32 }; /* entries that are made at a time; rows begin and end with one */

/* Entries m >= start may be rest[m] + add: the first layer saved. */
typedef struct ms__chain_rest {
    const uint32_t *rest;
    uint32_t start, add;
} ms__chain_rest;

/* Entries m >= start may be left[m] + right[m] + add: an activation made and kept. The ends are
 * the least time of each block of these rows, left's as it is without `taken`. */
typedef struct ms__chain_sum {
    const uint32_t *left, *right;
    const uint32_t *left_ends, *right_ends;
    uint32_t start, add; /* add never falls from one sum to the next */
    uint32_t taken;      /* what left is moved by */
} ms__chain_sum;

/* Makes entries begin .. end - 1 of a row, both multiples of MS__CHAIN_BLOCK; pointers are to
 * where entry 0 would be. An entry for which there's nothing becomes UINT32_MAX. */
typedef struct ms__chain_fill {
    uint32_t *row;
    uint32_t begin, end;
    const ms__chain_rest *rests;
    const ms__chain_sum *sums;
    uint32_t rest_count, sum_count;
} ms__chain_fill;

#endif
