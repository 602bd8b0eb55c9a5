/* offload.h: bytes come back unchanged, and tickets behave as the header says. */
#include "offload_calls.h"
#include "offload_hold.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- contents -------------------------------------------------------------- */

enum { AREA = 1200 * 1024 };

/* Stores from `source_at` bytes behind the start of a page and fetches to `destination_at`, with the least
 * capacity plus `spare`. Checks the contents, and that no byte beyond the capacity was touched. */
static void round_trip(ms_offload *engine, uint64_t bytes, uint64_t source_at, uint64_t destination_at, uint64_t spare)
{
    unsigned char *source = pages_new(AREA);
    unsigned char *destination = pages_new(AREA);
    pattern(source + source_at, bytes, bytes);
    fill(destination, 0xA5, AREA);
    ms_ticket ticket = store(engine, source + source_at, bytes, bytes + spare);
    wait_ok(engine, ticket);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORED);
    assert_true(has_pattern(source + source_at, bytes, bytes));
    fetch_ok(engine, ticket, destination + destination_at, bytes + spare);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_FETCHED);
    assert_true(has_pattern(destination + destination_at, bytes, bytes));
    uint64_t end = destination_at + bytes + spare;
    assert_true(is_filled(destination, 0xA5, destination_at));
    assert_true(is_filled(destination + end, 0xA5, AREA - end));
    ms_offload_drop(engine, ticket);
    pages_free(source, AREA);
    pages_free(destination, AREA);
}

static void bytes_of_any_size_and_address_come_back(void **state)
{
    (void)state;
    const uint64_t sizes[] = {1, 511, 4095, 4096, 4097, 65535, 65536, 65537, 300000, 1048576, 1048579};
    const uint64_t places[] = {0, 64, 4096};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int from = 0; from < 3; from++) {
            for (int to = 0; to < 3; to++) {
                round_trip(engine, sizes[i], places[from], places[to], 0);
                round_trip(engine, sizes[i], places[from], places[to], 4096);
            }
        }
    }
    assert_int_equal(stats_of(engine).tier_bytes, 0);
    ms_offload_close(engine);
}

static void memory_that_is_not_direct_is_copied_before_store_returns(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *source = pages_new(MIB);
    unsigned char *destination = pages_new(MIB);
    uint64_t bytes = 200 * KIB;
    hold_lanes(engine);
    pattern(source + 64, bytes, 1);
    ms_ticket ticket = store(engine, source + 64, bytes, MIB - 64);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORING);
    fill(source, 0, MIB);
    release_lanes(engine);
    fetch_ok(engine, ticket, destination, MIB);
    assert_true(has_pattern(destination, bytes, 1));
    ms_offload_close(engine);
    pages_free(source, MIB);
    pages_free(destination, MIB);
}

static void direct_memory_uses_no_slot(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    options.timeout_ns = UINT64_C(1) << 62;
    ms_offload *engine = open_engine(&options);
    unsigned char *source = pages_new(2 * MIB);
    pattern(source, 2 * MIB, 3);
    hold_lanes(engine);
    /* Four times the slab, accepted while lanes are paused: it cannot have been copied. */
    ms_ticket ticket = store(engine, source, 2 * MIB, 2 * MIB);
    assert_int_equal(engine->slots.free_count, engine->slots.count - engine->slots.private_count);
    assert_int_equal(stats_of(engine).storing_bytes, 2 * MIB);
    release_lanes(engine);
    wait_ok(engine, ticket);
    assert_int_equal(stats_of(engine).storing_bytes, 0);
    ms_offload_close(engine);
    pages_free(source, 2 * MIB);
}

static void a_store_larger_than_the_slab_goes_through_it(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY();
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *source = pages_new(6 * MIB);
    unsigned char *destination = pages_new(6 * MIB);
    pattern(source + 8, 5 * MIB, 4);
    ms_ticket ticket = store(engine, source + 8, 5 * MIB, 5 * MIB);
    fill(source, 0, 6 * MIB);
    fetch_ok(engine, ticket, destination + 8, 5 * MIB);
    assert_true(has_pattern(destination + 8, 5 * MIB, 4));
    assert_true(stats_of(engine).slab_bytes <= 8 * 64 * KIB);
    assert_true(stats_of(engine).slab_bytes > 0);
    ms_offload_close(engine);
    pages_free(source, 6 * MIB);
    pages_free(destination, 6 * MIB);
}

