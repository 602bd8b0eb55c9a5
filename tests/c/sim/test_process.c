/* The process's baseline stays over small changes and is measured again after large ones. Until a step was measured,
 * scratch is a proportion of the step. */
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
    assert_in_range(scratch_of_step(&process, 20 * MB, &little), 20 * MB, 25 * MB);
    assert_in_range(scratch_of_step(&process, 1600 * MB, &more), 45 * MB, 55 * MB);
    assert_int_equal(scratch_of_step(&process, 9000 * MB, &most), 112 * MB);
    assert_int_equal(little, 12 * MB);
    assert_int_equal(more, 12 * MB);
    assert_int_equal(most, 12 * MB);
}

/* cuDNN may take more for a kernel than the trace expects. */
static void a_gpu_s_step_with_convolutions_has_more_reserve_until_it_is_measured(void **state)
{
    (void)state;
    ms_error err;
    machine.gpu_count = 1;
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 12345, &err), err);
    machine.gpu_count = 0;
    ms_process *process = &machine.process;
    ms_graph with = {.convolutions = 3}, without = {.convolutions = 0};
    uint64_t more = ms__process_reserve(process, &with) - ms__process_reserve(process, &without);
    assert_in_range(more, 39 * MB, 60 * MB); /* measured: 39 */
    assert_int_equal(ms__process_scratch(process, &with) - ms__process_scratch(process, &without), more);
    ms__process_measured(process, &with, 50 * MB, 20 * MB);
    assert_int_equal(ms__process_scratch(process, &with), 50 * MB);
    assert_int_equal(ms__process_reserve(process, &with), 30 * MB);
}

/* As after a measured step that allocates `bytes`. */
static void measure_step(ms_process *process, uint64_t bytes, uint64_t scratch_bytes, uint64_t expected_bytes)
{
    ms_profile profile = {.storage_count = 1, .storage_bytes = &bytes};
    ms_node node = {.profile = 0};
    ms_graph graph = {.profile_count = 1, .profiles = &profile, .node_count = 1, .nodes = &node};
    ms__process_measured(process, &graph, scratch_bytes, expected_bytes);
}

/* A shape that came in the middle of training passed a small budget by up to 3 MB. */
static void a_larger_step_than_the_measured_one_takes_more(void **state)
{
    (void)state;
    ms_process process = {.scratch_bytes = 112 * MB, .reserve_bytes = 45 * MB, .products_bytes = 55 * MB};
    uint64_t expected;
    measure_step(&process, 640 * MB, 60 * MB, 40 * MB);
    assert_int_equal(scratch_of_step(&process, 20 * MB, &expected), 60 * MB);
    assert_int_equal(scratch_of_step(&process, 640 * MB, &expected), 60 * MB);
    assert_int_equal(scratch_of_step(&process, 1280 * MB, &expected), 70 * MB);
    assert_int_equal(expected, 40 * MB);
    measure_step(&process, 20 * MB, 60 * MB, 30 * MB); /* a smaller step, which says nothing of the larger ones */
    assert_int_equal(scratch_of_step(&process, 1280 * MB, &expected), 70 * MB);
    assert_int_equal(expected, 30 * MB);
    measure_step(&process, 640 * MB, 50 * MB, 30 * MB);
    assert_int_equal(scratch_of_step(&process, 1280 * MB, &expected), 60 * MB);
    measure_step(&process, 640 * MB, 50 * MB, MS_UNSET);
    assert_int_equal(scratch_of_step(&process, 1280 * MB, &expected), 50 * MB);
}

