/*
 * The pipeline: its assumptions before the training loop has been observed, its suggestions for a refused
 * budget, and the room that a plan leaves.
 */
#include "base/units.h"
#include "pipeline_fixture.h"
#include "sim/sim.h"

static void an_unobserved_loop_is_assumed_to_hold_most(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    pipeline_replan(f);
    assert_true(f->plan->assumed_outputs_held && f->plan->assumed_gradients_live);
}

static void assumptions_are_relaxed_only_if_nothing_fits(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    ms_error err = {0};
    ms_plan *none;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    /* The smallest budget is that of the least careful assumption. */
    f->config.memory_budget_bytes = err.hint_bytes;
    pipeline_replan(f);
    assert_false(f->plan->assumed_outputs_held || f->plan->assumed_gradients_live);
    ms_graph *seen = ms_graph_copy(f->graph, &err);
    seen->loop.observed = true;
    seen->loop.outputs_held = seen->loop.gradients_live_in_forward = false;
    f->config.memory_budget_bytes = 1;
    uint64_t smallest = err.hint_bytes;
    assert_int_equal(ms_pipeline_plan(seen, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_int_equal(err.hint_bytes, smallest);
    ms_graph_free(seen);
}

/* A failed call frees the plans of relaxed assumptions and leaves the caller's pointer alone, because the caller
 * may free it. */
static void a_failed_plan_is_not_handed_out(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    ms_error err = {0};
    ms_plan untouched;
    ms_plan *plan = &untouched;
    /* A target that only the least careful assumption meets, so all are tried. */
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), MS_EINFEASIBLE);
    f->config.memory_budget_bytes = MS_UNSET;
    f->config.target_utilization_permille = 1000;
    f->hardware->ram.total_bytes = f->hardware->ram.limit_bytes = err.hint_bytes;
    uint64_t live_blocks = ms_memory_live_blocks();
    int rc = MS_ENOMEM;
    for (uint64_t nth = 1; rc != MS_OK; nth++) {
        plan = &untouched;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        rc = ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err);
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || (rc == MS_ENOMEM && plan == &untouched));
        assert_true(rc == MS_OK || ms_memory_live_blocks() == live_blocks);
    }
    ms_plan_free(plan);
}

/* Careful or not, a larger budget is never slower and never peaks lower. */
static void an_unobserved_loop_stays_monotone(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    ms_error err = {0};
    ms_plan *none;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    uint64_t smallest = err.hint_bytes, step_ns = UINT64_MAX, peak_bytes = 0, careful = 0;
    for (uint64_t k = 0; k < 40; k++) {
        f->config.memory_budget_bytes = smallest + k * 60 * MIB;
        pipeline_replan(f);
        assert_true(f->plan->replay.step_ns <= step_ns);
        uint64_t taken_bytes = f->plan->replay.peak_bytes + f->plan->reserve_bytes;
        assert_true(taken_bytes >= peak_bytes && taken_bytes <= f->config.memory_budget_bytes);
        uint64_t held = f->plan->assumed_outputs_held + f->plan->assumed_gradients_live;
        assert_true(held >= careful);
        careful = held;
        step_ns = f->plan->replay.step_ns;
        peak_bytes = taken_bytes;
    }
    assert_int_equal(careful, 2);
}

/* A refusal names unused techniques and options that would help. */
static void a_refusal_names_suggestions(void **state)
{
    pipeline *f = *state;
    ms_plan *none;
    ms_error err = {0};
    f->config.memory_budget_bytes = 1;
    f->config.mode = MS_MODE_CONSERVATIVE;
    f->config.enable_checkpointing = false;
    assert_ms_fails(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE, err,
                    "; with mode=\"balanced\" enable_checkpointing=True it would be ");
    assert_non_null(strstr(err.text, "with no technique, because none that mode and flags admit frees more"));
    ms_config_default(&f->config);
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_null(strstr(err.text, "it would be"));
    f->hardware->disk.dir[0] = '\0';
    assert_ms_fails(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE, err,
                    "no disk tier");
}

