/* What only io_uring can do wrong: a kernel that forbids it, in every way and at every
 * call, and calls that fail while transfers are under way. */
#include "offload_fixture.h"
#include "offload_hold.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char warnings[4096];
static int warning_count;

static void collect_warning(void *context, ms_log_level level, const char *line)
{
    (void)context;
    if (level >= MS_LOG_WARNING) {
        warning_count++;
        snprintf(warnings, sizeof warnings, "%s", line);
    }
}

/* Opens with io_uring asked for. The engine works; true if by io_uring, and otherwise
 * exactly one line says that and why the file backend took over. */
static bool opens_with_a_ring(void)
{
    ms_offload_options options = small_options();
    warning_count = 0;
    ms_log_set_sink(collect_warning, NULL);
    ms_offload *engine = open_engine(&options);
    ms_fault_disarm_all();
    ms_log_set_sink(NULL, NULL);
    bool has_ring = strcmp(ms_offload_backend(engine), "io_uring") == 0;
    assert_engine_works(engine);
    ms_offload_close(engine);
    assert_int_equal(warning_count, has_ring ? 0 : 1);
    if (!has_ring) {
        assert_non_null(strstr(warnings, "io_uring"));
        assert_non_null(strstr(warnings, "errno"));
        assert_non_null(strstr(warnings, "the file backend takes over"));
    }
    return has_ring;
}

static void whatever_call_is_refused_the_file_backend_takes_over(void **state)
{
    (void)state;
    const ms_fault kinds[] = {MS_FAULT_URING, MS_FAULT_URING, MS_FAULT_URING, MS_FAULT_MAP};
    const int numbers[] = {ENOSYS, EPERM, ENOMEM, ENOMEM};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t fds = count_fds();
        int without = 0;
        for (uint64_t nth = 1; nth <= 6; nth++) {
            /* The first map is the slab's, and its absence no matter of rings. */
            ms_fault_arm(kinds[i], nth + (kinds[i] == MS_FAULT_MAP ? 3 : 0), numbers[i]);
            without += !opens_with_a_ring();
            assert_int_equal(count_fds(), fds);
        }
        /* Two rings: each is set up and given its buffer; the first is enabled and used. */
        assert_int_equal(without, kinds[i] == MS_FAULT_URING ? 6 : 4);
    }
}

static void an_older_kernel_gives_a_plainer_ring(void **state)
{
    (void)state;
    ms_fault_arm(MS_FAULT_URING, 1, EINVAL); /* the first ring's flags are not known */
    assert_true(opens_with_a_ring());
    ms_fault_arm(MS_FAULT_URING, 5, EINVAL); /* the second's */
    assert_true(opens_with_a_ring());
}

/* ---- a kernel that really forbids it --------------------------------------------- */

/* Runs `forbid` in a child and opens an engine there. */
static void assert_forbidden(bool (*forbid)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(!forbid() ? 77 : opens_with_a_ring() ? 1 : 0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool forbid_call(unsigned number, unsigned action)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static bool forbid_setup(void)
{
    return forbid_call(__NR_io_uring_setup, SECCOMP_RET_ERRNO | EPERM);
}

static bool lack_setup(void)
{
    return forbid_call(__NR_io_uring_setup, SECCOMP_RET_ERRNO | ENOSYS);
}

static bool forbid_enter(void)
{
    return forbid_call(__NR_io_uring_enter, SECCOMP_RET_ERRNO | EPERM);
}

static bool forbid_register(void)
{
    return forbid_call(__NR_io_uring_register, SECCOMP_RET_ERRNO | EPERM);
}

/* An ordinary user under a small limit on locked memory. */
static bool limit_locked_memory(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    struct rlimit limit = {4096, 4096};
    return setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && syscall(SYS_capset, &header, none) == 0;
}

static void a_filter_or_a_limit_makes_the_file_backend_take_over(void **state)
{
    (void)state;
    assert_forbidden(forbid_setup);
    assert_forbidden(lack_setup);
    assert_forbidden(forbid_register);
    assert_forbidden(forbid_enter);
    assert_forbidden(limit_locked_memory);
}

/* ---- calls that fail later --------------------------------------------------------- */

enum { STORES = 6 };

/* Stores and fetches while the nth call fails; the number of transfers that told of it. */
static int transfers_that_fail(ms_offload *engine, unsigned char *memory, uint64_t nth, int number)
{
    ms_ticket tickets[STORES];
    int failures = 0;
    ms_fault_arm(MS_FAULT_URING, nth, number);
    for (uint64_t i = 0; i < STORES; i++) {
        pattern(memory + i * MIB, MIB, i);
        assert_int_equal(ms_offload_store(engine, memory + i * MIB, MIB, MIB, &tickets[i], NULL), MS_OK);
    }
    for (uint64_t i = 0; i < STORES; i++) {
        ms_error err = {0};
        int rc = ms_offload_wait(engine, tickets[i], &err);
        if (rc == MS_OK) {
            memset(memory + i * MIB, 0, MIB);
            rc = ms_offload_fetch(engine, tickets[i], memory + i * MIB, MIB, &err);
            assert_int_equal(rc, MS_OK);
            rc = ms_offload_wait(engine, tickets[i], &err);
        }
        failures += rc != MS_OK;
        if (rc != MS_OK) {
            assert_int_equal(rc, MS_EIO);
            assert_int_equal(err.system_errno, number);
        } else {
            assert_true(has_pattern(memory + i * MIB, MIB, i));
        }
        ms_offload_drop(engine, tickets[i]);
    }
    return failures;
}

static void each_call_may_fail_while_transfers_are_under_way(void **state)
{
    (void)state;
    const int numbers[] = {EINTR, EAGAIN, EBUSY, EPERM, EIO};
    unsigned char *memory = pages_new(STORES * MIB);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        int seen = 0;
        bool fired = true;
        for (uint64_t nth = 1; fired && nth < 60; nth++) {
            ms_offload_options options = small_options();
            options.worker_count = 4;
            ms_offload *engine = open_engine(&options);
            int failures = transfers_that_fail(engine, memory, nth, numbers[i]);
            fired = ms_fault_passed(MS_FAULT_URING) >= nth;
            ms_fault_disarm_all();
            seen += failures;
            /* No more than were queued in that call. */
            assert_true(failures <= 4);
            assert_engine_works(engine);
            ms_offload_close(engine);
        }
        assert_true(i < 3 ? seen == 0 : seen > 0);
    }
    pages_free(memory, STORES * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OFFLOAD_TEST(whatever_call_is_refused_the_file_backend_takes_over),
        OFFLOAD_TEST(an_older_kernel_gives_a_plainer_ring),
        OFFLOAD_TEST(a_filter_or_a_limit_makes_the_file_backend_take_over),
        OFFLOAD_TEST(each_call_may_fail_while_transfers_are_under_way),
    };
    return run_on_backend("io_uring", "rings", tests, sizeof tests / sizeof tests[0]);
}
