/* Nothing is left behind, however an engine or a process ends. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TRANSFERS = 24, FORKS_LEAST = 4 };

/* Repetition shows what is left behind. The thread sanitizer looks for races, and is thirty times as slow. */
#if defined(__SANITIZE_THREAD__)
enum { CLOSINGS = 3, REUSES = 8, KILLS = 4 };
#else
enum { CLOSINGS = 10, REUSES = 40, KILLS = 12 };
#endif

static void pause_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

/* ---- close ------------------------------------------------------------------- */

static bool is_mapped(const void *page)
{
    unsigned char resident;
    return mincore((void *)(uintptr_t)page, 4096, &resident) == 0;
}

static void closing_frees_everything(void **state)
{
    (void)state;
    ms_error err = {0};
    uint64_t area = (TRANSFERS / 4 + 1) * 2 * MIB;
    unsigned char *memory = pages_new(area);
    ms_offload_options first = small_options();
    ms_offload *warm = open_engine(&first);
    assert_engine_works(warm); /* sanitizers and the double's first stream start threads */
    ms_offload_close(warm);
    size_t fds = count_fds();
    size_t threads = count_threads_now();
    uint64_t blocks = ms_memory_live_blocks();
    for (int round = 0; round < CLOSINGS; round++) {
        ms_offload_options options = small_options();
        ms_offload *engine = open_engine(&options);
        size_t expected = threads + 2 + (tested->from_device ? 3 : 0); /* streams, and a worker for fetches */
        assert_int_equal(count_threads(expected), expected);
        for (int i = 0; i < TRANSFERS; i++) {
            ms_ticket ticket = 0;
            uint64_t at = i % 3 == 0 ? 8 : 0;
            assert_ms_ok(ms_offload_store(engine, memory + at, MIB, 2 * MIB, &ticket, &err), err);
            if (i % 4 == 0) {
                unsigned char *to = memory + (uint64_t)(i / 4 + 1) * 2 * MIB;
                assert_ms_ok(ms_offload_fetch(engine, ticket, to, 2 * MIB, &err), err);
            }
        }
        const void *slab = engine->slab.address;
        assert_true(is_mapped(slab));
        ms_offload_close(engine); /* most of it is in flight */
        assert_false(is_mapped(slab));
        fill(memory, round, area); /* the memory is the caller's again */
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_threads(threads), threads);
    assert_int_equal(ms_memory_live_blocks(), blocks);
    pages_free(memory, area);
}

typedef struct waiting {
    ms_offload *engine;
    ms_ticket ticket;
    unsigned char *memory;
    int rc;
} waiting;

static void wait_body(void *argument)
{
    waiting *self = argument;
    self->rc = ms_offload_wait(self->engine, self->ticket, NULL);
}

static void store_body(void *argument)
{
    waiting *self = argument;
    self->rc = ms_offload_store(self->engine, self->memory + 8, 3 * MIB, 3 * MIB, &self->ticket, NULL);
}

static void a_waiting_call_is_cancelled_when_the_engine_closes(void **state)
{
    (void)state;
    HOST_MEMORY_ONLY(); /* stores of a device's memory never wait for a slot */
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(4 * MIB);
    waiting waiter = {.engine = engine};
    waiting storer = {.engine = engine, .memory = memory};
    ms__thread threads[2] = {{0}};
    hold_lanes(engine);
    assert_ms_ok(ms_offload_store(engine, memory, MIB, MIB, &waiter.ticket, &err), err);
    assert_ms_ok(ms__thread_start(&threads[0], "waiter", wait_body, &waiter, &err), err);
    assert_ms_ok(ms__thread_start(&threads[1], "storer", store_body, &storer, &err), err);
    for (bool are_waiting = false; !are_waiting;) {
        pause_ms(5);
        ms__mutex_lock(&engine->lock);
        are_waiting = engine->caller_count == 3; /* the storing thread counts as filling and as waiting */
        ms__mutex_unlock(&engine->lock);
    }
    ms_offload_close(engine);
    ms__thread_join(&threads[0]);
    ms__thread_join(&threads[1]);
    assert_int_equal(waiter.rc, MS_ECANCELED);
    assert_int_equal(storer.rc, MS_ECANCELED);
    pages_free(memory, 4 * MIB);
}

/* ---- the spill file ------------------------------------------------------------ */

