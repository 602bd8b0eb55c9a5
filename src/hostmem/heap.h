/*
 * heap.h - the blocks in use and the cache behind them, under one lock.
 *
 * Called by the public functions, by the hooks in the allocator's slots and by the
 * fork handlers. Everything here may run inside free(): it takes no memory but
 * maps, and never logs.
 */
#ifndef MS_HOSTMEM_HEAP_H
#define MS_HOSTMEM_HEAP_H

#include "memscale/hostmem.h"

typedef enum ms__heap_owner {
    MS__HEAP_TENSOR, /* through the allocator's slot, while tensors are accepted */
    MS__HEAP_LIBRARY /* a buffer of the library's own */
} ms__heap_owner;

/* A block of at least `bytes` and MS_HOSTMEM_MIN_BYTES, whole pages; NULL when memory
 * is out, or for a tensor while none are accepted. */
void *ms__heap_alloc(size_t bytes, ms__heap_owner owner);

/* True if `address` was a block in use; it is then free. Costs a foreign address a
 * look-up without a lock. */
bool ms__heap_free(void *address);

/* Whether ms__heap_alloc() serves tensors from now on. When switching it off returns,
 * no block is made any more for a caller that found the old answer. */
void ms__heap_accept_tensors(bool accept);

/* Runs `restore` under the heap's lock unless tensors are accepted, and tells it
 * whether none of their blocks is left; none can appear meanwhile. */
void ms__heap_retire(void (*restore)(bool none_left));

void ms__heap_set_ceiling(uint64_t ceiling_bytes);
void ms__heap_trim(uint64_t keep_bytes);
void ms__heap_get_stats(ms_hostmem_stats *stats); /* all but `means` */
void ms__heap_reset_peak(void);

/* Hold the heap still over a fork. The child drops the cache, whose pages it shares
 * with its parent, and keeps none from then on. */
void ms__heap_before_fork(void);
void ms__heap_after_fork(bool in_child);

#endif