/* What the trace left resident is in the baseline, once, and the first step takes that much less. */
static void what_a_trace_leaves_is_measured(void **state)
{
    (void)state;
    ms_error err;
    uint64_t first = baseline(), expected;
    ms_process before = machine.process;
    void *loaded = touched(15 * MB);
    assert_ms_ok(ms_hardware_traced(&machine, 0, &err), err);
    assert_in_range(machine.process.baseline_bytes, first + 10 * MB, first + 20 * MB);
    assert_in_range(machine.process.traced_bytes, 10 * MB, 20 * MB);
    assert_true(scratch_of_step(&machine.process, 20 * MB, &expected) <=
                scratch_of_step(&before, 20 * MB, &expected) - 8 * MB);
    ms_process traced = machine.process;
    void *more = touched(15 * MB);
    assert_ms_ok(ms_hardware_traced(&machine, 0, &err), err); /* a later trace */
    assert_memory_equal(&machine.process, &traced, sizeof traced);
    measure_step(&machine.process, 20 * MB, 30 * MB, 20 * MB);
    assert_int_equal(machine.process.traced_bytes, 0);
    assert_int_equal(scratch_of_step(&machine.process, 20 * MB, &expected), 30 * MB);
    munmap(more, 15 * MB);
    munmap(loaded, 15 * MB);
}

enum { MOST_STORAGES = 2800 };

static uint64_t scratch_of_storages(uint32_t count, uint64_t bytes)
{
    static uint64_t storages[MOST_STORAGES];
    ms_process process = {.scratch_bytes = 900 * MB, .reserve_bytes = 45 * MB, .products_bytes = 55 * MB};
    for (uint32_t k = 0; k < count; k++) {
        storages[k] = bytes;
    }
    ms_profile profile = {.storage_count = count, .storage_bytes = storages};
    ms_node node = {.profile = 0};
    ms_graph graph = {.profile_count = 1, .profiles = &profile, .node_count = 1, .nodes = &node};
    return ms__process_scratch(&process, &graph);
}

/* Storages that libc's heap holds leave fragments: they take more than maps of the same bytes, tiny ones not. */
static void scratch_is_larger_for_storages_in_libcs_heap(void **state)
{
    (void)state;
    assert_in_range(scratch_of_storages(800, 2 << 20), 45 * MB, 55 * MB);  /* 1.6 GB in maps */
    assert_in_range(scratch_of_storages(400, 64 << 10), 32 * MB, 38 * MB); /* 26 MB in the heap */
    assert_in_range(scratch_of_storages(800, 4 << 10), 20 * MB, 25 * MB);
}

/* Recurrent layers: a small model that ran in 490 MB was refused 570 MB. */
static void fragments_are_filled_by_later_storages(void **state)
{
    (void)state;
    assert_in_range(scratch_of_storages(MOST_STORAGES, 64 << 10), 45 * MB, 55 * MB); /* 183 MB in the heap */
}

/* oneDNN generates code for each shape. */
static void scratch_is_larger_with_convolutions(void **state)
{
    (void)state;
    ms_process process = {.scratch_bytes = 900 * MB, .reserve_bytes = 45 * MB, .products_bytes = 55 * MB};
    ms_graph without = {.small_products = true}, with = {.small_products = true, .convolutions = 3};
    ms_graph many = {.small_products = true, .convolutions = 150};
    uint64_t more = ms__process_scratch(&process, &with) - ms__process_scratch(&process, &without);
    uint64_t most = ms__process_scratch(&process, &many) - ms__process_scratch(&process, &without);
    assert_in_range(more, 10 * MB, 15 * MB);
    assert_in_range(most, 28 * MB, 35 * MB);
}

/* oneDNN generates code for each shape of a 16-bit product, and keeps it for 1024 of them: a model of 15 took 15 MB more
 * than one of 32-bit numbers. */
static void scratch_is_larger_with_16_bit_products(void **state)
{
    (void)state;
    ms_process process = {.scratch_bytes = 9000 * MB, .reserve_bytes = 45 * MB, .products_bytes = 55 * MB};
    ms_graph without = {.small_products = true}, some = {.small_products = true, .half_products = 15};
    ms_graph many = {.half_products = 1024}, most = {.half_products = UINT32_MAX};
    uint64_t more = ms__process_scratch(&process, &some) - ms__process_scratch(&process, &without);
    assert_in_range(more, 14 * MB, 18 * MB);
    assert_int_equal(ms__process_scratch(&process, &many), ms__process_scratch(&process, &most));
}

