#include "store/sql.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "log/log.h"
#include "store/migrations.h"
#include "store/statements.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum { BUSY_TIMEOUT_MS = 10000 };

struct mss_sql {
    sqlite3 *database;
    sqlite3_stmt *statements[MSS_STATEMENT_COUNT]; /* prepared when first used */
};

static const char *const statement_texts[MSS_STATEMENT_COUNT] = {
#define STATEMENT_TEXT(name, text) text,
    MSS_STATEMENT_TABLE(STATEMENT_TEXT)
#undef STATEMENT_TEXT
};

static const char *const statement_names[MSS_STATEMENT_COUNT] = {
#define STATEMENT_NAME(name, text) #name,
    MSS_STATEMENT_TABLE(STATEMENT_NAME)
#undef STATEMENT_NAME
};

static const char *const migrations[] = {
#define MIGRATION_TEXT(text) text,
    MSS_MIGRATION_TABLE(MIGRATION_TEXT)
#undef MIGRATION_TEXT
};

static int fail(const mss_sql *sql, const char *doing, ms_error *err)
{
    int code = sqlite3_errcode(sql->database);
    int ours = code == SQLITE_CONSTRAINT                         ? MS_ESTATE
               : code == SQLITE_FULL                             ? MS_ENOSPC
               : code == SQLITE_NOMEM                            ? MS_ENOMEM
               : code == SQLITE_BUSY                             ? MS_ETIMEDOUT
               : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? MS_EFORMAT
                                                                 : MS_ESYSTEM;
    return ms_fail(err, ours, "%s: %s", doing, sqlite3_errmsg(sql->database));
}

static int execute(mss_sql *sql, const char *text, const char *doing, ms_error *err)
{
    return sqlite3_exec(sql->database, text, NULL, NULL, NULL) == SQLITE_OK ? MS_OK : fail(sql, doing, err);
}

/* ---- open, close -------------------------------------------------------------- */

