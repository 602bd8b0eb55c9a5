/* Threads run and are joined, waits end in time, counters add up under threads,
 * and the log's sink gets every line until it is replaced. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "test_common.h"

enum { THREADS = 4, ROUNDS = 1000000 };

static int clean_up(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    ms_log_set_sink(NULL, NULL);
    return 0;
}

/* ---- threads ------------------------------------------------------------ */

typedef struct thread_report {
    char name[16];
    int blocks_signals;
} thread_report;

static void report_self(void *argument)
{
    thread_report *report = argument;
    sigset_t mask;
    pthread_getname_np(pthread_self(), report->name, sizeof report->name);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    report->blocks_signals = sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM);
}

static void a_thread_has_its_name_and_takes_no_signals(void **state)
{
    (void)state;
    ms_error err;
    ms__thread thread = {0};
    thread_report report = {0};
    uint64_t blocks = ms_memory_live_blocks();
    assert_ms_ok(ms__thread_start(&thread, "ms-long-name-for-a-thread", report_self, &report, &err), err);
    ms__thread_join(&thread);
    ms__thread_join(&thread);
    assert_string_equal(report.name, "ms-long-name-fo");
    assert_true(report.blocks_signals);
    assert_int_equal(ms_memory_live_blocks(), blocks);
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGINT));
}

static void a_thread_that_cannot_start_is_an_error(void **state)
{
    (void)state;
    ms_error err;
    ms__thread thread = {0};
    thread_report report = {0};
    uint64_t blocks = ms_memory_live_blocks();
    ms_fault_arm(MS_FAULT_THREAD, 1, EAGAIN);
    assert_ms_fails(ms__thread_start(&thread, "ms-x", report_self, &report, &err), MS_ESYSTEM, err,
                    "starting thread ms-x: ");
    assert_int_equal(err.system_errno, EAGAIN);
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_ms_fails(ms__thread_start(&thread, "ms-x", report_self, &report, &err), MS_ENOMEM, err, "ms-x");
    ms__thread_join(&thread);
    assert_int_equal(ms_memory_live_blocks(), blocks);
}

typedef struct shared_state {
    ms__mutex mutex;
    ms__cond cond;
    int turns;
} shared_state;

static void take_turns(void *argument)
{
    shared_state *shared = argument;
    for (int i = 0; i < 100; i++) {
        ms__mutex_lock(&shared->mutex);
        shared->turns++;
        ms__cond_broadcast(&shared->cond);
        ms__mutex_unlock(&shared->mutex);
    }
}

static void conditions_wake_waiters(void **state)
{
    (void)state;
    ms_error err;
    shared_state shared = {0};
    ms__mutex_init(&shared.mutex);
    ms__cond_init(&shared.cond);
    ms__thread threads[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        assert_ms_ok(ms__thread_start(&threads[i], "ms-turn", take_turns, &shared, &err), err);
    }
    uint64_t deadline = ms_now_ns() + PATIENCE_NS;
    ms__mutex_lock(&shared.mutex);
    while (shared.turns < THREADS * 100) {
        assert_true(ms__cond_wait_until(&shared.cond, &shared.mutex, deadline));
    }
    ms__mutex_unlock(&shared.mutex);
    for (int i = 0; i < THREADS; i++) {
        ms__thread_join(&threads[i]);
    }
    ms__cond_destroy(&shared.cond);
    ms__mutex_destroy(&shared.mutex);
}

static void waits_end_at_their_deadline(void **state)
{
    (void)state;
    shared_state shared = {0};
    ms__mutex_init(&shared.mutex);
    ms__cond_init(&shared.cond);
    uint64_t deadline = ms_now_ns() + 20000000;
    ms__mutex_lock(&shared.mutex);
    while (ms__cond_wait_until(&shared.cond, &shared.mutex, deadline)) {
    }
    ms__mutex_unlock(&shared.mutex);
    assert_true(ms_now_ns() >= deadline);
    ms__cond_destroy(&shared.cond);
    ms__mutex_destroy(&shared.mutex);
}

static int once_calls;

static void count_once(void)
{
    once_calls++;
}

static void once_runs_once(void **state)
{
    (void)state;
    static ms__once once = MS__ONCE_INIT;
    ms__once_run(&once, count_once);
    ms__once_run(&once, count_once);
    assert_int_equal(once_calls, 1);
}

/* ---- counters ----------------------------------------------------------- */

static void add_many(void *argument)
{
    for (int i = 0; i < ROUNDS; i++) {
        ms_counter_add(argument, MS_COUNTER_STEPS, 1);
        ms_counter_add(argument, MS_COUNTER_DISK_BYTES, 3);
    }
}

