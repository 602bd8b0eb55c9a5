/* Features of a GPU's engine only: transfers ordered with the caller's streams in both directions, the
 * ladder from pinned memory to disk, and failures of the driver. The tests also check that the double,
 * on which others rely, detects each missing wait. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#define BYTES (300 * KIB + 7)
#define AREA (304 * KIB)
#define SLOWLY 3000000 /* at most, in ns */

static void assert_violated(const char *part)
{
    char text[256];
    assert_true(the_double()->violations(text, sizeof text) > 0);
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
    }
    the_double()->reset();
}

static void *stream_new(void)
{
    void *stream;
    enter_device();
    assert_int_equal(the_double()->stream_create(&stream, 1), 0);
    leave_device();
    return stream;
}

static void stream_free(void *stream)
{
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(stream), 0);
    assert_int_equal(the_double()->stream_destroy(stream), 0);
    leave_device();
}

/* A training step's work on its stream: writes bytes, reads them, overwrites them. */
typedef struct kernel_work {
    uint64_t seed;
    bool was_right;
} kernel_work;

static void make_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    const kernel_work *self = argument;
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = (unsigned char)((i * 31 + self->seed * 7) >> 3);
    }
}

static void look_at_bytes(void *argument, unsigned char *memory, size_t bytes)
{
    kernel_work *self = argument;
    self->was_right = true;
    for (size_t i = 0; i < bytes; i++) {
        self->was_right &= memory[i] == (unsigned char)((i * 31 + self->seed * 7) >> 3);
    }
}

static void launch(void *stream, unsigned char *memory, cuda_double_kernel *kernel, kernel_work *work)
{
    assert_int_equal(the_double()->launch(stream, (uintptr_t)memory, BYTES, kernel == make_bytes, kernel, work), 0);
}

static ms_ticket store_on(ms_offload *engine, void *stream, const unsigned char *memory)
{
    ms_error err = {0};
    ms_ticket ticket = 0;
    assert_ms_ok(ms_offload_store_on(engine, stream, memory, BYTES, &ticket, &err), err);
    return ticket;
}

static void wait_ok(ms_offload *engine, ms_ticket ticket)
{
    ms_error err = {0};
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
}

/* ---- order --------------------------------------------------------------------- */

/* Writes memory, stores it, overwrites it, fetches the bytes into memory that was just in use, and reads
 * them. Only events order these operations. */
static void a_step(ms_offload *engine, void *stream, unsigned char *memory, unsigned char *landing, uint64_t seed)
{
    ms_error err = {0};
    kernel_work made = {.seed = seed}, other = {.seed = seed + 1}, seen = {.seed = seed};
    launch(stream, memory, make_bytes, &made);
    ms_ticket ticket = store_on(engine, stream, memory);
    wait_ok(engine, ticket);
    launch(stream, memory, make_bytes, &other);
    launch(stream, landing, make_bytes, &other);
    assert_ms_ok(ms_offload_fetch_on(engine, stream, ticket, landing, BYTES, &err), err);
    wait_ok(engine, ticket);
    launch(stream, landing, look_at_bytes, &seen);
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(stream), 0);
    leave_device();
    assert_true(seen.was_right);
    ms_offload_drop(engine, ticket);
}

static void bytes_are_right_on_any_stream_and_delay(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA), *landing = pages_new(AREA);
    void *own = stream_new();
    the_double()->schedule(7, SLOWLY / 10);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        a_step(engine, seed % 2 == 0 ? NULL : own, memory, landing, seed);
    }
    ms_offload_close(engine);
    stream_free(own);
    pages_free(memory, AREA);
    pages_free(landing, AREA);
}

static void wait_for_flag(void *argument, unsigned char *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    while (!atomic_load((atomic_bool *)argument)) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
}

