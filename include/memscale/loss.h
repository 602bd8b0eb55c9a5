/*
 * loss.h - the row-wise loss head: logits to losses and gradients row by row, so that one
 * tokens x vocabulary buffer is enough.
 *
 * If torch computes with vectors of 8 or 16 floats and fused multiply-add (its CPU capabilities
 * AVX2 and AVX512), the functions on fp32 rows give the same bits as torch's log_softmax and its
 * backward over the gradient of nll_loss: they use the same exponential, logarithm and order of
 * sums. Otherwise torch's own operators work on chunks of rows.
 *
 * Tests: tests/c/techniques/test_loss.c.
 */
#ifndef MEMSCALE_LOSS_H
#define MEMSCALE_LOSS_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows of a chunk, from 1 to `tokens` (1 for no tokens). A chunk's temporaries stay within a few
 * tens of megabytes. Each chunk, also the last, has at least `threads` rows, and at least 2, if
 * there are as many tokens: torch sums a single row in another order. All chunks but the last
 * have the same number of rows.
 */
MS_API uint64_t ms_loss_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes, uint32_t threads);

/* The same for logits on a GPU. All chunks but the last have a multiple of 8 rows. So for 16-bit types and wider each
 * row has the same address modulo 16 in a chunk's buffers as in buffers of all rows, and torch's kernels, which read
 * up to 16 bytes at a time, sum it in the same order. */
MS_API uint64_t ms_loss_device_chunk_rows(uint64_t tokens, uint64_t vocabulary, uint64_t item_bytes, uint32_t threads);

/* The number of lanes for ms_loss_rows; 0 if the functions below would not give torch's bits and
 * torch's operators must be used. `capability`: torch.backends.cpu.get_cpu_capability(). */
MS_API uint32_t ms_loss_lanes(const char *capability, uint64_t vocabulary);

/* fp32 logits, contiguous, and the forward's results for the backward. The caller owns the
 * arrays. */
typedef struct ms_loss_rows {
    const float *logits; /* rows x vocabulary */
    uint64_t rows;
    uint64_t vocabulary;    /* at least `lanes` */
    const int64_t *classes; /* per row, below `vocabulary` */
    float *largest;         /* per row: the largest logit */
    float *log_sum;         /* per row: log of the sum of exp(logit - largest) */
    uint32_t lanes;         /* floats in one of torch's vectors: 8 or 16 */
} ms_loss_rows;

/* Fills largest, log_sum and `picked`: the log-softmax of each row's class. Uses up to `threads`
 * threads; their number changes no bit. Writes nothing on failure: MS_ENOTSUP for other lanes or
 * fewer classes than lanes, MS_EINVAL for a class out of bounds. */
MS_API int ms_loss_forward(const ms_loss_rows *rows, float *picked, uint32_t threads, ms_error *err);

/* Computes `gradient` of the logits (rows x vocabulary) from the gradient of `picked`. It may be the
 * logits' array, which is then overwritten. */
MS_API int ms_loss_backward(const ms_loss_rows *rows, const float *by_picked, float *gradient, uint32_t threads,
                            ms_error *err);

#ifdef __cplusplus
}
#endif

#endif
