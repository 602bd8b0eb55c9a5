/*
 * The baseline follows what the kernel says, with a double of the kernel: the linker puts it in place of
 * ms__resident_read(). test_process.c has the real one.
 */
#include "base/os/procfs.h"
#include "memscale/hardware.h"
#include "test_common.h"

#define MB ((uint64_t)1000000)

static uint64_t resident_bytes;

int __wrap_ms__resident_read(ms__resident *out, ms_error *err);

int __wrap_ms__resident_read(ms__resident *out, ms_error *err)
{
    *out = (ms__resident){.now_bytes = resident_bytes, .peak_bytes = resident_bytes};
    return resident_bytes > 0 ? MS_OK : ms_fail(err, MS_ESYSTEM, "no /proc");
}

static uint64_t baseline_at(ms_hardware *hardware, uint64_t now_bytes)
{
    ms_error err;
    resident_bytes = now_bytes;
    assert_ms_ok(ms_hardware_set_process(hardware, -1, 0, &err), err);
    return hardware->process.baseline_bytes;
}

static void a_baseline_stays_while_it_differs_by_at_most_20_mb(void **state)
{
    (void)state;
    static ms_hardware hardware;
    assert_int_equal(baseline_at(&hardware, 300 * MB), 300 * MB);
    assert_int_equal(baseline_at(&hardware, 320 * MB), 300 * MB);
    assert_int_equal(baseline_at(&hardware, 280 * MB), 300 * MB);
    assert_int_equal(baseline_at(&hardware, 279 * MB), 279 * MB);
    assert_int_equal(baseline_at(&hardware, 259 * MB), 279 * MB);
    assert_int_equal(baseline_at(&hardware, 300 * MB), 300 * MB);
    assert_int_equal(baseline_at(&hardware, 400 * MB), 400 * MB);
}

static void an_unreadable_process_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    static ms_hardware hardware = {.device = 7};
    ms_error err;
    resident_bytes = 0;
    assert_ms_fails(ms_hardware_set_process(&hardware, -1, 0, &err), MS_ESYSTEM, err, "/proc");
    assert_int_equal(hardware.device, 7);
    assert_int_equal(hardware.process.baseline_bytes, 0);
}

/* What the first trace loads stays loaded; a reading within 4 MB of it is the same. */
static void a_trace_adds_what_it_loaded(void **state)
{
    (void)state;
    static ms_hardware hardware;
    ms_error err;
    (void)baseline_at(&hardware, 500 * MB);
    uint64_t expected_bytes = hardware.process.scratch_bytes;
    resident_bytes = 530 * MB;
    assert_ms_ok(ms_hardware_traced(&hardware, 10 * MB, &err), err); /* tensors are not code */
    assert_int_equal(hardware.process.baseline_bytes, 520 * MB);
    assert_in_range(hardware.process.traced_bytes, 1, 20 * MB);
    assert_int_equal(hardware.process.scratch_bytes, expected_bytes);
    (void)baseline_at(&hardware, 500 * MB);
    resident_bytes = 533 * MB;
    assert_ms_ok(ms_hardware_traced(&hardware, 10 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, 520 * MB);
}

static void a_baseline_grows_by_code_and_shrinks_by_what_is_gone(void **state)
{
    (void)state;
    static ms_hardware hardware;
    ms_error err;
    (void)baseline_at(&hardware, 700 * MB);
    resident_bytes = 760 * MB;
    assert_ms_ok(ms_hardware_grow_process(&hardware, 20 * MB, 5 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, (740 + 5 + 8) * MB);
    resident_bytes = 600 * MB; /* never lowered */
    assert_ms_ok(ms_hardware_grow_process(&hardware, 20 * MB, 0, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, (753 + 8) * MB);
    ms_hardware_grow_by(&hardware, 100 * MB, 130 * MB);
    assert_int_equal(hardware.process.baseline_bytes, 791 * MB);
    ms_hardware_grow_by(&hardware, 130 * MB, 100 * MB);
    assert_int_equal(hardware.process.baseline_bytes, 791 * MB);
    ms_hardware_shrink_by(&hardware, 91 * MB);
    assert_int_equal(hardware.process.baseline_bytes, 700 * MB);
    resident_bytes = 650 * MB;
    assert_ms_ok(ms_hardware_begins(&hardware, 20 * MB, 15 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, 645 * MB);
    resident_bytes = 900 * MB;
    assert_ms_ok(ms_hardware_begins(&hardware, 20 * MB, 15 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, 645 * MB);
    hardware.gpu_count = 1; /* on a GPU resident memory says nothing */
    assert_ms_ok(ms_hardware_set_process(&hardware, 0, 500 * MB, &err), err);
    resident_bytes = 100 * MB;
    assert_ms_ok(ms_hardware_begins(&hardware, 20 * MB, 15 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, 500 * MB);
    assert_ms_ok(ms_hardware_traced(&hardware, 20 * MB, &err), err);
    assert_int_equal(hardware.process.baseline_bytes, 500 * MB);
    resident_bytes = 900 * MB;
    uint64_t beside_bytes;
    assert_ms_ok(ms_process_beside_tensors(200 * MB, &beside_bytes, &err), err);
    assert_int_equal(beside_bytes, 700 * MB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_baseline_stays_while_it_differs_by_at_most_20_mb),
        cmocka_unit_test(an_unreadable_process_is_an_error_and_changes_nothing),
        cmocka_unit_test(a_trace_adds_what_it_loaded),
        cmocka_unit_test(a_baseline_grows_by_code_and_shrinks_by_what_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
