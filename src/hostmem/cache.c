/*
 * Freed blocks by exact size and by age. heap.c calls it under its lock. It must not allocate,
 * and writes only the links of freed blocks.
 */
#include "hostmem/cache.h"

#include <stddef.h>

static ms__map_block **bucket_of(ms__map_cache *cache, uint64_t bytes)
{
    /* Fibonacci hashing of the page count, ten bits of it. */
    uint64_t hash = (bytes >> 12) * UINT64_C(0x9E3779B97F4A7C15);
    return &cache->buckets[hash >> 54];
}

static uint64_t bytes_of(const ms__map_block *block)
{
    return atomic_load_explicit(&block->bytes, memory_order_relaxed);
}

static uint64_t resident_of(const ms__map_block *block)
{
    return bytes_of(block) - block->absent_bytes;
}

void ms__map_cache_shrink(ms__map_cache *cache, ms__map_block *block, uint64_t bytes)
{
    cache->bytes -= resident_of(block) - bytes;
    block->absent_bytes = bytes_of(block) - bytes;
}

void ms__map_cache_put(ms__map_cache *cache, ms__map_block *block)
{
    ms__map_block **bucket = bucket_of(cache, bytes_of(block));
    block->same_prev = NULL;
    block->same_next = *bucket;
    if (*bucket != NULL) {
        (*bucket)->same_prev = block;
    }
    *bucket = block;

    block->age_next = NULL;
    block->age_prev = cache->newest;
    if (cache->newest != NULL) {
        cache->newest->age_next = block;
    } else {
        cache->oldest = block;
    }
    cache->newest = block;
    cache->bytes += resident_of(block);
}

static void unlink_block(ms__map_cache *cache, ms__map_block *block)
{
    if (block->same_prev != NULL) {
        block->same_prev->same_next = block->same_next;
    } else {
        *bucket_of(cache, bytes_of(block)) = block->same_next;
    }
    if (block->same_next != NULL) {
        block->same_next->same_prev = block->same_prev;
    }

    if (block->age_prev != NULL) {
        block->age_prev->age_next = block->age_next;
    } else {
        cache->oldest = block->age_next;
    }
    if (block->age_next != NULL) {
        block->age_next->age_prev = block->age_prev;
    } else {
        cache->newest = block->age_prev;
    }

    block->same_prev = block->same_next = NULL;
    block->age_prev = block->age_next = NULL;
    cache->bytes -= resident_of(block);
}

ms__map_block *ms__map_cache_take(ms__map_cache *cache, uint64_t bytes)
{
    ms__map_block *block = *bucket_of(cache, bytes);
    while (block != NULL && bytes_of(block) != bytes) {
        block = block->same_next;
    }
    if (block != NULL) {
        unlink_block(cache, block);
    }
    return block;
}

ms__map_block *ms__map_cache_take_oldest(ms__map_cache *cache)
{
    ms__map_block *block = cache->oldest;
    if (block != NULL) {
        unlink_block(cache, block);
    }
    return block;
}