static void a_missing_directory_is_created(void **state)
{
    (void)state;
    if (tested->tier != MS_TIER_DISK) {
        return;
    }
    ms_error err = {0};
    char above[4200], dir[4300];
    snprintf(above, sizeof above, "%s/above", spill_dir);
    snprintf(dir, sizeof dir, "%s/below", above);
    ms_offload_options options = small_options();
    options.dir = dir;
    ms_offload_close(open_engine(&options));
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(rmdir(above), 0);
    /* If it cannot be created, the error says why. */
    ms_offload *none = NULL;
    options.dir = "/proc/nobody/makes/this";
    assert_int_equal(ms_offload_open(&options, &none, &err), MS_ESYSTEM);
    assert_non_null(strstr(err.text, options.dir));
    assert_null(none);
}

static bool stat_spill_file(struct stat *info)
{
    for (int fd = 3; fd < 256; fd++) {
        char link[64], path[4096] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, spill_dir) != NULL && fstat(fd, info) == 0 &&
            S_ISREG(info->st_mode)) {
            assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
            return true;
        }
    }
    return false;
}

static void the_spill_file_has_no_name_and_one_reader(void **state)
{
    (void)state;
    if (tested->tier != MS_TIER_DISK) {
        skip();
    }
    mode_t mask = umask(0);
    uint64_t calls[2];
    for (int with_tmpfile = 0; with_tmpfile < 2; with_tmpfile++) {
        struct stat info;
        ms_offload_options options = small_options();
        if (!with_tmpfile) {
            refuse_unnamed_files(); /* mkostemp() and unlink() instead */
        }
        ms_fault_arm(MS_FAULT_SYSTEM, UINT64_MAX, 0);
        ms_offload *engine = open_engine(&options);
        calls[with_tmpfile] = ms_fault_passed(MS_FAULT_SYSTEM);
        ms_fault_disarm_all();
        assert_engine_works(engine);
        assert_int_equal(count_entries(spill_dir), 0);
        assert_true(stat_spill_file(&info));
        assert_int_equal(info.st_nlink, 0);
        assert_int_equal(info.st_mode & 07777, 0600);
        ms_offload_close(engine);
        assert_false(stat_spill_file(&info));
    }
    assert_int_equal(calls[0], calls[1] + 1); /* unlink() */
    umask(mask);
}

static void freed_space_is_reused(void **state)
{
    (void)state;
    if (tested->tier != MS_TIER_DISK) {
        skip();
    }
    struct stat before, after;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engine = open_engine(&options);
    unsigned char *memory = pages_new(MIB);
    int reuses = tested->from_device ? REUSES / 4 : REUSES; /* the double is slow */
    for (int step = 0; step < reuses; step++) {
        ms_ticket tickets[10];
        for (int i = 0; i < 10; i++) {
            uint64_t bytes = MIB - (uint64_t)i * 5000;
            assert_ms_ok(ms_offload_store(engine, memory, bytes, MIB, &tickets[i], &err), err);
        }
        assert_ms_ok(ms_offload_quiesce(engine, &err), err);
        for (int i = 0; i < 10; i++) {
            ms_offload_drop(engine, tickets[step % 2 == 0 ? i : 9 - i]);
        }
        if (step == 0) {
            assert_true(stat_spill_file(&before));
        }
    }
    assert_true(stat_spill_file(&after));
    assert_int_equal(after.st_size, before.st_size);
    /* Some blocks may hold the file system's metadata of the file. */
    assert_true((uint64_t)after.st_blocks * 512 < (uint64_t)before.st_blocks * 512 + MIB);
    ms_offload_close(engine);
    pages_free(memory, MIB);
}

/* ---- the modes of this program as a test's child process -------------------------- */

/* Stores and fetches until killed. */
static void work_for_ever(void)
{
    ms_offload *engine = NULL;
    ms_offload_options options = small_options();
    unsigned char *memory = pages_new(4 * MIB);
    if (ms_offload_open(&options, &engine, NULL) != MS_OK) {
        _exit(1);
    }
    for (;;) {
        ms_ticket tickets[8] = {0};
        for (int i = 0; i < 8; i++) {
            ms_offload_store(engine, memory, MIB, 2 * MIB, &tickets[i], NULL);
        }
        for (int i = 0; i < 8; i++) {
            ms_offload_fetch(engine, tickets[i], memory + 2 * MIB, 2 * MIB, NULL);
            ms_offload_wait(engine, tickets[i], NULL);
            ms_offload_drop(engine, tickets[i]);
        }
    }
}

/* ---- a disk that is really full -------------------------------------------------- */

enum { CANNOT_MOUNT = 77 };

static bool mount_small(const char *dir)
{
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return false;
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("tmpfs", dir, "tmpfs", 0, "size=5m") == 0;
}

/* Stores 1 MiB at a time on a file system of 5 MiB: the first four succeed, the next are refused with
 * a message, and a drop makes room again. */
