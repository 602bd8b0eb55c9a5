/*
 * sql.h - a connection to the database: prepared statements from one table, values bound by type, rows read
 * by column. Only sql.c knows SQLite; another database would implement this header. Statements number their
 * parameters $1, $2, ... in order of appearance, which SQLite and PostgreSQL accept.
 *
 * One thread at a time uses a connection; each thread of a lane has its own.
 */
#ifndef MSS_STORE_SQL_H
#define MSS_STORE_SQL_H

#include <jansson.h>

#include "memscale/base.h"

typedef struct mss_sql mss_sql;

/* A statement of statements.h. */
typedef int mss_statement;

typedef enum mss_sql_mode { MSS_SQL_WRITE, MSS_SQL_READ } mss_sql_mode;

/* Opens the file `path`; MSS_SQL_WRITE makes it if it is missing. MS_ESYSTEM with the database's text. */
MS_NODISCARD int mss_sql_open(const char *path, mss_sql_mode mode, mss_sql **sql, ms_error *err);
void mss_sql_close(mss_sql *sql);

/* Migrates the schema to this program's version, one migration per transaction. MS_EVERSION if a newer program
 * made the file. */
MS_NODISCARD int mss_sql_migrate(mss_sql *sql, ms_error *err);
/* Migrates only to `version`, for tests with databases of older programs. */
MS_NODISCARD int mss_sql_migrate_to(mss_sql *sql, int version, ms_error *err);
/* The newest version of the schema that this program knows. */
int mss_sql_newest_version(void);

/* ---- values in -------------------------------------------------------------- */

typedef struct mss_value {
    enum { MSS_IS_NULL, MSS_IS_INT, MSS_IS_TEXT, MSS_IS_BLOB } kind;
    int64_t number;
    const void *data; /* borrowed until the call returns, or until a query ends */
    size_t bytes;
} mss_value;

#define MSS_INT(value) {MSS_IS_INT, (int64_t)(value), NULL, 0}
#define MSS_TEXT(text) {MSS_IS_TEXT, 0, (text), 0} /* NULL is null */
#define MSS_BLOB(at, size) {MSS_IS_BLOB, 0, (at), (size)}
#define MSS_HASH(hash) {MSS_IS_BLOB, 0, (hash)->bytes, sizeof(hash)->bytes}
#define MSS_U64_OR_NULL(value) {(value) == UINT64_MAX ? MSS_IS_NULL : MSS_IS_INT, (int64_t)(value), NULL, 0}
#define MSS_NONE NULL, 0
/* MSS_WITH(MSS_TEXT(a), MSS_INT(b)): the values of $1, $2. */
#define MSS_WITH(...) (const mss_value[]){__VA_ARGS__}, sizeof((const mss_value[]){__VA_ARGS__}) / sizeof(mss_value)

/* Runs a statement that returns no rows. `*changed` (may be NULL) gets the number of changed rows. MS_ESTATE if a
 * constraint (unique, foreign key) forbids it, MS_ENOSPC if the disk is full, MS_ETIMEDOUT if another process
 * kept the database locked for ten seconds, else MS_ESYSTEM. */
MS_NODISCARD int mss_sql_run(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count,
                             int64_t *changed, ms_error *err);

/* ---- rows out --------------------------------------------------------------- */

typedef struct mss_rows {
    mss_sql *sql;
    mss_statement statement;
    bool is_open;
} mss_rows;

/* Begins a query. Always end it with mss_rows_end(). A statement has one query at a time. */
MS_NODISCARD int mss_sql_query(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count,
                               mss_rows *rows, ms_error *err);
/* Goes to the next row; `*has` says whether there is one. */
MS_NODISCARD int mss_rows_next(mss_rows *rows, bool *has, ms_error *err);
void mss_rows_end(mss_rows *rows);
/* Both of these, for statements that return at most one row. Always sets `*has`. */
MS_NODISCARD int mss_sql_first(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count,
                               mss_rows *rows, bool *has, ms_error *err);

/* Columns of the current row; null reads as 0 or "". A text lives until the next row. */
int64_t mss_rows_int(const mss_rows *rows, int column);
bool mss_rows_is_null(const mss_rows *rows, int column);
const char *mss_rows_text(const mss_rows *rows, int column);
const void *mss_rows_blob(const mss_rows *rows, int column, size_t *bytes);
/* Copies a text into a buffer; a longer text is cut. */
void mss_rows_copy(const mss_rows *rows, int column, char *to, size_t room);

/* The first row's first column; 0 if there is no row. */
MS_NODISCARD int mss_sql_number(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count,
                                int64_t *number, ms_error *err);

/*
 * All rows as an array of objects, with a member per column. A column "..._at" becomes a time (RFC 3339),
 * "is_..." and "has_..." booleans; "..._json" is parsed and loses the ending. If it fails, NULL and `err`.
 */
json_t *mss_sql_objects(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err);
/* Only the first row; JSON null if there is none. */
json_t *mss_sql_object(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, ms_error *err);

/* ---- transactions: the write lane's ------------------------------------------- */

typedef enum mss_transaction {
    MSS_BEGIN,         /* and wait for the write lock */
    MSS_COMMIT,        /* when this returns MS_OK, what was written survives a loss of power */
    MSS_SAVE,          /* a savepoint within the transaction */
    MSS_RELEASE,       /* ends the savepoint and keeps its changes */
    MSS_UNDO           /* ends the savepoint and rolls its changes back */
} mss_transaction;

MS_NODISCARD int mss_sql_transaction(mss_sql *sql, mss_transaction what, ms_error *err);
/* Rolls the transaction back, if one is open. */
void mss_sql_rollback(mss_sql *sql);

/* ---- the file --------------------------------------------------------------- */

/* A consistent copy of the open database in a new file, while others write. */
MS_NODISCARD int mss_sql_backup(mss_sql *sql, const char *to_path, ms_error *err);
/* MS_EFORMAT if the database finds damage in its file, or a broken reference. */
MS_NODISCARD int mss_sql_check(mss_sql *sql, ms_error *err);

#endif