static void counters_add_up_under_threads(void **state)
{
    (void)state;
    ms_error err;
    ms_counters set = {0};
    ms__thread threads[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        assert_ms_ok(ms__thread_start(&threads[i], "ms-count", add_many, &set, &err), err);
    }
    for (int i = 0; i < THREADS; i++) {
        ms__thread_join(&threads[i]);
    }
    assert_int_equal(ms_counter_get(&set, MS_COUNTER_STEPS), THREADS * ROUNDS);
    assert_int_equal(ms_counter_get(&set, MS_COUNTER_DISK_BYTES), 3 * THREADS * ROUNDS);
    assert_int_equal(ms_counter_get(&set, MS_COUNTER_REPLANS), 0);
}

static void counters_have_names_and_texts(void **state)
{
    (void)state;
    for (int id = 0; id < MS_COUNTER_COUNT; id++) {
        assert_true(strlen(ms_counter_text((ms_counter)id)) > 5);
        for (int other = 0; other < id; other++) {
            assert_string_not_equal(ms_counter_name((ms_counter)id), ms_counter_name((ms_counter)other));
        }
    }
    assert_string_equal(ms_counter_name(MS_COUNTER_STEPS), "steps");
    assert_string_equal(ms_counter_name(MS_COUNTER_COUNT), "unknown");
    ms_counters set = {0};
    ms_counter_add(&set, MS_COUNTER_COUNT, 1);
    assert_int_equal(ms_counter_get(&set, MS_COUNTER_COUNT), 0);
}

/* ---- log ---------------------------------------------------------------- */

typedef struct sink_record {
    atomic_int lines;
    ms_log_level level;
    char last[2 * MS__LOG_LINE_MAX];
} sink_record;

static void record_line(void *context, ms_log_level level, const char *line)
{
    sink_record *record = context;
    atomic_fetch_add(&record->lines, 1);
    record->level = level;
    snprintf(record->last, sizeof record->last, "%s", line);
}

static void count_line(void *context, ms_log_level level, const char *line)
{
    (void)level;
    (void)line;
    atomic_fetch_add((atomic_int *)context, 1);
}

static void lines_go_to_the_sink_that_is_set(void **state)
{
    (void)state;
    sink_record first = {0};
    sink_record second = {0};
    ms_log(MS_LOG_ERROR, "dropped");
    assert_false(ms__log_enabled());
    ms_log_set_sink(record_line, &first);
    assert_true(ms__log_enabled());
    ms_log(MS_LOG_WARNING, "tier %s is full", "disk");
    ms_log_set_sink(record_line, &second);
    ms_log(MS_LOG_INFO, "later");
    ms_log_set_sink(NULL, NULL);
    ms_log(MS_LOG_INFO, "dropped");
    assert_int_equal(atomic_load(&first.lines), 1);
    assert_int_equal(first.level, MS_LOG_WARNING);
    assert_string_equal(first.last, "tier disk is full");
    assert_int_equal(atomic_load(&second.lines), 1);
    assert_string_equal(second.last, "later");
}

static void long_lines_are_cut_visibly(void **state)
{
    (void)state;
    sink_record record = {0};
    char text[2 * MS__LOG_LINE_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ms_log_set_sink(record_line, &record);
    ms_log(MS_LOG_INFO, "%s", text);
    assert_int_equal(strlen(record.last), MS__LOG_LINE_MAX - 1);
    assert_string_equal(record.last + MS__LOG_LINE_MAX - 5, "x...");
}

static void a_line_is_one_line_whatever_it_quotes(void **state)
{
    (void)state;
    sink_record record = {0};
    ms_log_set_sink(record_line, &record);
    ms_log(MS_LOG_INFO, "directory %s", "a\nb\tc\x1b[1m");
    assert_string_equal(record.last, "directory a b c [1m");
}

static void log_many(void *argument)
{
    (void)argument;
    for (int i = 0; i < 1000; i++) {
        ms_log(MS_LOG_DEBUG, "line %d", i);
    }
}

static void a_replaced_sink_is_never_called_again(void **state)
{
    (void)state;
    ms_error err;
    atomic_int counts[2] = {0, 0};
    ms__thread threads[THREADS] = {0};
    ms_log_set_sink(count_line, &counts[0]);
    for (int i = 0; i < THREADS; i++) {
        assert_ms_ok(ms__thread_start(&threads[i], "ms-log", log_many, NULL, &err), err);
    }
    ms_log_set_sink(count_line, &counts[1]);
    int settled = atomic_load(&counts[0]);
    for (int i = 0; i < THREADS; i++) {
        ms__thread_join(&threads[i]);
    }
    assert_int_equal(atomic_load(&counts[0]), settled);
    assert_int_equal(settled + atomic_load(&counts[1]), THREADS * 1000);
}

typedef struct gate {
    ms__mutex mutex;
    ms__cond cond;
    bool is_inside;
    bool may_leave;
} gate;

static void wait_inside(void *context, ms_log_level level, const char *line)
{
    gate *g = context;
    (void)level;
    if (strcmp(line, "block") != 0) {
        return;
    }
    ms__mutex_lock(&g->mutex);
    g->is_inside = true;
    ms__cond_broadcast(&g->cond);
    while (!g->may_leave) {
        ms__cond_wait(&g->cond, &g->mutex);
    }
    ms__mutex_unlock(&g->mutex);
}

static void log_block(void *argument)
{
    (void)argument;
    ms_log(MS_LOG_INFO, "block");
}

static void a_child_can_log_though_a_thread_was_logging(void **state)
{
    (void)state;
    ms_error err;
    gate g = {0};
    ms__mutex_init(&g.mutex);
    ms__cond_init(&g.cond);
    ms_log_set_sink(wait_inside, &g);
    ms__thread thread = {0};
    assert_ms_ok(ms__thread_start(&thread, "ms-gate", log_block, NULL, &err), err);
    ms__mutex_lock(&g.mutex);
    while (!g.is_inside) {
        ms__cond_wait(&g.cond, &g.mutex);
    }
    ms__mutex_unlock(&g.mutex);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE_S);
        ms_log_set_sink(NULL, NULL); /* needs the lock that the thread held */
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ms__mutex_lock(&g.mutex);
    g.may_leave = true;
    ms__cond_broadcast(&g.cond);
    ms__mutex_unlock(&g.mutex);
    ms__thread_join(&thread);
    assert_int_equal(status, 0);
    ms_log_set_sink(NULL, NULL);
    ms__cond_destroy(&g.cond);
    ms__mutex_destroy(&g.mutex);
}

