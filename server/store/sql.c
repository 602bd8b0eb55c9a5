/* The statements, migrations and transactions of both databases. objects.c makes JSON of rows. */
#include "store/sql.h"

#include <stdio.h>
#include <string.h>

#include "store/driver.h"
#include "store/migrations.h"

static const char *const statement_texts[MSS_STATEMENT_COUNT] = {
#define STATEMENT_TEXT(name, text) text,
    MSS_STATEMENT_TABLE(STATEMENT_TEXT) MSS_SHARED_TABLE(STATEMENT_TEXT)
#undef STATEMENT_TEXT
};

static const char *const statement_names[MSS_STATEMENT_COUNT] = {
#define STATEMENT_NAME(name, text) #name,
    MSS_STATEMENT_TABLE(STATEMENT_NAME) MSS_SHARED_TABLE(STATEMENT_NAME)
#undef STATEMENT_NAME
};

const char *mss_statement_text(mss_statement statement)
{
    return statement_texts[statement];
}

const char *mss_statement_name(mss_statement statement)
{
    return statement_names[statement];
}

int mss_statement_count(mss_statement statement, size_t count, size_t wanted, ms_error *err)
{
    return count == wanted ? MS_OK
                           : ms_fail(err, MS_EINVAL, "%s: %zu values for %zu parameters", statement_names[statement],
                                     count, wanted);
}

/* ---- open, close -------------------------------------------------------------- */

bool mss_sql_is_shared_place(const char *where)
{
    return strncmp(where, "postgresql://", 13) == 0 || strncmp(where, "postgres://", 11) == 0;
}

int mss_sql_accepts(const char *where, ms_error *err)
{
    if (!mss_sql_is_shared_place(where)) {
        return MS_OK;
    }
#ifdef MSS_HAS_POSTGRESQL
    return mss_postgres_accepts(where, err);
#else
    return ms_fail(err, MS_ENOTSUP, "this memscale-server was built without PostgreSQL (-Dpostgresql=enabled)");
#endif
}

static const mss_driver *driver_of(const char *where)
{
#ifdef MSS_HAS_POSTGRESQL
    return mss_sql_is_shared_place(where) ? &mss_postgres_driver : &mss_sqlite_driver;
#else
    (void)where;
    return &mss_sqlite_driver;
#endif
}

int mss_sql_open(const char *where, mss_sql_mode mode, mss_sql **out, ms_error *err)
{
    int rc = mss_sql_accepts(where, err);
    mss_sql *sql = rc == MS_OK ? ms_calloc(1, sizeof *sql) : NULL;
    if (sql == NULL) {
        return rc != MS_OK ? rc : ms_fail(err, MS_ENOMEM, "database: out of memory");
    }
    sql->driver = driver_of(where);
    rc = sql->driver->open(where, mode, &sql->database, err);
    if (rc != MS_OK) {
        mss_sql_close(sql);
        return rc;
    }
    *out = sql;
    return MS_OK;
}

void mss_sql_close(mss_sql *sql)
{
    if (sql != NULL) {
        sql->driver->close(sql->database);
        ms_free(sql);
    }
}

size_t mss_sql_ports(const mss_sql *sql, uint16_t *ports, size_t most)
{
    return sql->driver->ports != NULL ? sql->driver->ports(sql->database, ports, most) : 0;
}

/* ---- migrations --------------------------------------------------------------- */

int mss_sql_newest_version(void)
{
#define MIGRATION_ONE(migration) +1
    return MSS_MIGRATION_TABLE(MIGRATION_ONE);
#undef MIGRATION_ONE
}

/* Under the write lock, so that of two servers that start at once one finds the other's version. */
static int read_version(mss_sql *sql, int64_t *version, ms_error *err)
{
    int rc = sql->driver->script(sql->database,
                                 "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL);"
                                 "INSERT INTO schema_version SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM schema_version);",
                                 "the schema's version", err);
    if (rc == MS_OK) {
        rc = mss_sql_number(sql, MSS_SCHEMA_VERSION, MSS_NONE, version, err);
    }
    if (rc == MS_OK && *version > mss_sql_newest_version()) {
        rc = ms_fail(err, MS_EVERSION, "the database's schema is %d, this program knows up to %d", (int)*version,
                     mss_sql_newest_version());
    }
    return rc;
}

static int apply(mss_sql *sql, int64_t version, ms_error *err)
{
    int rc = sql->driver->script(sql->database, sql->driver->migrations[version], "migration", err);
    return rc == MS_OK ? mss_sql_run(sql, MSS_SCHEMA_SET_VERSION, MSS_WITH(MSS_INT(version + 1)), NULL, err) : rc;
}

