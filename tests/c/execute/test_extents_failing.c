/*
 * Storages on the lower tier if it is full, fails or hangs, and transfers that are not wanted any more.
 */
#include <errno.h>

#include "execute/execute_internal.h"
#include "extents_fixture.h"
#include "offload/offload_hold.h"
#include "test_common.h"

static void a_full_tier_keeps_tensors_until_the_next_step(void **state)
{
    fixture *f = *state;
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    tier.cap_bytes = BYTES;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
    storage *one = storage_new(&f->host, BYTES, 1), *two = storage_new(&f->host, BYTES, 2);
    ms_extent *extent = store(f, one, 0);
    assert_non_null(extent);
    assert_null(store(f, two, 0));
    assert_null(store(f, two, 0));
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 2);
    assert_int_equal(ms_execute_peek(f->execute, 1, 0), MS_TECHNIQUE_OFFLOAD_DISK);
    ms_extent_drop(f->execute, extent, 0);
    ms_execute_leave(f->execute, 1);
    uint64_t step, step_ns;
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    open_frame(f);
    extent = store(f, two, 0);
    assert_non_null(extent);
    ms_extent_drop(f->execute, extent, 0);
    storage_let_go(&f->host, one);
    storage_let_go(&f->host, two);
}

static void no_memory_to_fetch_into_is_an_error_and_can_be_tried_again(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 9);
    ms_extent *extent = store(f, item, 0);
    storage_let_go(&f->host, item);
    settle(f);
    void *memory;
    f->host.refuse = true;
    assert_ms_fails(ms_extent_take(f->execute, extent, &memory, &f->err), MS_ENOMEM, f->err, "no memory");
    f->host.refuse = false;
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 9));
    ms_extent_drop(f->execute, extent, mark);
}

static void running_out_of_memory_keeps_the_tensor(void **state)
{
    fixture *f = *state;
    for (uint64_t nth = 1; nth < 8; nth++) {
        storage *item = storage_new(&f->host, BYTES, 1);
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        ms_extent *extent = store(f, item, 0);
        ms_fault_disarm_all();
        if (extent != NULL) {
            ms_extent_drop(f->execute, extent, 0);
        }
        storage_let_go(&f->host, item);
        uint64_t step, step_ns;
        ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    }
}

/* Opening and closing a tier may take long: the host's other threads run meanwhile. */
static void a_tier_is_opened_once_and_without_the_hosts_lock(void **state)
{
    fixture *f = *state;
    ms_execute_host table;
    ms_execute *execute;
    ms_offload_options tier = memory_tier();
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, NULL, &execute, &f->err), f->err);
    uint64_t unlocks = f->host.unlocks;
    assert_ms_ok(ms_execute_open_tier(execute, &tier, &f->err), f->err);
    assert_int_equal(f->host.unlocks, unlocks + 1);
    assert_int_equal(f->host.locks, f->host.unlocks);
    assert_ms_fails(ms_execute_open_tier(execute, &tier, &f->err), MS_ESTATE, f->err, "already");
    ms_execute_close(execute);
    assert_int_equal(f->host.locks, f->host.unlocks);
}

static void the_first_tier_follows_the_caps(void **state)
{
    (void)state;
    ms_offload_options cpu = {0}, gpu = {.from_device = true};
    assert_false(ms_execute_first_tier(0, 0, &cpu));
    assert_true(ms_execute_first_tier(5, 7, &cpu));
    assert_true(cpu.tier == MS_TIER_DISK && cpu.cap_bytes == 7 && cpu.disk_cap_bytes == 0);
    assert_true(ms_execute_first_tier(5, 0, &cpu));
    assert_true(cpu.tier == MS_TIER_HOST && cpu.cap_bytes == 5);
    assert_false(ms_execute_first_tier(0, 0, &gpu));
    assert_true(ms_execute_first_tier(5, 7, &gpu));
    assert_true(gpu.tier == MS_TIER_HOST && gpu.cap_bytes == 5 && gpu.disk_cap_bytes == 7);
    assert_true(ms_execute_first_tier(0, 7, &gpu));
    assert_true(gpu.tier == MS_TIER_DISK && gpu.cap_bytes == 7 && gpu.disk_cap_bytes == 7);
}

/* On a file: the behaviour of a failing device. */
static void reopen_on_disk(fixture *f, const char *dir)
{
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = {.tier = MS_TIER_DISK, .dir = dir, .cap_bytes = UINT64_MAX};
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
}

static void a_write_that_fails_leaves_the_bytes_in_memory(void **state)
{
    fixture *f = *state;
    reopen_on_disk(f, "/var/tmp");
    storage *item = storage_new(&f->host, BYTES, 11);
    ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
    ms_extent *extent = store(f, item, 0);
    assert_non_null(extent);
    settle(f);
    ms_fault_disarm_all();
    storage_let_go(&f->host, item);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 1);
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 11));
    assert_int_equal(f->host.obtained, 0);
    storage *next = storage_new(&f->host, BYTES, 12);
    assert_null(store(f, next, 0)); /* the tier is not used any more */
    storage_let_go(&f->host, next);
    ms_extent_drop(f->execute, extent, mark);
}