static void it_works_without_checksums(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    options.no_verify = true;
    ms_offload *engine = open_engine(&options);
    round_trip(engine, 300000, 0, 64, 4096);
    ms_offload_close(engine);
}

static void every_slot_and_thread_count_works(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads += 2) {
        uint64_t least = tested_private_slots(threads) + 1;
        for (uint64_t slots = least; slots <= least + 2; slots += 2) {
            ms_offload_options options = small_options();
            options.worker_count = threads;
            options.slot_bytes = 8 * KIB;
            options.slab_bytes = slots * options.slot_bytes;
            ms_offload *engine = open_engine(&options);
            round_trip(engine, 100000, 0, 0, 4096);
            round_trip(engine, 100000, 8, 8, 0);
            ms_offload_close(engine);
        }
    }
}

/* ---- tickets --------------------------------------------------------------- */

static void a_ticket_can_be_fetched_again(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    pattern(memory, MIB, 5);
    ms_ticket ticket = store(engine, memory, MIB, MIB);
    wait_ok(engine, ticket);
    for (int i = 0; i < 3; i++) {
        fill(memory, 0, MIB);
        fetch_ok(engine, ticket, memory, MIB);
        assert_true(has_pattern(memory, MIB, 5));
    }
    assert_int_equal(stats_of(engine).fetched_bytes, 3 * MIB);
    assert_int_equal(stats_of(engine).stored_bytes, MIB);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void a_fetch_requested_during_the_store_follows_it(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *source = pages_new(MIB);
    unsigned char *destination = pages_new(MIB);
    pattern(source, MIB, 6);
    hold_lanes(engine);
    ms_ticket ticket = store(engine, source, MIB, MIB);
    assert_ms_ok(ms_offload_fetch(engine, ticket, destination, MIB, &err), err);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORING);
    assert_ms_fails(ms_offload_fetch(engine, ticket, destination, MIB, &err), MS_ESTATE, err, "already");
    release_lanes(engine);
    wait_ok(engine, ticket);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_FETCHED);
    assert_true(has_pattern(destination, MIB, 6));
    ms_ticket ended = 0;
    assert_int_equal(ms_offload_reap(engine, &ended, 1), 1);
    assert_int_equal(ended, ticket);
    hold_lanes(engine);
    assert_ms_ok(ms_offload_fetch(engine, ticket, destination, MIB, &err), err);
    assert_ms_fails(ms_offload_fetch(engine, ticket, destination, MIB, &err), MS_ESTATE, err, "already");
    release_lanes(engine);
    ms_offload_close(engine);
    pages_free(source, MIB);
    pages_free(destination, MIB);
}

