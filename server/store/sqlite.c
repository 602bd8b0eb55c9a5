/* SQLite, one file; see driver.h. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "store/driver.h"
#include "store/migrations.h"

enum { BUSY_TIMEOUT_MS = 10000 };

struct mss_database {
    sqlite3 *file;
    sqlite3_stmt *statements[MSS_STATEMENT_COUNT]; /* prepared when first used */
};

#define MSS_AUDIT_GUARD MSS_AUDIT_GUARD_SQLITE
static const char *const migrations[] = {
#define MIGRATION_TEXT(migration) migration("BLOB"),
    MSS_MIGRATION_TABLE(MIGRATION_TEXT)
#undef MIGRATION_TEXT
};

static int fail(const mss_database *database, const char *doing, ms_error *err)
{
    int code = sqlite3_errcode(database->file);
    int ours = code == SQLITE_CONSTRAINT                         ? MS_ESTATE
               : code == SQLITE_FULL                             ? MS_ENOSPC
               : code == SQLITE_NOMEM                            ? MS_ENOMEM
               : code == SQLITE_BUSY                             ? MS_ETIMEDOUT
               : code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? MS_EFORMAT
                                                                 : MS_ESYSTEM;
    return ms_fail(err, ours, "%s: %s", doing, sqlite3_errmsg(database->file));
}

static int script(mss_database *database, const char *text, const char *doing, ms_error *err)
{
    return sqlite3_exec(database->file, text, NULL, NULL, NULL) == SQLITE_OK ? MS_OK : fail(database, doing, err);
}

/* ---- open, close -------------------------------------------------------------- */

