/* Priorities, caps and deadlines. */
#include "offload_calls.h"
#include "offload_hold.h"

/* Acts as the lanes: takes every queued piece in order and ends it without moving any byte. */
static size_t drain(ms_offload *engine, ms_ticket *order, size_t max)
{
    size_t count = 0;
    ms__ticket *ticket = NULL;
    uint32_t piece = 0;
    const ms__failure none = {0};
    ms__mutex_lock(&engine->lock);
    engine->is_paused = false;
    while (count < max && ms__transfer_take(engine, false, &ticket, &piece)) {
        order[count++] = ticket->id;
        ms__transfer_piece_ended(engine, ticket, piece, &none);
    }
    engine->is_paused = true;
    ms__mutex_unlock(&engine->lock);
    return count;
}

static void urgent_fetches_go_first_then_fetches_then_stores(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    options.timeout_ns = 1000 * 1000;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(8 * MIB);
    ms_ticket ready = store(engine, memory, 64 * KIB, MIB);
    ms_ticket urgent = store(engine, memory + MIB, 128 * KIB, MIB);
    while (ms_offload_quiesce(engine, &err) != MS_OK) {
    }
    hold_lanes(engine);
    ms_ticket first = store(engine, memory + 2 * MIB, 128 * KIB, MIB);
    ms_ticket second = store(engine, memory + 3 * MIB, 64 * KIB, MIB);
    ms_ticket third = store(engine, memory + 4 * MIB, 64 * KIB, MIB);
    assert_ms_ok(ms_offload_fetch(engine, ready, memory, MIB, &err), err);
    assert_ms_ok(ms_offload_fetch(engine, urgent, memory + MIB, MIB, &err), err);
    assert_ms_fails(ms_offload_wait(engine, third, &err), MS_ETIMEDOUT, err, "within");
    assert_ms_fails(ms_offload_wait(engine, urgent, &err), MS_ETIMEDOUT, err, "within");
    ms_ticket order[16] = {0};
    assert_int_equal(drain(engine, order, 16), 7);
    const ms_ticket expected[] = {urgent, urgent, third, ready, first, first, second};
    assert_memory_equal(order, expected, sizeof expected);
    release_lanes(engine);
    ms_offload_close(engine);
    pages_free(memory, 8 * MIB);
}

static void a_waited_fetch_overtakes_the_rest_of_a_store_that_has_begun(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(2 * MIB);
    ms_ticket stored = store(engine, memory, 64 * KIB, MIB);
    wait_ok(engine, stored);
    hold_lanes(engine);
    ms_ticket large = store(engine, memory + MIB, 256 * KIB, MIB);
    ms_ticket order[8] = {0};
    assert_int_equal(drain(engine, order, 1), 1);
    assert_int_equal(order[0], large);
    assert_ms_ok(ms_offload_fetch(engine, stored, memory, MIB, &err), err);
    assert_int_equal(drain(engine, order, 8), 4);
    assert_int_equal(order[0], stored);
    assert_int_equal(order[1], large);
    release_lanes(engine);
    ms_offload_close(engine);
    pages_free(memory, 2 * MIB);
}

static void stores_are_reaped_once_in_the_order_of_their_end(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    options.worker_count = 1;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    ms_ticket tickets[6];
    ms_ticket ended[6];
    assert_int_equal(ms_offload_reap(engine, ended, 6), 0);
    for (int i = 0; i < 6; i++) {
        tickets[i] = store(engine, memory, MIB, MIB);
    }
    assert_ms_ok(ms_offload_quiesce(engine, &err), err);
    ms_offload_drop(engine, tickets[1]);
    assert_int_equal(ms_offload_reap(engine, ended, 2), 2);
    assert_int_equal(ended[0], tickets[0]);
    assert_int_equal(ended[1], tickets[2]);
    assert_int_equal(ms_offload_reap(engine, ended, 6), 3);
    assert_int_equal(ended[0], tickets[3]);
    assert_int_equal(ended[2], tickets[5]);
    assert_int_equal(engine->ended_count, 0); /* the next call costs one load */
    assert_int_equal(ms_offload_reap(engine, ended, 6), 0);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void the_cap_holds_before_anything_is_written(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket third = 0;
    ms_offload_options options = small_options();
    options.cap_bytes = 2 * MIB + 100;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    ms_ticket first = store(engine, memory, MIB, MIB);
    ms_ticket second = store(engine, memory, MIB - 5, MIB);
    wait_ok(engine, first);
    wait_ok(engine, second);
    assert_ms_fails(ms_offload_store(engine, memory, 4096, MIB, &third, &err), MS_ENOSPC, err, "cap of 2.10 MB");
    assert_int_equal(third, 0);
    if (!tested->compresses) {
        assert_int_equal(stats_of(engine).written_bytes, 2 * MIB);
    }
    assert_int_equal(stats_of(engine).tier_bytes, 2 * MIB);
    ms_offload_drop(engine, first);
    ms_offload_drop(engine, store(engine, memory, MIB, MIB));
    assert_int_equal(stats_of(engine).peak_tier_bytes, 2 * MIB);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void waits_end_in_time(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ticket = 0;
    ms_offload_options options = small_options();
    options.timeout_ns = 20 * 1000 * 1000;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(2 * MIB);
    hold_lanes(engine);
    ms_ticket direct = store(engine, memory, MIB, MIB);
    uint64_t start_ns = ms_now_ns();
    assert_ms_fails(ms_offload_wait(engine, direct, &err), MS_ETIMEDOUT, err, "did not end within 20.00 ms");
    assert_ms_fails(ms_offload_quiesce(engine, &err), MS_ETIMEDOUT, err, "1 transfers");
    if (!tested->from_device) { /* a device's memory needs no slot */
        assert_ms_fails(ms_offload_store(engine, memory + 8, MIB, MIB, &ticket, &err), MS_ETIMEDOUT, err, "slot");
    }
    assert_true(ms_now_ns() - start_ns >= (tested->from_device ? 40 : 60) * 1000 * 1000);
    assert_int_equal(ticket, 0);
    assert_int_equal(stats_of(engine).live_tickets, 1); /* the store that failed left nothing */
    assert_int_equal(engine->slots.free_count, engine->slots.count - engine->slots.private_count);
    release_lanes(engine);
    while (ms_offload_wait(engine, direct, &err) == MS_ETIMEDOUT) {
    }
    ms_offload_close(engine);
    pages_free(memory, 2 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(urgent_fetches_go_first_then_fetches_then_stores),
        OFFLOAD_TEST(a_waited_fetch_overtakes_the_rest_of_a_store_that_has_begun),
        OFFLOAD_TEST(stores_are_reaped_once_in_the_order_of_their_end),
        OFFLOAD_TEST(the_cap_holds_before_anything_is_written),
        OFFLOAD_TEST(waits_end_in_time),
    };
    return run_on_every_backend("order", tests, sizeof tests / sizeof tests[0]);
}
