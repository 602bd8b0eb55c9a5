/*
 * The plans of some graphs on some machines are those of plans.golden: a change of the planner shows there which plans
 * it changes, and by how much. `MEMSCALE_WRITE_GOLDEN=1 meson test -C build/test plans` writes the file.
 *
 * A line is a plan: the budget, what it takes and its techniques. The last column is a checksum of its document, its
 * texts, its timeline, and the plan that follows after a small correction. Each document is read back.
 */
#include "plan/plan_checksum.h"
#include "plan_subjects.h"

enum { BUDGETS = 5, LINE_MOST = 1024 };

/* ---- lines ------------------------------------------------------------------------------- */

static uint32_t count_entries(const ms_plan *plan, int technique)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        count += plan->entries[i].technique == (uint32_t)technique;
    }
    return count;
}

static void write_text(FILE *out, char *text)
{
    assert_non_null(text);
    fprintf(out, "%s\n", text);
    ms_free(text);
}

static void write_choices(FILE *out, const ms_plan *plan)
{
    uint32_t packed = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        packed += plan->entries[i].packing.packed;
    }
    for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        uint32_t count = count_entries(plan, technique);
        if (count > 0) {
            fprintf(out, ", %u %s", count, ms_technique_name((ms_technique)technique));
        }
    }
    if (packed > 0) {
        fprintf(out, ", %u packed", packed);
    }
    for (int option = 0; option < MS_STEP_OPTION_COUNT; option++) {
        if (plan->step_options[option].chosen) {
            fprintf(out, ", %s", ms_step_option_name((ms_step_option)option));
        }
    }
    if (plan->state_moved_bytes > 0) {
        fprintf(out, ", %llu of the state", (unsigned long long)plan->state_moved_bytes);
    }
}

static void write_plan(FILE *out, const fixture_planning *f, uint64_t budget_bytes)
{
    ms_plan *plan = fixture_plan_at(f, budget_bytes);
    const ms_replay *replay = &plan->replay;
    fprintf(out, "  %llu: peak %llu, first %llu, reserve %llu; %llu ns, stalls %llu", (unsigned long long)budget_bytes,
            (unsigned long long)replay->peak_bytes, (unsigned long long)replay->first_step_peak_bytes,
            (unsigned long long)plan->reserve_bytes, (unsigned long long)replay->step_ns,
            (unsigned long long)(replay->stall_forward_ns + replay->stall_backward_ns));
    write_choices(out, plan);
    plan_assert_read_back(plan);
    ms_plan_optimizer optimizer = ms_plan_for_optimizer(plan, &f->config);
    fprintf(out, "%s; %016llx\n", optimizer.may_release ? ", may release" : "",
            (unsigned long long)plan_checksum(f, budget_bytes, plan));
    ms_plan_free(plan);
}

static void write_plans(FILE *out, const plan_subject *subject, const plan_machine *machine)
{
    fixture_planning f = plan_subject_open(subject, machine);
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    fprintf(out, "%s, %s: smallest %llu, need %llu; ", subject->name, machine->name, (unsigned long long)smallest,
            (unsigned long long)need);
    write_text(out, ms_plan_intent(f.hardware, &f.config, "Model", f.graph->residents.parameter_bytes));
    for (uint64_t k = 0; k < BUDGETS; k++) {
        write_plan(out, &f, fixture_budget(smallest, need, k, BUDGETS));
    }
    fixture_close(&f);
}

/* ---- tests --------------------------------------------------------------------------------- */

/* The next lines of the table are those of `text`, or become them. */
static void compare_lines(FILE *golden, bool writes, char *text)
{
    char expected[LINE_MOST], *rest = text;
    if (writes) {
        fputs(text, golden);
        return;
    }
    for (char *line = strsep(&rest, "\n"); rest != NULL; line = strsep(&rest, "\n")) {
        assert_non_null(fgets(expected, sizeof expected, golden));
        expected[strcspn(expected, "\n")] = '\0';
        assert_string_equal(line, expected);
    }
}

/* Compared graph by graph: a mistake then shows in the first seconds. */
static void compare_plans(FILE *golden, bool writes, const plan_subject *subject, const plan_machine *machine)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    write_plans(out, subject, machine);
    assert_int_equal(fclose(out), 0);
    compare_lines(golden, writes, text);
    free(text);
}

static void plans_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("plan/plans.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    for (size_t i = 0; i < PLAN_SUBJECTS; i++) {
        for (size_t j = 0; j < PLAN_MACHINES; j++) {
            compare_plans(golden, writes, &plan_subjects[i], &plan_machines[j]);
        }
    }
    char more[LINE_MOST];
    assert_true(writes || fgets(more, sizeof more, golden) == NULL);
    assert_int_equal(fclose(golden), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_the_golden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
