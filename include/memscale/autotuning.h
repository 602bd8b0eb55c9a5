/*
 * autotuning.h - the search for the largest micro-batch that fits.
 *
 * The search names a batch; the caller tries it and reports the result. The search ends when its bounds meet
 * or its trials run out. If an effective batch must be kept, only its divisors are tried; gradient
 * accumulation makes up the rest. Deterministic; runs nothing itself. Not thread-safe.
 * Tests: tests/c/autotuning/test_search.c.
 */
#ifndef MEMSCALE_AUTOTUNING_H
#define MEMSCALE_AUTOTUNING_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MS_BATCH_MOST = 1 << 20 };

/* The state of one search. */
typedef struct ms_batch_search ms_batch_search;

/*
 * Searches batches from 1 to `most` (at most MS_BATCH_MOST); with `effective` > 0, only its divisors. Names at
 * most `trials` batches, first the largest that is at most `guess` (0: the smallest). MS_EINVAL, MS_ENOMEM.
 */
MS_API int ms_batch_search_new(uint32_t most, uint32_t effective, uint32_t guess, uint32_t trials,
                               ms_batch_search **search, ms_error *err);
MS_API void ms_batch_search_free(ms_batch_search *search);

/* The batch to try now; 0 if the search is over. */
MS_API uint32_t ms_batch_search_next(ms_batch_search *search);
/* The result of the batch named last. */
MS_API void ms_batch_search_report(ms_batch_search *search, bool fits);

/* The largest batch that fitted, 0 if none; *accumulation: such batches per effective batch (1 without one). */
MS_API uint32_t ms_batch_search_best(const ms_batch_search *search, uint32_t *accumulation);

/* Limits of a trial under a budget: the resident bytes at which it is ended, and the limit on its
 * private maps, which are larger than its resident bytes. */
MS_API void ms_trial_limits(uint64_t budget_bytes, uint64_t *resident_bytes, uint64_t *maps_bytes);

#ifdef __cplusplus
}
#endif

#endif
