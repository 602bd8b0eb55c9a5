/* Every kind of device has every column. Other rooms don't test for kinds, so they would not notice a missing one. */
#include <string.h>

#include "device/device.h"
#include "memscale/hardware.h"
#include "test_common.h"

static ms_error err;

static void assert_text(const ms__device_kind *kind, const char *text, const char *column)
{
    if (text == NULL || text[0] == '\0') {
        fail_msg("the row of %s has no %s", kind->name, column);
    }
}

static void every_row_has_its_texts_and_functions(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        const ms__device_kind *kind = ms__device_kinds[i];
        assert_non_null(kind);
        assert_non_null(kind->name);
        assert_text(kind, kind->name, "name");
        assert_text(kind, kind->label, "label");
        assert_text(kind, kind->api, "api");
        assert_text(kind, kind->no_driver, "no_driver");
        assert_text(kind, kind->no_device, "no_device");
        assert_text(kind, kind->no_device_advice, "no_device_advice");
        assert_text(kind, kind->torch_module, "torch_module");
        assert_true(kind->rounded != NULL && kind->probe != NULL && kind->has_driver != NULL);
        assert_true(kind->usable != NULL && kind->means != NULL);
        assert_true(kind->runtime_bytes > 0);
        assert_true(kind->conflicts != NULL && kind->conflict_count > 0);
        for (uint32_t k = 0; k < kind->conflict_count; k++) {
            assert_text(kind, kind->conflicts[k].variable, "conflict's variable");
            assert_text(kind, kind->conflicts[k].why, "conflict's reason");
            assert_non_null(kind->conflicts[k].part);
        }
    }
}

/* A driver's table holds only functions. The test scans it as an array, so it checks new columns too. */
static void a_driver_has_every_function_and_the_host_has_none(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        const ms__device_kind *kind = ms__device_kinds[i];
        assert_true(kind->host_is_device == (kind->driver == NULL));
        assert_non_null(kind->torch_raw_stream);
        assert_true(kind->host_is_device == (kind->torch_raw_stream[0] == '\0'));
        for (size_t at = 0; kind->driver != NULL && at < sizeof *kind->driver; at += sizeof(void (*)(void))) {
            void (*function)(void);
            memcpy(&function, (const char *)kind->driver + at, sizeof function);
            if (function == NULL) {
                fail_msg("the driver of %s lacks function %zu", kind->name, at / sizeof function);
            }
        }
    }
}

static void every_kind_has_one_row(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < MS_DEVICE_KIND_COUNT; id++) {
        const ms__device_kind *kind = ms__device_kind_of((ms_device_kind)id);
        ms_device_kind named = MS_DEVICE_KIND_COUNT;
        assert_int_equal(kind->id, id);
        assert_ms_ok(ms_device_kind_named(kind->name, &named, &err), err);
        assert_int_equal(named, id);
        assert_string_equal(ms_device_kind_name((ms_device_kind)id), kind->name);
    }
    assert_string_equal(ms_device_kind_name(MS_DEVICE_KIND_COUNT), "unknown");
    assert_true(ms_device_host_is_device(MS_DEVICE_KIND_COUNT));
    assert_true(ms__device_kinds[0]->host_is_device); /* texts list the host first */
}

static void an_unknown_kind_is_refused_by_its_name(void **state)
{
    (void)state;
    ms_device_kind kind = MS_DEVICE_CPU;
    assert_ms_fails(ms_device_kind_named("xpu", &kind, &err), MS_ENOTSUP, err,
                    "memscale trains on cpu and cuda, not on devices of kind \"xpu\"");
    assert_int_equal(ms_device_kind_named("", &kind, NULL), MS_ENOTSUP);
    assert_int_equal(kind, MS_DEVICE_CPU);
}

static void blocks_are_rounded_as_the_allocators_do(void **state)
{
    (void)state;
    const ms__device_kind *cpu = ms__device_kind_of(MS_DEVICE_CPU), *cuda = ms__device_kind_of(MS_DEVICE_CUDA);
    assert_int_equal(cpu->rounded(1000), 1000); /* from libc, so not rounded */
    assert_int_equal(cpu->rounded(MS__MAP_MIN_BYTES + 1), MS__MAP_MIN_BYTES + MS__PAGE_BYTES);
    assert_int_equal(cuda->rounded(0), 0);
    assert_int_equal(cuda->rounded(1), 512);
    assert_int_equal(cuda->rounded(MS__MAP_MIN_BYTES + 1), MS__MAP_MIN_BYTES + 512);
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        for (uint64_t bytes = 1; bytes < UINT64_C(1) << 40; bytes = 3 * bytes + 1) {
            assert_true(ms__device_kinds[i]->rounded(bytes) >= bytes);
        }
    }
}

static void workspaces_grow_with_the_generation_of_the_card(void **state)
{
    (void)state;
    const ms__device_kind *cuda = ms__device_kind_of(MS_DEVICE_CUDA);
    assert_int_equal(cuda->more_scratch(NULL), 0);
    assert_int_equal(cuda->more_scratch(&(ms_gpu){.compute_major = 8, .compute_minor = 6}), 0);
    uint64_t hopper = cuda->more_scratch(&(ms_gpu){.compute_major = 9});
    uint64_t gfx942 = cuda->more_scratch(&(ms_gpu){.compute_major = 9, .compute_minor = 4});
    assert_true(hopper > 0);
    assert_int_equal(gfx942 - hopper, 2 * (UINT64_C(96) << 20)); /* 128 MiB in place of 32, for two threads */
}

static void scratch_is_a_part_of_a_part(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MS_DEVICE_KIND_COUNT; i++) {
        const ms__device_scratch *scratch = &ms__device_kinds[i]->scratch;
        assert_true(scratch->expected_bytes <= scratch->prior_bytes);
        assert_true(scratch->without_products_bytes <= scratch->expected_bytes);
    }
}

static void a_description_knows_the_kind_of_its_device(void **state)
{
    (void)state;
    static ms_hardware machine;
    machine.device = -1;
    assert_int_equal(ms_hardware_device_kind(&machine), MS_DEVICE_CPU);
    assert_true(ms_hardware_host_is_device(&machine));
    assert_null(ms_hardware_gpu(&machine));
    machine.device = 1;
    machine.gpu_count = 2;
    assert_int_equal(ms_hardware_device_kind(&machine), MS_DEVICE_CUDA);
    assert_false(ms_hardware_host_is_device(&machine));
    assert_ptr_equal(ms_hardware_gpu(&machine), &machine.gpu[1]);
    machine.gpu_count = 1; /* the second GPU has no description now */
    assert_false(ms_hardware_host_is_device(&machine));
    assert_null(ms_hardware_gpu(&machine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_its_texts_and_functions),
        cmocka_unit_test(a_driver_has_every_function_and_the_host_has_none),
        cmocka_unit_test(every_kind_has_one_row),
        cmocka_unit_test(an_unknown_kind_is_refused_by_its_name),
        cmocka_unit_test(blocks_are_rounded_as_the_allocators_do),
        cmocka_unit_test(workspaces_grow_with_the_generation_of_the_card),
        cmocka_unit_test(scratch_is_a_part_of_a_part),
        cmocka_unit_test(a_description_knows_the_kind_of_its_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
