/* One request stores or fetches small neighbouring extents that wait; each has its own result. */
#include "base/units.h"
#include "offload_calls.h"
#include "offload_hold.h"

#include <errno.h>

enum { COUNT = 6, STRIDE = 12 * 1024 };
#define BYTES (2 * 4096 - 5)
#define EXTENT (2 * 4096)

/* Some small storages in host memory that are not direct. */
typedef struct work {
    ms_offload *engine;
    unsigned char *source, *destination;
    ms_ticket tickets[COUNT];
} work;

static bool joins(void)
{
    return tested->tier == MS_TIER_DISK && !tested->from_device;
}

/* The number of requests for `count` waiting neighbours: one if the backend joins them. */
static uint64_t requests_for(uint64_t count)
{
    return joins() ? 1 : count;
}

static unsigned char *source_of(const work *w, int i)
{
    return w->source + i * STRIDE + 64;
}

static unsigned char *destination_of(const work *w, int i)
{
    return w->destination + i * STRIDE + 64;
}

/* One piece at a time, unless the test says otherwise, so that a second one has to wait. */
static void begin(work *w, uint32_t worker_count)
{
    ms_offload_options options = small_options();
    options.worker_count = worker_count;
    options.slab_bytes = (worker_count + COUNT + 3) * options.slot_bytes; /* room for all of them */
    memset(w, 0, sizeof *w);
    w->engine = open_engine(&options);
    w->source = pages_new(COUNT * STRIDE);
    w->destination = pages_new(COUNT * STRIDE);
    for (int i = 0; i < COUNT; i++) {
        pattern(source_of(w, i), BYTES, (uint64_t)i);
    }
}

static void end(work *w)
{
    assert_engine_works(w->engine);
    assert_int_equal(w->engine->slots.free_count, w->engine->slots.count - w->engine->slots.private_count);
    assert_int_equal(w->engine->waiting_count, 0);
    ms_offload_close(w->engine);
    pages_free(w->source, COUNT * STRIDE);
    pages_free(w->destination, COUNT * STRIDE);
}

static void store_one(work *w, int i)
{
    w->tickets[i] = store(w->engine, source_of(w, i), BYTES, BYTES);
}

static void fetch_one(work *w, int i)
{
    ms_error err = {0};
    fill(destination_of(w, i), 0, BYTES);
    assert_ms_ok(ms_offload_fetch(w->engine, w->tickets[i], destination_of(w, i), BYTES, &err), err);
}

static void rest(work *w)
{
    ms_error err = {0};
    release_lanes(w->engine);
    assert_ms_ok(ms_offload_quiesce(w->engine, &err), err);
}

/* Stores all while lanes are paused. */
static void hold_and_store(work *w)
{
    hold_lanes(w->engine);
    for (int i = 0; i < COUNT; i++) {
        store_one(w, i);
    }
}

static void hold_and_fetch(work *w, bool is_backward)
{
    hold_lanes(w->engine);
    for (int i = 0; i < COUNT; i++) {
        fetch_one(w, is_backward ? COUNT - 1 - i : i);
    }
}

/* Waits: a fetch to a device's memory is FETCHED as soon as its copies are queued. */
static bool is_delivered(const work *w, int i)
{
    return ms_offload_wait(w->engine, w->tickets[i], NULL) == MS_OK &&
           ms_offload_state(w->engine, w->tickets[i]) == MS_TICKET_FETCHED &&
           has_pattern(destination_of(w, i), BYTES, (uint64_t)i);
}

/* ---- one request -------------------------------------------------------------------- */

static void waiting_neighbours_share_a_request(void **state)
{
    (void)state;
    for (int is_backward = 0; is_backward < 2; is_backward++) {
        work w;
        begin(&w, 1);
        hold_and_store(&w);
        rest(&w);
        assert_int_equal(stats_of(w.engine).write_count, requests_for(COUNT));
        hold_and_fetch(&w, is_backward != 0);
        rest(&w);
        assert_int_equal(stats_of(w.engine).read_count, requests_for(COUNT));
        assert_int_equal(stats_of(w.engine).written_bytes, COUNT * EXTENT);
        assert_int_equal(stats_of(w.engine).read_bytes, COUNT * EXTENT);
        for (int i = 0; i < COUNT; i++) {
            assert_true(is_delivered(&w, i));
        }
        end(&w);
    }
}

static void a_store_alone_is_started_alone(void **state)
{
    (void)state;
    work w;
    begin(&w, 1);
    for (int i = 0; i < COUNT; i++) { /* each ends before its neighbour is stored */
        store_one(&w, i);
        while (ms_offload_state(w.engine, w.tickets[i]) == MS_TICKET_STORING) {
        }
        assert_int_equal(stats_of(w.engine).write_count, (uint64_t)i + 1);
    }
    end(&w);
}

