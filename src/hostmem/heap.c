/*
 * The blocks in use, the cache behind them and the ceiling over both. One mutex guards all of it,
 * so that live + cached <= ceiling holds at every moment. (A cached block takes a hundredth of the
 * time of page faults.) Called from the allocator's own functions, so it must not log or use malloc.
 */
#include "hostmem/heap.h"

#include "base/os/map.h"
#include "base/thread.h"
#include "base/units.h"
#include "hostmem/cache.h"
#include "hostmem/table.h"

typedef struct heap {
    ms__mutex mutex;
    ms__map_cache cache;
    ms__window window;
    uint64_t ceiling_bytes;
    uint64_t live_bytes; /* a freed block counts until it is unmapped */
    uint64_t evicted_bytes; /* out of the cache, being unmapped */
    uint64_t peak_live_bytes;
    uint64_t peak_held_bytes;
    uint64_t live_blocks;
    uint64_t tensor_blocks;
    uint64_t mapped_count;
    uint64_t reused_count;
    uint64_t last_serial;
    bool accepts_tensors;
    ms__map_block *leaving; /* being unmapped outside the lock, linked both ways by age */
    _Atomic uintptr_t forker; /* during a fork, the thread that holds the lock; else 0 */
} heap;

enum { PIECE_BYTES = 8 << 20 }; /* released in one go under the lock */

static heap the_heap = {.mutex = MS__MUTEX_INIT, .window = {.most_bytes = MS_STREAMED_WINDOW_BYTES}};

/* Other libraries' fork handlers run between hostmem's, in the thread that holds the lock for the
 * fork, and may free a tensor. */
static bool is_held_for_fork(void)
{
    uintptr_t forker = atomic_load_explicit(&the_heap.forker, memory_order_relaxed);
    return forker != 0 && forker == (uintptr_t)pthread_self();
}

static void lock_heap(void)
{
    if (!is_held_for_fork()) {
        ms__mutex_lock(&the_heap.mutex);
    }
}

static void unlock_heap(void)
{
    if (!is_held_for_fork()) {
        ms__mutex_unlock(&the_heap.mutex);
    }
}

static uint64_t bytes_of(const ms__map_block *block)
{
    return atomic_load_explicit(&block->bytes, memory_order_relaxed);
}

/* Smaller than its size for a cached block that lost its end. */
static uint64_t resident_bytes_of(const ms__map_block *block)
{
    return bytes_of(block) - block->absent_bytes;
}

static void *address_of(const ms__map_block *block)
{
    return (void *)atomic_load_explicit(&block->address, memory_order_relaxed);
}

static uint64_t held_bytes(void)
{
    return the_heap.live_bytes + the_heap.cache.bytes + the_heap.evicted_bytes;
}

/* ---- maps being unmapped ---------------------------------------------------- */

static void leaving_add(ms__map_block *block)
{
    block->age_prev = NULL;
    block->age_next = the_heap.leaving;
    if (the_heap.leaving != NULL) {
        the_heap.leaving->age_prev = block;
    }
    the_heap.leaving = block;
}

static void leaving_remove(ms__map_block *block)
{
    if (block->age_prev != NULL) {
        block->age_prev->age_next = block->age_next;
    } else {
        the_heap.leaving = block->age_next;
    }
    if (block->age_next != NULL) {
        block->age_next->age_prev = block->age_prev;
    }
    if (!block->streamed) {
        *(block->evicted ? &the_heap.evicted_bytes : &the_heap.live_bytes) -= resident_bytes_of(block);
    }
    block->evicted = block->streamed = false;
    ms__map_block_free(block);
}

/* Without the lock: unmapping gigabytes takes milliseconds, and other threads run meanwhile. The
 * block is on the list of leaving ones, and counts until it is unmapped. */
static void leaving_unmap(ms__map_block *block)
{
    ms__unmap(address_of(block), bytes_of(block));
    lock_heap();
    leaving_remove(block);
    unlock_heap();
}