static int set_up(mss_database *database, mss_sql_mode mode, const char *path, ms_error *err)
{
    sqlite3_busy_timeout(database->file, BUSY_TIMEOUT_MS);
    sqlite3_db_config(database->file, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(database->file, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    /* FULL: a commit waits until the log is on the disk. */
    int rc = script(database,
                    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                    "PRAGMA cell_size_check = ON; PRAGMA cache_size = -16000; PRAGMA temp_store = MEMORY;",
                    path, err);
    return rc == MS_OK && mode == MSS_SQL_READ ? script(database, "PRAGMA query_only = ON", path, err) : rc;
}

static void close_file(mss_database *database)
{
    if (database == NULL) {
        return;
    }
    for (int i = 0; i < MSS_STATEMENT_COUNT; i++) {
        sqlite3_finalize(database->statements[i]);
    }
    sqlite3_close(database->file);
    ms_free(database);
}

static int open_file(const char *path, mss_sql_mode mode, mss_database **out, ms_error *err)
{
    int flags = mode == MSS_SQL_WRITE ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READWRITE;
    mss_database *database = ms_calloc(1, sizeof *database);
    if (database == NULL) {
        return ms_fail(err, MS_ENOMEM, "database: out of memory");
    }
    flags |= SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_NOFOLLOW;
    int rc = sqlite3_open_v2(path, &database->file, flags, NULL) == SQLITE_OK
                 ? set_up(database, mode, path, err)
                 : ms_fail(err, MS_ESYSTEM, "%s: %s", path,
                           database->file != NULL ? sqlite3_errmsg(database->file) : "out of memory");
    if (rc != MS_OK) {
        close_file(database);
        return rc;
    }
    *out = database;
    return MS_OK;
}

/* ---- statements --------------------------------------------------------------- */

static int prepare(mss_database *database, mss_statement statement, ms_error *err)
{
    if (statement >= MSS_FIRST_SHARED) {
        return ms_fail(err, MS_EINVAL, "%s: no other server shares a file", mss_statement_name(statement));
    }
    if (database->statements[statement] != NULL) {
        return MS_OK;
    }
    int rc = sqlite3_prepare_v3(database->file, mss_statement_text(statement), -1, SQLITE_PREPARE_PERSISTENT,
                                &database->statements[statement], NULL);
    return rc == SQLITE_OK ? MS_OK : fail(database, mss_statement_name(statement), err);
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

static void end(mss_database *database, mss_statement statement)
{
    sqlite3_reset(database->statements[statement]);
    sqlite3_clear_bindings(database->statements[statement]);
}

static int begin(mss_database *database, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    int rc = prepare(database, statement, err);
    if (rc == MS_OK) {
        size_t wanted = (size_t)sqlite3_bind_parameter_count(database->statements[statement]);
        rc = mss_statement_count(statement, count, wanted, err);
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        if (bind_one(database->statements[statement], (int)i + 1, &values[i]) != SQLITE_OK) {
            rc = fail(database, mss_statement_name(statement), err);
            end(database, statement);
        }
    }
    return rc;
}

static int next(mss_database *database, mss_statement statement, bool *has, ms_error *err)
{
    int rc = sqlite3_step(database->statements[statement]);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        return fail(database, mss_statement_name(statement), err);
    }
    *has = rc == SQLITE_ROW;
    return MS_OK;
}

static int64_t changed(const mss_database *database)
{
    return sqlite3_changes64(database->file);
}

/* ---- columns ------------------------------------------------------------------ */

static int columns(const mss_database *database, mss_statement statement)
{
    return sqlite3_column_count(database->statements[statement]);
}

static const char *name(const mss_database *database, mss_statement statement, int column)
{
    return sqlite3_column_name(database->statements[statement], column);
}

static int kind(const mss_database *database, mss_statement statement, int column)
{
    switch (sqlite3_column_type(database->statements[statement], column)) {
    case SQLITE_NULL:
        return MSS_IS_NULL;
    case SQLITE_INTEGER:
        return MSS_IS_INT;
    case SQLITE_BLOB:
        return MSS_IS_BLOB;
    default:
        return MSS_IS_TEXT;
    }
}

static int64_t number(const mss_database *database, mss_statement statement, int column)
{
    return sqlite3_column_int64(database->statements[statement], column);
}

static const char *text_of(const mss_database *database, mss_statement statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(database->statements[statement], column);
    return text != NULL ? text : "";
}

static const void *blob_of(const mss_database *database, mss_statement statement, int column, size_t *bytes)
{
    const void *blob = sqlite3_column_blob(database->statements[statement], column);
    *bytes = (size_t)sqlite3_column_bytes(database->statements[statement], column);
    return blob != NULL ? blob : "";
}

/* ---- transactions --------------------------------------------------------------- */

static int transaction(mss_database *database, mss_transaction what, ms_error *err)
{
    static const char *const texts[] = {
        [MSS_BEGIN] = "BEGIN IMMEDIATE",
        [MSS_COMMIT] = "COMMIT",
        [MSS_SAVE] = "SAVEPOINT request",
        [MSS_RELEASE] = "RELEASE request",
        [MSS_UNDO] = "ROLLBACK TO request; RELEASE request",
    };
    return script(database, texts[what], texts[what], err);
}

static void rollback(mss_database *database)
{
    if (!sqlite3_get_autocommit(database->file)) {
        (void)sqlite3_exec(database->file, "ROLLBACK", NULL, NULL, NULL);
    }
}

/* ---- the file ------------------------------------------------------------------- */

static int copy_pages(mss_database *database, const char *to_path, ms_error *err)
{
    sqlite3 *to = NULL;
    sqlite3_backup *backup = NULL;
    int rc = sqlite3_open_v2(to_path, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (rc == SQLITE_OK && (backup = sqlite3_backup_init(to, "main", database->file, "main")) == NULL) {
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

/* A name in a directory is on the disk once the directory is. */
static int sync_directory_of(const char *path, ms_error *err)
{
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    int descriptor = open(dirname(directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = descriptor >= 0 && fsync(descriptor) == 0 ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, errno, "%s", path);
    if (descriptor >= 0) {
        close(descriptor);
    }
    return rc;
}

static int backup_file(mss_database *database, const char *to_path, ms_error *err)
{
    char part[PATH_MAX], journal[PATH_MAX];
    int length = snprintf(journal, sizeof journal, "%s.part-journal", to_path);
    if (length < 0 || (size_t)length >= sizeof journal) {
        return ms_fail(err, MS_EINVAL, "backup to %.80s...: the path is too long", to_path);
    }
    snprintf(part, sizeof part, "%s.part", to_path);
    (void)unlink(part); /* of a copy that was killed */
    (void)unlink(journal);
    int rc = copy_pages(database, part, err);
    if (rc == MS_OK && rename(part, to_path) != 0) {
        rc = ms_fail_errno(err, MS_ESYSTEM, errno, "%s", to_path);
    }
    if (rc != MS_OK) {
        (void)unlink(part);
        return rc;
    }
    return sync_directory_of(to_path, err);
}

/* The first word of a check that answers "ok" or nothing. */
static int check_one(mss_database *database, const char *text, ms_error *err)
{
    sqlite3_stmt *statement = NULL;
    int rc = MS_OK;
    if (sqlite3_prepare_v2(database->file, text, -1, &statement, NULL) != SQLITE_OK) {
        return fail(database, text, err);
    }
    int step = sqlite3_step(statement);
    const char *said = step == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : "ok";
    if (step != SQLITE_ROW && step != SQLITE_DONE) {
        rc = fail(database, text, err);
    } else if (strcmp(said != NULL ? said : "", "ok") != 0) {
        rc = ms_fail(err, MS_EFORMAT, "%s: %s", text, said);
    }
    sqlite3_finalize(statement);
    return rc;
}

static int check(mss_database *database, ms_error *err)
{
    int rc = check_one(database, "PRAGMA integrity_check", err);
    return rc == MS_OK ? check_one(database, "PRAGMA foreign_key_check", err) : rc;
}

const mss_driver mss_sqlite_driver = {
    .migrations = migrations,
    .open = open_file,
    .close = close_file,
    .script = script,
    .begin = begin,
    .next = next,
    .end = end,
    .changed = changed,
    .columns = columns,
    .name = name,
    .kind = kind,
    .number = number,
    .text = text_of,
    .blob = blob_of,
    .transaction = transaction,
    .rollback = rollback,
    .backup = backup_file,
    .check = check,
};