static int fill_a_disk(void)
{
    enum { FIT = 4, TRIED = 7 };
    ms_offload *engine = NULL;
    ms_ticket tickets[TRIED] = {0};
    ms_offload_options options = small_options();
    unsigned char *memory = pages_new(MIB);
    int wrong = 0;
    if (!mount_small(spill_dir)) {
        return CANNOT_MOUNT;
    }
    if (ms_offload_open(&options, &engine, NULL) != MS_OK) {
        return 1;
    }
    for (uint64_t i = 0; i < TRIED; i++) {
        ms_error err = {0};
        pattern(memory, MIB, i);
        int rc = ms_offload_store(engine, memory, MIB, MIB, &tickets[i], &err);
        if (rc == MS_OK) {
            rc = ms_offload_wait(engine, tickets[i], &err);
        }
        wrong += i < FIT && rc != MS_OK;
        wrong += i > FIT &&
                 (rc != MS_ENOSPC || err.system_errno != ENOSPC || strstr(err.text, "No space left on device") == NULL);
    }
    for (uint64_t i = 0; i < FIT; i++) {
        fill(memory, 0, MIB);
        wrong += ms_offload_fetch(engine, tickets[i], memory, MIB, NULL) != MS_OK;
        wrong += ms_offload_wait(engine, tickets[i], NULL) != MS_OK || !has_pattern(memory, MIB, i);
    }
    ms_offload_drop(engine, tickets[0]);
    wrong += ms_offload_store(engine, memory, MIB, MIB, &tickets[0], NULL) != MS_OK;
    wrong += ms_offload_wait(engine, tickets[0], NULL) != MS_OK;
    ms_offload_close(engine);
    return wrong;
}

static pid_t start_self(const char *mode)
{
    char number[16];
    snprintf(number, sizeof number, "%zu", backend_number());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_process", mode, number, spill_dir, (char *)NULL);
        _exit(1);
    }
    return child;
}

static void a_full_disk_refuses_and_keeps_what_it_has(void **state)
{
    (void)state;
    int status = 0;
    if (tested->tier != MS_TIER_DISK) {
        skip();
    }
    pid_t child = start_self("full");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CANNOT_MOUNT) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- processes that die --------------------------------------------------------- */