/* Drops a block taken from the cache. Releases the lock meanwhile. */
static void block_drop(ms__map_block *block)
{
    ms__map_table_remove(block);
    block->evicted = true;
    the_heap.evicted_bytes += resident_bytes_of(block);
    leaving_add(block);
    unlock_heap();
    leaving_unmap(block);
    lock_heap();
}

/*
 * One step towards `lack_bytes` less in a non-empty cache: releases from the oldest block the
 * needed bytes, at its end and in whole huge pages, or all of it. Dropping a block of hundreds of
 * megabytes for a few would cost faulting it in again, and then evict others. Runs under the lock,
 * in pieces that delay other threads no longer than some page faults.
 */
static void cache_shrink_oldest(uint64_t lack_bytes)
{
    ms__map_block *block = the_heap.cache.oldest;
    uint64_t resident = resident_bytes_of(block);
    uint64_t keep = ms__align_down(ms__sub_sat(resident, lack_bytes), MS__HUGE_PAGE_BYTES);
    bool stays = keep > 0;
    keep = ms__max_u64(keep, ms__align_down(ms__sub_sat(resident, PIECE_BYTES), MS__HUGE_PAGE_BYTES));
    if (stays && ms__map_empty((char *)address_of(block) + keep, resident - keep)) {
        ms__map_cache_shrink(&the_heap.cache, block, keep);
        unlock_heap();
        lock_heap();
    } else {
        block_drop(ms__map_cache_take_oldest(&the_heap.cache));
    }
}

static void cache_trim(uint64_t keep_bytes)
{
    while (the_heap.cache.bytes > keep_bytes) {
        cache_shrink_oldest(the_heap.cache.bytes - keep_bytes);
    }
}

/* Makes room for `wanted_bytes` more under the ceiling, as far as the cache can. Releases the lock
 * while blocks are dropped; the room exists when it returns with the lock. */
static void cache_make_room(uint64_t wanted_bytes)
{
    uint64_t most_bytes = ms__sub_sat(the_heap.ceiling_bytes, wanted_bytes);
    while (the_heap.cache.bytes > 0 && held_bytes() > most_bytes) {
        cache_shrink_oldest(held_bytes() - most_bytes);
        most_bytes = ms__sub_sat(the_heap.ceiling_bytes, wanted_bytes);
    }
}

/* ---- maps, made under the lock ---------------------------------------------- */

/* Maps exactly `bytes`: with nothing mapped behind the last one, a huge page cannot make more
 * resident than is counted. */
static void *open_map(uint64_t bytes)
{
    bool is_huge = bytes >= MS__HUGE_PAGE_BYTES;
    void *address = NULL;
    if (ms__map(bytes, is_huge ? MS__HUGE_PAGE_BYTES : ms__page_bytes(), &address, NULL) != MS_OK) {
        return NULL;
    }
    if (is_huge) {
        (void)ms__map_want_huge_pages(address, bytes);
    }
    return address;
}

/* False, with the descriptor freed, if the table can't hold the block. */
static bool block_place(ms__map_block *block, void *address, uint64_t bytes)
{
    block->absent_bytes = 0;
    atomic_store_explicit(&block->address, (uintptr_t)address, memory_order_release);
    atomic_store_explicit(&block->bytes, bytes, memory_order_release);
    if (!ms__map_table_add(block)) {
        ms__map_block_free(block);
        return false;
    }
    return true;
}

static ms__map_block *map_block(uint64_t bytes)
{
    ms__map_block *block = ms__map_block_new();
    if (block == NULL) {
        return NULL;
    }
    void *address = open_map(bytes);
    if (address == NULL) {
        ms__map_block_free(block);
        return NULL;
    }
    if (!block_place(block, address, bytes)) {
        ms__unmap(address, bytes);
        return NULL;
    }
    the_heap.mapped_count++;
    return block;
}