/* More stores than lanes have places wait for a kernel, and a fetch on another stream still ends. */
static void a_fetch_passes_stores_that_wait_for_compute(void **state)
{
    (void)state;
    enum { STORES = 12 };
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA), *landing = pages_new(AREA), *others[STORES];
    void *busy = stream_new(), *own = stream_new();
    kernel_work made = {.seed = 1}, seen = {.seed = 1};
    atomic_bool goes_on = false;
    ms_ticket waiting[STORES];
    ms_error err = {0};
    launch(own, memory, make_bytes, &made);
    ms_ticket wanted = store_on(engine, own, memory);
    wait_ok(engine, wanted);
    for (int i = 0; i < STORES; i++) {
        others[i] = pages_new(AREA);
    }
    assert_int_equal(the_double()->launch(busy, (uintptr_t)others[0], BYTES, true, wait_for_flag, &goes_on), 0);
    for (int i = 0; i < STORES; i++) {
        waiting[i] = store_on(engine, busy, others[i]);
    }
    assert_ms_ok(ms_offload_fetch_on(engine, own, wanted, landing, BYTES, &err), err);
    wait_ok(engine, wanted);
    launch(own, landing, look_at_bytes, &seen);
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(own), 0);
    leave_device();
    assert_true(seen.was_right);
    atomic_store(&goes_on, true);
    for (int i = 0; i < STORES; i++) {
        wait_ok(engine, waiting[i]);
    }
    ms_offload_close(engine);
    stream_free(busy);
    stream_free(own);
    for (int i = 0; i < STORES; i++) {
        pages_free(others[i], AREA);
    }
    pages_free(memory, AREA);
    pages_free(landing, AREA);
}

/* Skips a test that races on purpose, because the thread sanitizer would report it. */
#if defined(__SANITIZE_THREAD__)
#define RACES_ON_PURPOSE() skip()
#else
#define RACES_ON_PURPOSE() (void)0
#endif

/* A step that names the wrong stream doesn't order the caller's work. The double reports that, even if no
 * access actually came too early. */
static void a_store_after_the_wrong_stream_is_found(void **state)
{
    (void)state;
    RACES_ON_PURPOSE();
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA);
    void *own = stream_new();
    kernel_work made = {.seed = 1};
    the_double()->schedule(7, SLOWLY);
    launch(own, memory, make_bytes, &made);
    ms_ticket ticket = store_on(engine, NULL, memory);
    wait_ok(engine, ticket);
    assert_violated("reads memory that stream");
    stream_free(own);
    ms_offload_close(engine);
    pages_free(memory, AREA);
}

static void a_source_that_is_used_too_early_is_found(void **state)
{
    (void)state;
    RACES_ON_PURPOSE();
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA);
    kernel_work made = {.seed = 1}, other = {.seed = 2};
    the_double()->hang(1);
    launch(NULL, memory, make_bytes, &made);
    ms_ticket ticket = store_on(engine, NULL, memory);
    for (;;) { /* until a copy waits on a stream */
        cuda_double_counts counts;
        the_double()->count(&counts);
        if (counts.pinned_copies + counts.pageable_copies > 0) {
            break;
        }
        usleep(1000);
    }
    launch(NULL, memory, make_bytes, &other); /* does not wait for the store */
    the_double()->hang(0);
    wait_ok(engine, ticket);
    assert_violated("writes memory that stream");
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(NULL), 0);
    leave_device();
    ms_offload_close(engine);
    pages_free(memory, AREA);
}

static void a_stream_for_host_memory_is_refused(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ticket = 0;
    unsigned char byte = 0;
    ms_offload *engine = NULL;
    ms_offload_options options = {.tier = MS_TIER_HOST, .cap_bytes = UINT64_MAX};
    assert_ms_ok(ms_offload_open(&options, &engine, &err), err);
    assert_ms_fails(ms_offload_store_on(engine, NULL, &byte, 1, &ticket, &err), MS_EINVAL, err, "stream");
    assert_ms_fails(ms_offload_fetch_on(engine, NULL, 1, &byte, 1, &err), MS_EINVAL, err, "stream");
    ms_offload_close(engine);
}

