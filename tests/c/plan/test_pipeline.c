/*
 * The pipeline: what it assumes of a loop that nobody has seen, and what a finished
 * step teaches it, without swinging.
 */
#include "base/units.h"
#include "plan/sim.h"
#include "plan_fixture.h"

typedef struct fixture {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_plan *plan;
    ms_observation seen;
} fixture;

static ms_plan *make_plan(fixture *f)
{
    ms_error err;
    ms_plan *plan;
    assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), err);
    return plan;
}

/* Live and cached maps at their most in a step that takes what its plan expects. */
static uint64_t held_as_planned(const fixture *f)
{
    const ms_process *process = &f->hardware->process;
    uint64_t beside = process->baseline_bytes + process->scratch_bytes - process->reserve_bytes;
    beside += ms__slab_expected(f->plan->slab_bytes, f->plan->offload_min_bytes);
    return f->plan->replay.peak_bytes - beside - f->plan->replay.small_peak_bytes - f->graph->residents.batch_bytes;
}

/* A wrapped process: 1 GB before the first step, and a budget that binds. */
static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->graph = fixture_graph(0);
    f->hardware = fixture_real_hardware();
    f->hardware->process.baseline_bytes = 1000 * MIB;
    f->hardware->process.scratch_bytes = 100 * MIB;
    ms_config_default(&f->config);
    f->config.memory_budget_bytes = 5000 * MIB;
    f->plan = make_plan(f);
    /* A step that went exactly as planned. */
    f->seen = (ms_observation){.peak_bytes = f->plan->replay.peak_bytes,
                               .peak_held_bytes = held_as_planned(f),
                               .resident_bytes = MS_UNSET,
                               .held_bytes = MS_UNSET,
                               .step_ns = f->plan->replay.step_ns,
                               .optimizer_state_bytes = f->graph->loop.optimizer_state_bytes,
                               .loop_seen = true,
                               .step = 5};
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    ms_graph_free(f->graph);
    ms_free(f->hardware);
    ms_plan_free(f->plan);
    free(f);
    return 0;
}

static ms_drift observe_line(fixture *f, const char *part)
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

static ms_drift observe(fixture *f)
{
    return observe_line(f, NULL);
}

static void replan(fixture *f)
{
    ms_plan_free(f->plan);
    f->plan = make_plan(f);
}

/* ---- assumptions --------------------------------------------------------------------------- */

/* Outputs that matter: the logits are returned. */
static void return_logits(fixture *f)
{
    for (uint32_t i = 0; i < f->graph->storage_count; i++) {
        if (f->graph->storages[i].role == MS_STORAGE_OUTPUT) {
            f->graph->storages[i].bytes = 400 * MIB;
        }
    }
    f->graph->profiles[2].storage_bytes[2] = 400 * MIB;
    f->graph->loop.observed = false;
}

static void an_unseen_loop_is_assumed_to_hold_most(void **state)
{
    fixture *f = *state;
    return_logits(f);
    replan(f);
    assert_true(f->plan->assumed_outputs_held && f->plan->assumed_gradients_live);
}

