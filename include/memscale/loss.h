/*
 * loss.h - numbers of the row-wise loss head: how many rows of logits are turned into
 * loss or gradient at a time, so that one tokens x vocabulary buffer is enough.
 */
#ifndef MEMSCALE_LOSS_H
#define MEMSCALE_LOSS_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows of a chunk, from 1 to `tokens` (1 for no tokens). A chunk's temporaries stay
 * within a few tens of megabytes, and it has no fewer rows than `threads` where there
 * are as many: torch sums one row alone in another order than one row of several.
 * All chunks but the last have this many rows; the last one is never short of
 * `threads` either.
 */
MS_API uint64_t ms_loss_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes,
                                   uint32_t threads);

#ifdef __cplusplus
}
#endif

#endif