static void an_empty_graph_is_refused(void **state)
{
    (void)state;
    ms_graph empty = {0};
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan;
    ms_error err;
    ms_config_default(&config);
    assert_ms_fails(ms_pipeline_plan(&empty, hardware, &config, &plan, &err), MS_EINVAL, err, "no nodes");
    ms_free(hardware);
}

/* Packing frees bytes for planning: a budget that nothing else meets. */
static void packed_masks_fit_budgets_that_nothing_else_fits(void **state)
{
    pipeline *f = *state;
    ms_free(f->hardware);
    f->hardware = fixture_real_hardware();
    f->hardware->disk.dir[0] = '\0';
    f->config.enable_checkpointing = false;
    ms_error err = {0};
    ms_plan *none;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    uint64_t without = err.hint_bytes;
    ms_graph_free(f->graph);
    f->graph = fixture_graph(0);
    fixture_mark_masks(f->graph);
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_true(err.hint_bytes < without);
    assert_non_null(strstr(err.text, "12 x masks as bits"));
    f->config.memory_budget_bytes = err.hint_bytes;
    pipeline_replan(f);
    assert_true(f->plan->replay.packed_bytes > 0);
    assert_true(f->plan->replay.peak_bytes + f->plan->reserve_bytes <= err.hint_bytes);
}

enum { PLAN_NODES = 128 };

/* A plan's choices, without step options and without a cache. */
static ms_choices choices_of(const ms_plan *plan, uint8_t rows[2 * PLAN_NODES])
{
    assert_true(plan->entry_count <= PLAN_NODES);
    ms_choices choices = ms_plan_choices(plan, rows);
    choices.step_options = 0;
    choices.ceiling_bytes = 0;
    return choices;
}

/* A run packs exactly the plan's storages, so the plan's replay proves that it fits. */
static void packed_masks_stay_within_the_budget(void **state)
{
    (void)state;
    enum { BUDGETS = 5 };
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        ms_graph *graph = fixture_graph(which);
        fixture_mark_masks(graph);
        fixture_planning f = fixture_open(graph);
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < BUDGETS; k++) {
            uint64_t budget = fixture_budget(smallest, need, k, BUDGETS);
            ms_plan *plan = fixture_plan_at(&f, budget);
            uint8_t techniques[2 * PLAN_NODES];
            ms_choices choices = choices_of(plan, techniques);
            ms__sim *sim;
            ms__outcome outcome;
            ms_error err;
            assert_ms_ok(ms__sim_new(f.graph, f.hardware, &sim, &err), err);
            ms__sim_run(sim, &choices, &outcome, NULL);
            assert_true(outcome.replay.peak_bytes <= plan->replay.peak_bytes + plan->reserve_bytes);
            assert_true(plan->skipped || plan->replay.peak_bytes + plan->reserve_bytes <= budget);
            ms__sim_free(sim);
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

/* The plan's choices replayed with a cache of any size. */
static void replay_unbounded(const fixture_planning *f, const ms_plan *plan, ms__outcome *outcome)
{
    uint8_t techniques[2 * PLAN_NODES];
    ms_choices choices = choices_of(plan, techniques);
    choices.step_options = ms_plan_step_options(plan);
    choices.ceiling_bytes = UINT64_MAX;
    ms__sim *sim;
    ms_error err;
    assert_ms_ok(ms__sim_new(f->graph, f->hardware, &sim, &err), err);
    ms__sim_run(sim, &choices, outcome, NULL);
    ms__sim_free(sim);
}

/* A cache slightly smaller than a step's memory faults in much more than the difference. */
static void the_cache_gets_a_margin_if_the_budget_has_room(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k <= 4; k++) {
            uint64_t budget = smallest + (need - smallest) * k / 4;
            ms_plan *plan = fixture_plan_at(&f, budget);
            ms__outcome most;
            replay_unbounded(&f, plan, &most);
            uint64_t wanted = most.held_most_bytes + most.held_most_bytes / 33;
            uint64_t small = ms__max_u64(plan->replay.small_peak_bytes, most.replay.small_peak_bytes);
            assert_true(plan->ceiling_bytes + small >= ms__min_u64(wanted, budget - most.fixed_bytes));
            assert_true(plan->skipped || plan->ceiling_bytes + most.fixed_bytes <= budget);
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

static void plan_beyond(const pipeline *f, const ms_beyond *step, ms_plan **plan, char **line)
{
    ms_error err = {0};
    assert_ms_ok(ms_pipeline_beyond(step, f->hardware, &f->config, plan, line, &err), err);
}

/* Where a budget may be kept though nothing fits, the smallest plan is measured against it. */
static void the_least_plan_is_that_of_the_smallest_budget_and_keeps_the_callers(void **state)
{
    pipeline *f = *state;
    ms_error err = {0};
    ms_plan *refused = NULL, *fitting = NULL, *least = NULL;
    f->config.memory_budget_bytes = 100 * MIB;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &refused, &err), MS_EINFEASIBLE);
    uint64_t smallest = err.hint_bytes;
    assert_ms_ok(ms_pipeline_least(f->graph, f->hardware, &f->config, &least, &err), err);
    assert_int_equal(least->pressure.allowed_bytes, 100 * MIB);
    assert_true(least->over_target && least->pressure.permille > 1000);
    f->config.memory_budget_bytes = smallest;
    assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &fitting, &err), err);
    assert_true(least->replay.peak_bytes + least->reserve_bytes <= smallest);
    ms_plan_free(fitting);
    ms_plan_free(least);
}

