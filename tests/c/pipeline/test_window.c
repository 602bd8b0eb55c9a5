/* The window of streamed parameters: as large as the budget allows, and no smaller than two layers. */
#include "plan_fixture.h"

typedef struct fixture {
    fixture_planning planning;
    ms_streaming streaming;
} fixture;

static const uint64_t baseline_bytes = UINT64_C(300) << 20;

/* What other code may touch before the worker drops it. */
static const uint64_t least_slack_bytes = 40000000;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->planning = fixture_open(fixture_graph(0));
    f->planning.hardware->process.baseline_bytes = baseline_bytes;
    f->streaming = (ms_streaming){.total_bytes = UINT64_C(4096) << 20,
                                  .least_bytes = UINT64_C(512) << 20,
                                  .trained_bytes = UINT64_C(4096) << 20,
                                  .directory = "/spill/here"};
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

static int choose(fixture *f, uint64_t budget_bytes, ms_window *window, char **line, ms_error *err)
{
    f->planning.config.memory_budget_bytes = budget_bytes;
    return ms_pipeline_window(f->planning.graph, &f->streaming, &f->planning.config, f->planning.hardware, window, line,
                              err);
}

/* The chosen window. The plan that is made after it must fit the budget. */
static uint64_t window_at(fixture *f, uint64_t budget_bytes, const char *words)
{
    ms_error err;
    char *line = NULL;
    ms_window chosen = {0};
    assert_ms_ok(choose(f, budget_bytes, &chosen, &line, &err), err);
    if (strstr(line, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, line);
    }
    ms_free(line);
    const ms_process *process = &f->planning.hardware->process;
    assert_int_equal(process->baseline_bytes, baseline_bytes + process->window_bytes);
    assert_int_equal(process->streamed_bytes, f->streaming.total_bytes);
    uint64_t slack_bytes = process->window_bytes + process->window_reserve_bytes - chosen.bytes;
    assert_true(chosen.bytes == f->streaming.total_bytes ? slack_bytes == 0 : slack_bytes >= least_slack_bytes);
    ms_plan *plan = fixture_plan_at(&f->planning, budget_bytes);
    assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget_bytes);
    ms_plan_free(plan);
    return chosen.bytes;
}

/* The time of a step with this window and its slack; UINT64_MAX if no plan fits. */
static uint64_t step_with(const fixture *f, uint64_t budget_bytes, uint64_t window_bytes)
{
    ms_hardware hardware = *f->planning.hardware;
    ms_config config = f->planning.config;
    config.memory_budget_bytes = budget_bytes;
    hardware.process.baseline_bytes = baseline_bytes + window_bytes + least_slack_bytes;
    hardware.process.window_reserve_bytes = 0;
    ms_plan *plan = NULL;
    if (ms_pipeline_plan(f->planning.graph, &hardware, &config, &plan, NULL) != MS_OK) {
        return UINT64_MAX;
    }
    uint64_t step_ns = plan->over_target ? UINT64_MAX : plan->replay.step_ns;
    ms_plan_free(plan);
    return step_ns;
}

static void everything_stays_if_it_fits(void **state)
{
    fixture *f = *state;
    assert_int_equal(window_at(f, UINT64_C(64) << 30, "all 4.29 GB fit and stay"), f->streaming.total_bytes);
}

static void a_smaller_budget_gives_no_faster_step(void **state)
{
    fixture *f = *state;
    uint64_t before = 0;
    f->planning.hardware->ram.available_bytes = 0; /* no page cache: every absent byte costs time */
    for (uint64_t budget = UINT64_C(6) << 30; budget >= UINT64_C(3) << 30; budget -= UINT64_C(512) << 20) {
        uint64_t window = window_at(f, budget, "stay in memory");
        assert_true(window < f->streaming.total_bytes && window >= f->streaming.least_bytes);
        uint64_t step_ns = step_with(f, budget, window);
        assert_true(step_ns >= before);
        before = step_ns;
    }
}

/* Nothing is read or written here, so only a slower plan may keep a window small. */
static void no_larger_window_would_serve_as_well(void **state)
{
    fixture *f = *state;
    f->planning.hardware->ram.available_bytes = UINT64_C(64) << 30;
    f->streaming.trained_bytes = 0;
    for (uint64_t budget = UINT64_C(8) << 30; budget <= UINT64_C(10) << 30; budget += UINT64_C(700) << 20) {
        uint64_t window = window_at(f, budget, "stay in memory");
        uint64_t larger = window + budget / 64;
        assert_true(window < f->streaming.total_bytes);
        assert_true(step_with(f, budget, larger) > step_with(f, budget, window));
    }
}

static void the_line_says_where_the_rest_comes_from(void **state)
{
    fixture *f = *state;
    f->planning.hardware->ram.available_bytes = 0;
    const uint64_t budget = UINT64_C(3) << 30;
    (void)window_at(f, budget, "come from files in /spill/here twice a step");
    f->streaming.checkpoint_bytes = f->streaming.total_bytes;
    f->streaming.trained_bytes = 0;
    (void)window_at(f, budget, "come from the checkpoint's own files twice a step");
    f->streaming.checkpoint_bytes /= 2;
    (void)window_at(f, budget, "come from the checkpoint's own files and files in /spill/here twice a step");
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
    ms_window chosen = {0};
    ms_process before = f->planning.hardware->process;
    assert_int_equal(choose(f, UINT64_C(400) << 20, &chosen, &line, &err), MS_EINFEASIBLE);
    assert_null(line);
    assert_memory_equal(&before, &f->planning.hardware->process, sizeof before);
    assert_true(err.hint_bytes > baseline_bytes + f->streaming.least_bytes);
    uint64_t named = err.hint_bytes;
    assert_true(window_at(f, named, "stay in memory") < f->streaming.total_bytes);
    assert_int_equal(choose(f, named / 2, &chosen, &line, &err), MS_EINFEASIBLE);
    assert_int_equal(err.hint_bytes, named); /* the window chosen before is not counted twice */
}

static void impossible_requests_are_refused(void **state)
{
    fixture *f = *state;
    ms_error err;
    char *line = NULL;
    ms_window chosen = {0};
    f->streaming.least_bytes = f->streaming.total_bytes + 1;
    assert_int_equal(choose(f, 0, &chosen, &line, &err), MS_EINVAL);
    f->streaming.least_bytes = 0;
    f->planning.hardware->device = 0;
    assert_int_equal(choose(f, 0, &chosen, &line, &err), MS_EINVAL);
}

static void without_memory_nothing_changes(void **state)
{
    fixture *f = *state;
    ms_error err;
    char *line = NULL;
    ms_window chosen = {0};
    int rc = MS_ENOMEM;
    ms_process before = f->planning.hardware->process;
    for (uint64_t nth = 1; rc == MS_ENOMEM; nth += nth / 4 + 1) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        rc = choose(f, UINT64_C(4) << 30, &chosen, &line, &err);
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
        cmocka_unit_test_setup_teardown(a_smaller_budget_gives_no_faster_step, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_larger_window_would_serve_as_well, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_line_says_where_the_rest_comes_from, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_the_page_cache_holds_costs_no_reads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_budget_named_in_a_refusal_holds_the_smallest_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(impossible_requests_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_memory_nothing_changes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