static void each_place_of_a_lane_gets_a_request(void **state)
{
    (void)state;
    enum { PLACES = COUNT / 2 };
    for (int count = PLACES; count <= COUNT; count++) {
        work w;
        begin(&w, PLACES);
        hold_lanes(w.engine);
        for (int i = 0; i < count; i++) {
            store_one(&w, i);
        }
        rest(&w);
        assert_int_equal(stats_of(w.engine).write_count, joins() ? PLACES : count);
        end(&w);
    }
}

static void an_urgent_piece_is_moved_alone(void **state)
{
    (void)state;
    work w;
    ms_error err = {0};
    begin(&w, 1);
    hold_and_store(&w);
    uint64_t patience_ns = w.engine->timeout_ns;
    w.engine->timeout_ns = 1000 * 1000;
    assert_ms_fails(ms_offload_wait(w.engine, w.tickets[1], &err), MS_ETIMEDOUT, err, "within");
    w.engine->timeout_ns = patience_ns;
    rest(&w);
    /* The urgent one, those before it, and the others. */
    assert_int_equal(stats_of(w.engine).write_count, joins() ? 3 : COUNT);
    end(&w);
}

static void a_large_extent_is_moved_in_pieces(void **state)
{
    (void)state;
    work w;
    begin(&w, 1);
    unsigned char *large = pages_new(MIB);
    hold_lanes(w.engine);
    store_one(&w, 0);
    (void)store(w.engine, large + 64, 100 * KIB, 100 * KIB);
    store_one(&w, 1);
    rest(&w);
    assert_int_equal(stats_of(w.engine).write_count, 4);
    end(&w);
    pages_free(large, MIB);
}

/* Otherwise backward would fetch before the tier has the bytes. */
static void a_caller_runs_no_further_ahead_than_there_are_slots(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    work w;
    ms_error err = {0};
    ms_ticket ticket = 0;
    begin(&w, 1);
    hold_lanes(w.engine);
    uint64_t patience_ns = w.engine->timeout_ns;
    w.engine->timeout_ns = 1000 * 1000;
    uint64_t takers = w.engine->slots.count - w.engine->slots.private_count;
    for (uint64_t i = 0; i < takers; i++) {
        store_one(&w, 0);
    }
    assert_ms_fails(ms_offload_store(w.engine, source_of(&w, 0), BYTES, BYTES, &ticket, &err), MS_ETIMEDOUT, err,
                    "slot");
    w.engine->timeout_ns = patience_ns;
    rest(&w);
    /* No request is larger than a slot. */
    assert_int_equal(stats_of(w.engine).write_count, joins() ? ms__div_up(takers * EXTENT, 64 * KIB) : takers);
    end(&w);
}

/* ---- separate results ------------------------------------------------------------------ */

static void a_ticket_cancelled_before_is_not_joined(void **state)
{
    (void)state;
    work w;
    begin(&w, 1);
    hold_and_store(&w);
    ms_offload_cancel(w.engine, w.tickets[2]);
    assert_int_equal(ms_offload_state(w.engine, w.tickets[2]), MS_TICKET_FAILED);
    rest(&w);
    assert_int_equal(stats_of(w.engine).write_count, joins() ? 2 : COUNT - 1); /* around the gap */
    hold_lanes(w.engine);
    for (int i = 0; i < COUNT; i++) {
        if (i != 2) {
            fetch_one(&w, i);
        }
    }
    ms_offload_cancel(w.engine, w.tickets[4]);
    rest(&w);
    assert_int_equal(stats_of(w.engine).read_count, joins() ? 3 : COUNT - 2);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(is_delivered(&w, i), i != 2 && i != 4);
    }
    end(&w);
}

/* Takes a request as a lane does; meanwhile cancels one store and drops another. */
static void a_ticket_cancelled_in_a_request_does_not_affect_the_others(void **state)
{
    (void)state;
    work w;
    ms__job jobs[COUNT];
    const ms__failure none = {0};
    size_t count = 0;
    begin(&w, 1);
    hold_and_store(&w);
    ms_offload *engine = w.engine;
    ms__mutex_lock(&engine->lock);
    engine->is_paused = false;
    engine->free_places--;
    for (; count < COUNT && ms__transfer_take(engine, false, &jobs[count].ticket, &jobs[count].piece); count++) {
        ms__job_take_along(engine, &jobs[count]);
    }
    engine->is_paused = true;
    ms__mutex_unlock(&engine->lock);
    assert_int_equal(count, requests_for(COUNT));
    ms_offload_cancel(engine, w.tickets[1]);
    assert_int_equal(ms_offload_state(engine, w.tickets[1]), MS_TICKET_STORING); /* its bytes are in use */
    uint64_t patience_ns = engine->timeout_ns;
    engine->timeout_ns = 1000 * 1000;
    ms_offload_drop(engine, w.tickets[3]);
    engine->timeout_ns = patience_ns;
    ms__mutex_lock(&engine->lock);
    for (size_t i = 0; i < count; i++) {
        for (ms__ticket *ticket = jobs[i].ticket, *next; ticket != NULL; ticket = next) {
            next = ticket->joined;
            ms__transfer_piece_ended(engine, ticket, jobs[i].piece, &none);
        }
    }
    engine->free_places++;
    ms__mutex_unlock(&engine->lock);
    rest(&w);
    for (int i = 0; i < COUNT; i++) {
        ms_ticket_state expected = i == 1 || i == 3 ? MS_TICKET_FAILED : MS_TICKET_STORED;
        assert_int_equal(ms_offload_state(engine, w.tickets[i]), expected);
    }
    assert_int_equal(stats_of(engine).live_tickets, COUNT - 1);
    end(&w);
}