static void assumptions_are_dropped_only_where_nothing_fits(void **state)
{
    fixture *f = *state;
    return_logits(f);
    ms_error err = {0};
    ms_plan *none;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    /* The smallest budget is that of the least careful assumption. */
    f->config.memory_budget_bytes = err.hint_bytes;
    replan(f);
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

/* Candidates of an assumption that was tried and dropped are gone by then: whoever frees
 * the plan of a failed call must find what was there before. */
static void a_failed_plan_is_not_handed_out(void **state)
{
    fixture *f = *state;
    return_logits(f);
    ms_error err = {0};
    ms_plan untouched;
    ms_plan *plan = &untouched;
    /* A target that only the least careful assumption meets, so that all are tried. */
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
static void an_unseen_loop_stays_monotone(void **state)
{
    fixture *f = *state;
    return_logits(f);
    ms_error err = {0};
    ms_plan *none;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    uint64_t smallest = err.hint_bytes, step_ns = UINT64_MAX, peak_bytes = 0, careful = 0;
    for (uint64_t k = 0; k < 40; k++) {
        f->config.memory_budget_bytes = smallest + k * 60 * MIB;
        replan(f);
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

/* A refusal says what the configuration leaves unused, where that would help. */
static void a_refusal_says_what_would_help(void **state)
{
    fixture *f = *state;
    ms_plan *none;
    ms_error err = {0};
    f->config.memory_budget_bytes = 1;
    f->config.mode = MS_MODE_CONSERVATIVE;
    f->config.enable_checkpointing = false;
    assert_ms_fails(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE, err,
                    "; with mode=\"balanced\" enable_checkpointing=True it would be ");
    assert_non_null(strstr(err.text, "takes no technique: none that mode and flags admit saves more"));
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

/* ---- observation ----------------------------------------------------------------------------- */

static void a_step_as_planned_changes_nothing(void **state)
{
    fixture *f = *state;
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

static void what_was_not_seen_changes_nothing(void **state)
{
    fixture *f = *state;
    f->seen = (ms_observation){.peak_bytes = MS_UNSET, .peak_held_bytes = MS_UNSET, .step_ns = MS_UNSET,
                               .optimizer_state_bytes = MS_UNSET, .step = 3};
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

static void the_loop_is_learnt_once_and_then_only_grows(void **state)
{
    fixture *f = *state;
    return_logits(f);
    replan(f);
    assert_int_equal(observe_line(f, "loop"), MS_DRIFT_LOOP); /* assumed held, seen dropped */
    assert_true(f->graph->loop.observed);
    assert_false(f->graph->loop.outputs_held);
    replan(f);
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.outputs_held = true;
    assert_int_equal(observe(f), MS_DRIFT_LOOP);
    replan(f);
    f->seen.outputs_held = false; /* now and then it is dropped: no reason to plan again */
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    assert_true(f->graph->loop.outputs_held);
}

static void the_real_optimizer_is_learnt(void **state)
{
    fixture *f = *state;
    f->seen.optimizer_state_bytes = 250 * MIB;
    assert_int_equal(observe_line(f, "optimizer"), MS_DRIFT_OPTIMIZER);
    assert_int_equal(f->graph->loop.optimizer_state_bytes, 250 * MIB);
    replan(f);
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.optimizer_state_bytes = 250 * MIB + 4096; /* a step counter or two */
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    bool *const marks[] = {&f->seen.gradients_released, &f->seen.gradients_needed};
    bool *const learnt[] = {&f->graph->loop.gradients_released, &f->graph->loop.gradients_needed};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        *marks[i] = true;
        assert_int_equal(observe_line(f, "optimizer"), MS_DRIFT_OPTIMIZER);
        assert_true(*learnt[i]);
        replan(f);
        f->seen.peak_bytes = f->plan->replay.peak_bytes;
        f->seen.step_ns = f->plan->replay.step_ns;
        assert_int_equal(observe(f), MS_DRIFT_NONE);
    }
}

/* Scratch that was not known of is added, and the next plan leaves room for it. */
static void a_peak_over_the_plan_grows_scratch(void **state)
{
    fixture *f = *state;
    f->seen.peak_bytes += 300 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
    assert_in_range(f->hardware->process.scratch_bytes, 400 * MIB, 401 * MIB);
    uint64_t ceiling = f->plan->ceiling_bytes;
    replan(f);
    assert_true(f->plan->replay.peak_bytes <= f->config.memory_budget_bytes);
    assert_true(f->plan->ceiling_bytes + 290 * MIB <= ceiling);
    /* The same scratch again is as planned. */
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.peak_held_bytes = held_as_planned(f);
    f->seen.step_ns = f->plan->replay.step_ns;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

/* It may be over the plan, and nothing else is learnt from it. */
static void a_step_of_smaller_inputs_teaches_only_what_it_took_too_much(void **state)
{
    fixture *f = *state;
    f->seen.smaller_inputs = true;
    f->seen.peak_bytes -= 100 * MIB;
    f->seen.step_ns /= 3;
    for (f->seen.step = 1; f->seen.step < 70; f->seen.step++) {
        assert_int_equal(observe_line(f, "of smaller inputs"), MS_DRIFT_NONE);
    }
    f->seen.peak_bytes += 400 * MIB;
    assert_int_equal(observe_line(f, "peak"), MS_DRIFT_PEAK);
}

/* A step that shows another loop also tells what lay beside its tensors. */
static void scratch_is_learnt_beside_a_new_loop(void **state)
{
    fixture *f = *state;
    f->seen.optimizer_state_bytes = 250 * MIB;
    f->seen.peak_held_bytes = held_as_planned(f);
    f->seen.peak_bytes = 1000 * MIB + f->plan->replay.small_peak_bytes +
                         f->graph->residents.batch_bytes + held_as_planned(f) + 180 * MIB;
    assert_int_equal(observe(f), MS_DRIFT_OPTIMIZER);
    assert_int_equal(f->hardware->process.scratch_bytes, 180 * MIB);
}

static void a_peak_over_the_budget_is_never_left_alone(void **state)
{
    fixture *f = *state;
    f->seen.peak_bytes = f->config.memory_budget_bytes + 4 * MIB; /* less than 5% */
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    assert_true(f->hardware->process.scratch_bytes > 100 * MIB);
}

static void a_peak_a_little_off_is_left_alone(void **state)
{
    fixture *f = *state;
    f->plan->pressure.allowed_bytes *= 2; /* far from the budget */
    f->seen.peak_bytes += f->seen.peak_bytes * 4 / 100;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

/* What large products take beside tensors is expected of steps that have them, until it is measured. */
static void packing_buffers_are_expected_of_large_products(void **state)
{
    fixture *f = *state;
    f->hardware->process.products_bytes = 40 * MIB;
    replan(f);
    ms_plan *large = make_plan(f);
    f->graph->small_products = true;
    replan(f);
    assert_int_equal(f->plan->reserve_bytes, large->reserve_bytes + 40 * MIB);
    assert_int_equal(f->plan->replay.peak_bytes + 40 * MIB, large->replay.peak_bytes);
    assert_int_equal(f->plan->smallest_budget_bytes, large->smallest_budget_bytes);
    f->seen.peak_bytes = f->config.memory_budget_bytes + 1;
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    assert_int_equal(f->hardware->process.products_bytes, 0);
    ms_plan_free(large);
}

/* A reserve changes what is predicted, and nothing of what is done. */
static void a_reserve_is_left_free_and_not_predicted(void **state)
{
    fixture *f = *state;
    ms_plan *without = make_plan(f);
    f->hardware->process.reserve_bytes = 60 * MIB;
    replan(f);
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
    /* A step that took it all is as planned; one over the budget is not. */
    f->seen.peak_bytes = f->plan->replay.peak_bytes + f->plan->reserve_bytes;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.peak_bytes = f->config.memory_budget_bytes + 1;
    assert_int_equal(observe(f), MS_DRIFT_PEAK);
    ms_plan_free(without);
}

/* What bits free is there to be planned with: a budget that nothing else meets. */
static void masks_as_bits_meet_budgets_that_nothing_else_does(void **state)
{
    fixture *f = *state;
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
    assert_non_null(strstr(err.text, "masks as bits on 12 nodes"));
    f->config.memory_budget_bytes = err.hint_bytes;
    replan(f);
    assert_true(f->plan->replay.packed_bytes > 0);
    assert_true(f->plan->replay.peak_bytes + f->plan->reserve_bytes <= err.hint_bytes);
}

enum { PLAN_NODES = 128 };

/* What a plan chose, without options of the step and with nothing cached. */
static ms_choices choices_of(const ms_plan *plan, uint8_t rows[2 * PLAN_NODES])
{
    assert_true(plan->entry_count <= PLAN_NODES);
    memset(rows, 0, 2 * PLAN_NODES);
    ms_plan_copy_choices(plan, rows, rows + PLAN_NODES);
    return (ms_choices){.technique = rows,
                        .packed = rows + PLAN_NODES,
                        .offload_min_bytes = plan->offload_min_bytes,
                        .write_window_bytes = plan->write_window_bytes,
                        .read_window_bytes = plan->read_window_bytes};
}

/* What becomes bits is what the plan says: its replay is the proof that it fits. */
static void masks_as_bits_stay_within_what_a_budget_covers(void **state)
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

/* A cache that falls short of what a step holds by a little faults in much more than that. */
static void the_cache_gets_a_margin_where_the_budget_has_room(void **state)
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

/* What was measured is what is expected from then on: at a rare step, and once. */
static void what_is_expected_is_learnt(void **state)
{
    fixture *f = *state;
    f->hardware->process.reserve_bytes = 90 * MIB;
    replan(f);
    for (f->seen.step = 2; f->seen.step < 40; f->seen.step++) {
        uint64_t fixed = 1000 * MIB + f->plan->replay.small_peak_bytes;
        f->seen.peak_held_bytes = held_as_planned(f);
        f->seen.peak_bytes = fixed + held_as_planned(f) + f->graph->residents.batch_bytes + 75 * MIB;
        f->seen.step_ns = f->plan->replay.step_ns;
        ms_drift drift = observe(f);
        assert_int_equal(drift, f->seen.step == 3 ? MS_DRIFT_RESERVE : MS_DRIFT_NONE);
        if (drift != MS_DRIFT_NONE) {
            replan(f);
            assert_int_equal(f->hardware->process.scratch_bytes, 100 * MIB);
            assert_int_equal(f->hardware->process.reserve_bytes, 25 * MIB);
            assert_in_range(f->plan->replay.peak_bytes, f->seen.peak_bytes - MIB, f->seen.peak_bytes + MIB);
        }
    }
}

/* Too much scratch is given back at rare steps only, and not so much that it is asked
 * for again. */
static void scratch_shrinks_rarely_and_does_not_swing(void **state)
{
    fixture *f = *state;
    f->hardware->process.scratch_bytes = 900 * MIB;
    replan(f);
    uint64_t true_scratch = 120 * MIB;
    uint32_t replans = 0;
    for (uint32_t step = 2; step < 100; step++) {
        uint64_t fixed = 1000 * MIB + f->plan->replay.small_peak_bytes;
        f->seen.step = step;
        f->seen.peak_held_bytes = held_as_planned(f);
        f->seen.peak_bytes = fixed + held_as_planned(f) + true_scratch + (step % 3) * 5 * MIB;
        f->seen.step_ns = f->plan->replay.step_ns;
        ms_drift drift = observe(f);
        assert_true(drift == MS_DRIFT_NONE || (drift == MS_DRIFT_RESERVE && step == 3));
        if (drift != MS_DRIFT_NONE) {
            replans++;
            replan(f);
        }
    }
    assert_int_equal(replans, 1);
    assert_in_range(f->hardware->process.scratch_bytes, true_scratch, 2 * true_scratch);
}

/* Compute slower than predicted hides more transfers: learnt at step 3, then left alone
 * unless it is far off at a rare step. */
static void time_is_learnt_early_and_then_rarely(void **state)
{
    fixture *f = *state;
    uint32_t replans = 0, planned_after = 0;
    uint64_t true_ns = f->plan->unoptimized.step_ns * 2;
    for (uint32_t step = 2; step < 100; step++) {
        f->seen.step = step;
        f->seen.plan_steps = step - planned_after;
        f->seen.step_ns = true_ns + (step % 5) * 1000000;
        f->seen.peak_bytes = f->plan->replay.peak_bytes;
        f->seen.peak_held_bytes = held_as_planned(f);
        ms_drift drift = observe(f);
        assert_true(drift == MS_DRIFT_NONE || drift == MS_DRIFT_TIME);
        assert_true(step != 3 || drift == MS_DRIFT_TIME);
        if (drift == MS_DRIFT_TIME) {
            assert_true(step == 3 || step >= 8);
            replans++;
            planned_after = step;
            replan(f);
        }
    }
    assert_in_range(replans, 1, 3);
    assert_in_range(f->hardware->time_scale_permille, 1500, 2500);
}

/* What a new plan holds more is faulted in by its first step, whose time tells nothing. */
static void the_first_step_under_a_plan_teaches_no_time(void **state)
{
    fixture *f = *state;
    f->seen.step_ns = f->plan->replay.step_ns * 2;
    f->seen.step = 3;
    f->seen.plan_steps = 1;
    assert_int_equal(observe(f), MS_DRIFT_NONE);
    f->seen.step = 4;
    f->seen.plan_steps = 2;
    assert_int_equal(observe(f), MS_DRIFT_TIME);
    f->seen.step = 5;
    f->seen.plan_steps = 1;
    replan(f);
    f->seen.peak_bytes = f->plan->replay.peak_bytes;
    f->seen.peak_held_bytes = held_as_planned(f);
    assert_int_equal(observe(f), MS_DRIFT_NONE);
}

static void nothing_is_learnt_when_memory_is_out(void **state)
{
    fixture *f = *state;
    ms_drift drift;
    char *line;
    ms_error err;
    f->seen.optimizer_state_bytes = 1;
    uint64_t before = f->graph->loop.optimizer_state_bytes;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(
        ms_pipeline_observe(f->graph, f->hardware, &f->config, f->plan, &f->seen, &drift, &line, &err), MS_ENOMEM);
    ms_fault_disarm_all();
    assert_int_equal(f->graph->loop.optimizer_state_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_unseen_loop_is_assumed_to_hold_most, set_up, tear_down),
        cmocka_unit_test_setup_teardown(assumptions_are_dropped_only_where_nothing_fits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failed_plan_is_not_handed_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unseen_loop_stays_monotone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refusal_says_what_would_help, set_up, tear_down),
        cmocka_unit_test(an_empty_graph_is_refused),
        cmocka_unit_test_setup_teardown(a_step_as_planned_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_not_seen_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_loop_is_learnt_once_and_then_only_grows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_real_optimizer_is_learnt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_peak_over_the_plan_grows_scratch, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_step_of_smaller_inputs_teaches_only_what_it_took_too_much, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(packing_buffers_are_expected_of_large_products, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reserve_is_left_free_and_not_predicted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(masks_as_bits_meet_budgets_that_nothing_else_does, set_up, tear_down),
        cmocka_unit_test(the_cache_gets_a_margin_where_the_budget_has_room),
        cmocka_unit_test(masks_as_bits_stay_within_what_a_budget_covers),
        cmocka_unit_test_setup_teardown(what_is_expected_is_learnt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(scratch_is_learnt_beside_a_new_loop, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_peak_over_the_budget_is_never_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_peak_a_little_off_is_left_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(scratch_shrinks_rarely_and_does_not_swing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(time_is_learnt_early_and_then_rarely, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_first_step_under_a_plan_teaches_no_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_learnt_when_memory_is_out, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