/* ---- the ladder -------------------------------------------------------------------- */

static char log_text[4096];

static void note(void *context, ms_log_level level, const char *line)
{
    (void)context;
    (void)level;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof log_text - length, "%s\n", line);
}

static void space_goes_from_pinned_to_pageable_to_disk(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    options.tier = MS_TIER_HOST;
    options.dir = spill_dir;
    options.pinned_bytes = MIB;
    options.cap_bytes = 2 * MIB;
    options.disk_cap_bytes = MIB;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(5 * MIB);
    ms_ticket ticket[5] = {0};
    const ms_tier expected[] = {MS_TIER_HOST, MS_TIER_HOST, MS_TIER_DISK};
    log_text[0] = '\0';
    ms_log_set_sink(note, NULL);
    for (int i = 0; i < 5; i++) {
        pattern(memory + i * (int)MIB, MIB, (uint64_t)i);
    }
    the_double()->reset();
    for (int i = 0; i < 3; i++) {
        cuda_double_counts counts;
        assert_ms_ok(ms_offload_store(engine, memory + i * (int)MIB, MIB, MIB, &ticket[i], &err), err);
        wait_ok(engine, ticket[i]);
        the_double()->count(&counts);
        assert_int_equal(counts.pageable_copies > 0, i >= 1);
        assert_int_equal(ms_offload_tier_of(engine, ticket[i]), expected[i]);
    }
    assert_ms_fails(ms_offload_store(engine, memory, MIB, MIB, &ticket[3], &err), MS_ENOSPC, err, "cap of 1.05 MB");
    ms_log_set_sink(NULL, NULL);
    assert_non_null(strstr(log_text, "pageable"));
    assert_non_null(strstr(log_text, spill_dir));
    for (int i = 0; i < 3; i++) {
        fill(memory, 0, MIB);
        assert_ms_ok(ms_offload_fetch(engine, ticket[i], memory, MIB, &err), err);
        wait_ok(engine, ticket[i]);
        assert_true(has_pattern(memory, MIB, (uint64_t)i));
        ms_offload_drop(engine, ticket[i]);
    }
    assert_ms_ok(ms_offload_store(engine, memory, MIB, MIB, &ticket[3], &err), err);
    assert_int_equal(ms_offload_tier_of(engine, ticket[3]), MS_TIER_HOST); /* host memory is free again */
    ms_offload_close(engine);
    pages_free(memory, 5 * MIB);
}

/* Memory is pinned in chunks of 64 MiB, and a copy may not cross the end of one. */
static void more_than_a_chunk_is_pinned_and_comes_back(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket first = 0, large = 0;
    ms_offload_options options = small_options();
    options.slot_bytes = MIB;
    options.slab_bytes = 6 * MIB;
    options.pinned_bytes = 80 * MIB;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(70 * MIB);
    cuda_double_counts counts;
    pattern(memory, 70 * MIB, 9);
    the_double()->reset();
    assert_ms_ok(ms_offload_store(engine, memory, 100, 100, &first, &err), err); /* off the chunk's start */
    assert_ms_ok(ms_offload_store(engine, memory, 70 * MIB, 70 * MIB, &large, &err), err);
    wait_ok(engine, large);
    fill(memory, 0, 70 * MIB);
    assert_ms_ok(ms_offload_fetch(engine, large, memory, 70 * MIB, &err), err);
    wait_ok(engine, large);
    assert_true(has_pattern(memory, 70 * MIB, 9));
    the_double()->count(&counts);
    assert_int_equal(counts.registered_ranges, 2);
    assert_int_equal(counts.cold_pages, 0);
    ms_offload_close(engine);
    pages_free(memory, 70 * MIB);
}

