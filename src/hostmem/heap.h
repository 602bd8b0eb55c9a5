/*
 * heap.h - the blocks in use and the cache behind them, under one lock.
 *
 * Called by the public functions, by the hooks in the allocator's slots and by the fork
 * handlers. All of it may run inside free(): it allocates only maps, and never logs.
 *
 * Tests: tests/c/hostmem/test_heap.c, test_threads.c.
 */
#ifndef MS_HOSTMEM_HEAP_H
#define MS_HOSTMEM_HEAP_H

#include "memscale/hostmem.h"

typedef enum ms__heap_owner {
    MS__HEAP_TENSOR, /* through the allocator's slot, while tensors are accepted */
    MS__HEAP_LIBRARY /* a buffer of the library's own */
} ms__heap_owner;

/* A block of at least `bytes` and MS_HOSTMEM_MIN_BYTES, whole pages; NULL without memory, or for a
 * tensor while none are accepted. */
void *ms__heap_alloc(size_t bytes, ms__heap_owner owner);

/* True if `address` was a block in use; it is then free. For any other address it costs a look-up
 * without a lock. */
bool ms__heap_free(void *address);

/* Sets whether ms__heap_alloc() serves tensors. After it returns from switching that off, no block is
 * made for a caller that saw the old value. */
void ms__heap_accept_tensors(bool accept);

/* Runs `restore` under the heap's lock unless tensors are accepted. `none_left` says whether no block
 * of theirs is left; none can be made meanwhile. */
void ms__heap_retire(void (*restore)(bool none_left));

void ms__heap_set_ceiling(uint64_t ceiling_bytes);
void ms__heap_trim(uint64_t keep_bytes);
void ms__heap_get_stats(ms_hostmem_stats *stats); /* all but `means` */
void ms__heap_reset_peak(void);

/* Hold the lock over a fork. The child drops the cache, whose pages it shares with its parent, and
 * caches nothing from then on. */
void ms__heap_before_fork(void);
void ms__heap_after_fork(bool in_child);

#endif
