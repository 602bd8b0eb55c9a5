/*
 * driver.h - what sql.c needs of a database: one table of functions for SQLite (sqlite.c), one for PostgreSQL
 * (postgres.c). Only files of this folder include it. What the two have in common is in sql.c: the texts of
 * statements, migrations, rows as JSON.
 *
 * A statement has one query at a time: it begins, goes from row to row, and ends. Errors are those of sql.h.
 */
#ifndef MSS_STORE_DRIVER_H
#define MSS_STORE_DRIVER_H

#include "store/sql.h"
#include "store/statements.h"

/* A driver's own connection. */
typedef struct mss_database mss_database;

typedef struct mss_driver {
    /* The texts of the schema's migrations, and what follows them (NULL: nothing). */
    const char *const *migrations;
    const char *shared_tables;

    MS_NODISCARD int (*open)(const char *where, mss_sql_mode mode, mss_database **database, ms_error *err);
    void (*close)(mss_database *database); /* accepts NULL */
    size_t (*ports)(const mss_database *database, uint16_t *ports, size_t most); /* NULL: none */

    /* Runs texts without values, with ";" between them. */
    MS_NODISCARD int (*script)(mss_database *database, const char *text, const char *doing, ms_error *err);

    MS_NODISCARD int (*begin)(mss_database *database, mss_statement statement, const mss_value *values, size_t count,
                              ms_error *err);
    MS_NODISCARD int (*next)(mss_database *database, mss_statement statement, bool *has, ms_error *err);
    void (*end)(mss_database *database, mss_statement statement);
    int64_t (*changed)(const mss_database *database); /* rows, by the last statement */

    /* Columns of the current row, as mss_rows_int() and its kin give them. */
    int (*columns)(const mss_database *database, mss_statement statement);
    const char *(*name)(const mss_database *database, mss_statement statement, int column);
    int (*kind)(const mss_database *database, mss_statement statement, int column); /* of mss_value */
    int64_t (*number)(const mss_database *database, mss_statement statement, int column);
    const char *(*text)(const mss_database *database, mss_statement statement, int column);
    const void *(*blob)(const mss_database *database, mss_statement statement, int column, size_t *bytes);

    MS_NODISCARD int (*transaction)(mss_database *database, mss_transaction what, ms_error *err);
    void (*rollback)(mss_database *database);

    /* NULL: the database has no such thing. */
    MS_NODISCARD int (*lead)(mss_database *database, bool *leads, bool *is_new, ms_error *err);
    MS_NODISCARD int (*wait)(mss_database *database, int wake, char *text, size_t room, ms_error *err);
    MS_NODISCARD int (*backup)(mss_database *database, const char *to_path, ms_error *err);
    MS_NODISCARD int (*check)(mss_database *database, ms_error *err);
} mss_driver;

extern const mss_driver mss_sqlite_driver;
#ifdef MSS_HAS_POSTGRESQL
extern const mss_driver mss_postgres_driver;
/* The part of mss_sql_accepts() that libpq decides. */
MS_NODISCARD int mss_postgres_accepts(const char *where, ms_error *err);
#endif

struct mss_sql {
    const mss_driver *driver;
    mss_database *database;
    bool leads; /* where a driver has no lead(): every connection does, from the first time it asks */
};

/* Text and name of a statement as statements.h has them. */
const char *mss_statement_text(mss_statement statement);
const char *mss_statement_name(mss_statement statement);

/* MS_EINVAL if a statement with `wanted` parameters gets another count of values. */
MS_NODISCARD int mss_statement_count(mss_statement statement, size_t count, size_t wanted, ms_error *err);

#endif