static void events_are_reused(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA);
    cuda_double_counts counts;
    for (int i = 0; i < 100; i++) {
        ms_ticket ticket = store_on(engine, NULL, memory);
        wait_ok(engine, ticket);
        ms_offload_drop(engine, ticket);
    }
    the_double()->count(&counts);
    assert_true(counts.events < 16);
    ms_offload_close(engine);
    pages_free(memory, AREA);
}

static void a_refusal_to_pin_is_one_line_and_no_failure(void **state)
{
    (void)state;
    ms_offload_options options = small_options();
    options.pageable_write_bytes_per_s = 3000000000;
    options.pageable_read_bytes_per_s = 2000000000;
    the_double()->limit_registered(0);
    log_text[0] = '\0';
    ms_offload *engine = open_engine(&options);
    ms_log_set_sink(note, NULL);
    assert_engine_works(engine);
    assert_engine_works(engine);
    ms_log_set_sink(NULL, NULL);
    const char *first = strstr(log_text, "pageable");
    assert_non_null(first);
    assert_null(strstr(first + 1, "pageable"));
    assert_non_null(strstr(log_text, "the driver pins 0 B of host memory, not the "));
    assert_non_null(strstr(log_text, "moves at 3.00 GB/s to the host and 2.00 GB/s back"));
    ms_offload_close(engine);
}

static void streams_follow_the_copy_engines_or_the_option(void **state)
{
    (void)state;
    const struct {
        int engines;
        uint32_t asked;
        uint64_t expected;
    } cases[] = {{1, 0, 1}, {2, 0, 2}, {5, 0, 2}, {2, 1, 1}, {2, 3, 3}, {1, 6, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cuda_double_counts counts;
        ms_offload_options options = small_options();
        the_double()->copy_engines(cases[i].engines);
        options.stream_count = cases[i].asked;
        ms_offload *engine = open_engine(&options);
        the_double()->count(&counts);
        assert_int_equal(counts.streams, cases[i].expected);
        assert_engine_works(engine);
        ms_offload_close(engine);
    }
}

static void a_machine_without_the_device_is_told(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload *engine = NULL;
    ms_offload_options options = small_options();
    options.device = 9;
    assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_ENOTSUP, err, "GPU 9: no such device");
    assert_null(engine);
}

/* ---- a driver that fails -------------------------------------------------------------- */

/* A store and a fetch; true if both succeeded. Checks delivered bytes. */
static bool try_once(ms_offload *engine, unsigned char *memory, unsigned char *landing)
{
    ms_error err = {0};
    ms_ticket ticket = 0;
    int rc = ms_offload_store(engine, memory, BYTES, BYTES, &ticket, &err);
    if (rc == MS_OK) {
        rc = ms_offload_wait(engine, ticket, &err);
    }
    bool is_fetching = rc == MS_OK;
    if (is_fetching) {
        rc = ms_offload_fetch(engine, ticket, landing, BYTES, &err);
        if (rc == MS_OK) {
            rc = ms_offload_wait(engine, ticket, &err);
        }
    }
    if (rc != MS_OK) {
        assert_true(rc == MS_EIO || rc == MS_ENOTSUP || rc == MS_ESYSTEM);
        assert_true(strlen(err.text) > 0);
    }
    ms_offload_drop(engine, ticket);
    return rc == MS_OK;
}

static void each_driver_call_may_fail_during_transfers(void **state)
{
    (void)state;
    unsigned char *memory = pages_new(AREA), *landing = pages_new(AREA);
    pattern(memory, BYTES, 5);
    int failures = 0;
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        ms_offload_options options = small_options();
        ms_offload *engine = open_engine(&options);
        fill(landing, 0, AREA);
        ms_fault_arm(MS_FAULT_DRIVER, nth, 0);
        bool is_well = try_once(engine, memory, landing);
        fired = ms_fault_passed(MS_FAULT_DRIVER) >= nth;
        ms_fault_disarm_all();
        failures += !is_well;
        assert_true(is_well || fired);
        assert_true(!is_well || has_pattern(landing, BYTES, 5));
        assert_true(has_pattern(memory, BYTES, 5));
        assert_true(try_once(engine, memory, landing)); /* the engine still works */
        assert_true(has_pattern(landing, BYTES, 5));
        ms_offload_close(engine);
    }
    assert_true(failures > 20);
    pages_free(memory, AREA);
    pages_free(landing, AREA);
}

