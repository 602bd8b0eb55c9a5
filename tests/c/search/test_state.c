/*
 * Plans that move a part of the optimizer's state: what is moved leaves the device and takes time, the rest does neither.
 * A larger budget is never slower.
 */
#include "memscale/pipeline.h"
#include "plan_subjects.h"
#include "sim/step_options.h"

enum { BUDGETS = 25 };
static const uint8_t keep[64];
/* The indices in plan_machines of the machine with a disk and of the one with a card. */
static const size_t machines[] = {0, PLAN_MACHINES - 1};
enum { MACHINES = sizeof machines / sizeof machines[0] };

typedef fixture_planning fixture;

static const plan_subject *own_optimizer(void)
{
    for (size_t i = 0; i < PLAN_SUBJECTS; i++) {
        if (strcmp(plan_subjects[i].name, "own optimizer") == 0) {
            return &plan_subjects[i];
        }
    }
    fail();
    return NULL;
}

static ms_replay simulate(const fixture *f, uint32_t options, uint64_t moved_bytes)
{
    ms_choices choices = {.technique = keep, .step_options = options, .state_moved_bytes = moved_bytes};
    ms_replay replay;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
    return replay;
}

/* The state's time is the disk's or the link's, in proportion; the parts that stay are updated after it. */
static void a_part_frees_its_bytes_and_takes_its_time(void **state)
{
    (void)state;
    for (size_t machine = 0; machine < MACHINES; machine++) {
        fixture f = plan_subject_open(own_optimizer(), &plan_machines[machines[machine]]);
        uint32_t option = ms_hardware_host_is_device(f.hardware) ? MS_STEP_STATE_ON_DISK : MS_STEP_STATE_ON_HOST;
        uint64_t all = f.graph->loop.optimizer_stream_bytes;
        ms_replay none = simulate(&f, 0, 0), whole = simulate(&f, 1u << option, 0), before = none;
        for (uint64_t part = 1; part <= 8; part++) {
            ms_replay now = simulate(&f, 1u << option, all * part / 8);
            assert_true(now.tier_peak_bytes[1] + now.tier_peak_bytes[2] >= all * part / 8);
            assert_true(now.step_ns > before.step_ns);
            assert_true(part == 1 || before.peak_bytes - now.peak_bytes <= all / 8 + MIB);
            assert_true(part == 1 || now.peak_bytes < before.peak_bytes);
            before = now;
        }
        assert_int_equal(before.step_ns, whole.step_ns);
        assert_int_equal(before.peak_bytes, whole.peak_bytes);
        assert_int_equal(simulate(&f, 1u << option, 2 * all).peak_bytes, whole.peak_bytes);
        assert_int_equal(simulate(&f, 0, all / 2).peak_bytes, none.peak_bytes); /* no option moves it */
        fixture_close(&f);
    }
}

static void assert_reads_back(const fixture *f, const ms_plan *plan)
{
    ms_plan *read;
    ms_error err;
    char *text = ms_plan_to_json(plan);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    assert_int_equal(read->state_moved_bytes, plan->state_moved_bytes);
    assert_int_equal(ms_plan_for_optimizer(read, &f->config).state_moved_bytes, plan->state_moved_bytes);
    ms_plan_free(read);
    ms_free(text);
}

/* The smallest budget moves all of it, most others a part. */
static void a_larger_budget_moves_a_part_and_is_never_slower(void **state)
{
    (void)state;
    for (size_t machine = 0; machine < MACHINES; machine++) {
        fixture f = plan_subject_open(own_optimizer(), &plan_machines[machines[machine]]);
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f), slower = UINT64_MAX;
        uint32_t parts = 0, wholes = 0;
        for (uint64_t k = 0; k < BUDGETS; k++) {
            ms_plan *plan = fixture_plan_at(&f, smallest + (need - smallest) * k / BUDGETS);
            bool moves = (ms_plan_step_options(plan) & MS__STATE_MOVES) != 0;
            assert_true(plan->replay.step_ns <= slower);
            assert_true(moves || plan->state_moved_bytes == 0);
            assert_true(plan->state_moved_bytes < f.graph->loop.optimizer_stream_bytes);
            assert_true(plan->why.lower_bound_ns <= plan->replay.step_ns);
            slower = plan->replay.step_ns;
            parts += plan->state_moved_bytes > 0;
            wholes += moves && plan->state_moved_bytes == 0;
            assert_reads_back(&f, plan);
            ms_plan_free(plan);
        }
        assert_true(parts > BUDGETS / 3 && wholes > 0);
        fixture_close(&f);
    }
}

/* A part takes less time than all of the state at the same budget. */
static void a_part_is_faster_than_the_whole(void **state)
{
    (void)state;
    fixture f = plan_subject_open(own_optimizer(), &plan_machines[0]);
    uint64_t need = fixture_need(&f), all = f.graph->loop.optimizer_stream_bytes;
    ms_plan *plan = fixture_plan_at(&f, need - all / 5);
    ms_replay whole = simulate(&f, 1u << MS_STEP_STATE_ON_DISK, 0), none = simulate(&f, 0, 0);
    assert_true(plan->state_moved_bytes > 0);
    assert_true(plan->replay.step_ns - none.step_ns < (whole.step_ns - none.step_ns) / 2);
    fixture_assert_says(ms_plan_table(plan, f.hardware), "of it): frees");
    fixture_assert_says(ms_plan_explain(plan, -1), "of it) is on:");
    ms_plan_free(plan);
    fixture_close(&f);
}

/* After a step that corrects the documents, the plan's part is still moved. */
static void the_same_choices_move_the_same_part(void **state)
{
    (void)state;
    fixture f = plan_subject_open(own_optimizer(), &plan_machines[0]);
    ms_plan *again = NULL;
    ms_error err;
    f.graph->loop.observed = true;
    f.config.memory_budget_bytes = fixture_need(&f) - f.graph->loop.optimizer_stream_bytes / 3;
    ms_plan *plan = fixture_plan_at(&f, f.config.memory_budget_bytes);
    assert_true(plan->state_moved_bytes > 0);
    f.hardware->process.scratch_bytes += 4096;
    assert_ms_ok(ms_plan_again(f.graph, f.hardware, &f.config, plan, &again, &err), err);
    assert_non_null(again);
    assert_int_equal(again->state_moved_bytes, plan->state_moved_bytes);
    assert_in_range(again->replay.step_ns, plan->replay.step_ns - 1000, plan->replay.step_ns + 1000000);
    ms_plan_free(again);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void without_memory_nothing_leaks(void **state)
{
    (void)state;
    fixture f = plan_subject_open(own_optimizer(), &plan_machines[0]);
    f.config.search_permille = 30;
    fixture_plan_without_memory(&f, fixture_need(&f) - f.graph->loop.optimizer_stream_bytes / 3);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_frees_its_bytes_and_takes_its_time),
        cmocka_unit_test(a_larger_budget_moves_a_part_and_is_never_slower),
        cmocka_unit_test(a_part_is_faster_than_the_whole),
        cmocka_unit_test(the_same_choices_move_the_same_part),
        cmocka_unit_test(without_memory_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