static int set_up(mss_sql *sql, mss_sql_mode mode, const char *path, ms_error *err)
{
    sqlite3_busy_timeout(sql->database, BUSY_TIMEOUT_MS);
    sqlite3_db_config(sql->database, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(sql->database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    /* FULL: a commit waits until the log is on the disk. */
    int rc = execute(sql,
                     "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                     "PRAGMA cell_size_check = ON; PRAGMA cache_size = -16000; PRAGMA temp_store = MEMORY;",
                     path, err);
    return rc == MS_OK && mode == MSS_SQL_READ ? execute(sql, "PRAGMA query_only = ON", path, err) : rc;
}

int mss_sql_open(const char *path, mss_sql_mode mode, mss_sql **out, ms_error *err)
{
    int flags = mode == MSS_SQL_WRITE ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READWRITE;
    mss_sql *sql = ms_calloc(1, sizeof *sql);
    if (sql == NULL) {
        return ms_fail(err, MS_ENOMEM, "database: out of memory");
    }
    int rc =
        sqlite3_open_v2(path, &sql->database, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW, NULL) == SQLITE_OK
            ? set_up(sql, mode, path, err)
            : ms_fail(err, MS_ESYSTEM, "%s: %s", path,
                      sql->database != NULL ? sqlite3_errmsg(sql->database) : "out of memory");
    if (rc != MS_OK) {
        mss_sql_close(sql);
        return rc;
    }
    *out = sql;
    return MS_OK;
}

void mss_sql_close(mss_sql *sql)
{
    if (sql == NULL) {
        return;
    }
    for (int i = 0; i < MSS_STATEMENT_COUNT; i++) {
        sqlite3_finalize(sql->statements[i]);
    }
    sqlite3_close(sql->database);
    ms_free(sql);
}

/* ---- migrations --------------------------------------------------------------- */

int mss_sql_newest_version(void)
{
    return (int)COUNT(migrations);
}

static int schema_version(mss_sql *sql, int *version, ms_error *err)
{
    sqlite3_stmt *statement = NULL;
    bool has =
        sqlite3_prepare_v2(sql->database, "SELECT version FROM schema_version", -1, &statement, NULL) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW;
    *version = has ? sqlite3_column_int(statement, 0) : 0;
    sqlite3_finalize(statement);
    return has ? MS_OK : fail(sql, "the schema's version", err);
}

static int migrate_one(mss_sql *sql, int index, ms_error *err)
{
    char version[80];
    snprintf(version, sizeof version, "UPDATE schema_version SET version = %d", index + 1);
    int rc = execute(sql, "BEGIN IMMEDIATE", "migration", err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = execute(sql, migrations[index], "migration", err);
    if (rc == MS_OK) {
        rc = execute(sql, version, "migration", err);
    }
    if (rc == MS_OK) {
        rc = execute(sql, "COMMIT", "migration", err);
    }
    if (rc != MS_OK) {
        mss_sql_rollback(sql);
    }
    return rc;
}

int mss_sql_migrate_to(mss_sql *sql, int wanted, ms_error *err)
{
    int version = 0;
    int rc = execute(sql,
                     "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL);"
                     "INSERT INTO schema_version SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM schema_version);",
                     "the schema's version", err);
    if (rc == MS_OK) {
        rc = schema_version(sql, &version, err);
    }
    if (rc == MS_OK && version > mss_sql_newest_version()) {
        rc = ms_fail(err, MS_EVERSION, "the database's schema is %d, this program knows up to %d", version,
                     mss_sql_newest_version());
    }
    for (; rc == MS_OK && version < wanted; version++) {
        rc = migrate_one(sql, version, err);
    }
    return rc;
}

int mss_sql_migrate(mss_sql *sql, ms_error *err)
{
    return mss_sql_migrate_to(sql, mss_sql_newest_version(), err);
}

/* ---- statements --------------------------------------------------------------- */

static int prepare(mss_sql *sql, mss_statement statement, ms_error *err)
{
    if (sql->statements[statement] != NULL) {
        return MS_OK;
    }
    int rc = sqlite3_prepare_v3(sql->database, statement_texts[statement], -1, SQLITE_PREPARE_PERSISTENT,
                                &sql->statements[statement], NULL);
    return rc == SQLITE_OK ? MS_OK : fail(sql, statement_names[statement], err);
}

static int bind_one(sqlite3_stmt *statement, int index, const mss_value *value)
{
    switch (value->kind) {
    case MSS_IS_INT:
        return sqlite3_bind_int64(statement, index, value->number);
    case MSS_IS_TEXT:
        return sqlite3_bind_text(statement, index, value->data, -1, SQLITE_STATIC);
    case MSS_IS_BLOB:
        return sqlite3_bind_blob64(statement, index, value->data, value->bytes, SQLITE_STATIC);
    default:
        return sqlite3_bind_null(statement, index);
    }
}

int mss_sql_query(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, mss_rows *rows,
                  ms_error *err)
{
    *rows = (mss_rows){.sql = sql, .statement = statement};
    int rc = prepare(sql, statement, err);
    if (rc != MS_OK) {
        return rc;
    }
    sqlite3_stmt *prepared = sql->statements[statement];
    if (sqlite3_bind_parameter_count(prepared) != (int)count) {
        return ms_fail(err, MS_EINVAL, "%s: %zu values for %d parameters", statement_names[statement], count,
                       sqlite3_bind_parameter_count(prepared));
    }
    rows->is_open = true;
    for (size_t i = 0; i < count; i++) {
        if (bind_one(prepared, (int)i + 1, &values[i]) != SQLITE_OK) {
            rc = fail(sql, statement_names[statement], err);
            mss_rows_end(rows);
            return rc;
        }
    }
    return MS_OK;
}

int mss_rows_next(mss_rows *rows, bool *has, ms_error *err)
{
    int rc = sqlite3_step(rows->sql->statements[rows->statement]);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        return fail(rows->sql, statement_names[rows->statement], err);
    }
    *has = rc == SQLITE_ROW;
    return MS_OK;
}

int mss_sql_first(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, mss_rows *rows,
                  bool *has, ms_error *err)
{
    *has = false;
    int rc = mss_sql_query(sql, statement, values, count, rows, err);
    return rc == MS_OK ? mss_rows_next(rows, has, err) : rc;
}

void mss_rows_end(mss_rows *rows)
{
    if (rows->is_open) {
        sqlite3_reset(rows->sql->statements[rows->statement]);
        sqlite3_clear_bindings(rows->sql->statements[rows->statement]);
        rows->is_open = false;
    }
}

int mss_sql_run(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, int64_t *changed,
                ms_error *err)
{
    mss_rows rows;
    bool has = true;
    int rc = mss_sql_query(sql, statement, values, count, &rows, err);
    while (rc == MS_OK && has) {
        rc = mss_rows_next(&rows, &has, err);
    }
    mss_rows_end(&rows);
    if (rc == MS_OK && changed != NULL) {
        *changed = sqlite3_changes64(sql->database);
    }
    return rc;
}

int mss_sql_number(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, int64_t *number,
                   ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_first(sql, statement, values, count, &rows, &has, err);
    if (rc == MS_OK) {
        *number = has ? mss_rows_int(&rows, 0) : 0;
    }
    mss_rows_end(&rows);
    return rc;
}

/* ---- columns ------------------------------------------------------------------ */

static sqlite3_stmt *of(const mss_rows *rows)
{
    return rows->sql->statements[rows->statement];
}

int64_t mss_rows_int(const mss_rows *rows, int column)
{
    return sqlite3_column_int64(of(rows), column);
}

bool mss_rows_is_null(const mss_rows *rows, int column)
{
    return sqlite3_column_type(of(rows), column) == SQLITE_NULL;
}

const char *mss_rows_text(const mss_rows *rows, int column)
{
    const char *text = (const char *)sqlite3_column_text(of(rows), column);
    return text != NULL ? text : "";
}

const void *mss_rows_blob(const mss_rows *rows, int column, size_t *bytes)
{
    const void *blob = sqlite3_column_blob(of(rows), column);
    *bytes = (size_t)sqlite3_column_bytes(of(rows), column);
    return blob != NULL ? blob : "";
}

void mss_rows_copy(const mss_rows *rows, int column, char *to, size_t room)
{
    snprintf(to, room, "%s", mss_rows_text(rows, column));
}

/* ---- rows as JSON --------------------------------------------------------------- */

static bool ends_in(const char *text, const char *ending)
{
    size_t length = strlen(text), wanted = strlen(ending);
    return length > wanted && strcmp(text + length - wanted, ending) == 0;
}

static json_t *time_value(int64_t time_ms)
{
    char text[MSS_TIME_TEXT_BYTES];
    mss_time_text(time_ms, text);
    return json_string(text);
}

static json_t *column_value(const mss_rows *rows, int column, const char *name)
{
    if (mss_rows_is_null(rows, column)) {
        return json_null();
    }
    if (ends_in(name, "_at")) {
        return time_value(mss_rows_int(rows, column));
    }
    if (strncmp(name, "is_", 3) == 0 || strncmp(name, "has_", 4) == 0) {
        return json_boolean(mss_rows_int(rows, column) != 0);
    }
    if (ends_in(name, "_json")) {
        return json_loads(mss_rows_text(rows, column), JSON_DECODE_ANY, NULL);
    }
    bool is_number = sqlite3_column_type(of(rows), column) == SQLITE_INTEGER;
    return is_number ? json_integer(mss_rows_int(rows, column)) : json_string(mss_rows_text(rows, column));
}

static void add_row(ms__json_writer *writer, json_t *array, const mss_rows *rows)
{
    json_t *object = ms__json_add_object(writer, array);
    for (int i = 0; i < sqlite3_column_count(of(rows)); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", sqlite3_column_name(of(rows), i));
        json_t *value = column_value(rows, i, name);
        if (ends_in(name, "_json")) {
            name[strlen(name) - strlen("_json")] = '\0';
        }
        ms__json_put_value(writer, object, name, value);
    }
}

json_t *mss_sql_objects(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer), *array = ms__json_put_array(&writer, root, "rows");
    mss_rows rows;
    bool has = true;
    int rc = mss_sql_query(sql, statement, values, count, &rows, err);
    while (rc == MS_OK && (rc = mss_rows_next(&rows, &has, err)) == MS_OK && has) {
        add_row(&writer, array, &rows);
    }
    mss_rows_end(&rows);
    if (rc == MS_OK && writer.code != MS_OK) {
        rc = ms_fail(err, writer.code, "%s: a row can't be written as JSON", statement_names[statement]);
    }
    json_t *result = rc == MS_OK ? json_incref(array) : NULL;
    json_decref(root);
    return result;
}

json_t *mss_sql_object(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    json_t *all = mss_sql_objects(sql, statement, values, count, err);
    if (all == NULL) {
        return NULL;
    }
    json_t *first = json_array_size(all) > 0 ? json_incref(json_array_get(all, 0)) : json_null();
    json_decref(all);
    return first;
}

/* ---- transactions --------------------------------------------------------------- */

int mss_sql_transaction(mss_sql *sql, mss_transaction what, ms_error *err)
{
    static const char *const texts[] = {
        [MSS_BEGIN] = "BEGIN IMMEDIATE",
        [MSS_COMMIT] = "COMMIT",
        [MSS_SAVE] = "SAVEPOINT request",
        [MSS_RELEASE] = "RELEASE request",
        [MSS_UNDO] = "ROLLBACK TO request; RELEASE request",
    };
    return execute(sql, texts[what], texts[what], err);
}

void mss_sql_rollback(mss_sql *sql)
{
    if (!sqlite3_get_autocommit(sql->database)) {
        (void)sqlite3_exec(sql->database, "ROLLBACK", NULL, NULL, NULL);
    }
}

/* ---- the file ------------------------------------------------------------------- */

int mss_sql_backup(mss_sql *sql, const char *to_path, ms_error *err)
{
    sqlite3 *to = NULL;
    sqlite3_backup *backup = NULL;
    int rc = sqlite3_open_v2(to_path, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (rc == SQLITE_OK && (backup = sqlite3_backup_init(to, "main", sql->database, "main")) == NULL) {
        rc = sqlite3_errcode(to);
    }
    while (rc == SQLITE_OK) {
        rc = sqlite3_backup_step(backup, 1024);
        if (rc == SQLITE_BUSY || rc == SQLITE_LOCKED) {
            sqlite3_sleep(10);
            rc = SQLITE_OK;
        }
    }
    if (backup != NULL) {
        int end = sqlite3_backup_finish(backup);
        rc = rc == SQLITE_DONE ? end : rc;
    }
    int result = rc == SQLITE_OK ? MS_OK : ms_fail(err, MS_ESYSTEM, "backup to %s: %s", to_path, sqlite3_errstr(rc));
    sqlite3_close(to);
    return result;
}

/* The first word of a check that answers "ok" or nothing. */
static int check_one(mss_sql *sql, const char *text, ms_error *err)
{
    sqlite3_stmt *statement = NULL;
    int rc = MS_OK;
    if (sqlite3_prepare_v2(sql->database, text, -1, &statement, NULL) != SQLITE_OK) {
        return fail(sql, text, err);
    }
    int step = sqlite3_step(statement);
    const char *said = step == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : "ok";
    if (step != SQLITE_ROW && step != SQLITE_DONE) {
        rc = fail(sql, text, err);
    } else if (strcmp(said != NULL ? said : "", "ok") != 0) {
        rc = ms_fail(err, MS_EFORMAT, "%s: %s", text, said);
    }
    sqlite3_finalize(statement);
    return rc;
}

int mss_sql_check(mss_sql *sql, ms_error *err)
{
    int rc = check_one(sql, "PRAGMA integrity_check", err);
    return rc == MS_OK ? check_one(sql, "PRAGMA foreign_key_check", err) : rc;
}
