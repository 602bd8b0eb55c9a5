/* System calls that a process which was taken over can't make. Each attack runs in a child that is in a stage. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/filter.h"
#include "process/process.h"
#include "test_common.h"

enum { NO_FILTER = 200, KILLED = 300 };

/* 0, or what errno the attack met; KILLED if the process was ended for it. */
typedef int (*attack)(void);

static int met(bool is_done)
{
    return is_done ? 0 : errno;
}

static int in_stage(mss_stage stage, attack try)
{
    pid_t child = fork();
    if (child == 0) {
        ms_error err;
        bool is_filtered = false;
        mss_process_close();
        if (mss_filter_enter(stage, &is_filtered, &err) != MS_OK) {
            _exit(NO_FILTER - 1);
        }
        _exit(is_filtered ? try() : NO_FILTER);
    }
    int state = 0;
    assert_int_equal(waitpid(child, &state, 0), child);
    if (WIFSIGNALED(state)) {
        assert_int_equal(WTERMSIG(state), SIGSYS);
        return KILLED;
    }
    if (WEXITSTATUS(state) == NO_FILTER) {
        print_message("skipped: no filter of system calls on this machine\n");
        skip();
    }
    return WEXITSTATUS(state);
}

/* ---- what ends the process -------------------------------------------------------------- */

static int mount_something(void)
{
    return met(mount("none", "/mnt", "tmpfs", 0, NULL) == 0);
}

static int leave_the_namespace(void)
{
    return met(unshare(CLONE_NEWUSER) == 0);
}

static int read_another_process(void)
{
    return met(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0) == 0);
}

static int become_root(void)
{
    return met(setuid(0) == 0);
}

static int load_into_the_kernel(void)
{
    return met(syscall(SYS_bpf, 0, NULL, 0) == 0);
}

static int go_around_the_filter(void)
{
    return met(syscall(SYS_io_uring_setup, 1, NULL) == 0);
}

#ifndef __SANITIZE_ADDRESS__ /* which traces itself */
#include <sys/ptrace.h>
static int trace_another_process(void)
{
    return met(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL) == 0);
}
#endif

#if defined(__x86_64__)
/* The table of 32-bit programs, which a filter that looks at numbers alone would let pass. */
static int call_by_another_table(void)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory");
    return result > 0 ? 0 : (int)-result;
}
#endif

static void test_what_only_an_attack_calls_ends_the_process(void **state)
{
    (void)state;
    static const attack attacks[] = {
        mount_something,       leave_the_namespace,  read_another_process,
        become_root,           load_into_the_kernel, go_around_the_filter,
#ifndef __SANITIZE_ADDRESS__
        trace_another_process,
#endif
#if defined(__x86_64__)
        call_by_another_table,
#endif
    };
    for (int stage = MSS_STAGE_START; stage <= MSS_STAGE_WORK; stage++) {
        for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
            int result = in_stage((mss_stage)stage, attacks[i]);
            if (result != KILLED) {
                print_message("attack %zu in stage %d: %s\n", i, stage, strerror(result));
            }
            assert_int_equal(result, KILLED);
        }
    }
}

/* ---- what fails --------------------------------------------------------------------------- */

static int write_code(void)
{
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return met(code != MAP_FAILED);
}

static int run_what_was_written(void)
{
    void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return code == MAP_FAILED ? 0 : met(mprotect(code, 4096, PROT_READ | PROT_EXEC) == 0);
}

static int hide_a_program_in_memory(void)
{
    return met(syscall(SYS_memfd_create, "x", 0) >= 0);
}

static int listen_to_every_packet(void)
{
    return met(socket(AF_PACKET, SOCK_RAW, 0) >= 0);
}

static int start_in_a_namespace(void)
{
    return met(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL) >= 0);
}

static int type_into_the_terminal(void)
{
    return met(ioctl(STDIN_FILENO, TIOCSTI, "x") == 0);
}

static int limit_another_process(void)
{
    return met(syscall(SYS_prlimit64, getppid(), 0, NULL, NULL) == 0);
}

static int change_the_memory_map(void)
{
    return met(prctl(PR_SET_MM, 0, 0, 0, 0) == 0);
}

static int have_a_door(void)
{
    int line = socket(AF_INET, SOCK_STREAM, 0);
    return line < 0 ? 0 : met(listen(line, 1) == 0);
}

static int read_a_file(void)
{
    return met(open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0);
}

static int open_a_connection(void)
{
    return met(socket(AF_INET, SOCK_STREAM, 0) >= 0);
}

static int run_a_program(void)
{
    execl("/proc/self/exe", "x", (char *)NULL);
    return errno;
}

static int start_a_process(void)
{
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    return met(child > 0);
}

static int send_a_signal(void)
{
    return met(kill(getpid(), 0) == 0);
}

/* An attack, and the stage from which on it fails. */
typedef struct trial {
    const char *name;
    attack try;
    mss_stage first;
} trial;

static void test_a_stage_takes_calls_away(void **state)
{
    (void)state;
    static const trial trials[] = {
        {"write code", write_code, MSS_STAGE_START},
        {"run what was written", run_what_was_written, MSS_STAGE_START},
        {"hide a program in memory", hide_a_program_in_memory, MSS_STAGE_START},
        {"listen to every packet", listen_to_every_packet, MSS_STAGE_START},
        {"start in a namespace", start_in_a_namespace, MSS_STAGE_START},
        {"type into the terminal", type_into_the_terminal, MSS_STAGE_START},
        {"limit another process", limit_another_process, MSS_STAGE_START},
        {"change its own memory's map", change_the_memory_map, MSS_STAGE_START},
        {"have a door", have_a_door, MSS_STAGE_SERVE},
        {"read a file", read_a_file, MSS_STAGE_WORK},
        {"open a connection", open_a_connection, MSS_STAGE_WORK},
        {"run a program", run_a_program, MSS_STAGE_WORK},
        {"start a process", start_a_process, MSS_STAGE_WORK},
        {"send a signal", send_a_signal, MSS_STAGE_WORK},
    };
    for (size_t i = 0; i < sizeof trials / sizeof trials[0]; i++) {
        int refused = in_stage(trials[i].first, trials[i].try);
        if (refused != ENOSYS) {
            print_message("%s: %s\n", trials[i].name, strerror(refused));
        }
        assert_int_equal(refused, ENOSYS);
        if (trials[i].first > MSS_STAGE_START && trials[i].try != run_a_program) {
            assert_int_equal(in_stage(trials[i].first - 1, trials[i].try), 0); /* the stage took it away */
        }
    }
}

/* ---- what goes on --------------------------------------------------------------------------- */

static int go_back_to_the_start(void)
{
    ms_error err;
    bool is_filtered = false;
    return mss_filter_enter(MSS_STAGE_START, &is_filtered, &err) == MS_OK && is_filtered ? read_a_file() : 0;
}

static void test_no_stage_is_left_for_an_earlier_one(void **state)
{
    (void)state;
    assert_int_equal(in_stage(MSS_STAGE_WORK, go_back_to_the_start), ENOSYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_only_an_attack_calls_ends_the_process),
        cmocka_unit_test(test_a_stage_takes_calls_away),
        cmocka_unit_test(test_no_stage_is_left_for_an_earlier_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
