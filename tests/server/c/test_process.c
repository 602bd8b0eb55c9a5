/* What a process that was taken over can't do. Each attack runs in a child that has confined itself. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/process.h"
#include "test_common.h"

static char data[] = "/tmp/memscale-process-XXXXXX";

/* Nobody listens on either; to the second one may connect. */
enum { NO_LANDLOCK = 77, CLOSED_PORT = 9, OPEN_PORT = 11 };

/* 0, or what errno the attack met. */
typedef int (*attack)(int level);

static int opened(const char *path, int flags)
{
    int file = open(path, flags, 0600);
    if (file < 0) {
        return errno;
    }
    close(file);
    return 0;
}

static int write_in_data(int level)
{
    char path[80];
    (void)level;
    snprintf(path, sizeof path, "%s/file", data);
    int rc = opened(path, O_CREAT | O_WRONLY | O_TRUNC);
    return rc != 0 ? rc : unlink(path) != 0 ? errno : 0;
}

static int write_elsewhere(int level)
{
    (void)level;
    return opened("/tmp/memscale-process-elsewhere", O_CREAT | O_WRONLY);
}

static int write_what_is_there(int level)
{
    (void)level;
    return opened("/dev/null", O_WRONLY);
}

static int make_a_folder(int level)
{
    (void)level;
    return mkdir("/tmp/memscale-process-folder", 0700) != 0 ? errno : 0;
}

static int run_a_shell(int level)
{
    (void)level;
    execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
    return errno;
}

static int run_what_it_wrote(int level)
{
    char path[80];
    static const char script[] = "#!/bin/sh\nexit 0\n";
    (void)level;
    snprintf(path, sizeof path, "%s/script", data);
    int file = open(path, O_CREAT | O_WRONLY, 0700);
    bool is_written = file >= 0 && write(file, script, sizeof script - 1) == (ssize_t)sizeof script - 1;
    close(file);
    if (!is_written) {
        return EIO;
    }
    execl(path, path, (char *)NULL);
    int met = errno;
    (void)unlink(path);
    return met;
}

static int call(uint16_t port)
{
    struct sockaddr_in home = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "127.0.0.1", &home.sin_addr);
    int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int met = connect(line, (struct sockaddr *)(void *)&home, sizeof home) != 0 ? errno : 0;
    close(line);
    return met;
}

static int call_home(int level)
{
    return level >= 4 ? call(CLOSED_PORT) : EACCES;
}

static int call_the_database(int level)
{
    (void)level;
    return call(OPEN_PORT);
}

static int call_the_database_from_a_worker(int level)
{
    mss_process_cut_off();
    return level >= 4 ? call(OPEN_PORT) : EACCES;
}

static int gain_privileges(int level)
{
    char text[4096] = "";
    (void)level;
    int file = open("/proc/self/status", O_RDONLY);
    bool is_read = file >= 0 && read(file, text, sizeof text - 1) > 0;
    close(file);
    return is_read && strstr(text, "NoNewPrivs:\t1") != NULL ? EACCES : 0;
}

static int in_child(attack try)
{
    pid_t child = fork();
    if (child == 0) {
        ms_error err;
        int level = 0;
        const uint16_t ports[] = {OPEN_PORT};
        mss_process_close();
        const mss_confines to = {.data = data, .ports = ports, .port_count = 1};
        if (mss_process_confine(&to, &level, &err) != MS_OK) {
            _exit(99);
        }
        _exit(level == 0 ? NO_LANDLOCK : try(level));
    }
    int state = 0;
    assert_int_equal(waitpid(child, &state, 0), child);
    assert_true(WIFEXITED(state));
    return WEXITSTATUS(state);
}

static void test_what_is_taken_over_can_only_write_its_data(void **state)
{
    (void)state;
    static const attack refused[] = {write_elsewhere,
                                     write_what_is_there,
                                     make_a_folder,
                                     run_a_shell,
                                     run_what_it_wrote,
                                     call_home,
                                     call_the_database_from_a_worker,
                                     gain_privileges};
    assert_non_null(mkdtemp(data));
    int met = in_child(write_in_data);
    if (met == NO_LANDLOCK) {
        (void)rmdir(data);
        print_message("skipped: this kernel has no Landlock\n");
        skip();
    }
    assert_int_equal(met, 0);
    assert_int_equal(in_child(call_the_database), ECONNREFUSED);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        met = in_child(refused[i]);
        if (met != EACCES) {
            print_message("attack %zu: %s\n", i, strerror(met));
        }
        assert_int_equal(met, EACCES);
    }
    assert_int_equal(rmdir(data), 0);
}

static void test_data_that_is_not_there_is_told(void **state)
{
    (void)state;
    ms_error err;
    int level = 0;
    int rc = mss_process_confine(&(mss_confines){.data = "/nowhere/at/all"}, &level, &err);
    if (level > 0) {
        assert_ms_fails(rc, MS_ESYSTEM, err, "/nowhere/at/all");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_taken_over_can_only_write_its_data),
        cmocka_unit_test(test_data_that_is_not_there_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
