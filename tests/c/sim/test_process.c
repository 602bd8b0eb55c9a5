/* The baseline of this process: steady over small changes, measured anew after large ones. Its scratch: in proportion
 * to the step until a step was measured. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memscale/hardware.h"
#include "sim/process.h"
#include "test_common.h"

static const uint64_t MB = 1000000;
static ms_hardware machine;

static uint64_t baseline(void)
{
    ms_error err;
    assert_ms_ok(ms_hardware_set_process(&machine, -1, 0, &err), err);
    return machine.process.baseline_bytes;
}

/* Resident bytes that only munmap() frees. */
static void *touched(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    memset(memory, 1, bytes);
    return memory;
}

static void small_changes_keep_the_baseline(void **state)
{
    (void)state;
    uint64_t first = baseline();
    assert_true(first > 0);
    void *little = touched(8 * MB);
    assert_int_equal(baseline(), first);
    munmap(little, 8 * MB);
    assert_int_equal(baseline(), first);
}

static void large_changes_are_measured(void **state)
{
    (void)state;
    uint64_t first = baseline();
    void *much = touched(200 * MB);
    assert_in_range(baseline(), first + 150 * MB, first + 250 * MB);
    munmap(much, 200 * MB);
    assert_true(baseline() < first + 50 * MB);
}

static void a_gpu_s_baseline_is_what_was_allocated(void **state)
{
    (void)state;
    ms_error err;
    machine.gpu_count = 1;
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 12345, &err), err);
    assert_int_equal(machine.process.baseline_bytes, 12345);
    assert_int_equal(machine.device, 0);
    assert_int_equal(ms_hardware_set_process(&machine, 1, 0, &err), MS_EINVAL);
    machine.gpu_count = 0;
}

/* A step of one call that allocates `bytes`. */
static uint64_t scratch_of_step(const ms_process *process, uint64_t bytes, uint64_t *expected_bytes)
{
    uint64_t storages[] = {900 * MB, bytes};
    ms_profile profile = {.storage_count = 2, .external_count = 1, .storage_bytes = storages};
    ms_node node = {.profile = 0};
    ms_graph graph = {
        .small_products = true, .profile_count = 1, .profiles = &profile, .node_count = 1, .nodes = &node};
    uint64_t scratch = ms__process_scratch(process, &graph), reserve = ms__process_reserve(process, &graph);
    assert_true(reserve <= scratch);
    *expected_bytes = scratch - reserve;
    return scratch;
}

static void scratch_grows_with_the_step_until_it_is_measured(void **state)
{
    (void)state;
    ms_process process = {.scratch_bytes = 112 * MB, .reserve_bytes = 45 * MB, .products_bytes = 55 * MB};
    uint64_t little, more, most;
    assert_in_range(scratch_of_step(&process, 20 * MB, &little), 20 * MB, 40 * MB);
    assert_in_range(scratch_of_step(&process, 480 * MB, &more), 40 * MB, 60 * MB);
    assert_int_equal(scratch_of_step(&process, 9000 * MB, &most), 112 * MB);
    assert_int_equal(little, 12 * MB);
    assert_int_equal(more, 12 * MB);
    assert_int_equal(most, 12 * MB);
    ms__process_expect(&process, 70 * MB);
    assert_int_equal(scratch_of_step(&process, 20 * MB, &little), 112 * MB);
    assert_int_equal(little, 70 * MB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_changes_keep_the_baseline),
        cmocka_unit_test(large_changes_are_measured),
        cmocka_unit_test(a_gpu_s_baseline_is_what_was_allocated),
        cmocka_unit_test(scratch_grows_with_the_step_until_it_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
