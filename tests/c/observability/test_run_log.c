/*
 * Lines of a log have the kind that a server takes them for; a log that grows, is cut or replaced, or holds lines
 * without end is read line by line; batches hold what is known.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "observability/run_log.h"
#include "test_common.h"

static char path[64];
static ms_error err;

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "memscale-log-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return unlink(path) != 0 && errno != ENOENT;
}

static void put(const char *mode, const char *text)
{
    FILE *file = fopen(path, mode);
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static ms__line line_of(const char *text)
{
    ms__line line;
    assert_ms_ok(ms__line_read(text, strlen(text), &line, &err), err);
    return line;
}

/* The next line as text that a later call overwrites; NULL if there is none. */
static const char *next_of(ms__run_log *log)
{
    static char copy[256];
    const char *text;
    size_t length;
    assert_ms_ok(ms__run_log_next(log, &text, &length, &err), err);
    if (text == NULL) {
        return NULL;
    }
    snprintf(copy, sizeof copy, "%.*s", (int)length, text);
    return copy;
}

#define HEAD "{\"version\":1,\"time\":\"2026-01-01T00:00:00.000+00:00\",\"level\":\"info\",\"message\":\"\",\"event\":"

static void lines_have_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        ms__line_kind kind;
    } cases[] = {
        {HEAD "\"plan\",\"plan\":{}}", MS__LINE_BEGIN},
        {HEAD "\"finish\",\"outcome\":\"finished\"}", MS__LINE_END},
        {HEAD "\"continued\"}", MS__LINE_END},
        {HEAD "\"step\",\"step\":{\"step\":1}}", MS__LINE_STEP},
        {HEAD "\"step\",\"step\":{\"step\":0}}", MS__LINE_OTHER},
        {HEAD "\"step\",\"step\":{\"step\":-1}}", MS__LINE_OTHER},
        {HEAD "\"step\",\"step\":{}}", MS__LINE_OTHER},
        {HEAD "\"step\"}", MS__LINE_OTHER},
        {HEAD "\"message\"}", MS__LINE_OTHER},
        {HEAD "\"replan\",\"plan\":{}}", MS__LINE_OTHER},
        {HEAD "3}", MS__LINE_FOREIGN},
        {HEAD "\"pl", MS__LINE_FOREIGN},
        {"{\"version\":2,\"time\":\"\",\"event\":\"plan\"}", MS__LINE_FOREIGN},
        {"{\"event\":\"plan\"}", MS__LINE_FOREIGN},
        {"[1]", MS__LINE_FOREIGN},
        {"", MS__LINE_FOREIGN},
        {"hello", MS__LINE_FOREIGN},
        {"\xff\xfe", MS__LINE_FOREIGN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms__line line = line_of(cases[i].text);
        if (line.kind != cases[i].kind) {
            fail_msg("%s: kind %d", cases[i].text, line.kind);
        }
        assert_int_equal(line.tree != NULL, line.kind == MS__LINE_BEGIN || line.kind == MS__LINE_END);
        json_decref(line.tree);
    }
}

static void a_step_has_the_values_that_are_known(void **state)
{
    (void)state;
    ms__line line = line_of(HEAD "\"step\",\"step\":{\"step\":7,\"step_ns\":5,\"peak_bytes\":null,\"tier_bytes\":-3,"
                                 "\"budget_bytes\":4611686018427387904,\"resident_bytes\":4611686018427387905,"
                                 "\"predicted_peak_bytes\":1.5,\"other\":9}}");
    assert_int_equal(line.kind, MS__LINE_STEP);
    const uint64_t wanted[MS__STEP_COLUMNS] = {7,          5,          UINT64_MAX, UINT64_MAX,
                                               UINT64_MAX, UINT64_MAX, UINT64_MAX, MS__STEP_VALUE_MOST};
    assert_memory_equal(line.step.value, wanted, sizeof wanted);
}

static void a_growing_log_gives_each_whole_line_once(void **state)
{
    (void)state;
    ms__run_log log = {.path = path};
    assert_null(next_of(&log));
    put("a", "one\ntw");
    assert_string_equal(next_of(&log), "one");
    assert_null(next_of(&log));
    assert_null(next_of(&log));
    put("a", "o\n\nthree\n");
    assert_string_equal(next_of(&log), "two");
    assert_string_equal(next_of(&log), "");
    uint64_t at = log.next_bytes;
    assert_string_equal(next_of(&log), "three");
    assert_null(next_of(&log));
    assert_int_equal(log.next_bytes, strlen("one\ntwo\n\nthree\n"));
    ms__run_log_go_to(&log, at);
    assert_string_equal(next_of(&log), "three");
    assert_false(log.has_begun_anew);
    ms__run_log_rest(&log);
}

