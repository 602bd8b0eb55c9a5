/* Old runs: the same steps in fewer batches, beside appends, whatever fails. On both databases (test_database.h). */
#include "base/json.h"
#include "store/compact.h"
#include "store/statements.h"
#include "store/steps.h"
#include "test_database.h"

#define DAY_MS ((int64_t)24 * 3600 * 1000)

static void make_run(mss_sql *sql, const char *id, int64_t started_at)
{
    ms_error err;
    static const unsigned char hash[32];
    assert_ms_ok(mss_sql_run(sql, MSS_RUN_ADD,
                             MSS_WITH(MSS_TEXT(id), MSS_TEXT("t"), MSS_TEXT("p"), MSS_TEXT(NULL), MSS_TEXT(id),
                                      MSS_BLOB(hash, sizeof hash), MSS_TEXT(NULL), MSS_TEXT("M"), MSS_TEXT(NULL),
                                      MSS_TEXT(NULL), MSS_TEXT(NULL), MSS_TEXT(NULL), MSS_TEXT(NULL), MSS_INT(1),
                                      MSS_INT(1), MSS_INT(1), MSS_INT(started_at), MSS_INT(1000)),
                             NULL, &err),
                 err);
}

static void begin(mss_sql **sql)
{
    ms_error err;
    open_new(sql);
    assert_ms_ok(mss_sql_migrate(*sql, &err), err);
    script(*sql, "INSERT INTO team VALUES ('t', 'n', 0); INSERT INTO project VALUES ('p', 't', 'n', 0)");
    make_run(*sql, "r1", 1);
}

/* Steps behind those of the run, with values that differ and some that are unknown. */
static void append(mss_sql *sql, const char *run, size_t count)
{
    ms_error err;
    mss_rows rows;
    bool has;
    mss_steps steps = {0};
    assert_ms_ok(mss_sql_first(sql, MSS_RUN_STATE, MSS_WITH(MSS_TEXT(run)), &rows, &has, &err), err);
    uint64_t sequence = (uint64_t)mss_rows_int(&rows, 0) + 1, last = (uint64_t)mss_rows_int(&rows, 1);
    mss_rows_end(&rows);
    for (size_t i = 0; i < count; i++) {
        mss_step *step = MS__ARRAY_PUSH(&steps);
        for (int column = 0; column < MSS_STEP_COLUMNS; column++) {
            uint64_t mixed = (last + i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)column * 0xbf58476d1ce4e5b9u;
            step->value[column] = mixed % 7 == 0 ? UINT64_MAX : mixed >> (2 + mixed % 40);
        }
        step->value[MSS_STEP_NUMBER] = last + i + 1;
    }
    assert_ms_ok(mss_run_append(sql, run, sequence, &steps, &err), err);
    MS__ARRAY_FREE(&steps);
}

/* A whole pass; the number of its calls. */
static int pass_over(mss_sql *sql, int64_t before_ms)
{
    mss_compaction pass = {0};
    bool is_done = false;
    int calls = 0;
    for (; !is_done; calls++) {
        ms_error err;
        assert_ms_ok(mss_compact_step(sql, before_ms, &pass, &is_done, &err), err);
        assert_true(calls < 1000);
    }
    return calls;
}

static void load(mss_sql *sql, const char *run, mss_steps *steps)
{
    ms_error err;
    steps->count = 0;
    assert_ms_ok(mss_steps_load(sql, run, 0, steps, &err), err);
}

static void assert_same_steps(mss_sql *sql, const char *run, const mss_steps *wanted)
{
    mss_steps found = {0};
    load(sql, run, &found);
    assert_int_equal(found.count, wanted->count);
    assert_memory_equal(found.items, wanted->items, wanted->count * sizeof wanted->items[0]);
    MS__ARRAY_FREE(&found);
}

typedef struct use {
    size_t batches;
    int64_t bytes;
} use;

static use use_of(mss_sql *sql, const char *run)
{
    mss_rows rows;
    bool has = true;
    ms_error err;
    use u = {0};
    assert_ms_ok(mss_sql_query(sql, MSS_BATCH_LIST, MSS_WITH(MSS_TEXT(run), MSS_INT(0)), &rows, &err), err);
    for (;;) {
        size_t bytes;
        assert_ms_ok(mss_rows_next(&rows, &has, &err), err);
        if (!has) {
            break;
        }
        assert_true(mss_rows_int(&rows, 0) <= MSS_MERGED_STEPS_MOST);
        (void)mss_rows_blob(&rows, 1, &bytes);
        u.batches++;
        u.bytes += (int64_t)bytes;
    }
    mss_rows_end(&rows);
    return u;
}

static size_t batches(mss_sql *sql, const char *run)
{
    return use_of(sql, run).batches;
}

