/*
 * A portion of a list: items that together have at least a wanted number of bytes, hardly more, spread over the list. The
 * search and the optimizer choose by it which states leave a device, so that plans count what moves.
 *
 * Tests: tests/c/base/test_portion.c.
 */
#ifndef MS_BASE_PORTION_H
#define MS_BASE_PORTION_H

#include "memscale/base.h"

/* The bytes of an item. Pure; the bytes of all items sum to less than 2^64. */
typedef uint64_t (*ms__item_bytes)(const void *items, size_t index);

/* Sets taken[i] to 1 for each item of the portion and to 0 for the others. Returns the portion's bytes: at least `wanted`, or
 * those of all items if they have less. Each item of it is needed: without it, the others have less than `wanted`. (Items
 * without bytes may be in it.) */
uint64_t ms__take_portion(const void *items, size_t count, ms__item_bytes bytes_of, uint64_t wanted, uint8_t *taken);

#endif
