/* The window of streamed parameters: as large as the budget allows, and no smaller than two layers. */
#include "plan_fixture.h"

typedef struct fixture {
    fixture_planning planning;
    ms_streaming streaming;
} fixture;

static const uint64_t baseline_bytes = UINT64_C(300) << 20;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->planning = fixture_open(fixture_graph(0));
    f->planning.hardware->process.baseline_bytes = baseline_bytes;
    f->streaming = (ms_streaming){
        .total_bytes = UINT64_C(4096) << 20, .least_bytes = UINT64_C(512) << 20, .trained_bytes = UINT64_C(4096) << 20};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    fixture_close(&f->planning);
    free(f);
    return 0;
}

static int choose(fixture *f, uint64_t budget_bytes, char **line, ms_error *err)
{
    f->planning.config.memory_budget_bytes = budget_bytes;
    return ms_pipeline_window(f->planning.graph, &f->streaming, &f->planning.config, f->planning.hardware, line, err);
}

/* The chosen window. The plan that is made after it must fit the budget. */
static uint64_t window_at(fixture *f, uint64_t budget_bytes, const char *words)
{
    ms_error err;
    char *line = NULL;
    assert_ms_ok(choose(f, budget_bytes, &line, &err), err);
    if (strstr(line, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, line);
    }
    ms_free(line);
    const ms_process *process = &f->planning.hardware->process;
    assert_int_equal(process->baseline_bytes, baseline_bytes + process->window_bytes);
    assert_int_equal(process->streamed_bytes, f->streaming.total_bytes);
    ms_plan *plan = fixture_plan_at(&f->planning, budget_bytes);
    assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget_bytes);
    ms_plan_free(plan);
    return process->window_bytes;
}

static void everything_stays_if_it_fits(void **state)
{
    fixture *f = *state;
    assert_int_equal(window_at(f, UINT64_C(64) << 30, "all 4.29 GB fit and stay"), f->streaming.total_bytes);
}

static void a_smaller_budget_gives_a_smaller_window(void **state)
{
    fixture *f = *state;
    uint64_t before = UINT64_MAX;
    f->planning.hardware->ram.available_bytes = 0; /* no page cache: every absent byte costs time */
    for (uint64_t budget = UINT64_C(6) << 30; budget >= UINT64_C(3) << 30; budget -= UINT64_C(512) << 20) {
        uint64_t window = window_at(f, budget, "stay in memory");
        assert_true(window <= before && window >= f->streaming.least_bytes);
        before = window;
    }
    assert_true(before < f->streaming.total_bytes);
}

static void what_the_page_cache_holds_costs_no_reads(void **state)
{
    fixture *f = *state;
    f->planning.hardware->ram.available_bytes = UINT64_C(64) << 30;
    f->streaming.trained_bytes = 0;
    (void)window_at(f, UINT64_C(3) << 30,
                    "come from the system's page cache twice a step, which takes the disk at "
                    "least 0 ns");
}

static void the_budget_named_in_a_refusal_holds_the_smallest_window(void **state)
{
    fixture *f = *state;
    ms_error err;
    char *line = NULL;
    ms_process before = f->planning.hardware->process;
    assert_int_equal(choose(f, UINT64_C(400) << 20, &line, &err), MS_EINFEASIBLE);
    assert_null(line);
    assert_memory_equal(&before, &f->planning.hardware->process, sizeof before);
    assert_true(err.hint_bytes > baseline_bytes + f->streaming.least_bytes);
    uint64_t named = err.hint_bytes;
    assert_true(window_at(f, named, "stay in memory") < f->streaming.total_bytes);
    assert_int_equal(choose(f, named / 2, &line, &err), MS_EINFEASIBLE);
    assert_int_equal(err.hint_bytes, named); /* the window chosen before is not counted twice */
}

static void impossible_requests_are_refused(void **state)
{
    fixture *f = *state;
    ms_error err;
    char *line = NULL;
    f->streaming.least_bytes = f->streaming.total_bytes + 1;
    assert_int_equal(choose(f, 0, &line, &err), MS_EINVAL);
    f->streaming.least_bytes = 0;
    f->planning.hardware->device = 0;
    assert_int_equal(choose(f, 0, &line, &err), MS_EINVAL);
}

static void without_memory_nothing_changes(void **state)
{
    fixture *f = *state;
    ms_error err;
    char *line = NULL;
    int rc = MS_ENOMEM;
    ms_process before = f->planning.hardware->process;
    for (uint64_t nth = 1; rc == MS_ENOMEM; nth += nth / 4 + 1) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        rc = choose(f, UINT64_C(4) << 30, &line, &err);
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || memcmp(&before, &f->planning.hardware->process, sizeof before) == 0);
    }
    assert_int_equal(rc, MS_OK);
    ms_free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(everything_stays_if_it_fits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_smaller_budget_gives_a_smaller_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_the_page_cache_holds_costs_no_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_budget_named_in_a_refusal_holds_the_smallest_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(impossible_requests_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_memory_nothing_changes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
