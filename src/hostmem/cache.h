/*
 * cache.h - freed blocks kept for the next request of exactly their size, some of
 * them without the pages at their end.
 *
 * Called by heap.c under its lock. The cache links blocks; it neither maps nor
 * unmaps them, and knows no ceiling.
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

/* A whole block. */
void ms__map_cache_put(ms__map_cache *cache, ms__map_block *block);

/* Takes out the most recently freed block of exactly `bytes`, whose pages are the
 * likeliest to be in the processor's caches; NULL if there is none. */
ms__map_block *ms__map_cache_take(ms__map_cache *cache, uint64_t bytes);

/* Takes out the block that was freed longest ago; NULL if the cache is empty. */
ms__map_block *ms__map_cache_take_oldest(ms__map_cache *cache);

/* Of a cached block only `bytes`, fewer than before, are resident from now on. */
void ms__map_cache_shrink(ms__map_cache *cache, ms__map_block *block, uint64_t bytes);

#endif