/* A U-Net of 16-bit numbers passed its budget by 33 MB: libc's heaps kept the buffers of its convolutions. */
static void buffers_that_libc_keeps_are_expected(void **state)
{
    (void)state;
    ms_process process = {.scratch_bytes = 100 * MB, .reserve_bytes = 45 * MB, .products_bytes = 5 * MB};
    ms_graph without = {.small_products = true}, with = {.small_products = true, .libc_buffer_bytes = 90 * MB};
    ms_graph more = {.small_products = true, .libc_buffer_bytes = 95 * MB};
    assert_int_equal(ms__process_scratch(&process, &with) - ms__process_scratch(&process, &without), 90 * MB);
    assert_int_equal(ms__process_reserve(&process, &with), ms__process_reserve(&process, &without));
    ms__process_measured(&process, &with, 120 * MB, 110 * MB); /* which has them */
    assert_int_equal(ms__process_scratch(&process, &with), 120 * MB);
    assert_int_equal(ms__process_reserve(&process, &with), 10 * MB);
    assert_int_equal(ms__process_scratch(&process, &more), 125 * MB);
}

/* If no driver describes a GPU, its figures come from the framework and nothing is moved. */
static void a_gpu_may_be_known_to_the_framework_alone(void **state)
{
    (void)state;
    ms_error err;
    ms_gpu_sight sight = {.kind = MS_DEVICE_CUDA, .name = "card", .total_bytes = 100 * MB, .available_bytes = 60 * MB};
    assert_ms_ok(ms_hardware_see_gpu(&machine, 1, &sight, &err), err);
    assert_int_equal(machine.gpu_count, 2);
    assert_string_equal(machine.gpu[1].name, "card");
    assert_int_equal(machine.gpu[1].free_bytes, 60 * MB);
    assert_int_equal(machine.gpu[1].copy_engines, 0);
    assert_true(machine.gpu[1].matmul_flops_per_s > 0 && machine.gpu[1].to_host_bytes_per_s > 0);
    /* One that is known keeps its rates. */
    machine.gpu[0] = (ms_gpu){.total_bytes = 98 * MB, .copy_engines = 2, .matmul_flops_per_s = 7};
    assert_ms_ok(ms_hardware_see_gpu(&machine, 0, &sight, &err), err);
    assert_int_equal(machine.gpu[0].matmul_flops_per_s, 7);
    assert_int_equal(machine.gpu[0].free_bytes, 60 * MB);
    assert_int_equal(machine.gpu[0].total_bytes, 100 * MB);
    /* A MIG slice beside its card. */
    machine.gpu[0] = (ms_gpu){.name = "whole", .total_bytes = 800 * MB, .free_bytes = 5};
    assert_ms_fails(ms_hardware_see_gpu(&machine, 0, &sight, &err), MS_ENOTSUP, err, "MIG");
    assert_int_equal(machine.gpu[0].free_bytes, 5);
    assert_int_equal(ms_hardware_see_gpu(&machine, MS_GPU_MAX, &sight, &err), MS_EINVAL);
    machine.gpu_count = 0;
}

static void a_baseline_grows_and_never_shrinks(void **state)
{
    (void)state;
    ms_error err;
    machine.device = -1;
    machine.process.baseline_bytes = 1;
    assert_ms_ok(ms_hardware_grow_process(&machine, 0, 0, &err), err);
    uint64_t resident = machine.process.baseline_bytes;
    assert_true(resident > MB);
    machine.process.baseline_bytes = UINT64_MAX / 2; /* more than any machine holds */
    assert_ms_ok(ms_hardware_grow_process(&machine, 0, 7, &err), err);
    assert_int_equal(machine.process.baseline_bytes, UINT64_MAX / 2 + 7 + 8 * MB);
    machine.process.baseline_bytes = 3;
    assert_ms_ok(ms_hardware_grow_process(&machine, UINT64_MAX, 5, &err), err); /* all of it is tensors */
    assert_int_equal(machine.process.baseline_bytes, 3 + 5 + 8 * MB);
}

