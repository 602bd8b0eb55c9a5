/* The database: migrations from every older version, every statement of the table, transactions, the audit's chain.
 * On both databases (test_database.h). */
#include "base/json.h"
#include "store/audit.h"
#include "test_database.h"

static void test_every_older_schema_is_brought_up(void **state)
{
    (void)state;
    for (int version = 0; version <= mss_sql_newest_version(); version++) {
        mss_sql *sql;
        ms_error err;
        int64_t accounts = -1;
        open_new(&sql);
        assert_ms_ok(mss_sql_migrate_to(sql, version, &err), err);
        if (version > 0) {
            script(sql, "INSERT INTO account VALUES ('a', 'e', 'n', 'h', 0, 0)");
        }
        assert_ms_ok(mss_sql_migrate(sql, &err), err);
        assert_ms_ok(mss_sql_migrate(sql, &err), err); /* again: nothing to do */
        assert_ms_ok(mss_sql_number(sql, MSS_ACCOUNT_COUNT, MSS_NONE, &accounts, &err), err);
        assert_int_equal(accounts, version > 0); /* what an older program stored is still there */
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
        bool is_refused = !is_shared && statement >= MSS_FIRST_SHARED;
        assert_ms_fails(mss_sql_query(sql, statement, many, 64, &rows, &err), MS_EINVAL, err,
                        is_refused ? "no other server" : "64 values");
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
    assert_ms_fails(add_team(sql, "one", &err), MS_ESTATE, err, is_shared ? "unique" : "UNIQUE");
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
    assert_ms_fails(add_team(reader, "one", &err), MS_ESYSTEM, err, is_shared ? "read-only" : "readonly");
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
    script(sql, is_shared ? "DROP TRIGGER audit_change ON audit" : "DROP TRIGGER audit_update");
    script(sql, "UPDATE audit SET object = 'y' WHERE number = 3");
    assert_ms_fails(mss_audit_check(sql, &rows, &err), MS_EFORMAT, err, "row 3");
    close_and_remove(sql);
}

/* Whoever writes past the server has to take the guard away first, which shows in the schema. */
static void test_rows_of_the_audit_are_only_added(void **state)
{
    (void)state;
    static const char *const attacks[] = {
        "UPDATE audit SET object = 'y' WHERE number = 2",
        "UPDATE audit SET number = number + 10",
        "DELETE FROM audit WHERE number = 3",
        "DELETE FROM audit",
        "INSERT INTO audit SELECT * FROM audit WHERE number = 1 ON CONFLICT (number) DO UPDATE SET object = 'y'",
        NULL, /* of one database alone */
    };
    mss_sql *sql;
    ms_error err;
    int64_t rows = 0;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    script(sql, "INSERT INTO team VALUES ('t1', 'n', 0)");
    for (int i = 0; i < 3; i++) {
        assert_ms_ok(mss_audit_add(sql, "a1", "t1", "tested", "x", &err), err);
    }
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        const char *own =
            is_shared ? "TRUNCATE audit" : "INSERT OR REPLACE INTO audit SELECT 2, 0, 'a', 't', 'v', 'o', x''";
        const char *attack = attacks[i] != NULL ? attacks[i] : own;
        assert_int_not_equal(sql->driver->script(sql->database, attack, "attack", &err), MS_OK);
        assert_non_null(strstr(err.text, "audit: rows are only added"));
    }
    script(sql, "DELETE FROM team"); /* whose rows stay */
    assert_ms_ok(mss_audit_add(sql, "a1", "t1", "tested", "x", &err), err);
    assert_ms_ok(mss_audit_check(sql, &rows, &err), err);
    assert_int_equal(rows, 4);
    close_and_remove(sql);
}

/* Values of every kind come back as they were, also the smallest and the largest. */
static void test_values_come_back(void **state)
{
    (void)state;
    static const unsigned char data[] = {0, 1, 0x80, 0xff, '\\', '\'', 0};
    static const int64_t numbers[] = {0, 1, -1, 127, 128, 255, 256, INT64_MAX, INT64_MIN};
    mss_sql *sql;
    ms_error err;
    mss_rows rows;
    bool has = false;
    size_t bytes = 0;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    script(sql, "INSERT INTO account VALUES ('a', 'e', 'n', 'h', 0, 0)");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        script(sql, "DELETE FROM session");
        assert_ms_ok(mss_sql_run(sql, MSS_SESSION_ADD,
                                 MSS_WITH(MSS_BLOB(data, sizeof data), MSS_TEXT("a"), MSS_INT(numbers[i]), MSS_INT(7)),
                                 NULL, &err),
                     err);
        assert_ms_ok(mss_sql_first(sql, MSS_SESSION_LIST, MSS_WITH(MSS_TEXT("a")), &rows, &has, &err), err);
        assert_true(has);
        assert_int_equal(mss_rows_int(&rows, 0), numbers[i]);
        mss_rows_end(&rows);
    }
    int64_t changed = 0;
    assert_ms_ok(mss_sql_run(sql, MSS_SESSION_DELETE, MSS_WITH(MSS_BLOB(data, sizeof data)), &changed, &err), err);
    assert_int_equal(changed, 1);
    assert_ms_ok(mss_audit_add(sql, "\xc3\xa4\xe2\x82\xac'", "", "tested", "", &err), err);
    assert_ms_ok(mss_sql_first(sql, MSS_AUDIT_FROM, MSS_WITH(MSS_INT(0), MSS_INT(1)), &rows, &has, &err), err);
    assert_string_equal(mss_rows_text(&rows, 2), "\xc3\xa4\xe2\x82\xac'");
    (void)mss_rows_blob(&rows, 6, &bytes);
    assert_int_equal(bytes, 32);
    mss_rows_end(&rows);
    close_and_remove(sql);
}

