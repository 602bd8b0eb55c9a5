/*
 * PostgreSQL; see driver.h. Several servers may share the database. Every write transaction begins with the same
 * advisory lock, so that one writes at a time, as with SQLite: what a handler has read stays true until it commits, and
 * the audit's rows follow from each other.
 */
#include <errno.h>
#include <libpq-fe.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "store/driver.h"
#include "store/migrations.h"
#include "store/postgres_link.h"

enum { PARAMETERS_MOST = 32, OID_BOOL = 16, OID_BYTEA = 17, OID_INT8 = 20, OID_INT2 = 21, OID_INT4 = 23 };
/* After an attempt that failed the next ones fail at once, so that nobody waits for a host that does not answer. */
#define PAUSE_NS ((uint64_t)1000000000)

typedef struct query {
    bool is_prepared;
    int parameters;
    PGresult *rows; /* of the query that is open */
    int at;
} query;

struct mss_database {
    char *where;
    mss_sql_mode mode;
    PGconn *link; /* NULL: lost */
    uint64_t failed_ns;
    bool is_in_transaction, leads;
    int64_t changed;
    query queries[MSS_STATEMENT_COUNT];
};

#define MSS_AUDIT_GUARD MSS_AUDIT_GUARD_POSTGRES
static const char *const migrations[] = {
#define MIGRATION_TEXT(migration) migration("BYTEA"),
    MSS_MIGRATION_TABLE(MIGRATION_TEXT)
#undef MIGRATION_TEXT
};

static const char *const own_texts[MSS_STATEMENT_COUNT] = {
#define OWN_TEXT(name, text) [MSS_##name] = text,
    MSS_POSTGRES_TABLE(OWN_TEXT)
#undef OWN_TEXT
};

/* ---- the connection -------------------------------------------------------------- */

static void drop_link(mss_database *database)
{
    PQfinish(database->link);
    database->link = NULL;
    database->leads = false;
    for (int i = 0; i < MSS_STATEMENT_COUNT; i++) {
        database->queries[i].is_prepared = false;
    }
}

/* The error of a result. A connection that can't be used any more is dropped; the next use makes another. */
static int fail(mss_database *database, const PGresult *result, const char *doing, ms_error *err)
{
    int rc = mss_link_fail(database->link, result, doing, err);
    if (rc == MS_EIO) {
        drop_link(database);
    }
    return rc;
}

static int need_link(mss_database *database, ms_error *err)
{
    if (database->link != NULL) {
        return MS_OK;
    }
    if (database->is_in_transaction) {
        return ms_fail(err, MS_EIO, "database: the connection was lost in a transaction");
    }
    if (database->failed_ns != 0 && ms_now_ns() - database->failed_ns < PAUSE_NS) {
        return ms_fail(err, MS_EIO, "database: it can't be reached");
    }
    int rc = mss_link_open(database->where, database->mode, &database->link, err);
    database->failed_ns = rc == MS_OK ? 0 : ms_now_ns();
    return rc;
}

static void close_database(mss_database *database)
{
    if (database == NULL) {
        return;
    }
    for (int i = 0; i < MSS_STATEMENT_COUNT; i++) {
        PQclear(database->queries[i].rows);
    }
    PQfinish(database->link);
    ms_free(database->where);
    ms_free(database);
}

static int open_database(const char *where, mss_sql_mode mode, mss_database **out, ms_error *err)
{
    mss_database *database = ms_calloc(1, sizeof *database);
    if (database == NULL || (database->where = ms_strdup(where)) == NULL) {
        ms_free(database);
        return ms_fail(err, MS_ENOMEM, "database: out of memory");
    }
    database->mode = mode;
    int rc = need_link(database, err);
    if (rc != MS_OK) {
        close_database(database);
        return rc;
    }
    *out = database;
    return MS_OK;
}

static size_t ports(const mss_database *database, uint16_t *to, size_t most)
{
    return database->link != NULL ? mss_link_ports(database->link, to, most) : 0;
}

/* ---- texts without values --------------------------------------------------------- */

/* `wanted` is the command that the last result must tell; NULL: any. */
static int execute(mss_database *database, const char *text, const char *wanted, const char *doing, ms_error *err)
{
    PGresult *result = PQexec(database->link, text);
    ExecStatusType status = PQresultStatus(result);
    int rc = MS_OK;
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        rc = fail(database, result, doing, err);
    } else if (wanted != NULL && strcmp(PQcmdStatus(result), wanted) != 0) {
        rc = ms_fail(err, MS_ESYSTEM, "%s: PostgreSQL answered %s", doing, PQcmdStatus(result));
    }
    PQclear(result);
    return rc;
}

static int script(mss_database *database, const char *text, const char *doing, ms_error *err)
{
    int rc = need_link(database, err);
    return rc == MS_OK ? execute(database, text, NULL, doing, err) : rc;
}

/* ---- statements --------------------------------------------------------------- */

static void name_of(mss_statement statement, char name[16])
{
    snprintf(name, 16, "s%d", statement);
}

