/* The warning about an evaluation: only over a budget, and with a batch that would fit. */
#include <string.h>

#include "memscale/pipeline.h"
#include "test_common.h"

static const uint64_t MB = 1000000;

static char *line_for(uint64_t budget_bytes, ms_evaluation seen)
{
    ms_config config;
    ms_error err;
    char *line = NULL;
    ms_config_default(&config);
    config.memory_budget_bytes = budget_bytes;
    assert_ms_ok(ms_pipeline_evaluation(&config, &seen, &line, &err), err);
    return line;
}

static void within_the_budget_nothing_is_said(void **state)
{
    (void)state;
    assert_null(line_for(500 * MB, (ms_evaluation){300 * MB, 500 * MB, 1000}));
    assert_null(line_for(MS_UNSET, (ms_evaluation){300 * MB, 900 * MB, 1000}));
    assert_null(line_for(500 * MB, (ms_evaluation){300 * MB, MS_UNSET, 1000}));
}

static void over_it_a_batch_that_fits_is_named(void **state)
{
    (void)state;
    char *line = line_for(500 * MB, (ms_evaluation){300 * MB, 700 * MB, 1000});
    assert_non_null(strstr(line, "200.00 MB over the budget"));
    assert_non_null(strstr(line, "a batch of 475 instead of 1000"));
    ms_free(line);
}

static void no_batch_is_named_that_would_not_fit(void **state)
{
    (void)state;
    ms_evaluation seen[] = {{500 * MB, 700 * MB, 1000}, {300 * MB, 700 * MB, 1}, {300 * MB, 700 * MB, 0}};
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        char *line = line_for(500 * MB, seen[i]);
        assert_non_null(line);
        assert_null(strstr(line, "a batch of"));
        ms_free(line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_the_budget_nothing_is_said),
        cmocka_unit_test(over_it_a_batch_that_fits_is_named),
        cmocka_unit_test(no_batch_is_named_that_would_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
