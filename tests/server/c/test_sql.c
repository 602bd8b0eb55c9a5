/* The database: migrations from every older version, every statement of the table, transactions, the audit's chain. */
#include <sqlite3.h>
#include <unistd.h>

#include "base/json.h"
#include "store/audit.h"
#include "store/statements.h"
#include "test_common.h"

static char path[] = "test_sql_XXXXXX";

static void open_new(mss_sql **sql)
{
    ms_error err;
    strcpy(path, "test_sql_XXXXXX");
    close(mkstemp(path));
    assert_ms_ok(mss_sql_open(path, MSS_SQL_WRITE, sql, &err), err);
}

static void close_and_remove(mss_sql *sql)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char name[64];
    mss_sql_close(sql);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        unlink(name);
    }
}

static void test_every_older_schema_is_brought_up(void **state)
{
    (void)state;
    for (int version = 0; version <= mss_sql_newest_version(); version++) {
        mss_sql *sql;
        ms_error err;
        int64_t accounts = -1;
        open_new(&sql);
        assert_ms_ok(mss_sql_migrate_to(sql, version, &err), err);
        assert_ms_ok(mss_sql_migrate(sql, &err), err);
        assert_ms_ok(mss_sql_migrate(sql, &err), err); /* again: nothing to do */
        assert_ms_ok(mss_sql_number(sql, MSS_ACCOUNT_COUNT, MSS_NONE, &accounts, &err), err);
        assert_int_equal(accounts, 0);
        assert_ms_ok(mss_sql_check(sql, &err), err);
        close_and_remove(sql);
    }
}

/* Each text is valid SQL over the newest schema: it prepares. The count of values is what is wrong then. */
static void test_every_statement_prepares(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    mss_value many[64] = {{0}};
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    for (int statement = 0; statement < MSS_STATEMENT_COUNT; statement++) {
        mss_rows rows;
        assert_ms_fails(mss_sql_query(sql, statement, many, 64, &rows, &err), MS_EINVAL, err, "64 values");
    }
    close_and_remove(sql);
}

static int add_team(mss_sql *sql, const char *id, ms_error *err)
{
    return mss_sql_run(sql, MSS_TEAM_ADD, MSS_WITH(MSS_TEXT(id), MSS_TEXT("name"), MSS_INT(1)), NULL, err);
}

static size_t count_teams(mss_sql *sql, const char *id)
{
    json_t *rows = mss_sql_objects(sql, MSS_TEAM_SHOW, MSS_WITH(MSS_TEXT(id)), NULL);
    size_t count = json_array_size(rows);
    json_decref(rows);
    return count;
}

static void test_a_savepoint_is_taken_back_alone(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    assert_ms_ok(mss_sql_transaction(sql, MSS_BEGIN, &err), err);
    static const mss_transaction ends[] = {MSS_RELEASE, MSS_UNDO, MSS_RELEASE};
    static const char *const ids[] = {"one", "two", "three"};
    for (int i = 0; i < 3; i++) {
        assert_ms_ok(mss_sql_transaction(sql, MSS_SAVE, &err), err);
        assert_ms_ok(add_team(sql, ids[i], &err), err);
        assert_ms_ok(mss_sql_transaction(sql, ends[i], &err), err);
    }
    assert_ms_ok(mss_sql_transaction(sql, MSS_COMMIT, &err), err);
    assert_int_equal(count_teams(sql, "one"), 1);
    assert_int_equal(count_teams(sql, "two"), 0);
    assert_int_equal(count_teams(sql, "three"), 1);
    assert_ms_fails(add_team(sql, "one", &err), MS_ESTATE, err, "UNIQUE");
    assert_ms_ok(mss_sql_transaction(sql, MSS_BEGIN, &err), err);
    assert_ms_ok(add_team(sql, "four", &err), err);
    mss_sql_rollback(sql);
    mss_sql_rollback(sql); /* there is none: allowed */
    assert_int_equal(count_teams(sql, "four"), 0);
    close_and_remove(sql);
}

static void test_a_reader_writes_nothing(void **state)
{
    (void)state;
    mss_sql *sql, *reader;
    ms_error err;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    assert_ms_ok(mss_sql_open(path, MSS_SQL_READ, &reader, &err), err);
    assert_ms_fails(add_team(reader, "one", &err), MS_ESYSTEM, err, "readonly");
    mss_sql_close(reader);
    close_and_remove(sql);
}

static void test_rows_become_objects(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    assert_ms_ok(mss_sql_run(sql, MSS_ACCOUNT_ADD,
                             MSS_WITH(MSS_TEXT("a1"), MSS_TEXT("e"), MSS_TEXT("n"), MSS_TEXT("h"), MSS_INT(1),
                                      MSS_INT(1767225600123)),
                             NULL, &err),
                 err);
    json_t *account = mss_sql_object(sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT("a1")), &err);
    assert_string_equal(json_string_value(json_object_get(account, "created_at")), "2026-01-01T00:00:00.123Z");
    assert_true(json_is_true(json_object_get(account, "is_operator")));
    json_decref(account);
    account = mss_sql_object(sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT("a2")), &err);
    assert_true(json_is_null(account));
    close_and_remove(sql);
}

static void test_the_audit_is_a_chain(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    int64_t rows = 0;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    for (int i = 0; i < 5; i++) {
        assert_ms_ok(mss_audit_add(sql, "a1", "t1", "tested", "x", &err), err);
    }
    assert_ms_ok(mss_audit_check(sql, &rows, &err), err);
    assert_int_equal(rows, 5);
    sqlite3 *other;
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "UPDATE audit SET object = 'y' WHERE number = 3", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(other);
    assert_ms_fails(mss_audit_check(sql, &rows, &err), MS_EFORMAT, err, "row 3");
    close_and_remove(sql);
}

static void test_what_is_no_database_is_refused(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    FILE *file = fopen("test_sql_none", "w");
    fputs("this is a text of some length and no database at all", file);
    fclose(file);
    assert_ms_fails(mss_sql_open("test_sql_none", MSS_SQL_WRITE, &sql, &err), MS_EFORMAT, err, "not a database");
    unlink("test_sql_none");
    assert_int_equal(mss_sql_open("no/such/folder/file", MSS_SQL_WRITE, &sql, &err), MS_ESYSTEM);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(mss_sql_open("test_sql_none", MSS_SQL_WRITE, &sql, &err), MS_ENOMEM);
    ms_fault_disarm_all();
}

int main(void)
{
    ms__json_writer writer = {0};
    json_decref(ms__json_new(&writer)); /* jansson's memory is ours from here on */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_older_schema_is_brought_up),
        cmocka_unit_test(test_every_statement_prepares),
        cmocka_unit_test(test_a_savepoint_is_taken_back_alone),
        cmocka_unit_test(test_a_reader_writes_nothing),
        cmocka_unit_test(test_rows_become_objects),
        cmocka_unit_test(test_the_audit_is_a_chain),
        cmocka_unit_test(test_what_is_no_database_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
