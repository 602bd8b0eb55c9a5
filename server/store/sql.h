/*
 * sql.h - a connection to the database: prepared statements from one table, values bound by type, rows read
 * by column. The database is a file of SQLite's, or a PostgreSQL database that several servers may share;
 * driver.h is the seam between them. Statements number their parameters $1, $2, ... in order of appearance,
 * which both accept.
 *
 * One thread at a time uses a connection; each thread of a lane has its own. A connection to PostgreSQL that is
 * lost comes back by itself at its next use. A statement that is sent outside of a transaction may then run twice,
 * so only those are that may.
 *
 * Tests: tests/server/c/test_sql.c, on both databases.
 */
#ifndef MSS_STORE_SQL_H
#define MSS_STORE_SQL_H

#include <jansson.h>

#include "memscale/base.h"

typedef struct mss_sql mss_sql;

/* A statement of statements.h. */
typedef int mss_statement;

typedef enum mss_sql_mode { MSS_SQL_WRITE, MSS_SQL_READ } mss_sql_mode;

/* Whether this program can open `where`, a file's path or "postgresql://...". MS_ENOTSUP for PostgreSQL if it was built
 * without libpq; MS_ECONFIG for a malformed URL, and for one with a password, which every user of the machine could
 * read among the processes. */
MS_NODISCARD int mss_sql_accepts(const char *where, ms_error *err);
/* Whether `where` names a PostgreSQL database, which other servers may use too. */
bool mss_sql_is_shared_place(const char *where);

/* Opens a database; MSS_SQL_WRITE makes a file that is missing. MS_ESYSTEM with the database's text, MS_EIO if
 * PostgreSQL can't be reached. */
MS_NODISCARD int mss_sql_open(const char *where, mss_sql_mode mode, mss_sql **sql, ms_error *err);
void mss_sql_close(mss_sql *sql);
/* The TCP ports that the connection may have to be made to again: at most `most` of them; 0 for a file. */
size_t mss_sql_ports(const mss_sql *sql, uint16_t *ports, size_t most);

/* Migrates the schema to this program's version, one migration per transaction. If several servers start at once, one
 * migrates and the others wait. MS_EVERSION if a newer program made the schema. */
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
 * kept the database locked for ten seconds, MS_EIO if PostgreSQL can't be reached, else MS_ESYSTEM. */
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
    MSS_BEGIN,         /* and wait for the write lock, which one transaction of all servers has */
    MSS_COMMIT,        /* when this returns MS_OK, what was written survives a loss of power */
    MSS_SAVE,          /* a savepoint within the transaction */
    MSS_RELEASE,       /* ends the savepoint and keeps its changes */
    MSS_UNDO           /* ends the savepoint and rolls its changes back */
} mss_transaction;

MS_NODISCARD int mss_sql_transaction(mss_sql *sql, mss_transaction what, ms_error *err);
/* Rolls the transaction back, if one is open. */
void mss_sql_rollback(mss_sql *sql);

/* ---- what several servers share ------------------------------------------------- */

/* Whether this connection leads: of all servers on the database, only one makes the frontiers. `*is_new` says that it
 * leads since this call. A connection that is lost no longer leads. */
MS_NODISCARD int mss_sql_lead(mss_sql *sql, bool *leads, bool *is_new, ms_error *err);

/* Subscribes the connection to MSS_NOTIFY; MS_EINVAL with SQLite. A connection that was lost has to subscribe again. */
MS_NODISCARD int mss_sql_listen(mss_sql *sql, ms_error *err);
/* Waits until there is a notification or `wake`, a file descriptor, can be read; `text` gets the notification, or "".
 * MS_EIO if the connection is lost. */
MS_NODISCARD int mss_sql_wait(mss_sql *sql, int wake, char *text, size_t room, ms_error *err);

/* ---- copies --------------------------------------------------------------------- */

/* A consistent copy of the open database in a new file, while others write. The file has its name only once it is whole and
 * on the disk: before, it is `to_path`.part, which a later copy replaces. MS_ESYSTEM; MS_ENOTSUP with PostgreSQL. */
MS_NODISCARD int mss_sql_backup(mss_sql *sql, const char *to_path, ms_error *err);
/* MS_EFORMAT if the database finds damage in its file, or a broken reference. PostgreSQL checks both by itself. */
MS_NODISCARD int mss_sql_check(mss_sql *sql, ms_error *err);

#endif
