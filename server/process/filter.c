#include "process/filter.h"

#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* ---- the table ------------------------------------------------------------------------ */

/* A call, and the last stage that may make it. Names that this machine or libseccomp doesn't know are passed over. */
typedef struct call {
    const char *name;
    mss_stage last;
} call;

static const call calls[] = {
    /* memory; mmap and mprotect have conditions below */
    {"brk", MSS_STAGE_WORK},
    {"madvise", MSS_STAGE_WORK},
    {"mlock", MSS_STAGE_WORK},
    {"mremap", MSS_STAGE_WORK},
    {"munlock", MSS_STAGE_WORK},
    {"munmap", MSS_STAGE_WORK},
    /* threads, signals, time */
    {"clock_getres", MSS_STAGE_WORK},
    {"clock_gettime", MSS_STAGE_WORK},
    {"clock_nanosleep", MSS_STAGE_WORK},
    {"exit", MSS_STAGE_WORK},
    {"exit_group", MSS_STAGE_WORK},
    {"futex", MSS_STAGE_WORK},
    {"getpid", MSS_STAGE_WORK},
    {"getrandom", MSS_STAGE_WORK},
    {"gettid", MSS_STAGE_WORK},
    {"gettimeofday", MSS_STAGE_WORK},
    {"membarrier", MSS_STAGE_WORK},
    {"nanosleep", MSS_STAGE_WORK},
    {"restart_syscall", MSS_STAGE_WORK},
    {"rseq", MSS_STAGE_WORK},
    {"rt_sigaction", MSS_STAGE_WORK},
    {"rt_sigprocmask", MSS_STAGE_WORK},
    {"rt_sigreturn", MSS_STAGE_WORK},
    {"sched_getaffinity", MSS_STAGE_WORK},
    {"sched_yield", MSS_STAGE_WORK},
    {"set_robust_list", MSS_STAGE_WORK},
    {"sigaltstack", MSS_STAGE_WORK},
    {"sysinfo", MSS_STAGE_WORK},
    {"tgkill", MSS_STAGE_WORK},
    {"tkill", MSS_STAGE_WORK},
    {"time", MSS_STAGE_WORK},
    /* open files */
    {"close", MSS_STAGE_WORK},
    {"fcntl", MSS_STAGE_WORK},
    {"fstat", MSS_STAGE_WORK},
    {"lseek", MSS_STAGE_WORK},
    {"poll", MSS_STAGE_WORK},
    {"ppoll", MSS_STAGE_WORK},
    {"read", MSS_STAGE_WORK},
    {"readv", MSS_STAGE_WORK},
    {"write", MSS_STAGE_WORK},
    {"writev", MSS_STAGE_WORK},
    /* this filter and Landlock, which only ever take away */
    {"landlock_add_rule", MSS_STAGE_WORK},
    {"landlock_create_ruleset", MSS_STAGE_WORK},
    {"landlock_restrict_self", MSS_STAGE_WORK},
    {"seccomp", MSS_STAGE_WORK},
    {"setrlimit", MSS_STAGE_WORK},
    {"getrlimit", MSS_STAGE_WORK},
    /* files by name; Landlock says which may be written */
    {"access", MSS_STAGE_SERVE},
    {"faccessat", MSS_STAGE_SERVE},
    {"faccessat2", MSS_STAGE_SERVE},
    {"getcwd", MSS_STAGE_SERVE},
    {"getdents64", MSS_STAGE_SERVE},
    {"lstat", MSS_STAGE_SERVE},
    {"mkdir", MSS_STAGE_SERVE},
    {"mkdirat", MSS_STAGE_SERVE},
    {"newfstatat", MSS_STAGE_SERVE}, /* also fstat's new name, but by a path it looks for files */
    {"open", MSS_STAGE_SERVE},
    {"openat", MSS_STAGE_SERVE},
    {"readlink", MSS_STAGE_SERVE},
    {"readlinkat", MSS_STAGE_SERVE},
    {"rename", MSS_STAGE_SERVE},
    {"renameat", MSS_STAGE_SERVE},
    {"renameat2", MSS_STAGE_SERVE},
    {"rmdir", MSS_STAGE_SERVE},
    {"stat", MSS_STAGE_SERVE},
    {"statx", MSS_STAGE_SERVE},
    {"umask", MSS_STAGE_SERVE},
    {"unlink", MSS_STAGE_SERVE},
    {"unlinkat", MSS_STAGE_SERVE},
    /* the database's files */
    {"fallocate", MSS_STAGE_SERVE},
    {"fchmod", MSS_STAGE_SERVE},
    {"fchown", MSS_STAGE_SERVE},
    {"fdatasync", MSS_STAGE_SERVE},
    {"fstatfs", MSS_STAGE_SERVE},
    {"fsync", MSS_STAGE_SERVE},
    {"ftruncate", MSS_STAGE_SERVE},
    {"pread64", MSS_STAGE_SERVE},
    {"preadv", MSS_STAGE_SERVE},
    {"pwrite64", MSS_STAGE_SERVE},
    {"pwritev", MSS_STAGE_SERVE},
    {"utimensat", MSS_STAGE_SERVE},
    /* connections */
    {"accept", MSS_STAGE_SERVE},
    {"accept4", MSS_STAGE_SERVE},
    {"connect", MSS_STAGE_SERVE},
    {"epoll_create1", MSS_STAGE_SERVE},
    {"epoll_ctl", MSS_STAGE_SERVE},
    {"epoll_pwait", MSS_STAGE_SERVE},
    {"epoll_wait", MSS_STAGE_SERVE},
    {"eventfd2", MSS_STAGE_SERVE},
    {"getpeername", MSS_STAGE_SERVE},
    {"getsockname", MSS_STAGE_SERVE},
    {"getsockopt", MSS_STAGE_SERVE},
    {"pselect6", MSS_STAGE_SERVE},
    {"recvfrom", MSS_STAGE_SERVE},
    {"recvmsg", MSS_STAGE_SERVE},
    {"select", MSS_STAGE_SERVE},
    {"sendfile", MSS_STAGE_SERVE},
    {"sendmmsg", MSS_STAGE_SERVE},
    {"sendmsg", MSS_STAGE_SERVE},
    {"sendto", MSS_STAGE_SERVE},
    {"setsockopt", MSS_STAGE_SERVE},
    {"shutdown", MSS_STAGE_SERVE},
    /* plan workers, from their start until they narrow the filter; Landlock lets only this program run */
    {"arch_prctl", MSS_STAGE_SERVE},
    {"close_range", MSS_STAGE_SERVE},
    {"dup", MSS_STAGE_SERVE},
    {"dup2", MSS_STAGE_SERVE},
    {"dup3", MSS_STAGE_SERVE},
    {"execve", MSS_STAGE_SERVE},
    {"kill", MSS_STAGE_SERVE},
    {"pipe", MSS_STAGE_SERVE},
    {"pipe2", MSS_STAGE_SERVE},
    {"set_tid_address", MSS_STAGE_SERVE},
    {"vfork", MSS_STAGE_SERVE},
    {"wait4", MSS_STAGE_SERVE},
    {"waitid", MSS_STAGE_SERVE},
    /* who it is, and the priority of slow threads */
    {"getegid", MSS_STAGE_SERVE},
    {"geteuid", MSS_STAGE_SERVE},
    {"getgid", MSS_STAGE_SERVE},
    {"getppid", MSS_STAGE_SERVE},
    {"getpriority", MSS_STAGE_SERVE},
    {"getrusage", MSS_STAGE_SERVE},
    {"getuid", MSS_STAGE_SERVE},
    {"rt_sigtimedwait", MSS_STAGE_SERVE},
    {"setpriority", MSS_STAGE_SERVE},
    {"uname", MSS_STAGE_SERVE},
    /* the one socket that listens */
    {"bind", MSS_STAGE_START},
    {"listen", MSS_STAGE_START},
#ifdef __SANITIZE_ADDRESS__ /* stops all threads when the server ends, to look for leaks */
    {"getdents", MSS_STAGE_SERVE},
    {"personality", MSS_STAGE_SERVE},
    {"ptrace", MSS_STAGE_SERVE},
#endif
};