static void nothing_is_left_by_a_process_that_is_killed(void **state)
{
    (void)state;
    for (int round = 0; round < KILLS; round++) {
        pid_t child = start_self("work");
        pause_ms(4 + round * 120 / KILLS);
        kill(child, round % 3 == 0 ? SIGTERM : SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(count_entries(spill_dir), 0);
    }
}

/* ---- fork ------------------------------------------------------------------------- */

/* In the child: every call fails with the parent's name, and closing returns. */
static int use_in_child(ms_offload *engine, ms_ticket ticket, unsigned char *memory)
{
    ms_error err = {0};
    ms_ticket other = 0;
    ms_offload_stats stats;
    int wrong = 0;
    alarm(PATIENCE_S);
    wrong += ms_offload_store(engine, memory, MIB, MIB, &other, &err) != MS_ESTATE;
    wrong += strstr(err.text, "parent process") == NULL;
    wrong += ms_offload_fetch(engine, ticket, memory, MIB, &err) != MS_ESTATE;
    wrong += ms_offload_wait(engine, ticket, &err) != MS_ESTATE;
    wrong += ms_offload_quiesce(engine, &err) != MS_ESTATE;
    wrong += ms_offload_state(engine, ticket) != MS_TICKET_FAILED;
    wrong += ms_offload_reap(engine, &other, 1) != 0;
    ms_offload_drop(engine, ticket);
    ms_offload_get_stats(engine, &stats);
    size_t fds = count_fds();
    ms_offload_close(engine);
    /* The spill file. */
    wrong += count_fds() != fds - (tested->tier == MS_TIER_DISK);
    return wrong;
}

/* A child that forks again, as workers that start programs do, does not revive the engine. */
static int use_in_two_generations(ms_offload *engine, ms_ticket ticket, unsigned char *memory)
{
    int status = 0;
    pid_t grandchild = fork();
    if (grandchild == 0) {
        _exit(use_in_child(engine, ticket, memory));
    }
    int wrong = waitpid(grandchild, &status, 0) != grandchild || status != 0;
    return wrong + use_in_child(engine, ticket, memory);
}

/* Registered before the library's handler, so that it runs after it: it sees the state at the fork. */
static ms_offload *forked_engine;
static uint32_t running_at_fork;

static void look_before_fork(void)
{
    if (forked_engine != NULL) {
        running_at_fork += forked_engine->running_count;
    }
}

static void a_fork_during_transfers_disturbs_neither_side(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    for (int round = 0; round < (tested->from_device ? 3 : 6); round++) {
        ms_offload *engine = open_engine(&options);
        unsigned char *source = pages_new(MIB);
        unsigned char *destination = pages_new(MIB);
        ms_ticket tickets[TRANSFERS] = {0};
        pattern(source, MIB, (uint64_t)round);
        for (int i = 0; i < TRANSFERS; i++) {
            assert_ms_ok(ms_offload_store(engine, source, MIB, MIB, &tickets[i], &err), err);
        }
        assert_ms_ok(ms_offload_fetch(engine, tickets[0], destination, MIB, &err), err);
        forked_engine = engine;
        pid_t child = fork();
        forked_engine = NULL;
        assert_true(child >= 0);
        if (child == 0) {
            _exit(round == 0 ? use_in_two_generations(engine, tickets[1], destination)
                             : use_in_child(engine, tickets[1], destination));
        }
        assert_int_equal(running_at_fork, 0);
        assert_ms_ok(ms_offload_quiesce(engine, &err), err);
        assert_true(has_pattern(destination, MIB, (uint64_t)round));
        for (int i = 0; i < TRANSFERS; i++) {
            fill(destination, 0, MIB);
            assert_ms_ok(ms_offload_fetch(engine, tickets[i], destination, MIB, &err), err);
            assert_ms_ok(ms_offload_wait(engine, tickets[i], &err), err);
            assert_true(has_pattern(destination, MIB, (uint64_t)round));
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0); /* it exited without an error */
        ms_offload_close(engine);
        pages_free(source, MIB);
        pages_free(destination, MIB);
    }
}

/* If a page becomes copy-on-write during a read into it, the bytes would reach only one process's copy. The
 * test uses several engines, and forks from another thread. */
typedef struct forking {
    _Atomic bool stop;
    _Atomic int forks;
} forking;

static void fork_body(void *argument)
{
    forking *self = argument;
    while (!self->stop) {
        pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        if (child > 0) {
            waitpid(child, NULL, 0);
            self->forks++;
        }
    }
}

static void reads_survive_forks_of_other_threads(void **state)
{
    (void)state;
    ms_error err = {0};
    ms_offload_options options = small_options();
    ms_offload *engines[2] = {open_engine(&options), open_engine(&options)};
    unsigned char *source = pages_new(MIB);
    unsigned char *destination = pages_new(MIB);
    forking forker = {.stop = false};
    ms__thread thread = {0};
    pattern(source, MIB, 9);
    assert_ms_ok(ms__thread_start(&thread, "forker", fork_body, &forker, &err), err);
    uint64_t until_ns = ms_now_ns() + UINT64_C(500000000);
    while (ms_now_ns() < until_ns || forker.forks < FORKS_LEAST) {
        for (int i = 0; i < 2; i++) {
            ms_ticket ticket = 0;
            assert_ms_ok(ms_offload_store(engines[i], source, MIB, MIB, &ticket, &err), err);
            fill(destination, 0, MIB);
            assert_ms_ok(ms_offload_fetch(engines[i], ticket, destination, MIB, &err), err);
            assert_ms_ok(ms_offload_wait(engines[i], ticket, &err), err);
            assert_true(has_pattern(destination, MIB, 9));
            ms_offload_drop(engines[i], ticket);
        }
    }
    forker.stop = true;
    ms__thread_join(&thread);
    ms_offload_close(engines[0]);
    ms_offload_close(engines[1]);
    pages_free(source, MIB);
    pages_free(destination, MIB);
}

int main(int argc, char **argv)
{
    if (argc == 4) { /* one of the processes that a test starts */
        choose_backend(strtoul(argv[2], NULL, 10), argv[3]);
        if (strcmp(argv[1], "full") == 0) {
            return fill_a_disk();
        }
        work_for_ever();
    }
    pthread_atfork(look_before_fork, NULL, NULL);
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(closing_frees_everything),
        OFFLOAD_TEST(a_waiting_call_is_cancelled_when_the_engine_closes),
        OFFLOAD_TEST(a_missing_directory_is_created),
        OFFLOAD_TEST(the_spill_file_has_no_name_and_one_reader),
        OFFLOAD_TEST(freed_space_is_reused),
        OFFLOAD_TEST(a_full_disk_refuses_and_keeps_what_it_has),
        OFFLOAD_TEST(nothing_is_left_by_a_process_that_is_killed),
        OFFLOAD_TEST(a_fork_during_transfers_disturbs_neither_side),
        OFFLOAD_TEST(reads_survive_forks_of_other_threads),
    };
    return run_on_every_backend("processes", tests, sizeof tests / sizeof tests[0]);
}