/* A shape that fits no plan gets its smallest, and a line that says how far it goes. */
static void a_shape_beyond_the_budget_gets_its_smallest_plan(void **state)
{
    pipeline *f = *state;
    ms_plan *plan = NULL;
    char *line = NULL;
    ms_error err;
    ms_graph *longer = ms_graph_copy(f->graph, &err);
    assert_non_null(longer);
    ms_free(longer->signature);
    longer->signature = ms_strdup("ids:int64[4,512]");
    ms_free(f->graph->signature);
    f->graph->signature = ms_strdup("ids:int64[4,128]");
    f->config.memory_budget_bytes = 100 * MIB;
    plan_beyond(f, &(ms_beyond){longer, f->graph, 0, 0, NULL}, &plan, &line);
    assert_true(plan->replay.peak_bytes > f->config.memory_budget_bytes);
    assert_non_null(strstr(line, "inputs ids:int64[4,512] need"));
    assert_non_null(strstr(line, "over the budget"));
    assert_non_null(strstr(line, "training began with ids:int64[4,128]"));
    assert_null(strstr(line, "longest")); /* both need the same bytes, so no shorter input would fit */
    ms_free(line);
    ms_plan_free(plan);
    plan_beyond(f, &(ms_beyond){longer, longer, 0, 0, NULL}, &plan, &line);
    assert_null(strstr(line, "training began"));
    assert_null(strstr(line, " less if ")); /* the loop is not known */
    assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= plan->smallest_budget_bytes);
    assert_int_equal(plan->pressure.allowed_bytes, f->config.memory_budget_bytes);
    assert_true(plan->over_target && plan->pressure.permille > 1000);
    ms_free(line);
    char *table = ms_plan_table(plan, f->hardware);
    assert_non_null(strstr(table, "; over the budget: no plan is smaller"));
    ms_free(table);
    ms_plan *same = NULL;
    plan_beyond(f, &(ms_beyond){longer, longer, 0, 0, plan}, &same, &line);
    assert_null(same);
    ms_free(line);
    ms_plan_free(plan);
    ms_graph_free(longer);
}