/* Stores, and fetches with a fault at the nth call of the driver while `wait` is there. True if the fault struck. */
static bool fail_a_wait(uint64_t nth, bool on_stream, unsigned char *memory, unsigned char *landing)
{
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    ms_error err = {0};
    kernel_work made = {.seed = nth}, other = {.seed = nth + 1};
    launch(NULL, memory, make_bytes, &made);
    ms_ticket ticket = store_on(engine, NULL, memory);
    wait_ok(engine, ticket);
    assert_ms_ok(ms_offload_fetch_on(engine, NULL, ticket, landing, BYTES, &err), err);
    assert_ms_ok(ms_offload_wait_queued(engine, ticket, &err), err);
    ms_fault_arm(MS_FAULT_DRIVER, nth, 0);
    int rc = on_stream ? ms_offload_order(engine, NULL, ticket, &err) : ms_offload_wait(engine, ticket, &err);
    bool fired = ms_fault_passed(MS_FAULT_DRIVER) >= nth;
    ms_fault_disarm_all();
    assert_true(rc == MS_OK || (fired && rc == MS_EIO));
    launch(NULL, landing, make_bytes, &other); /* the double sees it if a copy may still write there */
    enter_device();
    assert_int_equal(the_double()->stream_synchronize(NULL), 0);
    leave_device();
    ms_offload_drop(engine, ticket);
    ms_offload_close(engine);
    return fired;
}

/* A fetch has several pieces, each with a copy of its own, which is still queued if it comes from pinned memory. */
static void a_wait_that_fails_leaves_no_copy_under_way(void **state)
{
    (void)state;
    unsigned char *memory = pages_new(AREA), *landing = pages_new(AREA);
    for (int on_stream = 0; on_stream < 2; on_stream++) {
        uint64_t nth = 1;
        the_double()->schedule(3, SLOWLY);
        while (fail_a_wait(nth, on_stream == 1, memory, landing)) {
            nth++;
        }
        assert_true(nth > 2);
    }
    pages_free(memory, AREA);
    pages_free(landing, AREA);
}

static void a_device_that_breaks_fails_every_transfer_and_no_more(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 12; nth++) {
        ms_error err = {0};
        ms_ticket ticket = 0;
        ms_offload_options options = small_options();
        ms_offload *engine = open_engine(&options);
        unsigned char *memory = pages_new(AREA);
        pattern(memory, BYTES, 5);
        the_double()->break_call("work", nth, 700);
        int rc = ms_offload_store(engine, memory, BYTES, BYTES, &ticket, &err);
        if (rc == MS_OK) {
            rc = ms_offload_wait(engine, ticket, &err);
        }
        if (rc == MS_OK) {
            rc = ms_offload_fetch(engine, ticket, memory, BYTES, &err);
            if (rc == MS_OK) {
                rc = ms_offload_wait(engine, ticket, &err);
            }
        }
        assert_int_equal(rc != MS_OK, nth <= 10); /* five pieces each way */
        if (rc != MS_OK) {
            assert_int_equal(rc, MS_EIO);
            assert_int_equal(ms_offload_store(engine, memory, BYTES, BYTES, &ticket, &err), MS_EIO);
        }
        ms_offload_close(engine);
        the_double()->reset();
        pages_free(memory, AREA);
    }
}

