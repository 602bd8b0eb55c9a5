/*
 * table.h - from an address to the block of ours that holds it.
 *
 * A radix of two levels over 1 MiB granules. Blocks are at least a granule long, so
 * at most one starts in a granule and at most one reaches into it from below: two
 * pointers say it all, and a look-up is two loads. Look-ups take no lock; changes
 * are made under the lock of heap.c. Nodes and blocks live in maps that are never
 * given back, so a look-up that loses a race reads stale values, never freed memory.
 */
#ifndef MS_HOSTMEM_TABLE_H
#define MS_HOSTMEM_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ms__map_block {
    _Atomic uintptr_t address;
    _Atomic uint64_t bytes;  /* whole pages */
    _Atomic uint64_t serial; /* 0 while no one uses the block */
    uint64_t absent_bytes;   /* in the cache: at its end, not resident any more */
    bool tensor;             /* came through the allocator's slot */
    bool evicted;            /* leaving: came out of the cache, and is not among the live bytes */
    struct ms__map_block *same_prev, *same_next; /* in the cache: blocks of one bucket */
    struct ms__map_block *age_prev, *age_next;   /* in the cache, or leaving: by time of freeing */
} ms__map_block;

/* A blank block, and its return. NULL when memory is out. Under the heap's lock. */
ms__map_block *ms__map_block_new(void);
void ms__map_block_free(ms__map_block *block);

/* Makes [address, address + bytes) of the block known, and unknown again. Adding
 * fails, with nothing changed, when memory is out or the address is beyond the
 * table's reach. Under the heap's lock. */
bool ms__map_table_add(ms__map_block *block);
void ms__map_table_remove(ms__map_block *block);

/* The block that starts at `address`, used or not, or NULL. From any thread. */
ms__map_block *ms__map_table_start(const void *address);

/* A consistent copy of address, bytes and serial of the used block that holds
 * `address`, or false. From any thread. */
bool ms__map_table_find(const void *address, uintptr_t *start, uint64_t *bytes, uint64_t *serial);

#endif
