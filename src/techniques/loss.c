/*
 * The cut of logits into chunks of rows. Called by the loss head in Python through ext.
 */
#include "memscale/loss.h"

#include "base/units.h"

/* Large enough that torch's threads have work for milliseconds, small enough that the
 * two or three buffers of a chunk are little beside one of GPT-2 small's 412 MB. */
#define CHUNK_BYTES (UINT64_C(24) << 20)

uint64_t ms_loss_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes,
                            uint32_t threads)
{
    uint64_t row_bytes = ms__mul_sat(vocabulary, item_bytes);
    uint64_t least = threads > 2 ? threads : 2;
    uint64_t rows = CHUNK_BYTES / (row_bytes > 0 ? row_bytes : 1);
    rows = rows > least ? rows : least;
    /* The remainder goes to the others until it is large enough or gone. */
    while (rows < tokens && tokens % rows != 0 && tokens % rows < least) {
        rows++;
    }
    rows = rows < tokens ? rows : tokens;
    return rows > 0 ? rows : 1;
}