/* No library makes these on its own. */
static const char *const attacks[] = {
#ifndef __SANITIZE_ADDRESS__
    "ptrace",
#endif
    "acct",
    "bpf",
    "capset",
    "chroot",
    "clock_settime",
    "delete_module",
    "finit_module",
    "fsopen",
    "init_module",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "mount",
    "move_mount",
    "name_to_handle_at",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_vm_readv",
    "process_vm_writev",
    "quotactl",
    "reboot",
    "setgid",
    "setgroups",
    "setns",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "settimeofday",
    "setuid",
    "swapoff",
    "swapon",
    "umount2",
    "unshare",
    "userfaultfd",
};

/* ---- conditions -------------------------------------------------------------------------- */

/* A call that is allowed if an argument, masked, is `value`. Several lines of a call: any of them. */
typedef struct condition {
    const char *name;
    mss_stage last;
    unsigned argument;
    uint64_t mask, value;
} condition;

/* The calls of 32-bit machines have other names, and s390x has other arguments. */
#if defined(__LP64__) && !defined(__s390x__)
enum { KNOWS_CALLS = true };
#else
enum { KNOWS_CALLS = false };
#endif
enum { WRITE_EXECUTE = PROT_WRITE | PROT_EXEC };
#define NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define ALL UINT64_C(0xffffffff) /* these arguments are ints; the kernel ignores the upper half */

