/*
 * A spool keeps the newest lines within its bound, loses whole lines and no parts, and leaves files that are logs of
 * their own; files of living writers are never removed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#include "observability/run_log.h"
#include "observability/spool.h"
#include "push_fixture.h"

#define SPOOLED HEAD "\"plan\",\"run\":{\"key\":\"ab\",\"model\":\"M\"}}"

static ms__spool *spool_of(uint64_t most_bytes, const char *own)
{
    ms__spool *spool;
    assert_ms_ok(ms__spool_open(folder, most_bytes, own, &spool, &err), err);
    return spool;
}

static size_t begin(ms__spool *spool)
{
    size_t run;
    assert_ms_ok(ms__spool_begin(spool, SPOOLED, &run, &err), err);
    return run;
}

static const char *step_line(uint64_t number)
{
    static char line[512];
    snprintf(line, sizeof line, HEAD "\"step\",\"step\":{\"step\":%llu,\"step_ns\":5}}", (unsigned long long)number);
    return line;
}

static void put_spooled(ms__spool *spool, size_t run, uint64_t first, uint64_t last)
{
    for (uint64_t number = first; number <= last; number++) {
        assert_ms_ok(ms__spool_write(spool, run, step_line(number), &err), err);
    }
}

/* Sends all that can be sent as the process of `own`. */
static void send_spool(const char *own)
{
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add_spool(push, folder, own, &err), err);
    serve_all(push, 0);
    assert_no_news(push);
    ms__push_free(push);
}

static uint64_t bytes_in_folder(int *files)
{
    char entry[512];
    struct stat found;
    uint64_t bytes = 0;
    DIR *stream = opendir(folder);
    *files = 0;
    for (struct dirent *next = readdir(stream); next != NULL; next = readdir(stream)) {
        snprintf(entry, sizeof entry, "%s/%s", folder, next->d_name);
        if (next->d_name[0] != '.' && stat(entry, &found) == 0) {
            bytes += (uint64_t)found.st_size;
            ++*files;
        }
    }
    closedir(stream);
    return bytes;
}

static void lines_reach_the_server_while_the_run_lives_and_after(void **state)
{
    (void)state;
    int files;
    ms__spool *spool = spool_of(0, "a-");
    size_t run = begin(spool);
    put_spooled(spool, run, 1, 10);
    send_spool("a-");
    assert_steps(0, 1, 10);
    put_spooled(spool, run, 11, 15);
    send_spool("b-"); /* another process leaves it alone */
    assert_steps(0, 1, 10);
    assert_ms_ok(ms__spool_end(spool, run, HEAD "\"finish\",\"outcome\":\"failed\"}", &err), err);
    assert_ms_fails(ms__spool_write(spool, run, "x", &err), MS_ESTATE, err, "ended");
    assert_ms_fails(ms__spool_write(spool, 7, "x", &err), MS_ESTATE, err, "ended");
    send_spool("b-"); /* now it takes it over */
    assert_steps(0, 1, 15);
    assert_string_equal(runs[0].outcome, "failed");
    (void)bytes_in_folder(&files);
    assert_int_equal(files, 0);
    ms__spool_close(spool);
}

static void a_run_s_files_are_one_run(void **state)
{
    (void)state;
    int files;
    ms__spool *spool = spool_of(0, "a-");
    size_t run = begin(spool);
    put_spooled(spool, run, 1, 3000); /* several parts of 128 KiB */
    (void)bytes_in_folder(&files);
    assert_true(files > 2);
    send_spool("b-"); /* the first parts of a living writer's run are left alone too, or the last would come first */
    assert_int_equal(requests, 0);
    assert_false(ms__spool_has_dropped(spool));
    send_spool("a-");
    put_spooled(spool, run, 3001, 3100);
    ms__spool_close(spool); /* the process dies */
    send_spool("b-");
    assert_int_equal(run_count, 1);
    assert_steps(0, 1, 3100);
    assert_string_equal(runs[0].outcome, "stopped");
}

static void a_run_that_another_sends_is_left_to_it(void **state)
{
    (void)state;
    char first[160];
    int files;
    ms__spool *spool = spool_of(0, "a-");
    put_spooled(spool, begin(spool), 1, 2000);
    ms__spool_close(spool);
    (void)bytes_in_folder(&files);
    assert_true(files > 2);
    snprintf(first, sizeof first, "%s/a-000000-000000.log", folder);
    int fd = open(first, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); /* it has only begun: the last part is free */
    send_spool("b-");
    assert_int_equal(requests, 0);
    close(fd);
    send_spool("b-");
    assert_steps(0, 1, 2000);
}

