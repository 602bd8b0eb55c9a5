/*
 * cache.h - freed blocks kept for the next request of exactly their size. Some have released
 * the pages at their end.
 *
 * Called by heap.c under its lock. The cache only links blocks; heap.c maps and unmaps them,
 * and applies the ceiling.
 *
 * Tests: tests/c/hostmem/test_heap.c.
 */
#ifndef MS_HOSTMEM_CACHE_H
#define MS_HOSTMEM_CACHE_H

#include <stdint.h>

#include "hostmem/table.h"

enum { MS__MAP_CACHE_BUCKETS = 1024 };

typedef struct ms__map_cache {
    uint64_t bytes; /* resident */
    ms__map_block *oldest, *newest;
    ms__map_block *buckets[MS__MAP_CACHE_BUCKETS]; /* by size, the newest in front */
} ms__map_cache;

/* Adds a block, all of it resident. */
void ms__map_cache_put(ms__map_cache *cache, ms__map_block *block);

/* Removes and returns the block of exactly `bytes` that was freed last, because its pages are most
 * likely in the processor's caches; NULL if there is none. */
ms__map_block *ms__map_cache_take(ms__map_cache *cache, uint64_t bytes);

/* Removes and returns the block that was freed first; NULL if the cache is empty. */
ms__map_block *ms__map_cache_take_oldest(ms__map_cache *cache);

/* Notes that now only `bytes` of a cached block are resident. */
void ms__map_cache_shrink(ms__map_cache *cache, ms__map_block *block, uint64_t bytes);

#endif