/* One step towards `wanted`, in one transaction; `*is_done` if there is none left. */
static int migrate_one(mss_sql *sql, int wanted, bool *is_done, ms_error *err)
{
    int64_t version = 0;
    int rc = mss_sql_transaction(sql, MSS_BEGIN, err);
    if (rc == MS_OK) {
        rc = read_version(sql, &version, err);
    }
    *is_done = rc == MS_OK && version >= wanted;
    if (rc == MS_OK && !*is_done) {
        rc = apply(sql, version, err);
    } else if (rc == MS_OK && sql->driver->shared_tables != NULL) {
        rc = sql->driver->script(sql->database, sql->driver->shared_tables, "shared tables", err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_transaction(sql, MSS_COMMIT, err);
    }
    if (rc != MS_OK) {
        mss_sql_rollback(sql);
    }
    return rc;
}

int mss_sql_migrate_to(mss_sql *sql, int wanted, ms_error *err)
{
    bool is_done = false;
    int rc = MS_OK;
    while (rc == MS_OK && !is_done) {
        rc = migrate_one(sql, wanted, &is_done, err);
    }
    return rc;
}

int mss_sql_migrate(mss_sql *sql, ms_error *err)
{
    return mss_sql_migrate_to(sql, mss_sql_newest_version(), err);
}

/* ---- statements --------------------------------------------------------------- */

int mss_sql_query(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, mss_rows *rows,
                  ms_error *err)
{
    *rows = (mss_rows){.sql = sql, .statement = statement};
    int rc = sql->driver->begin(sql->database, statement, values, count, err);
    rows->is_open = rc == MS_OK;
    return rc;
}

int mss_rows_next(mss_rows *rows, bool *has, ms_error *err)
{
    return rows->sql->driver->next(rows->sql->database, rows->statement, has, err);
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
        rows->sql->driver->end(rows->sql->database, rows->statement);
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
        *changed = sql->driver->changed(sql->database);
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

int64_t mss_rows_int(const mss_rows *rows, int column)
{
    return rows->sql->driver->number(rows->sql->database, rows->statement, column);
}

bool mss_rows_is_null(const mss_rows *rows, int column)
{
    return rows->sql->driver->kind(rows->sql->database, rows->statement, column) == MSS_IS_NULL;
}

const char *mss_rows_text(const mss_rows *rows, int column)
{
    return rows->sql->driver->text(rows->sql->database, rows->statement, column);
}

const void *mss_rows_blob(const mss_rows *rows, int column, size_t *bytes)
{
    return rows->sql->driver->blob(rows->sql->database, rows->statement, column, bytes);
}

void mss_rows_copy(const mss_rows *rows, int column, char *to, size_t room)
{
    snprintf(to, room, "%s", mss_rows_text(rows, column));
}

/* ---- transactions --------------------------------------------------------------- */

int mss_sql_transaction(mss_sql *sql, mss_transaction what, ms_error *err)
{
    return sql->driver->transaction(sql->database, what, err);
}

void mss_sql_rollback(mss_sql *sql)
{
    sql->driver->rollback(sql->database);
}

/* ---- what one database has and the other hasn't ------------------------------------ */

int mss_sql_lead(mss_sql *sql, bool *leads, bool *is_new, ms_error *err)
{
    if (sql->driver->lead != NULL) {
        return sql->driver->lead(sql->database, leads, is_new, err);
    }
    *leads = true;
    *is_new = !sql->leads;
    sql->leads = true;
    return MS_OK;
}

int mss_sql_listen(mss_sql *sql, ms_error *err)
{
    return sql->driver->wait == NULL ? ms_fail(err, MS_EINVAL, "this database has no notifications")
                                     : sql->driver->script(sql->database, "LISTEN memscale_live", "listen", err);
}

int mss_sql_wait(mss_sql *sql, int wake, char *text, size_t room, ms_error *err)
{
    return sql->driver->wait == NULL ? ms_fail(err, MS_EINVAL, "this database has no notifications")
                                     : sql->driver->wait(sql->database, wake, text, room, err);
}

int mss_sql_backup(mss_sql *sql, const char *to_path, ms_error *err)
{
    return sql->driver->backup == NULL ? ms_fail(err, MS_ENOTSUP, "PostgreSQL is copied by pg_dump")
                                       : sql->driver->backup(sql->database, to_path, err);
}

int mss_sql_check(mss_sql *sql, ms_error *err)
{
    return sql->driver->check != NULL ? sql->driver->check(sql->database, err) : MS_OK;
}
