/* A device that does not answer, on every backend: every wait ends, the failure is reported, and
 * memory that a transfer may still touch is not freed. In a process that exits, no transfer runs any
 * more when its destructors do.
 *
 * The device is memory whose pages are never delivered (userfaultfd): every access, by the kernel's
 * copy or the engine's, blocks until the test delivers them. A GPU is the double, whose streams
 * block. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CANNOT_HANG = 77, TIMEOUT_MS = 60 };

/* The exit code if a busy machine left nothing to test: all transfers had ended before the exit, or one
 * in a lane took longer than an exit waits. */
enum { NOTHING_TO_SEE = 78, TRIES = 20 };

enum { DOUBLE = 1 << 30 };

/* Pages on which every access blocks, from begin_hanging() to stop_hanging(). -1: not permitted
 * here. */
static int hanging_pages(unsigned char **pages, uint64_t bytes)
{
    if (tested->from_device) {
        *pages = pages_new(bytes);
        return DOUBLE;
    }
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    *pages = pages_new(bytes);
    struct uffdio_register range = {.range = {.start = (uintptr_t)*pages, .len = bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &range) != 0)) {
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        pages_free(*pages, bytes);
    }
    return fd;
}

/* From here on, waits of the engine, if it exists yet, are short. */
static void begin_hanging(int device, ms_offload *engine)
{
    if (engine != NULL) {
        engine->timeout_ns = TIMEOUT_MS * UINT64_C(1000000);
    }
    if (device == DOUBLE) {
        the_double()->hang(1);
    }
}

/* Lets the device answer; from now on, transfers may take as long as a busy machine needs. */
static void stop_hanging(int device, ms_offload *engine)
{
    engine->timeout_ns = PATIENCE_NS;
    if (device == DOUBLE) {
        the_double()->hang(0);
    } else {
        close(device);
    }
}

static ms_offload_options impatient_options(void)
{
    ms_offload_options options = small_options();
    options.timeout_ns = TIMEOUT_MS * UINT64_C(1000000);
    return options;
}

/* A fetch from pinned memory is FETCHED once its copy is queued. */
static bool fetches_are_queued(void)
{
    return tested->from_device && tested->tier == MS_TIER_HOST && !tested->no_pinning;
}

/* Waits until a transfer hangs, which a busy machine may need longer for than a wait here lasts: a lane may have taken
 * the transfer without having touched the pages yet (it reads a compressed file first). */
static void wait_for_hang(int device, ms_offload *engine)
{
    if (device == DOUBLE) {
        wait_for_lane(engine);
        return;
    }
    struct pollfd faults = {.fd = device, .events = POLLIN};
    while (poll(&faults, 1, -1) < 0) {
        assert_int_equal(errno, EINTR);
    }
}

/* The same for a fetch. */
static void wait_for_fetch(int device, ms_offload *engine, ms_ticket ticket)
{
    ms_error err = {0};
    if (!fetches_are_queued()) {
        wait_for_hang(device, engine);
        return;
    }
    int rc;
    do {
        rc = ms_offload_wait_queued(engine, ticket, &err);
    } while (rc == MS_ETIMEDOUT);
    assert_ms_ok(rc, err);
}

/* Whether the waits since then had deadlines. */
static bool were_bounded(uint64_t begun_ns)
{
    return ms_now_ns() - begun_ns < PATIENCE_NS;
}

static void a_hanging_store_is_reported_and_can_be_dropped(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ticket = 0;
    unsigned char *pages;
    int device = hanging_pages(&pages, 64 * KIB);
    if (device < 0) {
        skip();
    }
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    begin_hanging(device, engine);
    uint64_t begun_ns = ms_now_ns();
    assert_ms_ok(ms_offload_store(engine, pages, 64 * KIB, 64 * KIB, &ticket, &err), err);
    wait_for_hang(device, engine);
    assert_ms_fails(ms_offload_wait(engine, ticket, &err), MS_ETIMEDOUT, err,
                    "a transfer of 65.54 kB did not end within 60.00 ms");
    assert_non_null(strstr(err.text, tested->tier == MS_TIER_DISK ? spill_dir : "host tier"));
    assert_ms_fails(ms_offload_quiesce(engine, &err), MS_ETIMEDOUT, err, "1 transfers");
    ms_offload_cancel(engine, ticket);
    assert_int_equal(ms_offload_state(engine, ticket), MS_TICKET_STORING); /* its source is in use */
    ms_offload_drop(engine, ticket);
    assert_true(were_bounded(begun_ns));
    ms_offload_stats stats;
    ms_offload_get_stats(engine, &stats);
    assert_int_equal(stats.tier_bytes, 64 * KIB); /* and so is the extent */
    stop_hanging(device, engine);
    assert_ms_ok(ms_offload_quiesce(engine, &err), err);
    ms_offload_get_stats(engine, &stats);
    assert_int_equal(stats.tier_bytes, 0);
    assert_int_equal(stats.live_tickets, 0);
    assert_engine_works(engine);
    ms_offload_close(engine);
    pages_free(pages, 64 * KIB);
}

