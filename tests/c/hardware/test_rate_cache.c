/*
 * The promises of the rate cache in probe.h: whatever is at its file's path, a run neither waits nor uses wrong rates,
 * and the next save repairs the file.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_common.h"

#include "base/os/file.h"
#include "hardware/probe.h"

static char dir[] = "/tmp/memscale-rates-XXXXXX";
static char path[128];
static uint64_t value;
static const ms__rate rates[] = {{"read_bytes_per_s", &value}};

static bool load(void)
{
    value = 0;
    return ms__rate_cache_load(dir, "disk", "key", rates, 1);
}

static void save(uint64_t rate)
{
    value = rate;
    ms__rate_cache_save(dir, "disk", "key", rates, 1);
}

/* A directory with one saved file; its path is found by listing. */
static int make_cache(void **state)
{
    (void)state;
    char command[128];
    strcpy(dir + sizeof dir - 7, "XXXXXX");
    assert_non_null(mkdtemp(dir));
    save(5000000);
    snprintf(command, sizeof command, "ls %s/rates-disk-*", dir);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(path, sizeof path, list));
    pclose(list);
    path[strcspn(path, "\n")] = '\0';
    return 0;
}

static int remove_cache(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

/* A load finds no rates at the path, and a save replaces whatever is there by a file. */
static void expect_refused_and_replaced(void)
{
    struct stat info;
    assert_false(load());
    save(7000000);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_true(load());
    assert_int_equal(value, 7000000);
}

static void a_saved_rate_is_loaded(void **state)
{
    (void)state;
    assert_true(load());
    assert_int_equal(value, 5000000);
    assert_false(ms__rate_cache_load(dir, "disk", "another key", rates, 1));
}

static void a_pipe_is_not_waited_for(void **state)
{
    (void)state;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused_and_replaced();
}

static void a_link_is_not_followed(void **state)
{
    (void)state;
    char elsewhere[160];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", dir);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    expect_refused_and_replaced();
    struct stat info;
    assert_int_equal(stat(elsewhere, &info), 0);
}

static void a_file_that_everybody_may_write_is_not_read(void **state)
{
    (void)state;
    assert_int_equal(chmod(path, 0666), 0);
    expect_refused_and_replaced();
}

static void a_file_of_somebody_else_is_not_read(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    assert_int_equal(chown(path, 12345, 12345), 0);
    expect_refused_and_replaced();
}

static void absurd_rates_are_not_used(void **state)
{
    (void)state;
    static const uint64_t absurd[] = {1, 999, UINT64_C(10000000000000001), INT64_MAX};
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
        save(absurd[i]);
        assert_false(load());
    }
}

/* A reader during two writers' saves finds one writer's whole file, never a part. */
static void two_writers_leave_a_whole_file(void **state)
{
    (void)state;
    pid_t writers[2];
    for (uint64_t i = 0; i < 2; i++) {
        writers[i] = fork();
        if (writers[i] == 0) {
            for (int n = 0; n < 200; n++) {
                save(1000000 + i);
            }
            _exit(0);
        }
    }
    for (int n = 0; n < 200; n++) {
        assert_true(load());
        assert_true(value == 5000000 || value == 1000000 || value == 1000001);
    }
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(writers[i], &status, 0), writers[i]);
        assert_int_equal(status, 0);
    }
    char command[128];
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 1", dir);
    assert_int_equal(system(command), 0); /* no temporary file is left */
}

static void count_warning(void *count, ms_log_level level, const char *line)
{
    (void)line;
    *(int *)count += level == MS_LOG_WARNING;
}

static void a_directory_that_cannot_be_made_costs_one_warning(void **state)
{
    (void)state;
    char below[200];
    int warnings = 0;
    snprintf(below, sizeof below, "%s/deeper", path); /* below a file */
    value = 5000000;
    ms_log_set_sink(count_warning, &warnings);
    ms__rate_cache_save(below, "disk", "key", rates, 1);
    ms__rate_cache_save(below, "cpu", "key", rates, 1);
    ms_log_set_sink(NULL, NULL);
    assert_int_equal(warnings, 1);
    assert_false(ms__rate_cache_load(below, "disk", "key", rates, 1));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_cache, remove_cache)
    const struct CMUnitTest tests[] = {
        TEST(a_saved_rate_is_loaded),
        TEST(a_pipe_is_not_waited_for),
        TEST(a_link_is_not_followed),
        TEST(a_file_that_everybody_may_write_is_not_read),
        TEST(a_file_of_somebody_else_is_not_read),
        TEST(absurd_rates_are_not_used),
        TEST(two_writers_leave_a_whole_file),
        TEST(a_directory_that_cannot_be_made_costs_one_warning),
    };
    return cmocka_run_group_tests_name("hardware: rate cache", tests, NULL, NULL);
}
