/*
 * table.h - from an address to the block of hostmem that holds it.
 *
 * A radix of two levels over 128 KiB granules. Blocks are at least a granule long, so at most one
 * starts in a granule and at most one reaches into it from below: two pointers are enough, and a
 * look-up is two loads. Look-ups take no lock; changes are made under the lock of heap.c. Nodes
 * and blocks live in maps that are never freed, so a look-up that loses a race reads stale
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
    bool evicted;            /* leaving after it was cached: not among the live bytes */
    struct ms__map_block *same_prev, *same_next; /* in the cache: blocks of one bucket */
    struct ms__map_block *age_prev, *age_next;   /* in the cache, or leaving: by time of freeing */
} ms__map_block;

/* Gets and returns a blank block. NULL without memory. Under the heap's lock. */
ms__map_block *ms__map_block_new(void);
void ms__map_block_free(ms__map_block *block);

/* Enters [address, address + bytes) of the block, and removes it. Adding fails, with nothing
 * changed, without memory or if the address is beyond the table's reach. Under the heap's lock. */
bool ms__map_table_add(ms__map_block *block);
void ms__map_table_remove(ms__map_block *block);

/* The block that starts at `address`, in use or not, or NULL. From any thread. */
ms__map_block *ms__map_table_start(const void *address);

/* A consistent copy of address, bytes and serial of the used block that holds
 * `address`, or false. From any thread. */
bool ms__map_table_find(const void *address, uintptr_t *start, uint64_t *bytes, uint64_t *serial);

#endif