static int describe(mss_database *database, mss_statement statement, const char *name, ms_error *err)
{
    PGresult *told = PQdescribePrepared(database->link, name);
    int rc =
        PQresultStatus(told) == PGRES_COMMAND_OK ? MS_OK : fail(database, told, mss_statement_name(statement), err);
    database->queries[statement].parameters = PQnparams(told);
    database->queries[statement].is_prepared = rc == MS_OK;
    PQclear(told);
    return rc;
}

static int prepare(mss_database *database, mss_statement statement, ms_error *err)
{
    char name[16];
    const char *text = own_texts[statement] != NULL ? own_texts[statement] : mss_statement_text(statement);
    if (database->queries[statement].is_prepared) {
        return MS_OK;
    }
    name_of(statement, name);
    PGresult *result = PQprepare(database->link, name, text, 0, NULL);
    int rc =
        PQresultStatus(result) == PGRES_COMMAND_OK ? MS_OK : fail(database, result, mss_statement_name(statement), err);
    PQclear(result);
    return rc == MS_OK ? describe(database, statement, name, err) : rc;
}

/* Values as libpq takes them: numbers as text, whose type PostgreSQL takes from the statement. */
typedef struct bound {
    const char *values[PARAMETERS_MOST];
    int lengths[PARAMETERS_MOST], formats[PARAMETERS_MOST];
    char numbers[PARAMETERS_MOST][24];
} bound;

static void bind_one(bound *b, size_t i, const mss_value *value)
{
    b->values[i] = value->kind == MSS_IS_NULL ? NULL : value->data;
    b->lengths[i] = (int)value->bytes;
    b->formats[i] = value->kind == MSS_IS_BLOB;
    if (value->kind == MSS_IS_INT) {
        snprintf(b->numbers[i], sizeof b->numbers[i], "%lld", (long long)value->number);
        b->values[i] = b->numbers[i];
    }
}

static int64_t rows_of_command(PGresult *result)
{
    return strtoll(PQcmdTuples(result), NULL, 10); /* "" for a query */
}

/* Runs a prepared statement and keeps its rows, all of them, as binary values. */
static int run_prepared(mss_database *database, mss_statement statement, const bound *b, size_t count, ms_error *err)
{
    char name[16];
    query *q = &database->queries[statement];
    name_of(statement, name);
    PGresult *rows = PQexecPrepared(database->link, name, (int)count, b->values, b->lengths, b->formats, 1);
    ExecStatusType status = PQresultStatus(rows);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        int rc = fail(database, rows, mss_statement_name(statement), err);
        PQclear(rows);
        return rc;
    }
    database->changed = rows_of_command(rows);
    PQclear(q->rows);
    q->rows = rows;
    q->at = -1;
    return MS_OK;
}

static int begin_once(mss_database *database, mss_statement statement, const mss_value *values, size_t count,
                      ms_error *err)
{
    bound b;
    int rc = need_link(database, err);
    if (rc == MS_OK) {
        rc = prepare(database, statement, err);
    }
    if (rc == MS_OK) {
        rc = mss_statement_count(statement, count, (size_t)database->queries[statement].parameters, err);
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        bind_one(&b, i, &values[i]);
    }
    return rc == MS_OK ? run_prepared(database, statement, &b, count, err) : rc;
}

/* A connection that has been lost since its last use is found here: outside of a transaction another is tried. */
static int begin(mss_database *database, mss_statement statement, const mss_value *values, size_t count, ms_error *err)
{
    bool had_link = database->link != NULL;
    int rc = begin_once(database, statement, values, count, err);
    bool may_repeat = rc == MS_EIO && had_link && database->link == NULL && !database->is_in_transaction;
    return may_repeat ? begin_once(database, statement, values, count, err) : rc;
}

static int next(mss_database *database, mss_statement statement, bool *has, ms_error *err)
{
    query *q = &database->queries[statement];
    (void)err;
    q->at++;
    *has = q->at < PQntuples(q->rows);
    return MS_OK;
}

static void end(mss_database *database, mss_statement statement)
{
    PQclear(database->queries[statement].rows);
    database->queries[statement].rows = NULL;
}

static int64_t changed(const mss_database *database)
{
    return database->changed;
}

/* ---- columns ------------------------------------------------------------------ */

static int columns(const mss_database *database, mss_statement statement)
{
    return PQnfields(database->queries[statement].rows);
}

static const char *name(const mss_database *database, mss_statement statement, int column)
{
    return PQfname(database->queries[statement].rows, column);
}

static int kind(const mss_database *database, mss_statement statement, int column)
{
    const query *q = &database->queries[statement];
    if (PQgetisnull(q->rows, q->at, column)) {
        return MSS_IS_NULL;
    }
    switch (PQftype(q->rows, column)) {
    case OID_BOOL:
    case OID_INT2:
    case OID_INT4:
    case OID_INT8:
        return MSS_IS_INT;
    case OID_BYTEA:
        return MSS_IS_BLOB;
    default:
        return MSS_IS_TEXT;
    }
}