/* A sink that holds its own lock most of the time. */
typedef struct slow_sink {
    ms__mutex lock;
    atomic_bool goes_on;
} slow_sink;

static void write_slowly(void *context, ms_log_level level, const char *line)
{
    slow_sink *sink = context;
    (void)level;
    (void)line;
    ms__mutex_lock(&sink->lock);
    usleep(1000);
    ms__mutex_unlock(&sink->lock);
}

static void log_until_told(void *context)
{
    slow_sink *sink = context;
    while (atomic_load(&sink->goes_on)) {
        ms_log(MS_LOG_INFO, "from a thread that the child does not have");
    }
}

/* A fork waits this long for lines that are being written. If a busy machine delays the writer for longer, the run
 * shows nothing. */
enum { FORK_WAIT_MS = 200, NOTHING_TO_SEE = 78, SIGHTS = 10, TRIES = 500 };

/* Forks; the exit status of a child that writes a line. */
static int log_in_a_child(void)
{
    uint64_t begun_ns = ms_now_ns();
    pid_t child = fork();
    if (child == 0) {
        if (ms_now_ns() - begun_ns >= UINT64_C(1000000) * FORK_WAIT_MS) {
            _exit(NOTHING_TO_SEE);
        }
        alarm(PATIENCE_S);
        ms_log(MS_LOG_INFO, "from the child");
        _exit(0);
    }
    int status = -1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_child_can_log_whatever_other_threads_wrote_at_the_fork(void **state)
{
    (void)state;
    slow_sink sink = {.goes_on = true};
    ms__thread thread = {0};
    ms_error err;
    int seen = 0, status = 0;
    ms__mutex_init(&sink.lock);
    ms_log_set_sink(write_slowly, &sink);
    assert_ms_ok(ms__thread_start(&thread, "logger", log_until_told, &sink, &err), err);
    for (int i = 0; i < TRIES && seen < SIGHTS && (status == 0 || status == NOTHING_TO_SEE); i++) {
        usleep(1500);
        status = log_in_a_child();
        seen += status == 0;
    }
    atomic_store(&sink.goes_on, false);
    ms__thread_join(&thread);
    assert_int_equal(seen, SIGHTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_its_name_and_takes_no_signals),
        cmocka_unit_test_teardown(a_thread_that_cannot_start_is_an_error, clean_up),
        cmocka_unit_test(conditions_wake_waiters),
        cmocka_unit_test(waits_end_at_their_deadline),
        cmocka_unit_test(once_runs_once),
        cmocka_unit_test(counters_add_up_under_threads),
        cmocka_unit_test(counters_have_names_and_texts),
        cmocka_unit_test_teardown(lines_go_to_the_sink_that_is_set, clean_up),
        cmocka_unit_test_teardown(a_line_is_one_line_whatever_it_quotes, clean_up),
        cmocka_unit_test_teardown(long_lines_are_cut_visibly, clean_up),
        cmocka_unit_test_teardown(a_replaced_sink_is_never_called_again, clean_up),
        cmocka_unit_test_teardown(a_child_can_log_though_a_thread_was_logging, clean_up),
        cmocka_unit_test_teardown(a_child_can_log_whatever_other_threads_wrote_at_the_fork, clean_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
