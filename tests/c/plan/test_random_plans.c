/*
 * Plans of random steps on random machines keep the solver's promises, and are those of random_plans.golden: a change of
 * the planner shows there in all corners that plans.golden, whose graphs are regular, does not have.
 * `MEMSCALE_WRITE_GOLDEN=1 meson test -C build/test random_plans` writes the file.
 *
 * A line is a step: its smallest budget, its need, and a plan's time and peak for each budget. The last column is a
 * checksum of the documents and texts of these plans, of the uniform plans and of the forced one, and of a refusal.
 */
#include "plan/plan_checksum.h"
#include "plan_random.h"

enum { STEPS = 64, BUDGETS = 3, LINE_MOST = 1024 };

/* ---- promises ---------------------------------------------------------------------- */

static bool is_exact(const ms_plan *plan)
{
    bool exact = true;
    for (int option = 0; option < MS_STEP_OPTION_COUNT; option++) {
        bool chosen = plan->step_options[option].chosen;
        exact = exact && (!chosen || ms_step_option_exactness((ms_step_option)option) == MS_EXACT);
    }
    return exact;
}

static void check_parts(const ms_plan *plan)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->why.part_count; i++) {
        assert_true(plan->why.parts[i].bytes > 0);
        assert_true(i == 0 || plan->why.parts[i].bytes <= plan->why.parts[i - 1].bytes);
        sum += plan->why.parts[i].bytes;
    }
    assert_int_equal(sum, plan->replay.peak_bytes);
}

/* A plan for a budget fits it, and takes at least the bound's time. */
static void check_plan(const fixture_planning *f, const ms_plan *plan, uint64_t budget_bytes)
{
    assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget_bytes);
    assert_true(plan->smallest_budget_bytes <= budget_bytes);
    assert_true(plan->why.lower_bound_ns <= plan->replay.step_ns);
    assert_int_equal(plan->entry_count, f->graph->node_count);
    check_parts(plan);
    plan_assert_read_back(plan);
}

/* With a larger budget a plan of the same class is not slower. */
static void check_larger(const ms_plan *smaller, const ms_plan *larger)
{
    if (is_exact(smaller) == is_exact(larger)) {
        assert_true(larger->replay.step_ns <= smaller->replay.step_ns);
    }
    assert_true(is_exact(larger) || !is_exact(smaller));
}

/* ---- the table --------------------------------------------------------------------- */

static uint64_t mixed(uint64_t sum, uint64_t more)
{
    return (sum ^ more) * 1099511628211u + (sum >> 17);
}

static uint64_t uniform_sum(const fixture_planning *f, uint64_t budget_bytes)
{
    uint64_t sum = 0;
    fixture_planning other = *f;
    other.config.memory_budget_bytes = budget_bytes;
    for (int technique = MS_TECHNIQUE_KEEP; technique <= MS_TECHNIQUE_OFFLOAD_DISK; technique++) {
        ms_plan *plan;
        ms_error err;
        assert_ms_ok(ms_plan_uniform(f->graph, f->hardware, &other.config, (ms_technique)technique, &plan, &err), err);
        check_parts(plan);
        sum = mixed(sum, plan_checksum(&other, budget_bytes, plan));
        ms_plan_free(plan);
    }
    return sum;
}

static uint64_t forced_sum(const fixture_planning *f)
{
    fixture_planning other = *f;
    other.config.force_optimize = true;
    ms_plan *plan = fixture_plan_at(&other, MS_UNSET);
    assert_true(plan->pressure.forced);
    check_parts(plan);
    uint64_t sum = plan_checksum(&other, MS_UNSET, plan);
    ms_plan_free(plan);
    return sum;
}

/* What the refusal of a budget says that nothing fits. */
static uint64_t refusal_sum(const fixture_planning *f, uint64_t smallest_bytes)
{
    ms_plan *plan;
    ms_error err = {0};
    uint64_t sum = 0;
    assert_ms_fails(fixture_try_plan(f, 1, &plan, &err), MS_EINFEASIBLE, err, "the smallest budget");
    assert_int_equal(err.hint_bytes, smallest_bytes);
    for (const char *c = err.text; *c != '\0'; c++) {
        sum = mixed(sum, (uint64_t)*c);
    }
    return sum;
}

static void write_step(FILE *out, uint64_t seed)
{
    fixture_planning f = random_planning(&seed);
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    fprintf(out, "smallest %llu, need %llu", (unsigned long long)smallest, (unsigned long long)need);
    uint64_t sum = 0;
    ms_plan *before = NULL;
    for (uint64_t k = 0; k < BUDGETS; k++) {
        uint64_t budget = smallest + (need + 1 - smallest) * k / BUDGETS;
        ms_plan *plan = fixture_plan_at(&f, budget);
        check_plan(&f, plan, budget);
        if (before != NULL) {
            check_larger(before, plan);
        }
        fprintf(out, "; %llu ns, %llu", (unsigned long long)plan->replay.step_ns,
                (unsigned long long)plan->replay.peak_bytes);
        sum = mixed(sum, plan_checksum(&f, budget, plan));
        ms_plan_free(before);
        before = plan;
    }
    ms_plan_free(before);
    sum = mixed(sum, refusal_sum(&f, smallest));
    sum = mixed(sum, uniform_sum(&f, smallest));
    sum = mixed(sum, forced_sum(&f));
    fprintf(out, "; %016llx\n", (unsigned long long)sum);
    fixture_close(&f);
}

static void compare_step(FILE *golden, bool writes, uint64_t seed)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    write_step(out, seed);
    assert_int_equal(fclose(out), 0);
    golden_line(golden, writes, text);
    free(text);
}

static void random_plans_keep_promises_and_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("plan/random_plans.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    for (uint64_t step = 1; step <= STEPS; step++) {
        compare_step(golden, writes, step * 7919);
    }
    char more[LINE_MOST];
    assert_true(writes || fgets(more, sizeof more, golden) == NULL);
    assert_int_equal(fclose(golden), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_keep_promises_and_are_the_golden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