static const void *blob_of(const mss_database *database, mss_statement statement, int column, size_t *bytes)
{
    const query *q = &database->queries[statement];
    *bytes = (size_t)PQgetlength(q->rows, q->at, column);
    return PQgetvalue(q->rows, q->at, column);
}

/* Whole numbers come with the highest byte first, as many as their type has. */
static int64_t number(const mss_database *database, mss_statement statement, int column)
{
    size_t bytes;
    const unsigned char *data = blob_of(database, statement, column, &bytes);
    if (kind(database, statement, column) != MSS_IS_INT) {
        return 0;
    }
    uint64_t value = bytes > 1 && data[0] >= 0x80 ? UINT64_MAX : 0;
    for (size_t i = 0; i < bytes; i++) {
        value = value << 8 | data[i];
    }
    return (int64_t)value;
}

static const char *text_of(const mss_database *database, mss_statement statement, int column)
{
    size_t bytes;
    return blob_of(database, statement, column, &bytes); /* libpq ends each value with a NUL */
}

/* ---- transactions --------------------------------------------------------------- */

static const char begin_text[] = "BEGIN; SELECT pg_advisory_xact_lock(7882827065137917029)"; /* "memscale" */

static int begin_transaction(mss_database *database, ms_error *err)
{
    bool had_link = database->link != NULL;
    int rc = script(database, begin_text, "BEGIN", err);
    if (rc == MS_EIO && had_link && database->link == NULL) { /* lost since its last use: nothing was done yet */
        rc = script(database, begin_text, "BEGIN", err);
    }
    database->is_in_transaction = database->link != NULL && PQtransactionStatus(database->link) != PQTRANS_IDLE;
    return rc;
}

/* PostgreSQL answers ROLLBACK to the COMMIT of a transaction in which a statement has failed. */
static int commit(mss_database *database, ms_error *err)
{
    int rc = need_link(database, err);
    if (rc == MS_OK) {
        rc = execute(database, "COMMIT", "COMMIT", "COMMIT", err);
    }
    database->is_in_transaction = rc != MS_OK;
    return rc;
}

static int transaction(mss_database *database, mss_transaction what, ms_error *err)
{
    switch (what) {
    case MSS_BEGIN:
        return begin_transaction(database, err);
    case MSS_COMMIT:
        return commit(database, err);
    case MSS_SAVE:
        return script(database, "SAVEPOINT request", "SAVEPOINT", err);
    case MSS_RELEASE:
        return script(database, "RELEASE SAVEPOINT request", "RELEASE", err);
    default:
        return script(database, "ROLLBACK TO SAVEPOINT request; RELEASE SAVEPOINT request", "ROLLBACK TO", err);
    }
}

static void rollback(mss_database *database)
{
    database->is_in_transaction = false;
    if (database->link != NULL && PQtransactionStatus(database->link) != PQTRANS_IDLE) {
        ms_error err;
        (void)execute(database, "ROLLBACK", NULL, "ROLLBACK", &err);
    }
}

/* ---- between servers -------------------------------------------------------------- */

/* The lead is a lock of the session, so it ends with the connection. */
static int lead(mss_database *database, bool *leads, bool *is_new, ms_error *err)
{
    bool has = false, did_lead = database->leads;
    mss_statement statement = did_lead ? MSS_SCHEMA_VERSION : MSS_LEAD; /* the first: is the connection still there? */
    int rc = begin(database, statement, NULL, 0, err);
    if (rc == MS_OK) {
        rc = next(database, statement, &has, err);
    }
    if (rc == MS_OK && !did_lead) {
        database->leads = has && number(database, statement, 0) != 0;
    }
    end(database, statement);
    *leads = rc == MS_OK && database->leads;
    *is_new = *leads && !did_lead;
    return rc;
}

static bool take_notification(mss_database *database, char *text, size_t room)
{
    PGnotify *told = PQnotifies(database->link);
    if (told != NULL) {
        snprintf(text, room, "%s", told->extra);
    }
    PQfreemem(told);
    return told != NULL;
}

static int wait_for_it(mss_database *database, int wake, char *text, size_t room, ms_error *err)
{
    text[0] = '\0';
    if (database->link == NULL) {
        return ms_fail(err, MS_EIO, "database: the connection is lost");
    }
    if (take_notification(database, text, room)) {
        return MS_OK;
    }
    struct pollfd waits[2] = {{PQsocket(database->link), POLLIN, 0}, {wake, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "database: poll");
    }
    if (waits[0].revents != 0 && PQconsumeInput(database->link) == 0) {
        return fail(database, NULL, "database", err);
    }
    (void)take_notification(database, text, room);
    return MS_OK;
}

const mss_driver mss_postgres_driver = {
    .migrations = migrations,
    .shared_tables = MSS_SHARED_TABLES,
    .open = open_database,
    .close = close_database,
    .ports = ports,
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
    .lead = lead,
    .wait = wait_for_it,
};
