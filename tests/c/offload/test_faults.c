/* Every kind of fault on every backend: a clean error or the right bytes, and an engine that
 * works afterwards. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include "offload/device_host.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every place fails once, plainly and under the address sanitizer. The thread sanitizer looks for races, takes
 * thirty times as long to open an engine, and tries every fourth place. */
#if defined(__SANITIZE_THREAD__)
enum { PLACES_STEP = 4 };
#else
enum { PLACES_STEP = 1 };
#endif

enum { TICKETS = 4 };
#define BYTES (300 * KIB + 7)
#define AREA (304 * KIB)

/* Some memory, stored directly and through slots in turn. */
typedef struct work {
    ms_offload *engine;
    unsigned char *source[TICKETS];
    unsigned char *destination[TICKETS];
    ms_ticket ticket[TICKETS]; /* 0: ms_offload_store() failed */
    int store_rc[TICKETS];
    ms_error store_err[TICKETS];
} work;

static uint64_t place_of(int i)
{
    return i % 2 == 0 ? 0 : 64;
}

static void work_begin(work *w)
{
    ms_offload_options options = small_options();
    memset(w, 0, sizeof *w);
    w->engine = open_engine(&options);
    for (int i = 0; i < TICKETS; i++) {
        w->source[i] = pages_new(AREA);
        w->destination[i] = pages_new(AREA);
        pattern(w->source[i] + place_of(i), BYTES, (uint64_t)i);
    }
}

static void work_end(work *w)
{
    ms_offload_close(w->engine);
    for (int i = 0; i < TICKETS; i++) {
        pages_free(w->source[i], AREA);
        pages_free(w->destination[i], AREA);
    }
}

/* Stores all and waits for all; returns the number of failures. */
static int store_all(work *w)
{
    int failures = 0;
    for (int i = 0; i < TICKETS; i++) {
        ms_error *err = &w->store_err[i];
        w->ticket[i] = 0;
        w->store_rc[i] =
            ms_offload_store(w->engine, w->source[i] + place_of(i), BYTES, AREA - place_of(i), &w->ticket[i], err);
        if (w->store_rc[i] != MS_OK) {
            assert_int_equal(w->ticket[i], 0);
        }
    }
    for (int i = 0; i < TICKETS; i++) {
        if (w->store_rc[i] == MS_OK) {
            w->store_rc[i] = ms_offload_wait(w->engine, w->ticket[i], &w->store_err[i]);
        }
        failures += w->store_rc[i] != MS_OK;
        /* After any failure, the caller still has its bytes. */
        assert_true(has_pattern(w->source[i] + place_of(i), BYTES, (uint64_t)i));
    }
    return failures;
}

static int fetch_one(work *w, int i, ms_error *err)
{
    fill(w->destination[i], 0, AREA);
    int rc = ms_offload_fetch(w->engine, w->ticket[i], w->destination[i] + place_of(i), AREA - place_of(i), err);
    return rc != MS_OK ? rc : ms_offload_wait(w->engine, w->ticket[i], err);
}

static void assert_fetched(work *w, int i)
{
    ms_error err = {0};
    assert_ms_ok(fetch_one(w, i, &err), err);
    assert_true(has_pattern(w->destination[i] + place_of(i), BYTES, (uint64_t)i));
}

static void drop_all(work *w)
{
    ms_offload_stats stats;
    for (int i = 0; i < TICKETS; i++) {
        ms_offload_drop(w->engine, w->ticket[i]);
    }
    ms_offload_get_stats(w->engine, &stats);
    assert_int_equal(stats.tier_bytes, 0);
    assert_int_equal(stats.live_tickets, 0);
    assert_int_equal(stats.storing_bytes, 0);
    assert_int_equal(stats.fetching_bytes, 0);
    assert_int_equal(w->engine->slots.free_count, w->engine->slots.count - w->engine->slots.private_count);
}

/* ---- writes ----------------------------------------------------------------- */

static void a_failed_write_is_reported_with_its_cause(int system_errno, int code, const char *cause)
{
    for (uint64_t nth = 1;; nth += PLACES_STEP) {
        work w;
        work_begin(&w);
        ms_fault_arm(MS_FAULT_WRITE, nth, system_errno);
        int failures = store_all(&w);
        bool fired = ms_fault_passed(MS_FAULT_WRITE) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(failures, fired ? 1 : 0);
        for (int i = 0; i < TICKETS; i++) {
            if (w.store_rc[i] == MS_OK) {
                assert_fetched(&w, i);
                continue;
            }
            ms_error err = {0};
            const char *text = w.store_err[i].text;
            assert_int_equal(w.store_rc[i], code);
            assert_int_equal(w.store_err[i].system_errno, system_errno);
            assert_non_null(strstr(text, "write of 307.21 kB failed"));
            assert_non_null(strstr(text, cause));
            assert_non_null(strstr(text, tested->tier == MS_TIER_DISK ? spill_dir : "host tier"));
            assert_int_equal(ms_offload_state(w.engine, w.ticket[i]), MS_TICKET_FAILED);
            assert_int_equal(fetch_one(&w, i, &err), code); /* nothing was stored to fetch */
        }
        ms_ticket ended[TICKETS + 1];
        assert_int_equal(ms_offload_reap(w.engine, ended, TICKETS + 1), TICKETS);
        drop_all(&w);
        assert_engine_works(w.engine);
        work_end(&w);
        if (!fired) {
            assert_true(nth > TICKETS * 5); /* each piece's write failed once */
            return;
        }
    }
}