static void a_dropped_ticket_is_an_error_not_a_crash(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    ms_ticket ticket = store(engine, memory, MIB, MIB);
    wait_ok(engine, ticket);
    ms_offload_drop(engine, ticket);
    ms_ticket other = store(engine, memory, MIB, MIB); /* takes the same place in the table */
    wait_ok(engine, other);
    const ms_ticket wrong[] = {ticket, 0, UINT64_MAX, other + 1};
    for (int i = 0; i < 4; i++) {
        assert_ms_fails(ms_offload_wait(engine, wrong[i], &err), MS_EINVAL, err, "does not exist");
        assert_ms_fails(ms_offload_fetch(engine, wrong[i], memory, MIB, &err), MS_EINVAL, err, "ticket");
        assert_int_equal(ms_offload_state(engine, wrong[i]), MS_TICKET_FAILED);
        ms_offload_drop(engine, wrong[i]);
    }
    assert_int_equal(ms_offload_state(engine, other), MS_TICKET_STORED);
    assert_int_equal(stats_of(engine).live_tickets, 1);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void dropping_stops_a_transfer_and_frees_its_extent(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    options.cap_bytes = MIB;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    pattern(memory, MIB, 7);
    for (int i = 0; i < 50; i++) {
        ms_ticket ticket = store(engine, memory, MIB, MIB);
        if (i % 3 > 0) {
            wait_ok(engine, ticket);
        }
        if (i % 3 > 1) {
            assert_ms_ok(ms_offload_fetch(engine, ticket, memory, MIB, &err), err);
        }
        ms_offload_drop(engine, ticket); /* while storing, stored or fetching */
        assert_int_equal(stats_of(engine).tier_bytes, 0);
        assert_int_equal(stats_of(engine).live_tickets, 0);
        pattern(memory, MIB, 7); /* the caller owns it again; a sanitizer would report a race */
    }
    assert_int_equal(stats_of(engine).storing_bytes, 0);
    assert_int_equal(stats_of(engine).fetching_bytes, 0);
    ms_ticket ended[4];
    assert_int_equal(ms_offload_reap(engine, ended, 4), 0); /* dropped tickets are not returned */
    assert_engine_works(engine);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

typedef struct waiting {
    ms_offload *engine;
    ms_ticket ticket;
    int rc;
} waiting;

static void wait_body(void *argument)
{
    waiting *self = argument;
    self->rc = ms_offload_wait(self->engine, self->ticket, NULL);
}

static void wait_for_callers(ms_offload *engine, uint32_t count)
{
    for (;;) {
        ms__mutex_lock(&engine->lock);
        bool is_there = engine->caller_count == count;
        ms__mutex_unlock(&engine->lock);
        if (is_there) {
            return;
        }
        usleep(1000);
    }
}

static void a_cancelled_store_stops_and_is_reported(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ended[2] = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    pattern(memory, MIB, 8);
    hold_lanes(engine);
    ms_ticket direct = store(engine, memory, MIB, MIB);
    ms_ticket copied = store(engine, memory + 8, 100 * KIB, 100 * KIB);
    ms_offload_cancel(engine, direct);
    ms_offload_cancel(engine, copied);
    ms_offload_cancel(engine, copied);      /* a second cancel changes nothing */
    ms_offload_cancel(engine, direct ^ 99); /* unknown */
    /* Nothing was in a lane: both have ended, and memory and slots are free. */
    assert_int_equal(ms_offload_state(engine, direct), MS_TICKET_FAILED);
    assert_int_equal(engine->slots.free_count, engine->slots.count - engine->slots.private_count);
    assert_ms_fails(ms_offload_wait(engine, direct, &err), MS_ECANCELED, err, "cancelled");
    assert_ms_fails(ms_offload_fetch(engine, copied, memory, MIB, &err), MS_ECANCELED, err, "cancelled");
    assert_int_equal(ms_offload_reap(engine, ended, 2), 2);
    ms_offload_drop(engine, direct);
    ms_offload_drop(engine, copied);
    release_lanes(engine);
    assert_ms_ok(ms_offload_quiesce(engine, &err), err);
    assert_int_equal(stats_of(engine).written_bytes, 0);
    assert_int_equal(stats_of(engine).tier_bytes, 0);
    assert_true(has_pattern(memory, MIB, 8));
    assert_engine_works(engine);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void a_cancelled_fetch_may_be_repeated(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    pattern(memory, MIB, 9);
    ms_ticket ticket = store(engine, memory, MIB, MIB);
    wait_ok(engine, ticket);
    ms_offload_cancel(engine, ticket); /* idle: nothing happens */
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORED);
    fill(memory, 0, MIB);
    hold_lanes(engine);
    assert_ms_ok(ms_offload_fetch(engine, ticket, memory, MIB, &err), err);
    ms_offload_cancel(engine, ticket);
    assert_ms_fails(ms_offload_wait(engine, ticket, &err), MS_ECANCELED, err, "cancelled");
    release_lanes(engine);
    assert_ms_ok(ms_offload_fetch(engine, ticket, memory, MIB, &err), err);
    wait_ok(engine, ticket);
    assert_true(has_pattern(memory, MIB, 9));
    ms_offload_drop(engine, ticket);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

static void a_wait_is_cancelled_when_its_ticket_is_dropped(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    hold_lanes(engine);
    waiting waiter = {.engine = engine, .ticket = store(engine, memory, MIB, MIB)};
    ms__thread thread = {0};
    assert_ms_ok(ms__thread_start(&thread, "waiter", wait_body, &waiter, &err), err);
    wait_for_callers(engine, 1);
    ms_offload_drop(engine, waiter.ticket);
    ms__thread_join(&thread);
    assert_int_equal(waiter.rc, MS_ECANCELED);
    release_lanes(engine);
    assert_engine_works(engine);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

/* ---- bad arguments and descriptions ----------------------------------------- */

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ticket = 0;
    unsigned char *memory = pages_new(MIB);
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    assert_ms_fails(ms_offload_store(engine, NULL, 1, 1, &ticket, &err), MS_EINVAL, err, "storing");
    assert_ms_fails(ms_offload_store(engine, memory, 0, 1, &ticket, &err), MS_EINVAL, err, "storing");
    assert_ms_fails(ms_offload_store(engine, memory, 2, 1, &ticket, &err), MS_EINVAL, err, "storing");
    assert_ms_fails(ms_offload_store(engine, memory, UINT64_MAX, UINT64_MAX, &ticket, &err), MS_EOVERFLOW, err,
                    "storing");
    assert_int_equal(ticket, 0);
    ticket = store(engine, memory, 100, 100);
    assert_ms_fails(ms_offload_fetch(engine, ticket, NULL, 100, &err), MS_EINVAL, err, "fetching");
    assert_ms_fails(ms_offload_fetch(engine, ticket, memory, 99, &err), MS_EINVAL, err, "fetching");
    ms_offload_close(engine);
    ms_offload_close(NULL);
    pages_free(memory, MIB);
}

static void options_that_cannot_work_are_refused(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload *engine = NULL;
    ms_offload_options options = small_options();
    options.slot_bytes = 1000;
    assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_EINVAL, err, "whole pages");
    options = small_options();
    options.slab_bytes = 2 * options.slot_bytes; /* two threads, and nothing for stores */
    assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_EINVAL, err, "one more");
    options = small_options();
    options.tier = MS_TIER_DEVICE;
    assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_ENOTSUP, err, "device tier");
    options = small_options();
    if (options.tier == MS_TIER_DISK) {
        options.dir = "/proc/nobody/makes/this";
        assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_ESYSTEM, err, "/proc/nobody/makes/this");
        options.dir = "";
        assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_EINVAL, err, "directory");
    }
    assert_null(engine);
}