static void going_back_in_an_open_log_gives_the_same_lines(void **state)
{
    (void)state;
    ms__run_log log = {.path = path};
    put("w", "one\ntwo\nthree\n");
    assert_string_equal(next_of(&log), "one");
    assert_string_equal(next_of(&log), "two");
    ms__run_log_go_to(&log, 4);
    assert_string_equal(next_of(&log), "two");
    assert_string_equal(next_of(&log), "three");
    ms__run_log_rest(&log);
}

static void a_log_that_was_cut_or_replaced_begins_anew(void **state)
{
    (void)state;
    char other[80];
    ms__run_log log = {.path = path};
    put("w", "a long first line\n");
    assert_string_equal(next_of(&log), "a long first line");
    assert_null(next_of(&log));
    put("w", "cut\n");
    assert_string_equal(next_of(&log), "cut");
    assert_true(log.has_begun_anew);
    assert_null(next_of(&log));
    log.has_begun_anew = false;
    snprintf(other, sizeof other, "%s.old", path);
    assert_int_equal(rename(path, other), 0);
    put("w", "replaced by a longer one\n");
    assert_string_equal(next_of(&log), "replaced by a longer one");
    assert_true(log.has_begun_anew);
    ms__run_log_rest(&log);
    assert_int_equal(unlink(other), 0);
}

static void a_line_without_end_is_dropped_and_the_next_one_read(void **state)
{
    (void)state;
    ms__run_log log = {.path = path};
    FILE *file = fopen(path, "w");
    char *piece = malloc(1 << 20);
    assert_non_null(file);
    assert_non_null(piece);
    memset(piece, 'x', 1 << 20);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(fwrite(piece, 1, 1 << 20, file), 1 << 20);
    }
    free(piece);
    fflush(file);
    assert_null(next_of(&log));
    assert_true(ms_memory_live_bytes() < 1 << 20); /* its buffer is gone too */
    fputs("\nnext\n", file);
    fclose(file);
    assert_string_equal(next_of(&log), "");
    assert_string_equal(next_of(&log), "next");
    ms__run_log_rest(&log);
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    const char *text;
    size_t length;
    ms__run_log none = {.path = "no/such.log"}, folder = {.path = "."}, device = {.path = "/dev/zero"};
    assert_ms_fails(ms__run_log_next(&none, &text, &length, &err), MS_ESYSTEM, err, "no/such.log");
    assert_ms_fails(ms__run_log_next(&folder, &text, &length, &err), MS_ESYSTEM, err, "not a regular file");
    assert_ms_fails(ms__run_log_next(&device, &text, &length, &err), MS_ESYSTEM, err, "not a regular file");
}

static void a_failed_read_or_allocation_can_be_repeated(void **state)
{
    (void)state;
    const char *text;
    size_t length;
    ms__run_log log = {.path = path};
    put("w", "one\ntwo\n");
    ms_fault_arm(MS_FAULT_READ, 1, EIO);
    assert_ms_fails(ms__run_log_next(&log, &text, &length, &err), MS_EIO, err, path);
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_ms_fails(ms__run_log_next(&log, &text, &length, &err), MS_ENOMEM, err, path);
    ms_fault_arm(MS_FAULT_SHORT, 1, 0);
    assert_string_equal(next_of(&log), "one");
    assert_string_equal(next_of(&log), "two");
    ms__run_log_rest(&log);
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    ms__line line;
    assert_ms_fails(ms__line_read("{\"a\":1}", 7, &line, &err), MS_ENOMEM, err, "log");
}

static void a_batch_has_the_columns_that_are_known(void **state)
{
    (void)state;
    ms__step steps[2];
    memset(steps, 0xff, sizeof steps);
    steps[0].value[MS__STEP_NUMBER] = 4;
    steps[1].value[MS__STEP_NUMBER] = 6;
    steps[1].value[MS__STEP_PEAK] = 100;
    char *text = ms__batch_text(steps, 2, 3);
    assert_string_equal(text, "{\"sequence\":3,\"columns\":{\"step\":[4,6],\"peak_bytes\":[null,100]}}");
    ms_free(text);
    for (uint64_t nth = 1;; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        text = ms__batch_text(steps, 2, 3);
        bool has_failed = text == NULL;
        ms_free(text);
        if (!has_failed) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_kinds),
        cmocka_unit_test(a_step_has_the_values_that_are_known),
        cmocka_unit_test_setup_teardown(a_growing_log_gives_each_whole_line_once, make_file, remove_file),
        cmocka_unit_test_setup_teardown(going_back_in_an_open_log_gives_the_same_lines, make_file, remove_file),
        cmocka_unit_test_setup_teardown(a_log_that_was_cut_or_replaced_begins_anew, make_file, remove_file),
        cmocka_unit_test_setup_teardown(a_line_without_end_is_dropped_and_the_next_one_read, make_file, remove_file),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test_setup_teardown(a_failed_read_or_allocation_can_be_repeated, make_file, remove_file),
        cmocka_unit_test(a_batch_has_the_columns_that_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