static void a_write_error_fails_its_own_store_only(void **state)
{
    (void)state;
    a_failed_write_is_reported_with_its_cause(EIO, MS_EIO, "Input/output error (errno 5)");
}

static void a_disk_that_fills_fails_its_own_store_only(void **state)
{
    (void)state;
    a_failed_write_is_reported_with_its_cause(ENOSPC, MS_ENOSPC, "No space left on device (errno 28)");
}

/* ---- reads ------------------------------------------------------------------- */

/* Arms `kind` for every Nth read in turn. The affected fetch fails with `code`; a second attempt
 * delivers. */
static void each_read_can_fail(ms_fault kind, int system_errno, int code, const char *part)
{
    for (uint64_t nth = 1;; nth += PLACES_STEP) {
        work w;
        int failures = 0;
        work_begin(&w);
        assert_int_equal(store_all(&w), 0);
        ms_fault_arm(kind, nth, system_errno);
        for (int i = 0; i < TICKETS; i++) {
            ms_error err = {0};
            int rc = fetch_one(&w, i, &err);
            if (rc != MS_OK) {
                failures++;
                assert_int_equal(rc, code);
                assert_int_equal(err.code, code);
                assert_non_null(strstr(err.text, part));
                assert_int_equal(ms_offload_state(w.engine, w.ticket[i]), MS_TICKET_FAILED);
            } else {
                assert_true(has_pattern(w.destination[i] + place_of(i), BYTES, (uint64_t)i));
            }
        }
        bool fired = ms_fault_passed(kind) >= nth;
        ms_fault_disarm_all();
        for (int i = 0; i < TICKETS; i++) {
            assert_fetched(&w, i);
        }
        drop_all(&w);
        work_end(&w);
        assert_int_equal(failures, fired ? 1 : 0);
        if (!fired) {
            assert_true(nth > TICKETS * 5);
            return;
        }
    }
}

static void a_read_error_fails_its_own_fetch_only(void **state)
{
    (void)state;
    each_read_can_fail(MS_FAULT_READ, EIO, MS_EIO, "read of 307.21 kB failed: Input/output error");
}

static void a_flipped_bit_never_arrives(void **state)
{
    (void)state;
    if (!is_hashed()) {
        skip();
    }
    /* The bit is in the middle of the payload, never in the padding behind it. */
    each_read_can_fail(MS_FAULT_FLIP, 0, MS_ECHECKSUM, "differ from the stored ones");
}

/* Changes a stored byte without the engine's knowledge. */
static void corrupt(ms_offload *engine, ms_ticket ticket, uint64_t offset)
{
    const ms__ticket *record = ms__tickets_find(&engine->tickets, ticket);
    uint64_t position = tested->from_device ? ms__device_offset(record->position) : record->position;
    uint64_t in_piece = offset % engine->slot_bytes;
    uint32_t compressed_bytes = record->pieces[offset / engine->slot_bytes].compressed_bytes;
    if (compressed_bytes != 0 && in_piece >= compressed_bytes) {
        offset -= in_piece + 1 - compressed_bytes; /* the last byte of the compressed piece */
    }
    if (tested->tier == MS_TIER_HOST) {
        *((unsigned char *)(uintptr_t)position + offset) ^= 1;
        return;
    }
    for (int fd = 3; fd < 256; fd++) {
        char link[64], path[4096] = "";
        unsigned char byte;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, path, sizeof path - 1) < 0 || strstr(path, spill_dir) == NULL) {
            continue;
        }
        int own = open(link, O_RDWR | O_CLOEXEC); /* without O_DIRECT */
        assert_true(own >= 0);
        assert_int_equal(pread(own, &byte, 1, (off_t)(position + offset)), 1);
        byte ^= 1;
        assert_int_equal(pwrite(own, &byte, 1, (off_t)(position + offset)), 1);
        close(own);
        return;
    }
    fail_msg("no spill file is open");
}