static void a_read_that_fails_is_an_error_and_hands_nothing_out(void **state)
{
    static const struct {
        ms_fault fault;
        int code;
    } cases[] = {{MS_FAULT_READ, MS_EIO}, {MS_FAULT_FLIP, MS_ECHECKSUM}};
    fixture *f = *state;
    reopen_on_disk(f, "/var/tmp");
    for (size_t i = 0; i < 2; i++) {
        storage *item = storage_new(&f->host, BYTES, 13);
        ms_extent *extent = store(f, item, 0);
        storage_let_go(&f->host, item);
        settle(f);
        ms_fault_arm(cases[i].fault, 1, EIO);
        void *memory;
        assert_int_equal(ms_extent_take(f->execute, extent, &memory, &f->err), cases[i].code);
        ms_fault_disarm_all();
        assert_int_equal(f->host.live_storages, 0);
        ms_extent_drop(f->execute, extent, 0);
    }
}

/* Pauses or resumes the tier's lanes; while they are paused, every transfer stays in flight. */
static void hold(fixture *f, bool is_held)
{
    if (is_held) {
        hold_lanes(f->execute->tier);
    } else {
        release_lanes(f->execute->tier);
    }
}

static uint64_t written_bytes(fixture *f)
{
    ms_offload_stats stats;
    ms_offload_get_stats(f->execute->tier, &stats);
    return stats.written_bytes;
}

/* A tier that hangs can't keep its window; the bytes of its stores stay where they are until the stores have ended. */
static void a_tier_that_hangs_keeps_the_bytes_of_its_stores(void **state)
{
    fixture *f = *state;
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    tier.timeout_ns = 20000000;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 2 * BYTES, 0);
    open_frame(f);
    ms_extent *extents[3];
    ms_execute_stats stats;
    hold(f, true);
    store_apart(f, extents, 2);
    assert_int_equal(counter(f, MS_COUNTER_FORWARD_STALL_NS), 0); /* the window may be full */
    storage *item = storage_new(&f->host, BYTES, 2);
    extents[2] = store(f, item, 0);
    storage_let_go(&f->host, item);
    assert_true(counter(f, MS_COUNTER_FORWARD_STALL_NS) >= 20000000);
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.storing_bytes, 3 * BYTES);
    assert_int_equal(f->host.live_storages, 3);
    hold(f, false);
    settle(f);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t mark = 0;
        assert_true(take(f, extents[i], &mark, i));
        ms_extent_drop(f->execute, extents[i], mark);
    }
}

/* The end of a step waits for transfers without handles only. */
static void a_step_ends_while_stores_with_handles_run(void **state)
{
    fixture *f = *state;
    uint64_t step, step_ns;
    ms_extent *extents[2];
    hold(f, true);
    store_apart(f, extents, 2);
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    assert_int_equal(counter(f, MS_COUNTER_BACKWARD_STALL_NS), 0);
    assert_int_equal(f->host.live_storages, 2);
    hold(f, false);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t mark = 0;
        assert_true(take(f, extents[i], &mark, i));
        ms_extent_drop(f->execute, extents[i], mark);
    }
}

/* An exception in forward frees the graph, and with it every handle. */
static void a_store_without_handles_is_cancelled(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 3);
    hold(f, true);
    ms_extent *extent = store(f, item, 0);
    ms_extent_drop(f->execute, extent, 0);
    ms_execute_poll(f->execute);
    assert_int_equal(f->host.live_memories, 0); /* without waiting for a transfer */
    /* The same storage may be saved again immediately. */
    assert_null(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 0));
    ms_extent *again = store(f, item, 0);
    storage_let_go(&f->host, item);
    hold(f, false);
    settle(f);
    uint64_t mark = 0;
    assert_true(take(f, again, &mark, 3));
    assert_int_equal(written_bytes(f), BYTES);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
    ms_extent_drop(f->execute, again, mark);
}

/* An exception in backward releases the extents that were fetched ahead. */
static void a_fetch_without_handles_is_cancelled(void **state)
{
    fixture *f = *state;
    ms_extent *extents[2];
    set_windows(f, 1 << 20, 1 << 20);
    for (unsigned i = 0; i < 2; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
    }
    settle(f);
    uint64_t mark = 0;
    assert_true(take(f, extents[1], &mark, 1));
    ms_extent_drop(f->execute, extents[1], mark);
    ms_extent_drop(f->execute, extents[0], 0); /* fetching or fetched */
    uint64_t step, step_ns;
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        TEST(a_full_tier_keeps_tensors_until_the_next_step),
        TEST(no_memory_to_fetch_into_is_an_error_and_can_be_tried_again),
        TEST(running_out_of_memory_keeps_the_tensor),
        TEST(a_tier_is_opened_once_and_without_the_hosts_lock),
        TEST(the_first_tier_follows_the_caps),
        TEST(a_write_that_fails_leaves_the_bytes_in_memory),
        TEST(a_read_that_fails_is_an_error_and_hands_nothing_out),
        TEST(a_tier_that_hangs_keeps_the_bytes_of_its_stores),
        TEST(a_step_ends_while_stores_with_handles_run),
        TEST(a_store_without_handles_is_cancelled),
        TEST(a_fetch_without_handles_is_cancelled),
    };
    return cmocka_run_group_tests_name("execute: extents, failing", tests, NULL, NULL);
}