static int count_failures(work *w, const char *text, int code)
{
    int failures = 0;
    for (int i = 0; i < COUNT; i++) {
        ms_error err = {0};
        if (ms_offload_wait(w->engine, w->tickets[i], &err) != MS_OK) {
            assert_int_equal(err.code, code);
            assert_non_null(strstr(err.text, text));
            failures++;
        }
    }
    return failures;
}

static void an_error_of_a_request_is_told_of_each_in_it(void **state)
{
    (void)state;
    for (int direction = MS__WRITE; direction <= MS__READ; direction++) {
        work w;
        int expected = joins() ? COUNT : 1;
        begin(&w, 1);
        hold_and_store(&w);
        if (direction == MS__WRITE) {
            ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
            rest(&w);
            assert_int_equal(count_failures(&w, "write of 8.19 kB failed", MS_EIO), expected);
            assert_int_equal(stats_of(w.engine).written_bytes, (COUNT - expected) * EXTENT);
        } else {
            rest(&w);
            hold_and_fetch(&w, true);
            ms_fault_arm(MS_FAULT_READ, 1, EIO);
            rest(&w);
            assert_int_equal(count_failures(&w, "read of 8.19 kB failed", MS_EIO), expected);
            ms_fault_disarm_all();
            hold_and_fetch(&w, true); /* a second attempt */
            rest(&w);
            assert_int_equal(count_failures(&w, "", MS_OK), 0);
        }
        ms_fault_disarm_all();
        end(&w);
    }
}

static void a_flipped_bit_fails_the_one_that_it_is_in(void **state)
{
    (void)state;
    if (!is_hashed()) {
        skip();
    }
    work w;
    begin(&w, 1);
    hold_and_store(&w);
    rest(&w);
    hold_and_fetch(&w, true);
    ms_fault_arm(MS_FAULT_FLIP, 1, 0);
    rest(&w);
    ms_fault_disarm_all();
    assert_int_equal(count_failures(&w, "differ from the stored ones", MS_ECHECKSUM), 1);
    int delivered = 0;
    for (int i = 0; i < COUNT; i++) {
        delivered += is_delivered(&w, i);
    }
    assert_int_equal(delivered, COUNT - 1);
    end(&w);
}

static void a_request_that_moves_a_part_is_resumed(void **state)
{
    (void)state;
    work w;
    begin(&w, 1);
    hold_and_store(&w);
    ms_fault_arm(MS_FAULT_SHORT, 1, 0);
    rest(&w);
    assert_true(ms_fault_passed(MS_FAULT_SHORT) >= 1);
    hold_and_fetch(&w, true);
    ms_fault_arm(MS_FAULT_SHORT, 1, 0);
    rest(&w);
    ms_fault_disarm_all();
    assert_int_equal(stats_of(w.engine).write_count, requests_for(COUNT));
    assert_int_equal(stats_of(w.engine).read_count, requests_for(COUNT));
    for (int i = 0; i < COUNT; i++) {
        assert_true(is_delivered(&w, i));
    }
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(waiting_neighbours_share_a_request),
        OFFLOAD_TEST(a_store_alone_is_started_alone),
        OFFLOAD_TEST(each_place_of_a_lane_gets_a_request),
        OFFLOAD_TEST(an_urgent_piece_is_moved_alone),
        OFFLOAD_TEST(a_large_extent_is_moved_in_pieces),
        OFFLOAD_TEST(a_caller_runs_no_further_ahead_than_there_are_slots),
        OFFLOAD_TEST(a_ticket_cancelled_before_is_not_joined),
        OFFLOAD_TEST(a_ticket_cancelled_in_a_request_does_not_affect_the_others),
        OFFLOAD_TEST(an_error_of_a_request_is_told_of_each_in_it),
        OFFLOAD_TEST(a_flipped_bit_fails_the_one_that_it_is_in),
        OFFLOAD_TEST(a_request_that_moves_a_part_is_resumed),
    };
    return run_on_every_backend("joining", tests, sizeof tests / sizeof tests[0]);
}