static void test_a_failed_statement_is_undone_with_its_savepoint(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    assert_ms_ok(mss_sql_transaction(sql, MSS_BEGIN, &err), err);
    assert_ms_ok(add_team(sql, "one", &err), err);
    assert_ms_ok(mss_sql_transaction(sql, MSS_SAVE, &err), err);
    assert_int_equal(add_team(sql, "one", &err), MS_ESTATE);
    assert_ms_ok(mss_sql_transaction(sql, MSS_UNDO, &err), err);
    assert_ms_ok(add_team(sql, "two", &err), err);
    assert_ms_ok(mss_sql_transaction(sql, MSS_COMMIT, &err), err);
    assert_int_equal(count_teams(sql, "one") + count_teams(sql, "two"), 2);
    close_and_remove(sql);
}

/* One of all connections to a shared database leads; each connection to a file does. */
static void test_one_leads(void **state)
{
    (void)state;
    mss_sql *sql, *other;
    ms_error err;
    bool leads, is_new;
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    assert_ms_ok(mss_sql_open(path, MSS_SQL_WRITE, &other, &err), err);
    for (int i = 0; i < 2; i++) {
        assert_ms_ok(mss_sql_lead(sql, &leads, &is_new, &err), err);
        assert_true(leads);
        assert_int_equal(is_new, i == 0);
    }
    assert_ms_ok(mss_sql_lead(other, &leads, &is_new, &err), err);
    assert_int_equal(leads, !is_shared);
    assert_int_equal(is_new, !is_shared);
    close_and_remove(sql);
    do { /* PostgreSQL notices after a moment that the first one is gone */
        assert_ms_ok(mss_sql_lead(other, &leads, &is_new, &err), err);
    } while (!leads);
    mss_sql_close(other);
}

static void test_a_place_is_a_file_or_a_url_without_a_password(void **state)
{
    (void)state;
    ms_error err;
    assert_false(mss_sql_is_shared_place("postgresql"));
    assert_true(mss_sql_is_shared_place("postgres://host/name"));
    assert_ms_ok(mss_sql_accepts("a/file", &err), err);
    static const char *const open[] = {"postgresql://user:s3cret@host/name", "postgres://host/name?password=s3cret",
                                       "postgresql://user:s3cret@host:port:port/?nothing=1"};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
        int rc = mss_sql_accepts(open[i], &err);
        assert_true(rc == MS_ECONFIG || rc == MS_ENOTSUP);
        assert_null(strstr(err.text, "s3cret"));
    }
}

static void test_a_database_that_is_not_there_is_told(void **state)
{
    (void)state;
    mss_sql *sql = NULL;
    ms_error err;
    int rc = mss_sql_open("postgresql://127.0.0.1:1/none", MSS_SQL_WRITE, &sql, &err);
    assert_true(rc == MS_EIO || rc == MS_ENOTSUP);
    assert_null(sql);
    open_new(&sql); /* a place where there is one */
    close_and_remove(sql);
    for (int nth = 1; nth <= (is_shared ? 3 : 2); nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        assert_int_equal(mss_sql_open(path, MSS_SQL_WRITE, &sql, &err), MS_ENOMEM);
        ms_fault_disarm_all();
    }
}

/* In a file nobody listens; and a transaction of which nothing is left can't be committed. */
static void test_what_a_database_can_not_do_is_refused(void **state)
{
    (void)state;
    mss_sql *sql;
    ms_error err;
    char text[16];
    open_new(&sql);
    assert_ms_ok(mss_sql_migrate(sql, &err), err);
    if (is_shared) {
        assert_ms_ok(mss_sql_listen(sql, &err), err);
        assert_ms_fails(mss_sql_backup(sql, "copy", &err), MS_ENOTSUP, err, "pg_dump");
        assert_ms_ok(mss_sql_transaction(sql, MSS_BEGIN, &err), err);
        assert_ms_ok(add_team(sql, "one", &err), err);
        assert_int_equal(add_team(sql, "one", &err), MS_ESTATE); /* without a savepoint: all is lost */
        assert_ms_fails(mss_sql_transaction(sql, MSS_COMMIT, &err), MS_ESYSTEM, err, "ROLLBACK");
        mss_sql_rollback(sql);
        assert_int_equal(count_teams(sql, "one"), 0);
    } else {
        assert_ms_fails(mss_sql_listen(sql, &err), MS_EINVAL, err, "no notifications");
        assert_ms_fails(mss_sql_wait(sql, -1, text, sizeof text, &err), MS_EINVAL, err, "no notifications");
        assert_int_equal(mss_sql_ports(sql, NULL, 0), 0);
    }
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
        cmocka_unit_test(test_rows_of_the_audit_are_only_added),
        cmocka_unit_test(test_values_come_back),
        cmocka_unit_test(test_a_failed_statement_is_undone_with_its_savepoint),
        cmocka_unit_test(test_one_leads),
        cmocka_unit_test(test_a_place_is_a_file_or_a_url_without_a_password),
        cmocka_unit_test(test_a_database_that_is_not_there_is_told),
        cmocka_unit_test(test_what_a_database_can_not_do_is_refused),
        cmocka_unit_test(test_what_is_no_database_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