static const condition conditions[] = {
    {"mmap", MSS_STAGE_WORK, 2, PROT_EXEC, 0},
    {"mmap", MSS_STAGE_WORK, 2, WRITE_EXECUTE, PROT_EXEC},
    {"mprotect", MSS_STAGE_WORK, 2, PROT_EXEC, 0},
    {"clone", MSS_STAGE_SERVE, 0, NAMESPACES, 0},
    {"clone", MSS_STAGE_WORK, 0, NAMESPACES | CLONE_THREAD, CLONE_THREAD},
    {"prlimit64", MSS_STAGE_WORK, 0, ALL, 0}, /* its own */
    {"ioctl", MSS_STAGE_WORK, 1, ALL, TCGETS}, /* whether it prints to a terminal */
    {"ioctl", MSS_STAGE_SERVE, 1, ALL, FIONBIO},
    {"ioctl", MSS_STAGE_SERVE, 1, ALL, FIONREAD},
    {"prctl", MSS_STAGE_WORK, 0, ALL, PR_SET_NAME},
    {"prctl", MSS_STAGE_WORK, 0, ALL, PR_GET_SECCOMP},
    {"prctl", MSS_STAGE_SERVE, 0, ALL, PR_SET_PDEATHSIG},
    {"prctl", MSS_STAGE_SERVE, 0, ALL, PR_SET_NO_NEW_PRIVS},
    {"socket", MSS_STAGE_SERVE, 0, ALL, AF_INET},
    {"socket", MSS_STAGE_SERVE, 0, ALL, AF_INET6},
    {"socket", MSS_STAGE_SERVE, 0, ALL, AF_UNIX},
#ifdef __SANITIZE_ADDRESS__
    {"prctl", MSS_STAGE_SERVE, 0, ALL, PR_SET_DUMPABLE},
    {"prctl", MSS_STAGE_SERVE, 0, ALL, PR_GET_DUMPABLE},
    {"prctl", MSS_STAGE_SERVE, 0, ALL, PR_SET_PTRACER},
#endif
};

/* ---- into the kernel ----------------------------------------------------------------------- */

/* -EDOM: a call that other machines have. */
static int add(scmp_filter_ctx filter, uint32_t action, const char *name, const struct scmp_arg_cmp *when)
{
    int number = seccomp_syscall_resolve_name(name);
    int rc = number == __NR_SCMP_ERROR ? 0 : seccomp_rule_add_array(filter, action, number, when != NULL, when);
    return rc == -EDOM ? 0 : rc;
}

static int fill(scmp_filter_ctx filter, mss_stage stage)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof attacks / sizeof attacks[0]; i++) {
        rc = add(filter, SCMP_ACT_KILL_PROCESS, attacks[i], NULL);
    }
    for (size_t i = 0; rc == 0 && i < sizeof calls / sizeof calls[0]; i++) {
        rc = calls[i].last >= stage ? add(filter, SCMP_ACT_ALLOW, calls[i].name, NULL) : 0;
    }
    for (size_t i = 0; rc == 0 && i < sizeof conditions / sizeof conditions[0]; i++) {
        const condition *c = &conditions[i];
        struct scmp_arg_cmp when = {c->argument, SCMP_CMP_MASKED_EQ, c->mask, c->value};
        rc = c->last >= stage ? add(filter, SCMP_ACT_ALLOW, c->name, &when) : 0;
    }
    return rc;
}

/* All threads; new privileges were given up before; a call of another architecture's table ends the process. */
static int set_up(scmp_filter_ctx filter)
{
    int rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (rc == 0) {
        rc = seccomp_attr_set(filter, SCMP_FLTATR_CTL_NNP, 0);
    }
    if (rc == 0) {
        rc = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    }
    return rc == 0 ? seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2)
                   : rc; /* a tree: no long walk for each call */
}

int mss_filter_enter(mss_stage stage, bool *is_filtered, ms_error *err)
{
    *is_filtered = KNOWS_CALLS && prctl(PR_GET_SECCOMP) >= 0;
    if (!*is_filtered) {
        return MS_OK;
    }
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
    if (filter == NULL) {
        return ms_fail(err, MS_ENOMEM, "seccomp: out of memory");
    }
    int failed = set_up(filter);
    if (failed == 0) {
        failed = fill(filter, stage);
    }
    if (failed == 0) {
        failed = seccomp_load(filter);
    }
    seccomp_release(filter);
    return failed == 0 ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, -failed, "seccomp");
}
