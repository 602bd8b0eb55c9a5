/*
 * Corrections from a finished step, without oscillation.
 */
#include "pipeline_fixture.h"
#include "sim/sim.h"

static ms_drift observe_line(pipeline *f, const char *part)
{
    ms_drift drift;
    char *line;
    ms_error err;
    assert_ms_ok(ms_pipeline_observe(f->graph, f->hardware, &f->config, f->plan, &f->seen, &drift, &line, &err), err);
    if (part != NULL && strstr(line, part) == NULL) {
        fail_msg("\"%s\" is not in: %s", part, line);
    }
    ms_free(line);
    return drift;
}

static ms_drift observe(pipeline *f)
{
    return observe_line(f, NULL);
}

static void a_step_as_planned_changes_nothing(void **state)
{
    pipeline *f = *state;
    char *graph = ms_graph_to_json(f->graph), *hardware = ms_hardware_to_json(f->hardware);
    for (f->seen.step = 1; f->seen.step < 70; f->seen.step++) {
        const ms_replay *expected = &f->plan->replay;
        f->seen.peak_bytes = f->seen.step == 1 ? expected->first_step_peak_bytes : expected->peak_bytes;
        assert_int_equal(observe_line(f, "as planned"), MS_DRIFT_NONE);
    }
    char *graph_after = ms_graph_to_json(f->graph), *hardware_after = ms_hardware_to_json(f->hardware);
    assert_string_equal(graph, graph_after);
    assert_string_equal(hardware, hardware_after);
    ms_free(graph);
    ms_free(hardware);
    ms_free(graph_after);
    ms_free(hardware_after);
}

static void unmeasured_values_change_nothing(void **state)
{
    pipeline *f = *state;
    f->seen = (ms_observation){.peak_bytes = MS_UNSET,
                               .peak_held_bytes = MS_UNSET,
                               .step_ns = MS_UNSET,
                               .optimizer_state_bytes = MS_UNSET,
                               .step = 3};
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

static void the_loop_is_observed_once_and_then_only_grows(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    pipeline_replan(f);
    assert_int_equal(observe_line(f, "loop"), MS_DRIFT_LOOP); /* assumed held, observed dropped */
    assert_true(f->graph->loop.observed);
    assert_false(f->graph->loop.outputs_held);
    pipeline_replan(f);
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.outputs_held = true;
    assert_int_equal(observe(f), MS_DRIFT_LOOP);
    pipeline_replan(f);
    f->seen.outputs_held = false; /* dropped now and then: not worth a new plan */
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    assert_true(f->graph->loop.outputs_held);
}

/* A loop that calls zero_grad() between forward and backward needs less than one that adds to gradients. */
static void gradients_are_added_to_until_they_are_seen_cleared(void **state)
{
    pipeline *f = *state;
    f->seen.gradients_live_in_forward = true;
    assert_int_equal(observe_line(f, "loop"), MS_DRIFT_LOOP);
    assert_true(ms__sim_accumulates(&f->graph->loop));
    pipeline_replan(f);
    f->seen.gradients_cleared = true;
    assert_int_equal(observe_line(f, "loop"), MS_DRIFT_LOOP);
    assert_false(ms__sim_accumulates(&f->graph->loop));
    pipeline_replan(f);
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.gradients_live_in_forward = f->seen.gradients_cleared = false; /* none lived: nothing was learnt */
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.gradients_live_in_forward = true;
    assert_int_equal(observe(f), MS_DRIFT_LOOP);
    assert_true(ms__sim_accumulates(&f->graph->loop));
}

static void the_optimizers_state_is_corrected(void **state)
{
    pipeline *f = *state;
    f->seen.optimizer_state_bytes = 250 * MIB;
    assert_int_equal(observe_line(f, "optimizer"), MS_DRIFT_OPTIMIZER);
    assert_int_equal(f->graph->loop.optimizer_state_bytes, 250 * MIB);
    pipeline_replan(f);
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.optimizer_state_bytes = 250 * MIB + 4096; /* a step counter or two */
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    bool *const marks[] = {&f->seen.gradients_released, &f->seen.gradients_needed};
    bool *const corrected[] = {&f->graph->loop.gradients_released, &f->graph->loop.gradients_needed};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        *marks[i] = true;
        assert_int_equal(observe_line(f, "optimizer"), MS_DRIFT_OPTIMIZER);
        assert_true(*corrected[i]);
        pipeline_replan(f);
        f->seen.peak_bytes = f->plan->replay.peak_bytes;
        f->seen.step_ns = f->plan->replay.step_ns;
        assert_int_equal(observe(f), MS_DRIFT_NONE);
    }
}