static void a_baseline_takes_in_what_compiled_code_holds(void **state)
{
    (void)state;
    ms_error err;
    uint64_t bytes, without;
    assert_ms_ok(ms_process_beside_tensors(0, &bytes, &err), err);
    assert_ms_ok(ms_process_beside_tensors(UINT64_MAX, &without, &err), err);
    assert_true(bytes > MB && without == 0);
    machine.device = -1;
    machine.process.baseline_bytes = 50;
    ms_hardware_grow_by(&machine, 100, 130);
    assert_int_equal(machine.process.baseline_bytes, 80);
    ms_hardware_grow_by(&machine, 130, 100); /* never shrinks */
    assert_int_equal(machine.process.baseline_bytes, 80);
    ms_hardware_shrink_by(&machine, 30);
    assert_int_equal(machine.process.baseline_bytes, 50);
    ms_hardware_shrink_by(&machine, 60); /* 0 would say that there is no process */
    assert_int_equal(machine.process.baseline_bytes, 1);
    machine.process.baseline_bytes = 0; /* not measured: the plan assumes one */
    ms_hardware_shrink_by(&machine, 30);
    assert_int_equal(machine.process.baseline_bytes, 0);
    ms_hardware_grow_by(&machine, 100, 130);
    assert_int_equal(machine.process.baseline_bytes, 0);
    machine.process.baseline_bytes = 80;
    machine.gpu_count = 1;
    machine.device = 0;
    ms_hardware_grow_by(&machine, 100, 130);
    assert_int_equal(machine.process.baseline_bytes, 80);
    machine.gpu_count = 0;
    machine.device = -1;
}

/* By what is allocated since, if it was expected: the rest is the step's own. */
static void a_gpus_baseline_grows_by_what_was_expected(void **state)
{
    (void)state;
    ms_error err;
    machine.gpu_count = 1;
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 12345, &err), err);
    assert_ms_ok(ms_hardware_grow_process(&machine, 12000, 7, &err), err);
    assert_int_equal(machine.process.baseline_bytes, 12345);
    assert_ms_ok(ms_hardware_grow_process(&machine, 12350, 7, &err), err);
    assert_int_equal(machine.process.baseline_bytes, 12350);
    assert_ms_ok(ms_hardware_grow_process(&machine, 20000, 7, &err), err);
    assert_int_equal(machine.process.baseline_bytes, 12357);
    machine.gpu_count = 0;
    machine.device = -1;
}

static void a_large_card_needs_larger_workspaces(void **state)
{
    (void)state;
    ms_error err;
    machine.gpu_count = 1;
    machine.gpu[0] = (ms_gpu){.compute_major = 8};
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 1, &err), err);
    uint64_t small = machine.process.scratch_bytes;
    machine.gpu[0].compute_major = 9;
    assert_ms_ok(ms_hardware_set_process(&machine, 0, 1, &err), err);
    assert_int_equal(machine.process.scratch_bytes - small, 2 * ((32 << 20) - 8519680));
    assert_int_equal(machine.process.reserve_bytes, machine.process.scratch_bytes);
    machine.gpu_count = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_changes_keep_the_baseline),
        cmocka_unit_test(large_changes_are_measured),
        cmocka_unit_test(a_gpu_s_baseline_is_what_was_allocated),
        cmocka_unit_test(scratch_grows_with_the_step_until_it_is_measured),
        cmocka_unit_test(a_gpu_s_step_with_convolutions_has_more_reserve_until_it_is_measured),
        cmocka_unit_test(a_larger_step_than_the_measured_one_takes_more),
        cmocka_unit_test(what_a_trace_leaves_is_measured),
        cmocka_unit_test(scratch_is_larger_for_storages_in_libcs_heap),
        cmocka_unit_test(fragments_are_filled_by_later_storages),
        cmocka_unit_test(scratch_is_larger_with_convolutions),
        cmocka_unit_test(scratch_is_larger_with_16_bit_products),
        cmocka_unit_test(buffers_that_libc_keeps_are_expected),
        cmocka_unit_test(a_gpu_may_be_known_to_the_framework_alone),
        cmocka_unit_test(a_baseline_grows_and_never_shrinks),
        cmocka_unit_test(a_baseline_takes_in_what_compiled_code_holds),
        cmocka_unit_test(a_gpus_baseline_grows_by_what_was_expected),
        cmocka_unit_test(a_large_card_needs_larger_workspaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