static void a_full_spool_drops_the_oldest_and_says_so(void **state)
{
    (void)state;
    int files;
    ms__spool *spool = spool_of(0, "b-"), *live = spool_of(0, "a-"), *left = spool_of(0, "0-");
    size_t run = begin(spool), alive = begin(live);
    put_spooled(live, alive, 1, 10);
    (void)begin(left);
    put_spooled(left, 0, 1, 10);
    ms__spool_close(left);
    put_spooled(spool, run, 1, 60000);
    assert_true(ms__spool_has_dropped(spool));
    assert_true(bytes_in_folder(&files) <= MS__SPOOL_LEAST_BYTES);
    send_spool("a-"); /* a living writer's file is still there, the oldest one of a dead one is gone */
    assert_steps(0, 1, 10);
    memset(runs, 0, sizeof runs);
    run_count = 0;
    ms__push *push = push_of(NULL);
    assert_ms_ok(ms__push_add_spool(push, folder, "b-", &err), err);
    ms__push_turn turn = turn_of(push, 0);
    assert_int_equal(turn.state, MS__PUSH_SEND);
    uint64_t first = 0, last = 0, count = 0;
    for (; turn.state == MS__PUSH_SEND; turn = turn_of(push, 0)) {
        ms__push_answer given = answer(204, "{}");
        char *number = strstr(turn.request.body, "\"step\":[");
        if (strcmp(turn.request.target, "/api/v1/runs") == 0) {
            snprintf(answer_text, sizeof answer_text, "{\"id\":\"r0\",\"last_sequence\":%llu,\"last_step\":%llu}",
                     (unsigned long long)count, (unsigned long long)last);
            given = (ms__push_answer){200, 0, answer_text, strlen(answer_text)};
        } else if (number != NULL) {
            char *end = strchr(number, ']');
            first = first == 0 ? strtoull(number + 8, NULL, 10) : first;
            while (end[-1] >= '0' && end[-1] <= '9') {
                end--;
            }
            last = strtoull(end, NULL, 10);
            snprintf(answer_text, sizeof answer_text, "{\"last_sequence\":%llu,\"last_step\":%llu,\"counted\":true}",
                     (unsigned long long)++count, (unsigned long long)last);
            given = (ms__push_answer){200, 0, answer_text, strlen(answer_text)};
        }
        ms__push_answered(push, 0, &given);
    }
    assert_true(first > 1 && last == 60000); /* the newest are kept */
    ms__push_free(push);
    ms__spool_close(spool);
    ms__spool_close(live);
}

static void a_full_disk_loses_whole_lines_only(void **state)
{
    (void)state;
    ms__spool *spool = spool_of(0, "a-");
    size_t run = begin(spool);
    put_spooled(spool, run, 1, 5);
    ms_fault_arm(MS_FAULT_WRITE, 1, ENOSPC); /* once: old files make room, and the line is written */
    put_spooled(spool, run, 6, 6);
    ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
    assert_ms_fails(ms__spool_write(spool, run, step_line(7), &err), MS_ESYSTEM, err, folder);
    ms_fault_arm(MS_FAULT_SHORT, 1, 0);
    put_spooled(spool, run, 8, 9);
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_ms_fails(ms__spool_write(spool, run, step_line(10), &err), MS_ENOMEM, err, "line");
    put_spooled(spool, run, 11, 12);
    ms__spool_close(spool);
    send_spool(NULL);
    static const uint64_t kept[] = {1, 2, 3, 4, 5, 6, 8, 9, 11, 12};
    assert_int_equal(runs[0].count, sizeof kept / sizeof kept[0]);
    assert_memory_equal(runs[0].steps, kept, sizeof kept);
}

static void a_disk_that_is_full_at_first_is_tried_again(void **state)
{
    (void)state;
    ms__spool *spool = spool_of(0, "a-");
    ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
    size_t run = begin(spool);
    put_spooled(spool, run, 1, 3);
    ms__spool_close(spool);
    send_spool(NULL);
    assert_steps(0, 1, 3);
}

static void a_folder_that_others_may_write_is_refused(void **state)
{
    (void)state;
    ms__spool *spool;
    assert_int_equal(chmod(folder, 0770), 0);
    assert_ms_fails(ms__spool_open(folder, 0, "a-", &spool, &err), MS_ESYSTEM, err, "only this user");
    assert_int_equal(chmod(folder, 0700), 0);
    assert_ms_fails(ms__spool_open(folder, 0, "../a-", &spool, &err), MS_EINVAL, err, "begin");
    assert_ms_fails(ms__spool_open("/proc/no/such", 0, "a-", &spool, &err), MS_ESYSTEM, err, "/proc");
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_ms_fails(ms__spool_open(folder, 0, "a-", &spool, &err), MS_ENOMEM, err, "memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lines_reach_the_server_while_the_run_lives_and_after),
        TEST(a_run_s_files_are_one_run),
        TEST(a_run_that_another_sends_is_left_to_it),
        TEST(a_full_spool_drops_the_oldest_and_says_so),
        TEST(a_full_disk_loses_whole_lines_only),
        TEST(a_disk_that_is_full_at_first_is_tried_again),
        TEST(a_folder_that_others_may_write_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