/* Whatever differs, the third plan for the same inputs is the last, unless the budget is passed. */
static void the_third_plan_stays_within_the_budget(void **state)
{
    pipeline *f = *state;
    f->seen.plans = 3;
    f->seen.loop_seen = f->seen.outputs_held = f->seen.gradients_live_in_forward = true;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.peak_bytes = f->plan->pressure.allowed_bytes + 50 * MIB;
    assert_int_not_equal(observe(f), MS_DRIFT_NONE);
}

/* A machine that is slow at everything keeps its plan; its times are told at its pace from the next step on. */
static void a_slow_machine_keeps_its_plan_and_is_told_at_its_pace(void **state)
{
    pipeline *f = *state;
    uint64_t idle_ns = f->plan->replay.step_ns;
    char *before = ms_plan_to_json(f->plan);
    f->seen.step = f->seen.plan_steps = 2;
    f->seen.step_ns = 3 * idle_ns;
    assert_int_equal(observe_line(f, "predicted for an idle machine (+200"), MS_DRIFT_NONE);
    assert_int_equal(f->hardware->pace_permille, 3000);
    assert_int_equal(ms_hardware_at_pace(f->hardware, idle_ns), 3 * idle_ns);
    f->seen.step_ns = 3 * idle_ns + idle_ns / 10;
    assert_int_equal(observe_line(f, "predicted (+3.3%)"), MS_DRIFT_NONE);
    assert_int_equal(f->hardware->pace_permille, 3000);
    pipeline_replan(f);
    char *after = ms_plan_to_json(f->plan), *table = ms_plan_table(f->plan, f->hardware);
    assert_string_equal(before, after);
    assert_non_null(strstr(table, "as steps here take 3.00 times as long"));
    f->seen.step_ns = idle_ns; /* the machine is idle again: half of the way at each step */
    observe(f);
    assert_int_equal(f->hardware->pace_permille, 2000);
    ms_free(before);
    ms_free(after);
    ms_free(table);
}

