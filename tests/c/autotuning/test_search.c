/*
 * The search finds the largest batch that fits from any guess, in few trials, and keeps an effective batch.
 */
#include "memscale/autotuning.h"
#include "test_common.h"

typedef struct found {
    uint32_t best, accumulation, trials;
} found;

/* Batches up to `limit` fit. */
static found search_for(uint32_t most, uint32_t effective, uint32_t guess, uint32_t trials, uint32_t limit)
{
    ms_error err;
    ms_batch_search *search = NULL;
    found result = {0};
    assert_ms_ok(ms_batch_search_new(most, effective, guess, trials, &search, &err), err);
    for (uint32_t batch; (batch = ms_batch_search_next(search)) != 0;) {
        assert_true(batch >= 1 && batch <= most);
        ms_batch_search_report(search, batch <= limit);
        result.trials++;
        assert_true(result.trials <= trials);
    }
    result.best = ms_batch_search_best(search, &result.accumulation);
    ms_batch_search_free(search);
    return result;
}

static void the_largest_fitting_batch_is_found_from_any_guess(void **state)
{
    (void)state;
    for (uint32_t limit = 0; limit <= 70; limit++) {
        for (uint32_t guess = 0; guess <= 70; guess += 7) {
            found result = search_for(64, 0, guess, 1000, limit);
            assert_int_equal(result.best, limit > 64 ? 64 : limit);
            assert_int_equal(result.accumulation, 1);
            assert_true(result.trials <= 14);
        }
    }
    assert_true(search_for(1024, 0, 100, 1000, 100).trials <= 8); /* a good guess is confirmed soon */
}

static void an_effective_batch_is_kept(void **state)
{
    (void)state;
    for (uint32_t limit = 1; limit <= 50; limit++) {
        found result = search_for(48, 48, 10, 100, limit);
        assert_int_equal(result.best * result.accumulation, 48);
        assert_true(result.best <= limit);
    }
    assert_int_equal(search_for(48, 48, 10, 100, 15).best, 12);
    assert_int_equal(search_for(47, 48, 10, 100, 100).best, 24);
}

static void trials_are_bounded_and_a_fitting_batch_stays(void **state)
{
    (void)state;
    found result = search_for(1 << 20, 0, 1, 5, 1 << 19);
    assert_int_equal(result.trials, 5);
    assert_true(result.best >= 1);
}

static void bad_bounds_are_refused(void **state)
{
    (void)state;
    ms_error err;
    ms_batch_search *search = NULL;
    assert_ms_fails(ms_batch_search_new(0, 0, 1, 1, &search, &err), MS_EINVAL, err, "batch");
    assert_ms_fails(ms_batch_search_new(MS_BATCH_MOST + 1, 0, 1, 1, &search, &err), MS_EINVAL, err, "batch");
    assert_ms_fails(ms_batch_search_new(4, 0, 1, 0, &search, &err), MS_EINVAL, err, "trial");
    for (uint64_t nth = 1; nth <= 2; nth++) {
        uint64_t blocks = ms_memory_live_blocks();
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        assert_ms_fails(ms_batch_search_new(4, 0, 1, 1, &search, &err), MS_ENOMEM, err, "memory");
        ms_fault_disarm_all();
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_fitting_batch_is_found_from_any_guess),
        cmocka_unit_test(an_effective_batch_is_kept),
        cmocka_unit_test(trials_are_bounded_and_a_fitting_batch_stays),
        cmocka_unit_test(bad_bounds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
