/*
 * window.h - which streamed blocks are resident: those used last, as many as the window holds.
 *
 * Called under the heap's lock, by heap.c and through ms__heap_visit_window(). A block counts as resident from its use
 * until it is dropped, although the kernel may drop some of its pages earlier. Dropping changes no byte: even a block
 * that another thread is using may be dropped, and its pages come back.
 *
 * Pages of a part that were written are never dropped: they exist nowhere else. The training thread looks for them
 * before it drops the others. The worker can't look, because a page may be written after that, so it asks the kernel to
 * reclaim the pages.
 *
 * Tests: tests/c/hostmem/test_streamed.c, test_streamed_map.c.
 */
#ifndef MS_HOSTMEM_WINDOW_H
#define MS_HOSTMEM_WINDOW_H

#include "hostmem/table.h"
#include "memscale/streamed.h"

typedef struct ms__window {
    uint64_t most_bytes;
    uint64_t blocks, total_bytes, resident_bytes, kept_bytes, fetched_bytes, dropped_bytes;
    uint64_t parts;                  /* blocks that are parts */
    bool is_asynchronous;            /* the caller is the worker: other threads may be writing blocks */
    uint64_t round;                  /* blocks used in one round must be resident together */
    ms__map_block *all;              /* linked by same_prev and same_next */
    ms__map_block *oldest, *newest;  /* resident and not kept, by age_prev and age_next */
} ms__window;

void ms__window_add(ms__window *window, ms__map_block *block);
void ms__window_remove(ms__window *window, ms__map_block *block);

/* Begins a round: blocks of earlier rounds may leave. */
void ms__window_next_round(ms__window *window);

/* Counts the block as resident, used in this round. To make room, drops the blocks of earlier rounds that were used
 * longest ago. If `must_fit` and there is no room even then, returns false and the block doesn't count. */
bool ms__window_use(ms__window *window, ms__map_block *block, bool must_fit);

/* Drops blocks of earlier rounds, those used longest ago, until `more_bytes` fit. True if they do. */
bool ms__window_make_room(ms__window *window, uint64_t more_bytes);

/* If `kept`, the block is never dropped from now on; else it may be dropped again. */
void ms__window_keep(ms__window *window, ms__map_block *block, bool kept);

/* Drops blocks used longest ago, whatever their round, down to `most_bytes`. */
void ms__window_shrink(ms__window *window, uint64_t most_bytes);

/* Drops the pages of all blocks; only kept ones still count as resident. */
void ms__window_empty(ms__window *window);

/* Drops the pages of the block, if it doesn't count as resident. */
void ms__window_recheck(const ms__window *window, const ms__map_block *block);

/* Drops the pages of all blocks that don't count as resident. */
void ms__window_sweep(ms__window *window);

#endif
