/*
 * table.h - finds the block of hostmem that holds an address.
 *
 * A radix tree of two levels over granules of 128 KiB. Blocks are at least a granule long, so at
 * most one starts in a granule and at most one reaches into it from below: two pointers per granule
 * are enough, and a look-up is two loads. Look-ups take no lock; changes need the lock of heap.c.
 * Nodes and blocks live in maps that are never freed, so a look-up that loses a race reads stale
 * values, never freed memory.
 *
 * Tests: tests/c/hostmem/test_heap.c, test_threads.c.
 */
#ifndef MS_HOSTMEM_TABLE_H
#define MS_HOSTMEM_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ms__map_block {
    _Atomic uintptr_t address;
    _Atomic uint64_t bytes;  /* whole pages */
    _Atomic uint64_t serial; /* 0 while the block is not in use */
    uint64_t absent_bytes;   /* in the cache: bytes at its end that are not resident */
    bool tensor;             /* came through the allocator's slot */
    bool evicted;            /* leaving the cache: not counted in the live bytes */
    bool streamed;           /* a map of a file; see window.h for the next four */
    bool part;               /* pages of a checkpoint's file, in a private map that is not the block's own */
    bool resident, kept;
    uint64_t round;
    struct ms__map_block *same_prev, *same_next; /* in the cache: blocks of one bucket; all streamed blocks */
    struct ms__map_block *age_prev, *age_next; /* in the cache, or leaving: by time of freeing; in the window: of use */
} ms__map_block;

/* A blank block; NULL when out of memory. Call both under the heap's lock. */
ms__map_block *ms__map_block_new(void);
void ms__map_block_free(ms__map_block *block);

/* Add and remove the block's range [address, address + bytes). Adding fails, and changes nothing, when
 * out of memory or if the address is beyond the table's reach. Call both under the heap's lock. */
bool ms__map_table_add(ms__map_block *block);
void ms__map_table_remove(ms__map_block *block);

/* The block that starts at `address`, in use or not; NULL if there is none. From any thread. */
ms__map_block *ms__map_table_start(const void *address);

/* Copies address, bytes and serial, consistent with each other, of the block in use
 * that holds `address`; false if there is none. From any thread. */
bool ms__map_table_find(const void *address, uintptr_t *start, uint64_t *bytes, uint64_t *serial);

#endif