static void a_bit_flipped_in_the_tier_never_arrives(void **state)
{
    (void)state;
    const uint64_t offsets[] = {0, 64 * KIB - 1, 64 * KIB, 200 * KIB, BYTES - 1};
    if (!is_hashed()) {
        skip();
    }
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        ms_error err = {0};
        work w;
        work_begin(&w);
        assert_int_equal(store_all(&w), 0);
        corrupt(w.engine, w.ticket[1], offsets[i]);
        assert_ms_fails(fetch_one(&w, 1, &err), MS_ECHECKSUM, err, "differ from the stored");
        assert_ms_fails(fetch_one(&w, 1, &err), MS_ECHECKSUM, err, "differ from the stored");
        assert_fetched(&w, 0);
        assert_fetched(&w, 2);
        corrupt(w.engine, w.ticket[1], offsets[i]); /* a second flip restores the byte */
        assert_fetched(&w, 1);
        drop_all(&w);
        work_end(&w);
    }
}

static void an_unverified_engine_lets_the_bit_through(void **state)
{
    (void)state;
    if (!is_hashed()) {
        skip();
    }
    ms_error err = {0};
    ms_ticket ticket = 0;
    ms_offload_options options = small_options();
    options.no_verify = true; /* shows that the failures above come from checksums alone */
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(64 * KIB);
    pattern(memory, 64 * KIB, 1);
    assert_ms_ok(ms_offload_store(engine, memory, 64 * KIB, 64 * KIB, &ticket, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    ms_fault_arm(MS_FAULT_FLIP, 1, 0);
    assert_ms_ok(ms_offload_fetch(engine, ticket, memory, 64 * KIB, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    assert_false(has_pattern(memory, 64 * KIB, 1));
    ms_offload_close(engine);
    pages_free(memory, 64 * KIB);
}

/* ---- transfers that move only a part ------------------------------------------ */

static void short_transfers_are_resumed(void **state)
{
    (void)state;
    for (uint64_t nth = 1;; nth += PLACES_STEP) {
        work w;
        work_begin(&w);
        ms_fault_arm(MS_FAULT_SHORT, nth, 0);
        assert_int_equal(store_all(&w), 0);
        for (int i = 0; i < TICKETS; i++) {
            assert_fetched(&w, i);
        }
        bool fired = ms_fault_passed(MS_FAULT_SHORT) >= nth;
        ms_fault_disarm_all();
        drop_all(&w);
        work_end(&w);
        if (!fired) {
            assert_true(nth > 2 * TICKETS * 5);
            return;
        }
    }
}

static void interrupted_transfers_are_tried_again(void **state)
{
    (void)state;
    const int transient[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) {
        work w;
        work_begin(&w);
        ms_fault_arm(MS_FAULT_WRITE, 3, transient[i]);
        assert_int_equal(store_all(&w), 0);
        ms_fault_arm(MS_FAULT_READ, 2, transient[i]);
        assert_fetched(&w, 0);
        assert_true(ms_fault_passed(MS_FAULT_READ) > 2);
        drop_all(&w);
        work_end(&w);
    }
}

/* ---- opening, memory, threads ------------------------------------------------- */

static void each_resource_may_be_missing_when_an_engine_opens(void **state)
{
    (void)state;
    const ms_fault kinds[] = {MS_FAULT_ALLOC, MS_FAULT_MAP,    MS_FAULT_OPEN,   MS_FAULT_WRITE,
                              MS_FAULT_READ,  MS_FAULT_THREAD, MS_FAULT_DRIVER, MS_FAULT_SYSTEM};
    const int numbers[] = {ENOMEM, ENOMEM, EMFILE, EIO, EIO, EAGAIN, 0, EIO};
    size_t fds = count_fds();
    size_t threads = count_threads_now();
    uint64_t blocks = ms_memory_live_blocks();
    int refusals = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool fired = true;
        for (uint64_t nth = 1; fired; nth += PLACES_STEP) {
            ms_error err = {0};
            ms_offload *engine = NULL;
            ms_offload_options options = small_options();
            ms_fault_arm(kinds[i], nth, numbers[i]);
            int rc = ms_offload_open(&options, &engine, &err);
            fired = ms_fault_passed(kinds[i]) >= nth;
            ms_fault_disarm_all();
            if (rc == MS_OK) {
                assert_engine_works(engine); /* with one thread fewer, or small pages */
                ms_offload_close(engine);
            } else {
                refusals++;
                assert_true(fired);
                assert_null(engine);
                assert_int_equal(err.code, rc);
                assert_true(strlen(err.text) > 0);
            }
            assert_int_equal(count_fds(), fds);
            assert_int_equal(count_threads(threads), threads);
            assert_int_equal(ms_memory_live_blocks(), blocks);
        }
    }
    assert_true(refusals > (tested->from_device ? 12 : 8) / PLACES_STEP);
}

/* On a file system without unnamed files: each call around the briefly named one may fail. */
static void a_spill_file_that_had_a_name_leaves_none(void **state)
{
    (void)state;
    if (tested->tier != MS_TIER_DISK) {
        skip();
    }
    size_t fds = count_fds(), names = count_entries(spill_dir);
    bool fired = true;
    uint64_t nth = 1;
    for (; fired; nth += PLACES_STEP) {
        ms_error err = {0};
        ms_offload *engine = NULL;
        ms_offload_options options = small_options();
        refuse_unnamed_files();
        ms_fault_arm(MS_FAULT_SYSTEM, nth, EIO);
        int rc = ms_offload_open(&options, &engine, &err);
        fired = ms_fault_passed(MS_FAULT_SYSTEM) >= nth;
        ms_fault_disarm_all();
        assert_ms_ok(rc, err); /* unlink() is tried twice, and the other calls are optional */
        assert_int_equal(count_entries(spill_dir), names);
        assert_engine_works(engine);
        ms_offload_close(engine);
        assert_int_equal(count_fds(), fds);
    }
    assert_true(nth > (tested->no_direct_io ? 3 : 5)); /* unlink, statx, and fcntl twice for direct I/O */
}

static void an_engine_works_with_fewer_threads_but_not_with_none(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload *engine = NULL;
    ms_offload_options options = small_options();
    size_t threads = count_threads_now();
    ms_fault_arm(MS_FAULT_THREAD, 1, EAGAIN);
    assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_ESYSTEM, err, "thread");
    ms_fault_arm(MS_FAULT_THREAD, 2, EAGAIN);
    assert_ms_ok(ms_offload_open(&options, &engine, &err), err);
    size_t expected = threads + (tested->from_device ? 3 : 1); /* two run the double's streams */
    assert_int_equal(count_threads(expected), expected);
    assert_engine_works(engine);
    ms_offload_close(engine);
}

static void a_store_fails_cleanly_without_memory_or_room(void **state)
{
    (void)state;
    const ms_fault kinds[] = {MS_FAULT_ALLOC, MS_FAULT_MAP, MS_FAULT_OPEN};
    const int numbers[] = {ENOMEM, ENOMEM, ENOSPC};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        bool fired = true;
        for (uint64_t nth = 1; fired; nth += PLACES_STEP) {
            work w;
            work_begin(&w);
            ms_fault_arm(kinds[i], nth, numbers[i]);
            int failures = store_all(&w);
            fired = ms_fault_passed(kinds[i]) >= nth;
            ms_fault_disarm_all();
            assert_true(failures <= (fired ? 1 : 0));
            drop_all(&w);
            assert_engine_works(w.engine);
            work_end(&w);
        }
    }
}

/* No engine opens in a process without handlers for fork and exit. The process must have had no engine. */
static void without_handlers_of_fork_and_exit_no_engine_opens(void **state)
{
    (void)state;
    const ms_offload_options options = {.tier = MS_TIER_HOST, .cap_bytes = UINT64_MAX};
    ms_error err = {0};
    ms_offload *engine = NULL;
    /* First the handler for fork can't be installed, then the one for exit. */
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_fault_arm(MS_FAULT_SYSTEM, nth, 0);
        assert_ms_fails(ms_offload_open(&options, &engine, &err), MS_ENOMEM, err, "for the handlers of fork");
        assert_null(engine);
    }
    ms_fault_disarm_all();
    assert_ms_ok(ms_offload_open(&options, &engine, &err), err);
    ms_offload_close(engine);
}

