/* Memory beside tensors that a step took beyond its estimate reaches later runs, and never refuses a budget. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "pipeline_fixture.h"
#include "sim/process.h"

static const char software[] = "torch 2, 2 threads";
static const uint64_t MB = 1000000;

typedef struct kept_step {
    pipeline *f;
    char dir[64];
} kept_step;

static int open_step(void **state)
{
    static kept_step step;
    snprintf(step.dir, sizeof step.dir, "/tmp/memscale-recall-XXXXXX");
    void *inner;
    if (mkdtemp(step.dir) == NULL || pipeline_open(&inner) != 0) {
        return -1;
    }
    step.f = inner;
    *state = &step;
    return 0;
}

static int close_step(void **state)
{
    kept_step *step = *state;
    char command[128];
    void *inner = step->f;
    snprintf(command, sizeof command, "rm -rf %s", step->dir);
    return pipeline_close(&inner) != 0 || system(command) != 0;
}

static uint64_t scratch(const pipeline *f)
{
    return ms__process_scratch(&f->hardware->process, f->graph);
}

/* A step that takes `more_bytes` beyond the estimate, as observed in a run whose documents are the fixture's. */
static bool keep(kept_step *step, uint64_t more_bytes)
{
    pipeline *f = step->f;
    ms_hardware after = *f->hardware;
    uint64_t taken = scratch(f) + more_bytes;
    ms__process_measured(&after.process, f->graph, taken, taken);
    return ms_pipeline_keep_scratch(f->graph, &f->hardware->process, &after, software, step->dir);
}

static bool recall(kept_step *step)
{
    return ms_pipeline_recall_scratch(step->f->graph, step->f->hardware, &step->f->config, software, step->dir);
}

static void a_later_run_counts_what_an_earlier_one_took(void **state)
{
    kept_step *step = *state;
    uint64_t estimated = scratch(step->f);
    assert_false(recall(step));
    assert_true(keep(step, 5 * MB));
    assert_true(recall(step));
    assert_int_equal(scratch(step->f), estimated + 5 * MB);
    assert_false(recall(step)); /* it is known now */
}

static void what_the_estimate_covers_is_not_kept(void **state)
{
    kept_step *step = *state;
    assert_false(keep(step, 0));
    assert_false(recall(step));
}

static void what_was_kept_is_corrected(void **state)
{
    kept_step *step = *state;
    uint64_t estimated = scratch(step->f);
    assert_true(keep(step, 5 * MB));
    assert_false(keep(step, 5 * MB)); /* the same */
    assert_true(keep(step, 3 * MB));
    assert_true(recall(step));
    assert_int_equal(scratch(step->f), estimated + 3 * MB);
}

static void the_loop_makes_no_other_step(void **state)
{
    kept_step *step = *state;
    assert_true(keep(step, 5 * MB));
    step->f->graph->loop.outputs_held = !step->f->graph->loop.outputs_held;
    assert_true(recall(step));
}

static void other_software_is_another_step(void **state)
{
    kept_step *step = *state;
    assert_true(keep(step, 5 * MB));
    assert_false(ms_pipeline_recall_scratch(step->f->graph, step->f->hardware, &step->f->config, "torch 3", step->dir));
}

static void no_budget_is_refused_because_of_an_earlier_run(void **state)
{
    kept_step *step = *state;
    uint64_t estimated = scratch(step->f);
    assert_true(keep(step, 100000 * MB));
    assert_false(recall(step));
    assert_int_equal(scratch(step->f), estimated);
}

static void damaged_files_and_missing_folders_change_nothing(void **state)
{
    kept_step *step = *state;
    char command[160], dir[64];
    assert_true(keep(step, 5 * MB));
    snprintf(command, sizeof command, "for f in %s/*; do echo '{' >$f; done", step->dir);
    assert_int_equal(system(command), 0);
    assert_false(recall(step));
    memcpy(dir, step->dir, sizeof dir);
    snprintf(step->dir, sizeof step->dir, "/proc/none");
    assert_true(keep(step, 5 * MB)); /* logged */
    assert_false(recall(step));
    memcpy(step->dir, dir, sizeof dir);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_step, close_step)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_later_run_counts_what_an_earlier_one_took),
        TEST(what_the_estimate_covers_is_not_kept),
        TEST(what_was_kept_is_corrected),
        TEST(the_loop_makes_no_other_step),
        TEST(other_software_is_another_step),
        TEST(no_budget_is_refused_because_of_an_earlier_run),
        TEST(damaged_files_and_missing_folders_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