/* ---- blocks ------------------------------------------------------------- */

static void raise_peaks(void)
{
    if (the_heap.live_bytes > the_heap.peak_live_bytes) {
        the_heap.peak_live_bytes = the_heap.live_bytes;
    }
    if (held_bytes() > the_heap.peak_held_bytes) {
        the_heap.peak_held_bytes = held_bytes();
    }
}

static void block_hand_out(ms__map_block *block, ms__heap_owner owner)
{
    block->tensor = owner == MS__HEAP_TENSOR;
    the_heap.tensor_blocks += block->tensor;
    the_heap.live_blocks++;
    if (block->streamed) {
        ms__window_add(&the_heap.window, block);
    } else {
        the_heap.live_bytes += bytes_of(block);
        raise_peaks();
    }
    atomic_store_explicit(&block->serial, ++the_heap.last_serial, memory_order_release);
}

static void block_take_back(ms__map_block *block)
{
    atomic_store_explicit(&block->serial, 0, memory_order_release);
    the_heap.tensor_blocks -= block->tensor;
    the_heap.live_blocks--;
    if (block->streamed) {
        ms__window_remove(&the_heap.window, block);
    }
}

static bool is_served(ms__heap_owner owner)
{
    return owner == MS__HEAP_LIBRARY || the_heap.accepts_tensors;
}

/* A cached block that lost its end needs room when that is touched again; its resident part counts
 * meanwhile. NULL if the owner is not served any more. */
static ms__map_block *block_make_whole(ms__map_block *block, ms__heap_owner owner)
{
    uint64_t resident_bytes = resident_bytes_of(block);
    the_heap.evicted_bytes += resident_bytes;
    cache_make_room(block->absent_bytes);
    the_heap.evicted_bytes -= resident_bytes;
    if (!is_served(owner)) {
        block_drop(block);
        return NULL;
    }
    block->absent_bytes = 0;
    return block;
}

/* If blocks had to be dropped first, the last user may have uninstalled meanwhile: libc would free a
 * block handed out then. */
static ms__map_block *find_or_map(uint64_t bytes, ms__heap_owner owner)
{
    ms__map_block *block = ms__map_cache_take(&the_heap.cache, bytes);
    the_heap.reused_count += block != NULL;
    if (block != NULL) {
        return block->absent_bytes > 0 ? block_make_whole(block, owner) : block;
    }
    cache_make_room(bytes);
    block = is_served(owner) ? map_block(bytes) : NULL;
    if (block == NULL) {
        cache_trim(0);
        block = is_served(owner) ? map_block(bytes) : NULL;
    }
    return block;
}

void *ms__heap_alloc(size_t bytes, ms__heap_owner owner)
{
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    uint64_t whole_bytes = ms__align_up(bytes < MS_HOSTMEM_MIN_BYTES ? MS_HOSTMEM_MIN_BYTES : bytes, ms__page_bytes());
    ms__map_block *block = NULL;
    lock_heap();
    if (is_served(owner)) {
        block = find_or_map(whole_bytes, owner);
    }
    if (block != NULL) {
        block_hand_out(block, owner);
    }
    unlock_heap();
    return block != NULL ? address_of(block) : NULL;
}

bool ms__heap_adopt(void *address, uint64_t bytes, ms__heap_owner owner, bool part)
{
    lock_heap();
    ms__map_block *block = is_served(owner) ? ms__map_block_new() : NULL;
    bool is_ours = block != NULL && block_place(block, address, bytes);
    if (is_ours) {
        block->streamed = true;
        block->part = part;
        block_hand_out(block, owner);
    }
    unlock_heap();
    return is_ours;
}

void ms__heap_disown(void *address)
{
    lock_heap();
    ms__map_block *block = ms__map_table_start(address);
    if (block != NULL) {
        block_take_back(block);
        ms__map_table_remove(block);
        block->streamed = block->part = false;
        ms__map_block_free(block);
    }
    unlock_heap();
}

