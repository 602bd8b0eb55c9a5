/*
 * heap.h - the blocks in use and the cache behind them, under one lock.
 *
 * Called by the public functions, by the hooks in the allocator's slots and by the fork
 * handlers. Every function may run inside free(), so it allocates only maps and never logs.
 *
 * Tests: tests/c/hostmem/test_heap.c, test_threads.c.
 */
#ifndef MS_HOSTMEM_HEAP_H
#define MS_HOSTMEM_HEAP_H

#include "hostmem/window.h"
#include "memscale/hostmem.h"

typedef enum ms__heap_owner {
    MS__HEAP_TENSOR, /* through the allocator's slot, while tensors are accepted */
    MS__HEAP_LIBRARY /* the library's own buffer */
} ms__heap_owner;

/* A block of whole pages, at least `bytes` and MS_HOSTMEM_MIN_BYTES. NULL when out of memory, or for a
 * tensor while tensors are not accepted. */
void *ms__heap_alloc(size_t bytes, ms__heap_owner owner);

/* Frees the block in use at `address`; false if there is none, at the cost of a look-up without a
 * lock. */
bool ms__heap_free(void *address);

/* Makes a streamed map of whole pages a block in use. It is not counted in any bytes but the window's. A tensor's map
 * is freed with its block; a library's stays the caller's, who ends it with ms__heap_disown(). `part`: it is a part of a
 * private map of a checkpoint's file. False, with the map left to the caller, when out of memory, or for a tensor while
 * tensors are not accepted. */
bool ms__heap_adopt(void *address, uint64_t bytes, ms__heap_owner owner, bool part);

/* Ends the use of a library's map. Its pages stay mapped. */
void ms__heap_disown(void *address);

/* Runs `body` with the window of the streamed blocks, under the heap's lock. */
void ms__heap_visit_window(void (*body)(ms__window *window, void *argument), void *argument);

/* Sets whether ms__heap_alloc() serves tensors. Once it has returned after switching that off, no tensor
 * gets a block, even if its call began earlier. */
void ms__heap_accept_tensors(bool accept);

/* Runs `restore` under the heap's lock unless tensors are accepted. `none_left`: no block of a tensor is
 * left. None can be made meanwhile. */
void ms__heap_retire(void (*restore)(bool none_left));

void ms__heap_set_ceiling(uint64_t ceiling_bytes);
void ms__heap_trim(uint64_t keep_bytes);
void ms__heap_get_stats(ms_hostmem_stats *stats); /* all but `means` */
void ms__heap_reset_peak(void);

/* Hold the lock during a fork. The child drops the cache, whose pages it shares with its parent, and
 * then caches nothing. */
void ms__heap_before_fork(void);
void ms__heap_after_fork(bool in_child);

#endif
