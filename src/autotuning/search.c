/*
 * The search of autotuning.h: starts at the guess, takes growing strides until the result changes, then bisects.
 */
#include "base/array.h"
#include "base/units.h"
#include "memscale/autotuning.h"

enum { GUESS_ERROR_SHARE = 16, MAPS_EXTRA_BYTES = 2000000000 };

struct ms_batch_search {
    MS__ARRAY(uint32_t) batches; /* rising */
    uint32_t effective;
    size_t fitted;  /* number of smallest batches known to fit */
    size_t failed;  /* the first known not to fit; count: none */
    size_t asked;   /* index of the batch named last */
    size_t step;    /* of the next stride away from the guess */
    uint32_t trials_left;
    bool is_begun;
};

static int list_batches(ms_batch_search *search, uint32_t most)
{
    for (uint32_t batch = 1; batch <= most; batch++) {
        if (search->effective > 0 && search->effective % batch != 0) {
            continue;
        }
        uint32_t *slot = MS__ARRAY_PUSH(&search->batches);
        if (slot == NULL) {
            return MS_ENOMEM;
        }
        *slot = batch;
    }
    return MS_OK;
}

static size_t index_of(const ms_batch_search *search, uint32_t guess)
{
    size_t index = 0;
    while (index + 1 < search->batches.count && search->batches.items[index + 1] <= guess) {
        index++;
    }
    return index;
}

int ms_batch_search_new(uint32_t most, uint32_t effective, uint32_t guess, uint32_t trials, ms_batch_search **search,
                        ms_error *err)
{
    if (most < 1 || most > MS_BATCH_MOST || trials < 1) {
        return ms_fail(err, MS_EINVAL, "batch search: batches from 1 to %d and a trial are needed", MS_BATCH_MOST);
    }
    ms_batch_search *made = ms_calloc(1, sizeof *made);
    if (made != NULL) {
        made->effective = effective;
    }
    if (made == NULL || list_batches(made, most) != MS_OK) {
        ms_batch_search_free(made);
        return ms_fail(err, MS_ENOMEM, "batch search: out of memory");
    }
    made->failed = made->batches.count;
    made->asked = index_of(made, guess);
    made->step = ms__max_u64((made->asked + 1) / GUESS_ERROR_SHARE, 1);
    made->trials_left = trials;
    *search = made;
    return MS_OK;
}

void ms_batch_search_free(ms_batch_search *search)
{
    if (search != NULL) {
        MS__ARRAY_FREE(&search->batches);
        ms_free(search);
    }
}

/* The next batch between those known to fit and those known not to. */
static size_t choose_batch(const ms_batch_search *search)
{
    size_t least = search->fitted, most = search->failed - 1;
    if (search->failed == search->batches.count) { /* none has failed: up by strides */
        return ms__min_u64(search->asked + search->step, most);
    }
    if (search->fitted == 0) { /* none has fitted: down by strides */
        return ms__min_u64(ms__sub_sat(search->asked, search->step), most);
    }
    return least + (most - least) / 2;
}

uint32_t ms_batch_search_next(ms_batch_search *search)
{
    if (search->trials_left == 0 || search->fitted >= search->failed) {
        return 0;
    }
    if (search->is_begun) {
        search->asked = choose_batch(search);
        search->step *= 2;
    }
    search->is_begun = true;
    search->trials_left--;
    return search->batches.items[search->asked];
}

void ms_batch_search_report(ms_batch_search *search, bool fits)
{
    if (fits) {
        search->fitted = ms__max_u64(search->fitted, search->asked + 1);
    } else {
        search->failed = ms__min_u64(search->failed, search->asked);
    }
}

uint32_t ms_batch_search_best(const ms_batch_search *search, uint32_t *accumulation)
{
    uint32_t best = search->fitted > 0 ? search->batches.items[search->fitted - 1] : 0;
    *accumulation = best > 0 && search->effective > 0 ? search->effective / best : 1;
    return best;
}

void ms_trial_limits(uint64_t budget_bytes, uint64_t *resident_bytes, uint64_t *maps_bytes)
{
    *resident_bytes = budget_bytes;
    *maps_bytes = ms__add_sat(ms__mul_sat(budget_bytes, 2), MAPS_EXTRA_BYTES);
}
