/*
 * The memory of a step (ms_execute_step_memory() and its kin in execute.h), with a double of hostmem's counters and of
 * the kernel's: the linker puts them in place of the real ones.
 */
#include "base/os/procfs.h"
#include "double_host.h"
#include "memscale/hostmem.h"
#include "test_common.h"

#define MB ((uint64_t)1000000)

static ms_hostmem_stats maps;
static ms__resident resident;
static bool unreadable;

void __wrap_ms_hostmem_get_stats(ms_hostmem_stats *stats);
void __wrap_ms_hostmem_reset_peak(void);
int __wrap_ms__resident_read(ms__resident *out, ms_error *err);

void __wrap_ms_hostmem_get_stats(ms_hostmem_stats *stats)
{
    *stats = maps;
}

void __wrap_ms_hostmem_reset_peak(void)
{
    maps.peak_held_bytes = maps.live_bytes + maps.cached_bytes;
    maps.peak_live_bytes = maps.live_bytes;
}

int __wrap_ms__resident_read(ms__resident *out, ms_error *err)
{
    *out = resident;
    return unreadable ? ms_fail(err, MS_ESYSTEM, "no /proc") : MS_OK;
}

typedef struct fixture {
    host host;
    ms_execute *execute;
} fixture;

/* Maps of 40 MB are live, 10 MB cached, in a process of 200 MB that once had 300. */
static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ms_execute_host table;
    ms_error err;
    host_table(&f->host, &table);
    unreadable = false;
    maps = (ms_hostmem_stats){.means = MS_HOSTMEM_SLOTS, .live_bytes = 40 * MB, .cached_bytes = 10 * MB};
    resident = (ms__resident){.now_bytes = 200 * MB, .peak_bytes = 300 * MB};
    assert_ms_ok(ms_execute_open(&table, NULL, &f->execute, &err), err);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    ms_execute_close(f->execute);
    free(f);
    return 0;
}

static void forward(fixture *f)
{
    bool stale;
    ms_error err;
    assert_ms_ok(ms_execute_enter_root(f->execute, 1, &stale, &err), err);
    ms_execute_leave_root(f->execute, 1, false);
}

static ms_step_memory end_step(fixture *f)
{
    uint64_t step, step_ns;
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    return ms_execute_step_memory(f->execute);
}

static uint64_t peak_of_step(fixture *f, uint64_t mark_bytes, uint64_t now_bytes, uint64_t peak_held_bytes)
{
    resident = (ms__resident){.now_bytes = now_bytes, .peak_bytes = mark_bytes};
    maps.peak_held_bytes = peak_held_bytes;
    return end_step(f).peak_bytes;
}

/* ---- peaks ------------------------------------------------------------------------- */

static void a_mark_that_rose_is_the_steps_peak(void **state)
{
    fixture *f = *state;
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 250 * MB), 500 * MB);
    assert_int_equal(peak_of_step(f, 501 * MB, 210 * MB, 120 * MB), 501 * MB);
}

/* Otherwise it is that of maps, and the most memory that was ever seen beside them: 250 MB, at the mark. */
static void a_mark_that_stays_leaves_maps_and_what_was_beside_them(void **state)
{
    fixture *f = *state;
    (void)peak_of_step(f, 500 * MB, 210 * MB, 250 * MB);
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 120 * MB), 370 * MB);
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 900 * MB), 500 * MB); /* never above the mark */
    /* Maps hold 50 MB at the boundary, so 290 MB are beside them. */
    assert_int_equal(peak_of_step(f, 500 * MB, 340 * MB, 120 * MB), 410 * MB);
    /* The peak is at least what is resident now. */
    assert_int_equal(peak_of_step(f, 500 * MB, 450 * MB, 50 * MB), 450 * MB);
}