int main(void)
{
    const struct CMUnitTest first[] = {
        cmocka_unit_test(without_handlers_of_fork_and_exit_no_engine_opens),
    };
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(a_write_error_fails_its_own_store_only),
        OFFLOAD_TEST(a_disk_that_fills_fails_its_own_store_only),
        OFFLOAD_TEST(a_read_error_fails_its_own_fetch_only),
        OFFLOAD_TEST(a_flipped_bit_never_arrives),
        OFFLOAD_TEST(a_bit_flipped_in_the_tier_never_arrives),
        OFFLOAD_TEST(an_unverified_engine_lets_the_bit_through),
        OFFLOAD_TEST(short_transfers_are_resumed),
        OFFLOAD_TEST(interrupted_transfers_are_tried_again),
        OFFLOAD_TEST(each_resource_may_be_missing_when_an_engine_opens),
        OFFLOAD_TEST(a_spill_file_that_had_a_name_leaves_none),
        OFFLOAD_TEST(an_engine_works_with_fewer_threads_but_not_with_none),
        OFFLOAD_TEST(a_store_fails_cleanly_without_memory_or_room),
    };
    int failures = cmocka_run_group_tests_name("faults, first engine", first, NULL, NULL);
    return failures + run_on_every_backend("faults", tests, sizeof tests / sizeof tests[0]);
}