/* Caches the block if that stays under the ceiling: freeing moves bytes from live to cached, so the
 * sum decides. True if the caller must unmap the block instead. */
static bool block_cache_or_leave(ms__map_block *block)
{
    if (!block->streamed && held_bytes() <= the_heap.ceiling_bytes) {
        the_heap.live_bytes -= bytes_of(block);
        ms__map_cache_put(&the_heap.cache, block);
        return false;
    }
    ms__map_table_remove(block);
    leaving_add(block);
    return true;
}

bool ms__heap_free(void *address)
{
    ms__map_block *block = ms__map_table_start(address);
    if (block == NULL) {
        return false;
    }
    lock_heap();
    /* Checked again under the lock: the caller may not free a cached block, or one whose descriptor
     * was reused for another address meanwhile. */
    bool is_used = address_of(block) == address && atomic_load_explicit(&block->serial, memory_order_relaxed) != 0;
    bool must_unmap = false;
    if (is_used) {
        block_take_back(block);
        must_unmap = block_cache_or_leave(block);
    }
    unlock_heap();
    if (must_unmap) {
        leaving_unmap(block);
    }
    return is_used;
}

/* ---- switches and counters ---------------------------------------------- */

void ms__heap_accept_tensors(bool accept)
{
    lock_heap();
    the_heap.accepts_tensors = accept;
    unlock_heap();
}

void ms__heap_retire(void (*restore)(bool none_left))
{
    lock_heap();
    if (!the_heap.accepts_tensors) {
        restore(the_heap.tensor_blocks == 0);
    }
    unlock_heap();
}

void ms__heap_set_ceiling(uint64_t ceiling_bytes)
{
    lock_heap();
    the_heap.ceiling_bytes = ceiling_bytes;
    cache_make_room(0);
    unlock_heap();
}

void ms__heap_trim(uint64_t keep_bytes)
{
    lock_heap();
    cache_trim(keep_bytes);
    unlock_heap();
}

void ms__heap_visit_window(void (*body)(ms__window *window, void *argument), void *argument)
{
    lock_heap();
    body(&the_heap.window, argument);
    unlock_heap();
}

void ms__heap_get_stats(ms_hostmem_stats *stats)
{
    lock_heap();
    stats->live_bytes = the_heap.live_bytes;
    stats->peak_live_bytes = the_heap.peak_live_bytes;
    stats->cached_bytes = the_heap.cache.bytes;
    stats->peak_held_bytes = the_heap.peak_held_bytes;
    stats->live_blocks = the_heap.live_blocks;
    stats->mapped_count = the_heap.mapped_count;
    stats->reused_count = the_heap.reused_count;
    unlock_heap();
}

void ms__heap_reset_peak(void)
{
    lock_heap();
    the_heap.peak_live_bytes = the_heap.live_bytes;
    the_heap.peak_held_bytes = held_bytes();
    unlock_heap();
}

void ms__heap_before_fork(void)
{
    ms__mutex_lock(&the_heap.mutex);
    atomic_store_explicit(&the_heap.forker, (uintptr_t)pthread_self(), memory_order_relaxed);
}

/* A block that another thread was unmapping at the fork may or may not be mapped in the child:
 * unmapping it could hit a newer map. It only stops counting. */
static void settle_child(void)
{
    while (the_heap.leaving != NULL) {
        leaving_remove(the_heap.leaving);
    }
    the_heap.evicted_bytes = 0;
    the_heap.ceiling_bytes = 0;
    cache_make_room(0);
}

void ms__heap_after_fork(bool in_child)
{
    if (in_child) {
        settle_child();
    }
    atomic_store_explicit(&the_heap.forker, 0, memory_order_relaxed);
    ms__mutex_unlock(&the_heap.mutex);
}