static void a_mark_that_the_user_resets_is_a_lower_bound(void **state)
{
    fixture *f = *state;
    (void)peak_of_step(f, 500 * MB, 210 * MB, 250 * MB);
    assert_int_equal(peak_of_step(f, 400 * MB, 210 * MB, 120 * MB), 400 * MB);
    assert_int_equal(peak_of_step(f, 300 * MB, 210 * MB, 120 * MB), 400 * MB); /* 280 were beside maps before */
    assert_int_equal(peak_of_step(f, 310 * MB, 210 * MB, 120 * MB), 310 * MB); /* rose again */
}

/* The kernel's counts are late by a fraction of a MB. */
static void a_mark_that_wavers_was_not_reset(void **state)
{
    fixture *f = *state;
    (void)peak_of_step(f, 500 * MB, 210 * MB, 250 * MB);
    assert_int_equal(peak_of_step(f, 500 * MB - MB / 4, 210 * MB, 120 * MB), 370 * MB);
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 120 * MB), 370 * MB); /* nor has it risen */
}

static void bytes_of_maps_are_those_beyond_the_start(void **state)
{
    fixture *f = *state;
    resident = (ms__resident){.now_bytes = 260 * MB, .peak_bytes = 500 * MB};
    maps.peak_held_bytes = 250 * MB;
    maps.live_bytes = 70 * MB;
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_held_bytes, 200 * MB);
    assert_int_equal(memory.held_bytes, 30 * MB);
    assert_int_equal(memory.resident_bytes, 260 * MB);
    memory = end_step(f); /* peaks begin again at each end */
    assert_int_equal(memory.peak_held_bytes, 30 * MB);
}

static void all_is_unknown_without_slots_or_proc(void **state)
{
    fixture *f = *state;
    maps.means = MS_HOSTMEM_MALLOPT;
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_bytes, UINT64_MAX);
    assert_int_equal(memory.peak_held_bytes, UINT64_MAX);
    assert_int_equal(memory.resident_bytes, UINT64_MAX);
    assert_int_equal(memory.held_bytes, UINT64_MAX);
    maps.means = MS_HOSTMEM_SLOTS;
    unreadable = true;
    assert_int_equal(end_step(f).peak_bytes, UINT64_MAX);
    unreadable = false;
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 250 * MB), 500 * MB);
}

/* On a GPU the peak is the allocator's counter, from the first step in which it moves. */
static void a_gpus_peak_is_its_allocators(void **state)
{
    fixture *f = *state;
    ms_execute_device_peak(f->execute, 800 * MB);
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_bytes, 800 * MB);
    assert_int_equal(memory.peak_held_bytes, UINT64_MAX);
    assert_int_equal(memory.resident_bytes, UINT64_MAX);
    assert_int_equal(end_step(f).peak_bytes, 800 * MB);
    ms_execute_device_peak(f->execute, 700 * MB); /* the user reset it */
    assert_int_equal(end_step(f).peak_bytes, 700 * MB);
    ms_error err;
    assert_ms_ok(ms_execute_set_plan(f->execute, NULL, &err), err);
    assert_int_equal(end_step(f).peak_bytes, UINT64_MAX); /* not known yet under another plan */
}

/* ---- the start ----------------------------------------------------------------------- */

/* Maps of a model that the wrapped one replaces are freed before the first forward. */
static void maps_freed_before_the_first_forward_belong_to_no_step(void **state)
{
    fixture *f = *state;
    uint32_t waiting;
    maps.live_bytes = 15 * MB;
    (void)ms_execute_forward_begins(f->execute, 0, 0, &waiting);
    forward(f);
    maps.live_bytes = 5 * MB; /* freed since: no part of it */
    (void)ms_execute_forward_begins(f->execute, 0, 0, &waiting);
    maps.peak_held_bytes = 125 * MB;
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_held_bytes, 100 * MB);
    (void)ms_execute_forward_begins(f->execute, 0, 0, &waiting);
    maps.peak_held_bytes = 125 * MB;
    assert_int_equal(end_step(f).peak_held_bytes, 100 * MB);
}

/* ---- evaluations ----------------------------------------------------------------------- */