static void a_device_that_hangs_is_told_and_waited_for_again(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    options.timeout_ns = 50 * 1000 * 1000;
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(AREA);
    pattern(memory, BYTES, 6);
    the_double()->hang(1);
    ms_ticket ticket = store_on(engine, NULL, memory);
    uint64_t begun_ns = ms_now_ns();
    assert_ms_fails(ms_offload_wait(engine, ticket, &err), MS_ETIMEDOUT, err, "GPU 0");
    assert_true(ms_now_ns() - begun_ns < PATIENCE_NS);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORING); /* the source is still in use */
    the_double()->hang(0);
    while (ms_offload_wait(engine, ticket, &err) == MS_ETIMEDOUT) {
    }
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORED);
    ms_offload_close(engine);
    pages_free(memory, AREA);
}

/* ---- the double ------------------------------------------------------------------------- */

static void the_double_finds_what_a_host_does_too_early(void **state)
{
    (void)state;
    unsigned char *host = malloc(BYTES);
    unsigned char *memory = pages_new(AREA);
    unsigned char byte;
    kernel_work made = {.seed = 1};
    assert_non_null(host);
    enter_device();
    /* A device's page is unreadable, also for the kernel. */
    int tube[2];
    assert_int_equal(pipe(tube), 0);
    assert_int_equal(write(tube[1], memory, 1), -1);
    assert_int_equal(errno, EFAULT);
    close(tube[0]);
    close(tube[1]);
    assert_int_equal(the_double()->to_host(&byte, (uintptr_t)memory + AREA - 1, 2), 1);
    assert_violated("not in one piece");
    the_double()->schedule(3, SLOWLY);
    the_double()->hang(1);
    launch(NULL, memory, make_bytes, &made);
    the_double()->hang(0);
    assert_int_equal(the_double()->stream_synchronize(NULL), 0);
    leave_device();
    if (getenv("MEMSCALE_TEST_LIBHIP") == NULL) { /* a thread of HIP always has a device */
        assert_int_equal(the_double()->stream_synchronize(NULL), 201);
        assert_violated("without a context");
    }
    pages_free(memory, AREA);
    free(host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(bytes_are_right_on_any_stream_and_delay),
        OFFLOAD_TEST(a_fetch_passes_stores_that_wait_for_compute),
        OFFLOAD_TEST(a_store_after_the_wrong_stream_is_found),
        OFFLOAD_TEST(a_source_that_is_used_too_early_is_found),
        OFFLOAD_TEST(a_stream_for_host_memory_is_refused),
        OFFLOAD_TEST(streams_follow_the_copy_engines_or_the_option),
        OFFLOAD_TEST(a_machine_without_the_device_is_told),
        OFFLOAD_TEST(each_driver_call_may_fail_during_transfers),
        OFFLOAD_TEST(a_device_that_breaks_fails_every_transfer_and_no_more),
        OFFLOAD_TEST(a_device_that_hangs_is_told_and_waited_for_again),
    };
    const struct CMUnitTest pinned_tests[] = {
        OFFLOAD_TEST(a_wait_that_fails_leaves_no_copy_under_way),
        OFFLOAD_TEST(space_goes_from_pinned_to_pageable_to_disk),
        OFFLOAD_TEST(more_than_a_chunk_is_pinned_and_comes_back),
        OFFLOAD_TEST(events_are_reused),
        OFFLOAD_TEST(a_refusal_to_pin_is_one_line_and_no_failure),
        OFFLOAD_TEST(the_double_finds_what_a_host_does_too_early),
    };
    const char *const names[] = {"cuda", "cuda, pageable", "cuda and disk"};
    int failures = 0;
    for (int i = 0; i < 3; i++) {
        failures += run_on_backend(names[i], "GPUs", tests, sizeof tests / sizeof tests[0]);
    }
    return failures + run_on_backend("cuda", "the ladder", pinned_tests, sizeof pinned_tests / sizeof pinned_tests[0]);
}