/* Inputs of the first shape exceed the budget because of what the loop holds: the line says what to free. */
static void a_loop_beyond_the_budget_is_told_what_it_holds(void **state)
{
    pipeline *f = *state;
    pipeline_return_logits(f);
    f->config.memory_budget_bytes = 100 * MIB;
    for (int held = 0; held < 4; held++) {
        ms_plan *plan = NULL;
        char *line = NULL;
        bool outputs = (held & 1) != 0, gradients = (held & 2) != 0;
        f->graph->loop.observed = true;
        f->graph->loop.outputs_held = outputs;
        f->graph->loop.gradients_live_in_forward = f->graph->loop.gradients_cleared = gradients;
        plan_beyond(f, &(ms_beyond){f->graph, f->graph, 0, 0, NULL}, &plan, &line);
        assert_int_equal(strstr(line, " less if the model's outputs are freed before backward") != NULL, outputs);
        assert_int_equal(strstr(line, " less if zero_grad() comes before the forward") != NULL, gradients);
        ms_free(line);
        ms_plan_free(plan);
    }
}

/* The line names the bytes that the script holds, or those of waiting forwards, but not both. */
static void a_script_beyond_the_budget_is_told_what_it_holds(void **state)
{
    pipeline *f = *state;
    ms_plan *plan = NULL;
    char *line = NULL;
    f->config.memory_budget_bytes = 100 * MIB;
    plan_beyond(f, &(ms_beyond){f->graph, f->graph, 50 * 1000000, 0, NULL}, &plan, &line);
    assert_non_null(strstr(line, "; the script holds 50.00 MB more than when training began"));
    ms_free(line);
    ms_plan_free(plan);
    plan_beyond(f, &(ms_beyond){f->graph, f->graph, 50 * 1000000, 1, NULL}, &plan, &line);
    assert_non_null(strstr(line, " in this step, "));
    assert_null(strstr(line, "smallest plan"));
    assert_non_null(strstr(line, "; forwards that wait for their backward hold 50.00 MB"));
    assert_null(strstr(line, "the script"));
    ms_free(line);
    ms_plan_free(plan);
    ms_graph first = *f->graph;
    first.residents.trainable_bytes = 1000000;
    plan_beyond(f, &(ms_beyond){f->graph, &first, 0, 0, NULL}, &plan, &line);
    assert_non_null(strstr(line, " of parameters are trained instead of 1.00 MB when training began"));
    ms_free(line);
    ms_plan_free(plan);
}

/* A refusal names the smallest budget of the loop that holds least, and of the one that holds most. */
static void a_refusal_names_both_loops(void **state)
{
    pipeline *f = *state;
    ms_plan *plan = NULL;
    ms_error err;
    pipeline_return_logits(f);
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), MS_EINFEASIBLE);
    assert_non_null(strstr(err.text, "in the next forward, the smallest is "));
    f->graph->loop.observed = true;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), MS_EINFEASIBLE);
    assert_null(strstr(err.text, "in the next forward"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_unobserved_loop_is_assumed_to_hold_most, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(assumptions_are_relaxed_only_if_nothing_fits, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_failed_plan_is_not_handed_out, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(an_unobserved_loop_stays_monotone, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_refusal_names_suggestions, pipeline_open, pipeline_close),
        cmocka_unit_test(an_empty_graph_is_refused),
        cmocka_unit_test_setup_teardown(packed_masks_fit_budgets_that_nothing_else_fits, pipeline_open, pipeline_close),
        cmocka_unit_test(the_cache_gets_a_margin_if_the_budget_has_room),
        cmocka_unit_test(packed_masks_stay_within_the_budget),
        cmocka_unit_test_setup_teardown(the_least_plan_is_that_of_the_smallest_budget_and_keeps_the_callers,
                                        pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_shape_beyond_the_budget_gets_its_smallest_plan, pipeline_open,
                                        pipeline_close),
        cmocka_unit_test_setup_teardown(a_loop_beyond_the_budget_is_told_what_it_holds, pipeline_open, pipeline_close),
        cmocka_unit_test_setup_teardown(a_script_beyond_the_budget_is_told_what_it_holds, pipeline_open,
                                        pipeline_close),
        cmocka_unit_test_setup_teardown(a_refusal_names_both_loops, pipeline_open, pipeline_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