static void an_evaluations_peak_is_its_own(void **state)
{
    fixture *f = *state;
    ms_evaluation_memory evaluation;
    assert_false(ms_execute_evaluation_ends(f->execute, &evaluation));
    resident = (ms__resident){.now_bytes = 210 * MB, .peak_bytes = 500 * MB};
    maps.peak_held_bytes = 250 * MB;
    ms_execute_evaluation_begins(f->execute);
    ms_execute_evaluation_begins(f->execute); /* one that is open goes on */
    resident = (ms__resident){.now_bytes = 220 * MB, .peak_bytes = 900 * MB};
    maps.peak_held_bytes = 700 * MB;
    assert_true(ms_execute_evaluation_ends(f->execute, &evaluation));
    assert_int_equal(evaluation.before_bytes, 210 * MB);
    assert_int_equal(evaluation.peak_bytes, 900 * MB);
    assert_false(ms_execute_evaluation_ends(f->execute, &evaluation));
    /* The rest of the step: the larger part counts. 250 MB were beside maps at the first mark. */
    maps.peak_held_bytes = 60 * MB;
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_bytes, 500 * MB);
    assert_int_equal(memory.peak_held_bytes, 200 * MB);
    maps.peak_held_bytes = 60 * MB;
    memory = end_step(f); /* and no longer in the next step */
    assert_int_equal(memory.peak_bytes, 310 * MB);
    assert_int_equal(memory.peak_held_bytes, 10 * MB);
}

static void of_two_parts_the_larger_counts(void **state)
{
    fixture *f = *state;
    ms_evaluation_memory evaluation;
    (void)peak_of_step(f, 1000 * MB, 210 * MB, 800 * MB); /* 200 MB beside maps */
    const uint64_t held_bytes[] = {400 * MB, 300 * MB, 350 * MB};
    resident.now_bytes = 100 * MB;
    for (int i = 0; i < 2; i++) {
        maps.peak_held_bytes = held_bytes[i];
        ms_execute_evaluation_begins(f->execute);
        assert_true(ms_execute_evaluation_ends(f->execute, &evaluation));
        assert_int_equal(evaluation.peak_bytes, 250 * MB);
    }
    maps.peak_held_bytes = held_bytes[2];
    ms_step_memory memory = end_step(f);
    assert_int_equal(memory.peak_bytes, 600 * MB);
    assert_int_equal(memory.peak_held_bytes, 350 * MB);
}

static void a_part_that_cannot_be_read_does_not_count(void **state)
{
    fixture *f = *state;
    ms_evaluation_memory evaluation;
    unreadable = true;
    ms_execute_evaluation_begins(f->execute);
    unreadable = false;
    assert_true(ms_execute_evaluation_ends(f->execute, &evaluation));
    assert_int_equal(evaluation.before_bytes, UINT64_MAX);
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 250 * MB), 500 * MB);
}

/* A model that trained on a GPU trains on the CPU again. */
static void an_evaluation_on_a_gpu_counts_for_no_later_step(void **state)
{
    fixture *f = *state;
    ms_evaluation_memory evaluation;
    ms_execute_device_peak(f->execute, 800 * MB);
    ms_execute_evaluation_begins(f->execute);
    assert_true(ms_execute_evaluation_ends(f->execute, &evaluation));
    assert_int_equal(evaluation.before_bytes, UINT64_MAX);
    assert_int_equal(evaluation.peak_bytes, UINT64_MAX);
    ms_execute_device_peak(f->execute, UINT64_MAX);
    assert_int_equal(peak_of_step(f, 500 * MB, 210 * MB, 250 * MB), 500 * MB);
}

/* ---- what a loop holds ------------------------------------------------------------------- */

static uint64_t more_at(fixture *f, uint64_t live_bytes, uint64_t known_bytes, uint64_t state_bytes)
{
    uint32_t waiting;
    maps.live_bytes = live_bytes;
    uint64_t more = ms_execute_forward_begins(f->execute, known_bytes, state_bytes, &waiting);
    assert_int_equal(waiting, 0);
    forward(f);
    (void)end_step(f);
    return more;
}

