/*
 * A history covers a run of any length from its first step on, in bounded memory, and loses no peak and no sum.
 * Counters have names with base units.
 */
#include "memscale/observability.h"
#include "test_common.h"

static ms_step_record record_of(uint64_t step)
{
    return (ms_step_record){.first_step = step,
                            .last_step = step,
                            .step_ns = 1000000 * step,
                            .peak_bytes = step == 77 ? 1000000 : step,
                            .resident_bytes = UINT64_MAX,
                            .tier_bytes = step % 2 == 0 ? UINT64_MAX : 5};
}

static void a_long_run_stays_bounded_and_whole(void **state)
{
    (void)state;
    enum { STEPS = 1000, ROOM = 15 };
    ms_error err;
    ms_history *history = NULL;
    assert_ms_ok(ms_history_new(ROOM, &history, &err), err);
    for (uint64_t step = 1; step <= STEPS; step++) {
        ms_step_record record = record_of(step);
        ms_history_add(history, &record);
    }
    uint64_t next = 1, sum_ns = 0, peak = 0;
    ms_step_record record;
    assert_true(ms_history_count(history) <= ROOM + 1);
    for (size_t i = 0; ms_history_get(history, i, &record); i++) {
        assert_int_equal(record.first_step, next);
        next = record.last_step + 1;
        sum_ns += record.step_ns;
        peak = record.peak_bytes > peak ? record.peak_bytes : peak;
        assert_int_equal(record.resident_bytes, UINT64_MAX);
        assert_true(record.tier_bytes == 5 || record.first_step == record.last_step);
    }
    assert_int_equal(next, STEPS + 1);
    assert_int_equal(peak, 1000000);
    assert_int_equal(sum_ns, 1000000ull * STEPS * (STEPS + 1) / 2);
    ms_histogram times = ms_history_step_times(history);
    uint64_t counted = 0;
    for (size_t i = 0; i <= MS_HISTOGRAM_BOUNDS; i++) {
        counted += times.count[i];
    }
    assert_int_equal(counted, STEPS);
    assert_int_equal(times.sum_ns, sum_ns);
    assert_int_equal(times.count[0], 10); /* at most 10 ms */
    ms_history_free(history);
}

static void a_history_needs_memory(void **state)
{
    (void)state;
    ms_error err;
    ms_history *history = NULL;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_ms_fails(ms_history_new(4, &history, &err), MS_ENOMEM, err, "history");
    ms_fault_disarm_all();
    assert_ms_fails(ms_history_new(SIZE_MAX - 1, &history, &err), MS_ENOMEM, err, "history");
    ms_history_free(NULL);
}

static void counters_are_named_in_base_units(void **state)
{
    (void)state;
    ms_metric stall = ms_counter_metric(MS_COUNTER_FORWARD_STALL_NS);
    assert_string_equal(stall.name, "memscale_forward_stall_seconds");
    assert_int_equal(stall.per_unit, 1000000000);
    ms_metric bytes = ms_counter_metric(MS_COUNTER_OFFLOADED_BYTES);
    assert_string_equal(bytes.name, "memscale_offloaded_bytes");
    assert_int_equal(bytes.per_unit, 1);
    for (int id = 0; id < MS_COUNTER_COUNT; id++) {
        assert_null(strstr(ms_counter_metric((ms_counter)id).name, "_ns"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_run_stays_bounded_and_whole),
        cmocka_unit_test(a_history_needs_memory),
        cmocka_unit_test(counters_are_named_in_base_units),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
