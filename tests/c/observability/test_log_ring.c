/*
 * The log ring keeps order, drops the oldest line if full and counts lost lines, also with several writers
 * and out of memory.
 */
#include "test_common.h"

#include "base/thread.h"
#include "memscale/observability.h"

static ms_log_ring *ring_of(size_t capacity)
{
    ms_log_ring *ring = NULL;
    assert_int_equal(ms_log_ring_new(capacity, &ring, NULL), MS_OK);
    return ring;
}

static void assert_next(ms_log_ring *ring, ms_log_level level, const char *text)
{
    ms_log_level found = MS_LOG_DEBUG;
    char *line = ms_log_ring_take(ring, &found);
    assert_non_null(line);
    assert_string_equal(line, text);
    assert_int_equal(found, level);
    ms_free(line);
}

static void lines_come_out_in_order(void **state)
{
    (void)state;
    ms_log_ring *ring = ring_of(0);
    ms_log_ring_write(ring, MS_LOG_INFO, "first");
    ms_log_ring_write(ring, MS_LOG_ERROR, "second");
    assert_next(ring, MS_LOG_INFO, "first");
    assert_next(ring, MS_LOG_ERROR, "second");
    ms_log_level level;
    assert_null(ms_log_ring_take(ring, &level));
    ms_log_ring_free(ring);
}

static void a_full_ring_drops_the_oldest_and_counts_it(void **state)
{
    (void)state;
    ms_log_ring *ring = ring_of(2);
    ms_log_ring_write(ring, MS_LOG_INFO, "a");
    ms_log_ring_write(ring, MS_LOG_INFO, "b");
    ms_log_ring_write(ring, MS_LOG_INFO, "c");
    assert_int_equal(ms_log_ring_lost(ring), 1);
    assert_next(ring, MS_LOG_INFO, "b");
    assert_next(ring, MS_LOG_INFO, "c");
    ms_log_ring_free(ring);
}

static void a_line_without_memory_is_counted_as_lost(void **state)
{
    (void)state;
    ms_log_ring *ring = ring_of(2);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    ms_log_ring_write(ring, MS_LOG_INFO, "a");
    ms_fault_disarm_all();
    assert_int_equal(ms_log_ring_lost(ring), 1);
    ms_log_ring_free(ring);
}

enum { WRITERS = 4, LINES = 500 };

static void write_lines(void *ring)
{
    for (int i = 0; i < LINES; i++) {
        ms_log_ring_write(ring, MS_LOG_INFO, "line");
    }
}

static void lost_lines_are_counted_with_many_writers(void **state)
{
    (void)state;
    ms_log_ring *ring = ring_of(64);
    ms__thread threads[WRITERS] = {0};
    for (int i = 0; i < WRITERS; i++) {
        assert_int_equal(ms__thread_start(&threads[i], "writer", write_lines, ring, NULL), MS_OK);
    }
    for (int i = 0; i < WRITERS; i++) {
        ms__thread_join(&threads[i]);
    }
    uint64_t taken = 0;
    ms_log_level level;
    for (char *line; (line = ms_log_ring_take(ring, &level)) != NULL; taken++) {
        ms_free(line);
    }
    assert_int_equal(taken + ms_log_ring_lost(ring), WRITERS * LINES);
    ms_log_ring_free(ring);
}

static void any_allocation_of_a_ring_may_fail(void **state)
{
    (void)state;
    uint64_t blocks = ms_memory_live_blocks();
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_log_ring *ring = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        assert_int_equal(ms_log_ring_new(8, &ring, NULL), MS_ENOMEM);
        ms_fault_disarm_all();
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_out_in_order),
        cmocka_unit_test(a_full_ring_drops_the_oldest_and_counts_it),
        cmocka_unit_test(a_line_without_memory_is_counted_as_lost),
        cmocka_unit_test(lost_lines_are_counted_with_many_writers),
        cmocka_unit_test(any_allocation_of_a_ring_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