static void an_engine_describes_itself(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    options.cap_bytes = 3000000;
    ms_offload *engine = open_engine(&options);
    bool is_file = options.tier == MS_TIER_DISK;
    const char *text = ms_offload_description(engine);
    assert_non_null(strstr(text, tested->from_device ? "6 pieces at a time" : "2 pieces at a time"));
    assert_non_null(strstr(text, "8 slots of 65.54 kB"));
    if (tested->from_device) {
        assert_non_null(strstr(text, "GPU 0 to "));
        assert_non_null(strstr(text, "2 copy streams"));
    }
    if (is_file) {
        assert_non_null(strstr(text, spill_dir));
        assert_non_null(strstr(text, options.no_direct_io ? "buffered I/O" : "I/O"));
        assert_non_null(strstr(text, "cap 3.00 MB"));
    }
    ms_offload_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(bytes_of_any_size_and_address_come_back),
        OFFLOAD_TEST(memory_that_is_not_direct_is_copied_before_store_returns),
        OFFLOAD_TEST(direct_memory_uses_no_slot),
        OFFLOAD_TEST(a_store_larger_than_the_slab_goes_through_it),
        OFFLOAD_TEST(it_works_without_checksums),
        OFFLOAD_TEST(every_slot_and_thread_count_works),
        OFFLOAD_TEST(a_ticket_can_be_fetched_again),
        OFFLOAD_TEST(a_fetch_requested_during_the_store_follows_it),
        OFFLOAD_TEST(a_dropped_ticket_is_an_error_not_a_crash),
        OFFLOAD_TEST(dropping_stops_a_transfer_and_frees_its_extent),
        OFFLOAD_TEST(a_cancelled_store_stops_and_is_reported),
        OFFLOAD_TEST(a_cancelled_fetch_may_be_repeated),
        OFFLOAD_TEST(a_wait_is_cancelled_when_its_ticket_is_dropped),
        OFFLOAD_TEST(bad_arguments_are_refused),
        OFFLOAD_TEST(options_that_cannot_work_are_refused),
        OFFLOAD_TEST(an_engine_describes_itself),
    };
    return run_on_every_backend("transfers", tests, sizeof tests / sizeof tests[0]);
}