/* Unknown scratch is added, and the next plan leaves room for it. */
static void a_peak_over_the_plan_grows_scratch(void **state)
{
    pipeline *f = *state;
    f->seen.peak_bytes += 300 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
    assert_in_range(f->hardware->process.scratch_bytes, 400 * MIB, 401 * MIB);
    uint64_t ceiling = f->plan->ceiling_bytes;
    pipeline_replan(f);
    assert_true(f->plan->replay.peak_bytes <= f->config.memory_budget_bytes);
    assert_true(f->plan->ceiling_bytes + 290 * MIB <= ceiling);
    /* The next step has the same scratch, as planned. */
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.peak_held_bytes = pipeline_held(f);
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

/* If no plan fits, the current one stays: the same peak again changes nothing. */
static void a_peak_is_added_once_if_the_plan_stays(void **state)
{
    pipeline *f = *state;
    f->seen.peak_bytes = f->config.memory_budget_bytes + 300 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
    uint64_t scratch = f->hardware->process.scratch_bytes;
    f->seen.replan_refused = true;
    for (f->seen.step = 2; f->seen.step < 70; f->seen.step++) {
        assert_int_equal(observe_line(f, "no other plan fits"), MS_DRIFT_NONE);
    }
    assert_int_equal(f->hardware->process.scratch_bytes, scratch);
    /* Memory besides the tensors is still corrected. */
    f->seen.peak_held_bytes = 0;
    f->seen.peak_bytes += 2000 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
    assert_true(f->hardware->process.scratch_bytes > scratch);
}

/* It may exceed the plan; nothing else is corrected. */
static void a_step_of_smaller_inputs_can_only_raise_scratch(void **state)
{
    pipeline *f = *state;
    f->seen.smaller_inputs = true;
    f->seen.peak_bytes -= 100 * MIB;
    f->seen.step_ns /= 3;
    for (f->seen.step = 1; f->seen.step < 70; f->seen.step++) {
        assert_int_equal(observe_line(f, "inputs were smaller"), MS_DRIFT_NONE);
    }
    f->seen.peak_bytes += 400 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
}

/* A step that corrects the loop also corrects the memory besides tensors. */
static void scratch_is_corrected_with_a_new_loop(void **state)
{
    pipeline *f = *state;
    f->seen.optimizer_state_bytes = 250 * MIB;
    f->seen.peak_held_bytes = pipeline_held(f);
    f->seen.peak_bytes =
        1000 * MIB + f->plan->replay.small_peak_bytes + f->graph->residents.batch_bytes + pipeline_held(f) + 180 * MIB;
    assert_int_equal(observe(f), MS_DRIFT_OPTIMIZER);
    assert_int_equal(f->hardware->process.scratch_bytes, 180 * MIB);
}

static void a_peak_over_the_budget_is_always_corrected(void **state)
{
    pipeline *f = *state;
    f->seen.peak_bytes = f->config.memory_budget_bytes + 4 * MIB; /* less than 5% */
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    assert_true(f->hardware->process.scratch_bytes > 100 * MIB);
}

static void only_the_budget_that_was_given_can_be_exceeded(void **state)
{
    pipeline *f = *state;
    f->seen.peak_bytes = f->plan->pressure.allowed_bytes;
    assert_int_equal(ms_pipeline_overrun(f->plan, &f->seen), MS_OVERRUN_NONE);
    f->seen.peak_bytes++;
    assert_int_equal(ms_pipeline_overrun(f->plan, &f->seen), MS_OVERRUN_SLIGHT);
    f->plan->pressure.budget_given = false;
    assert_int_equal(ms_pipeline_overrun(f->plan, &f->seen), MS_OVERRUN_NONE);
    f->plan->pressure.budget_given = true;
    f->seen.peak_bytes = MS_UNSET;
    assert_int_equal(ms_pipeline_overrun(f->plan, &f->seen), MS_OVERRUN_NONE);
}

/* A moment of other work would look like a wrong prediction. */
static void times_of_short_steps_are_not_compared(void **state)
{
    pipeline *f = *state;
    f->plan->replay.step_ns = 200000000;
    f->seen.step_ns = 260000000;
    (void)observe_line(f, "time 260.00 ms measured, 200.00 ms predicted for an idle machine (+30.0%);");
    f->plan->replay.step_ns--;
    (void)observe_line(f, "; time 260.00 ms measured; ");
    f->plan->replay.step_ns = 260000000;
    f->seen.step_ns = 199999999;
    (void)observe_line(f, "; time 200.00 ms measured; ");
}

/* It may be maps of other shapes, which the cache gives up. */
static void a_peak_over_the_plan_within_a_budget_is_left_alone(void **state)
{
    pipeline *f = *state;
    uint64_t scratch = f->hardware->process.scratch_bytes;
    f->plan->pressure.allowed_bytes = 2 * f->seen.peak_bytes;
    f->seen.peak_bytes += f->seen.peak_bytes / 2;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    assert_int_equal(f->hardware->process.scratch_bytes, scratch);
    f->plan->pressure.budget_given = false;
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
}

static void a_small_difference_of_the_peak_is_ignored(void **state)
{
    pipeline *f = *state;
    f->plan->pressure.allowed_bytes *= 2; /* far from the budget */
    f->seen.peak_bytes += f->seen.peak_bytes * 4 / 100;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

/* Until it is measured, a plan expects large products to take memory besides their tensors. */
static void packing_buffers_are_expected_of_large_products(void **state)
{
    pipeline *f = *state;
    f->hardware->process.products_bytes = 40 * MIB;
    pipeline_replan(f);
    ms_plan *large = pipeline_plan(f);
    f->graph->small_products = true;
    pipeline_replan(f);
    assert_int_equal(f->plan->reserve_bytes, large->reserve_bytes + 40 * MIB);
    assert_int_equal(f->plan->replay.peak_bytes + 40 * MIB, large->replay.peak_bytes);
    assert_int_equal(f->plan->smallest_budget_bytes, large->smallest_budget_bytes);
    f->seen.peak_bytes = f->config.memory_budget_bytes + 1;
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    assert_int_equal(f->hardware->process.products_bytes, 0);
    ms_plan_free(large);
}

/* A reserve changes predictions and no choice. */
static void a_reserve_is_kept_free_and_not_predicted(void **state)
{
    pipeline *f = *state;
    ms_plan *without = pipeline_plan(f);
    f->hardware->process.reserve_bytes = 60 * MIB;
    pipeline_replan(f);
    assert_int_equal(f->plan->reserve_bytes, without->reserve_bytes + 60 * MIB);
    assert_int_equal(f->plan->replay.peak_bytes + 60 * MIB, without->replay.peak_bytes);
    assert_int_equal(f->plan->replay.first_step_peak_bytes + 60 * MIB, without->replay.first_step_peak_bytes);
    assert_int_equal(f->plan->unoptimized.peak_bytes + 60 * MIB, without->unoptimized.peak_bytes);
    assert_int_equal(f->plan->pressure.need_bytes, without->pressure.need_bytes);
    assert_int_equal(f->plan->smallest_budget_bytes, without->smallest_budget_bytes);
    assert_int_equal(f->plan->ceiling_bytes, without->ceiling_bytes);
    for (uint32_t i = 0; i < f->plan->entry_count; i++) {
        assert_int_equal(f->plan->entries[i].technique, without->entries[i].technique);
    }
    char *text = ms_plan_to_json(f->plan);
    ms_plan *read;
    ms_error err;
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    assert_int_equal(read->reserve_bytes, f->plan->reserve_bytes);
    ms_plan_free(read);
    ms_free(text);
    /* A step that uses the whole reserve is as planned; a step over the budget isn't. */
    f->seen.peak_bytes = f->plan->replay.peak_bytes + f->plan->reserve_bytes;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.peak_bytes = f->config.memory_budget_bytes + 1;
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    ms_plan_free(without);
}

/* A rare step corrects the expected value to the measured one, once. */
static void expected_scratch_is_corrected(void **state)
{
    pipeline *f = *state;
    f->hardware->process.reserve_bytes = 90 * MIB;
    pipeline_replan(f);
    for (f->seen.step = 2; f->seen.step < 40; f->seen.step++) {
        uint64_t fixed = 1000 * MIB + f->plan->replay.small_peak_bytes;
        f->seen.peak_held_bytes = pipeline_held(f);
        f->seen.peak_bytes = fixed + pipeline_held(f) + f->graph->residents.batch_bytes + 75 * MIB;
        f->seen.step_ns = f->plan->replay.step_ns;
        ms_drift drift = observe(f);
        assert_int_equal(drift, f->seen.step == 3 ? MS_DRIFT_RESERVE : MS_DRIFT_NONE);
        if (drift != MS_DRIFT_NONE) {
            pipeline_replan(f);
            assert_int_equal(f->hardware->process.scratch_bytes, 100 * MIB);
            assert_int_equal(f->hardware->process.reserve_bytes, 25 * MIB);
            assert_in_range(f->plan->replay.peak_bytes, f->seen.peak_bytes - MIB, f->seen.peak_bytes + MIB);
        }
    }
}

/* Excess scratch is reduced only at rare steps, and by less than would make it grow again. */
static void scratch_shrinks_rarely_and_does_not_oscillate(void **state)
{
    pipeline *f = *state;
    f->hardware->process.scratch_bytes = 900 * MIB;
    pipeline_replan(f);
    uint64_t true_scratch = 120 * MIB;
    uint32_t replans = 0;
    for (uint32_t step = 2; step < 100; step++) {
        uint64_t fixed = 1000 * MIB + f->plan->replay.small_peak_bytes;
        f->seen.step = step;
        f->seen.peak_held_bytes = pipeline_held(f);
        f->seen.peak_bytes = fixed + pipeline_held(f) + true_scratch + (step % 3) * 5 * MIB;
        f->seen.step_ns = f->plan->replay.step_ns;
        ms_drift drift = observe(f);
        assert_true(drift == MS_DRIFT_NONE || (drift == MS_DRIFT_RESERVE && step == 3));
        if (drift != MS_DRIFT_NONE) {
            replans++;
            pipeline_replan(f);
        }
    }
    assert_int_equal(replans, 1);
    assert_in_range(f->hardware->process.scratch_bytes, true_scratch, 2 * true_scratch);
}

/* Bytes that the baseline counts are not taken from the measured scratch a second time. */
static void held_bytes_of_the_baseline_count_once(void **state)
{
    pipeline *f = *state;
    uint64_t buckets = 55 * MIB, measured[2];
    for (int i = 0; i < 2; i++) {
        f->hardware->process.scratch_bytes = 10 * MIB;
        f->seen.step = 2;
        f->seen.peak_held_bytes = pipeline_held(f);
        f->seen.baseline_held_bytes = i == 0 ? MS_UNSET : buckets;
        f->seen.peak_bytes = f->plan->replay.peak_bytes + f->plan->reserve_bytes + 4000 * MIB;
        assert_int_equal(observe(f), MS_DRIFT_PEAK);
        measured[i] = f->hardware->process.scratch_bytes - f->hardware->process.reserve_bytes;
    }
    assert_int_equal(measured[1] - measured[0], buckets);
}

static void a_reserve_that_is_kept_does_not_shrink(void **state)
{
    pipeline *f = *state;
    f->hardware->process.scratch_bytes = 900 * MIB;
    pipeline_replan(f);
    f->seen.step = 3;
    f->seen.keeps_reserve = true;
    f->seen.peak_held_bytes = pipeline_held(f);
    f->seen.peak_bytes = 1000 * MIB + f->plan->replay.small_peak_bytes + pipeline_held(f) + 120 * MIB;
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    assert_int_equal(f->hardware->process.scratch_bytes, 900 * MIB);
    f->seen.keeps_reserve = false;
    assert_int_equal(observe(f), MS_DRIFT_RESERVE);
}

/* Slower compute hides more transfers: corrected at step 3, later only if far off at a rare step. */
static void time_is_corrected_early_and_then_rarely(void **state)
{
    pipeline *f = *state;
    uint32_t replans = 0, planned_after = 0;
    uint64_t true_ns = f->plan->unoptimized.step_ns * 2;
    for (uint32_t step = 2; step < 100; step++) {
        f->seen.step = step;
        f->seen.plan_steps = step - planned_after;
        f->seen.step_ns = true_ns + (step % 5) * 1000000;
        f->seen.peak_bytes = f->plan->replay.peak_bytes;
        f->seen.peak_held_bytes = pipeline_held(f);
        ms_drift drift = observe(f);
        assert_true(drift == MS_DRIFT_NONE || drift == MS_DRIFT_TIME);
        assert_true(step != 3 || drift == MS_DRIFT_TIME);
        if (drift == MS_DRIFT_TIME) {
            assert_true(step == 3 || step >= 8);
            replans++;
            planned_after = step;
            pipeline_replan(f);
        }
    }
    assert_in_range(replans, 1, 3);
    assert_in_range(f->hardware->time_scale_permille, 1500, 2500);
}

/* A new plan's first step faults in its memory, so its time is ignored. */
static void the_first_step_under_a_plan_corrects_no_time(void **state)
{
    pipeline *f = *state;
    f->seen.step_ns = f->plan->replay.step_ns * 2;
    f->seen.step = 3;
    f->seen.plan_steps = 1;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.step = 4;
    f->seen.plan_steps = 2;
    assert_int_equal(observe(f), MS_DRIFT_TIME);
    f->seen.step = 5;
    f->seen.plan_steps = 1;
    pipeline_replan(f);
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.peak_held_bytes = pipeline_held(f);
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

/* A device's times come late: the step that was timed counts, not the one that has just ended. */
static void a_late_time_counts_for_its_own_step(void **state)
{
    pipeline *f = *state;
    char *line;
    ms_error err;
    ms_drift drift;
    f->seen.step_ns = f->plan->replay.step_ns * 2;
    f->seen.time_lag = 2;
    f->seen.step = 3;
    f->seen.plan_steps = 3;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.step = 5;
    f->seen.plan_steps = 3;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.step = 6;
    f->seen.plan_steps = 4;
    assert_ms_ok(ms_pipeline_observe(f->graph, f->hardware, &f->config, f->plan, &f->seen, &drift, &line, &err), err);
    assert_int_equal(drift, MS_DRIFT_TIME);
    assert_non_null(strstr(line, "time of step 4 "));
    ms_free(line);
}

static void nothing_is_corrected_out_of_memory(void **state)
{
    pipeline *f = *state;
    ms_drift drift;
    char *line;
    ms_error err;
    f->seen.optimizer_state_bytes = 1;
    uint64_t before = f->graph->loop.optimizer_state_bytes;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(ms_pipeline_observe(f->graph, f->hardware, &f->config, f->plan, &f->seen, &drift, &line, &err),
                     MS_ENOMEM);
    ms_fault_disarm_all();
    assert_int_equal(f->graph->loop.optimizer_state_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_as_planned_changes_nothing, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(unmeasured_values_change_nothing, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(the_loop_is_observed_once_and_then_only_grows, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(gradients_are_added_to_until_they_are_seen_cleared, pipeline_open,
                                        pipeline_close),
        cmocka_unit_test_setup_teardown(the_optimizers_state_is_corrected, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(the_third_plan_stays_within_the_budget, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_slow_machine_keeps_its_plan_and_is_told_at_its_pace, pipeline_open,
                                        pipeline_close),
        cmocka_unit_test_setup_teardown(a_peak_over_the_plan_grows_scratch, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_peak_is_added_once_if_the_plan_stays, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_step_of_smaller_inputs_can_only_raise_scratch, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(packing_buffers_are_expected_of_large_products, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_reserve_is_kept_free_and_not_predicted, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(expected_scratch_is_corrected, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(scratch_is_corrected_with_a_new_loop, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_peak_over_the_budget_is_always_corrected, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_peak_over_the_plan_within_a_budget_is_left_alone, pipeline_open,
                                        pipeline_close),
        cmocka_unit_test_setup_teardown(only_the_budget_that_was_given_can_be_exceeded, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(times_of_short_steps_are_not_compared, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_small_difference_of_the_peak_is_ignored, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(scratch_shrinks_rarely_and_does_not_oscillate, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(held_bytes_of_the_baseline_count_once, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_reserve_that_is_kept_does_not_shrink, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(time_is_corrected_early_and_then_rarely, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_late_time_counts_for_its_own_step, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(the_first_step_under_a_plan_corrects_no_time, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(nothing_is_corrected_out_of_memory, pipeline_open, pipeline_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