static void maps_beyond_those_of_earlier_steps_are_told_once(void **state)
{
    fixture *f = *state;
    assert_int_equal(more_at(f, 40 * MB, 0, 0), 0);
    assert_int_equal(more_at(f, 60 * MB, 0, 0), 0); /* the first two set the measure */
    assert_int_equal(more_at(f, 60 * MB + 1000000, 0, 0), 0); /* below 1 MiB */
    assert_int_equal(more_at(f, 65 * MB, 0, 0), 5 * MB);
    assert_int_equal(more_at(f, 65 * MB, 0, 0), 0);
    assert_int_equal(more_at(f, 90 * MB, 20 * MB, 3 * MB), 2 * MB); /* less the known ones */
    maps.means = MS_HOSTMEM_MALLOPT;
    assert_int_equal(more_at(f, 200 * MB, 0, 3 * MB), 0); /* not counted */
    maps.means = MS_HOSTMEM_SLOTS;
    ms_execute_device_peak(f->execute, 5 * MB);
    assert_int_equal(more_at(f, 200 * MB, 0, 3 * MB), 0); /* of a GPU */
}

/* State is known from the optimizer's first step on; until then it was among the others. */
static void state_of_an_optimizer_is_no_longer_among_the_others(void **state)
{
    fixture *f = *state;
    assert_int_equal(more_at(f, 40 * MB, 0, 0), 0);
    assert_int_equal(more_at(f, 100 * MB, 0, 0), 0);
    assert_int_equal(more_at(f, 100 * MB, 0, 60 * MB), 0);
    assert_int_equal(more_at(f, 110 * MB, 0, 60 * MB), 10 * MB); /* 50 others, after 40 */
}

static void forwards_that_wait_tell_what_they_hold(void **state)
{
    fixture *f = *state;
    uint32_t waiting;
    (void)more_at(f, 40 * MB, 0, 0);
    (void)more_at(f, 40 * MB, 0, 0);
    assert_int_equal(ms_execute_forward_begins(f->execute, 0, 0, &waiting), 0);
    forward(f);
    maps.live_bytes = 70 * MB;
    assert_int_equal(ms_execute_forward_begins(f->execute, 0, 0, &waiting), 30 * MB);
    assert_int_equal(waiting, 1);
    forward(f);
    maps.live_bytes = 100 * MB;
    assert_int_equal(ms_execute_forward_begins(f->execute, 0, 0, &waiting), 30 * MB); /* beyond the first 30 */
    assert_int_equal(waiting, 2);
    maps.live_bytes = 100 * MB + 1000;
    assert_int_equal(ms_execute_forward_begins(f->execute, 0, 0, &waiting), 0);
    ms_execute_backward_begins(f->execute);
    maps.live_bytes = 300 * MB;
    assert_int_equal(ms_execute_forward_begins(f->execute, 0, 0, &waiting), 0);
    assert_int_equal(waiting, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        TEST(a_mark_that_rose_is_the_steps_peak),
        TEST(a_mark_that_stays_leaves_maps_and_what_was_beside_them),
        TEST(a_mark_that_the_user_resets_is_a_lower_bound),
        TEST(a_mark_that_wavers_was_not_reset),
        TEST(bytes_of_maps_are_those_beyond_the_start),
        TEST(all_is_unknown_without_slots_or_proc),
        TEST(a_gpus_peak_is_its_allocators),
        TEST(maps_freed_before_the_first_forward_belong_to_no_step),
        TEST(an_evaluations_peak_is_its_own),
        TEST(of_two_parts_the_larger_counts),
        TEST(a_part_that_cannot_be_read_does_not_count),
        TEST(an_evaluation_on_a_gpu_counts_for_no_later_step),
        TEST(maps_beyond_those_of_earlier_steps_are_told_once),
        TEST(state_of_an_optimizer_is_no_longer_among_the_others),
        TEST(forwards_that_wait_tell_what_they_hold),
    };
    return cmocka_run_group_tests_name("execute: step memory", tests, NULL, NULL);
}