/* What the team's quota counts apart from the run's batches. */
static int64_t other_bytes(mss_sql *sql, const char *run)
{
    int64_t all = 0;
    ms_error err;
    assert_ms_ok(mss_sql_number(sql, MSS_RUN_TEAM_USE, MSS_WITH(MSS_TEXT("t")), &all, &err), err);
    return all - use_of(sql, run).bytes;
}

static void test_every_step_stays_as_it_was(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_steps before = {0};
    begin(&sql);
    for (int i = 0; i < 60; i++) {
        append(sql, "r1", i % 5 == 0 ? 1 : (size_t)(i * 37 % 1000 + 1));
    }
    load(sql, "r1", &before);
    assert_true(before.count > MSS_MERGED_STEPS_MOST);
    int64_t others = other_bytes(sql, "r1");
    pass_over(sql, DAY_MS);
    assert_same_steps(sql, "r1", &before);
    assert_true(batches(sql, "r1") <= before.count / MSS_LOOSE_STEPS + 1);
    assert_int_equal(other_bytes(sql, "r1"), others);
    assert_int_equal(pass_over(sql, DAY_MS), 1); /* nothing is left to do */
    MS__ARRAY_FREE(&before);
    close_and_remove(sql);
}

static void test_a_run_goes_on_after_it(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_steps before = {0};
    begin(&sql);
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 5; i++) {
            append(sql, "r1", 997);
        }
        load(sql, "r1", &before);
        assert_int_equal(before.count, 997 * 5 * (round + 1)); /* the next sequence was free each time */
        pass_over(sql, DAY_MS);
        assert_same_steps(sql, "r1", &before);
    }
    assert_true(batches(sql, "r1") <= before.count / MSS_LOOSE_STEPS + 1);
    MS__ARRAY_FREE(&before);
    close_and_remove(sql);
}

static void test_a_young_run_is_left_alone(void **state)
{
    (void)state;
    mss_sql *sql;
    begin(&sql);
    make_run(sql, "r2", DAY_MS);
    for (int i = 0; i < 3; i++) {
        append(sql, "r1", 10);
        append(sql, "r2", 10);
    }
    pass_over(sql, DAY_MS);
    assert_int_equal(batches(sql, "r1"), 1);
    assert_int_equal(batches(sql, "r2"), 3);
    pass_over(sql, DAY_MS + 1);
    assert_int_equal(batches(sql, "r2"), 1);
    close_and_remove(sql);
}

/* The pass goes on behind it. */
static void test_a_damaged_batch_stays_and_stops_nothing_else(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_compaction pass = {0};
    bool is_done;
    ms_error err;
    begin(&sql);
    make_run(sql, "r2", 1);
    for (int i = 0; i < 3; i++) {
        append(sql, "r1", 10);
        append(sql, "r2", 10);
    }
    script(sql, "UPDATE batch SET steps = 9 WHERE run = 'r1' AND sequence = 2");
    assert_int_equal(mss_compact_step(sql, DAY_MS, &pass, &is_done, &err), MS_EFORMAT);
    assert_int_equal(batches(sql, "r1"), 3);
    do {
        assert_ms_ok(mss_compact_step(sql, DAY_MS, &pass, &is_done, &err), err);
    } while (!is_done);
    assert_int_equal(batches(sql, "r1"), 3);
    assert_int_equal(batches(sql, "r2"), 1);
    close_and_remove(sql);
}

static void test_what_fails_changes_nothing(void **state)
{
    (void)state;
    mss_sql *sql;
    mss_steps before = {0};
    int failures = 0;
    begin(&sql);
    for (int i = 0; i < 4; i++) {
        append(sql, "r1", 10);
    }
    load(sql, "r1", &before);
    for (int nth = 1; batches(sql, "r1") == 4; nth++) {
        ms_error err;
        mss_compaction pass = {0};
        bool is_done;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        int rc = mss_compact_step(sql, DAY_MS, &pass, &is_done, &err);
        ms_fault_disarm_all();
        failures += rc != MS_OK;
        assert_int_equal(rc == MS_OK, batches(sql, "r1") == 1);
        assert_same_steps(sql, "r1", &before);
    }
    assert_true(failures > 0);
    MS__ARRAY_FREE(&before);
    close_and_remove(sql);
}

int main(void)
{
    ms__json_writer writer = {0};
    json_decref(ms__json_new(&writer)); /* jansson's memory is ours from here on */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_step_stays_as_it_was),
        cmocka_unit_test(test_a_run_goes_on_after_it),
        cmocka_unit_test(test_a_young_run_is_left_alone),
        cmocka_unit_test(test_a_damaged_batch_stays_and_stops_nothing_else),
        cmocka_unit_test(test_what_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