static void a_hanging_fetch_is_reported_and_can_be_awaited_again(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_ticket ticket = 0;
    unsigned char *source = pages_new(64 * KIB), *pages;
    int device = hanging_pages(&pages, 64 * KIB);
    if (device < 0) {
        pages_free(source, 64 * KIB);
        skip();
    }
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    pattern(source, 64 * KIB, 5);
    assert_ms_ok(ms_offload_store(engine, source, 64 * KIB, 64 * KIB, &ticket, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    begin_hanging(device, engine);
    assert_ms_ok(ms_offload_fetch(engine, ticket, pages, 64 * KIB, &err), err);
    wait_for_fetch(device, engine, ticket);
    assert_ms_fails(ms_offload_wait(engine, ticket, &err), MS_ETIMEDOUT, err, "did not end");
    assert_int_equal(ms_offload_state(engine, ticket), fetches_are_queued() ? MS_TICKET_FETCHED : MS_TICKET_FETCHING);
    stop_hanging(device, engine);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    assert_true(has_pattern(pages, 64 * KIB, 5));
    ms_offload_drop(engine, ticket);
    ms_offload_close(engine);
    pages_free(source, 64 * KIB);
    pages_free(pages, 64 * KIB);
}

static void a_hanging_fetch_can_be_dropped(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_stats stats;
    ms_ticket ticket = 0;
    unsigned char *source = pages_new(64 * KIB), *pages;
    int device = hanging_pages(&pages, 64 * KIB);
    if (device < 0) {
        pages_free(source, 64 * KIB);
        skip();
    }
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    assert_ms_ok(ms_offload_store(engine, source, 64 * KIB, 64 * KIB, &ticket, &err), err);
    assert_ms_ok(ms_offload_wait(engine, ticket, &err), err);
    begin_hanging(device, engine);
    assert_ms_ok(ms_offload_fetch(engine, ticket, pages, 64 * KIB, &err), err);
    wait_for_fetch(device, engine, ticket);
    uint64_t begun_ns = ms_now_ns();
    ms_offload_drop(engine, ticket);
    assert_true(were_bounded(begun_ns));
    ms_offload_get_stats(engine, &stats);
    assert_int_equal(stats.tier_bytes, 64 * KIB); /* it is being read */
    stop_hanging(device, engine);
    ms_offload_close(engine);
    pages_free(source, 64 * KIB);
    pages_free(pages, 64 * KIB);
}

/* ---- the modes of this program as a test's child process ------------------------------ */

static bool said_left_behind;

static void look_for_line(void *context, ms_log_level level, const char *line)
{
    (void)context;
    (void)level;
    said_left_behind |= strstr(line, "the engine is left behind") != NULL;
}

/* Closes an engine whose device hangs: the call returns, logs it, and the process can end. */
static int close_while_hanging(void)
{
    ms_ticket ticket = 0;
    unsigned char *pages;
    ms_offload *engine = NULL;
    ms_offload_options options = impatient_options();
    int device = hanging_pages(&pages, 64 * KIB);
    if (device < 0) {
        return CANNOT_HANG;
    }
    ms_log_set_sink(look_for_line, NULL);
    begin_hanging(device, NULL);
    if (ms_offload_open(&options, &engine, NULL) != MS_OK ||
        ms_offload_store(engine, pages, 64 * KIB, 64 * KIB, &ticket, NULL) != MS_OK) {
        return 1;
    }
    wait_for_hang(device, engine);
    if (ms_offload_wait(engine, ticket, NULL) != MS_ETIMEDOUT) {
        return 1;
    }
    uint64_t begun_ns = ms_now_ns();
    ms_offload_close(engine);
    return !were_bounded(begun_ns) ? 2 : said_left_behind ? 0 : 3;
}

static ms_offload *exiting_engine;

/* Registered before the engine was opened, so that it runs after the engine's handler. */
static void look_at_exit(void)
{
    if (exiting_engine->busy_count == 0 || exiting_engine->running_count > 0) {
        _exit(NOTHING_TO_SEE);
    }
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    _exit(exiting_engine->running_count == 0 && exiting_engine->busy_count > 0 ? 0 : 3);
}

/* Exits with many pieces queued and some in lanes: the latter end, the former stay. */
static int exit_while_moving(void)
{
    enum { STORES = 200 };
    ms_offload_options options = small_options();
    unsigned char *memory = pages_new(MIB);
    atexit(look_at_exit);
    if (ms_offload_open(&options, &exiting_engine, NULL) != MS_OK) {
        _exit(1);
    }
    hold_lanes(exiting_engine);
    for (int i = 0; i < STORES; i++) {
        ms_ticket ticket = 0;
        if (ms_offload_store(exiting_engine, memory, MIB, MIB, &ticket, NULL) != MS_OK) {
            _exit(2);
        }
    }
    release_lanes(exiting_engine);
    exit(4); /* look_at_exit() decides the code */
}

/* Exits with the device hanging: a little later, but certainly. */
static int exit_while_hanging(void)
{
    ms_ticket ticket = 0;
    unsigned char *pages;
    ms_offload *engine = NULL;
    ms_offload_options options = small_options();
    options.timeout_ns = 5 * PATIENCE_NS; /* so long that the exit can't have waited for it */
    int device = hanging_pages(&pages, 64 * KIB);
    if (device < 0) {
        return CANNOT_HANG;
    }
    begin_hanging(device, NULL);
    if (ms_offload_open(&options, &engine, NULL) != MS_OK ||
        ms_offload_store(engine, pages, 64 * KIB, 64 * KIB, &ticket, NULL) != MS_OK) {
        return 1;
    }
    wait_for_hang(device, engine);
    return 0;
}

static const struct {
    const char *name;
    int (*body)(void);
} modes[] = {
    {"close", close_while_hanging},
    {"exit", exit_while_moving},
    {"exit-hanging", exit_while_hanging},
};

/* The exit code of this program in that mode. */
static int exit_code_of(const char *mode)
{
    char number[16];
    int status = 0;
    snprintf(number, sizeof number, "%zu", backend_number());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(PATIENCE_S);
        execl("/proc/self/exe", "test_hang", mode, number, spill_dir, (char *)NULL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT_HANG) {
        skip();
    }
    return WEXITSTATUS(status);
}

static void closing_is_bounded(void **state)
{
    (void)state;
    assert_int_equal(exit_code_of("close"), 0);
}

static void nothing_moves_when_destructors_run(void **state)
{
    (void)state;
    int code = NOTHING_TO_SEE;
    for (int i = 0; i < TRIES && code == NOTHING_TO_SEE; i++) {
        code = exit_code_of("exit");
    }
    assert_int_equal(code, 0);
}

static void a_process_exits_although_its_device_hangs(void **state)
{
    (void)state;
    assert_int_equal(exit_code_of("exit-hanging"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 4) { /* one of the processes that a test starts */
        choose_backend(strtoul(argv[2], NULL, 10), argv[3]);
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
            if (strcmp(argv[1], modes[i].name) == 0) {
                return modes[i].body();
            }
        }
        return 1;
    }
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(a_hanging_store_is_reported_and_can_be_dropped),
        OFFLOAD_TEST(a_hanging_fetch_is_reported_and_can_be_awaited_again),
        OFFLOAD_TEST(a_hanging_fetch_can_be_dropped),
        OFFLOAD_TEST(closing_is_bounded),
        OFFLOAD_TEST(nothing_moves_when_destructors_run),
        OFFLOAD_TEST(a_process_exits_although_its_device_hangs),
    };
    return run_on_every_backend("hangs", tests, sizeof tests / sizeof tests[0]);
}
