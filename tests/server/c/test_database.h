/*
 * test_database.h - a new, empty database for one test: a file of SQLite's, or the PostgreSQL database that
 * MEMSCALE_TEST_DATABASE names, which test_postgresql.py starts and whose tables each test drops.
 */
#ifndef TEST_DATABASE_H
#define TEST_DATABASE_H

#include <unistd.h>

#include "store/driver.h"
#include "test_common.h"

static char file_name[] = "test_database_XXXXXX";
static const char *path; /* of the file, or a URL */
static bool is_shared;

static void script(mss_sql *sql, const char *text)
{
    ms_error err;
    assert_ms_ok(sql->driver->script(sql->database, text, "test", &err), err);
}

static void open_new(mss_sql **sql)
{
    ms_error err;
    path = getenv("MEMSCALE_TEST_DATABASE");
    is_shared = path != NULL;
    if (!is_shared) {
        strcpy(file_name, "test_database_XXXXXX");
        close(mkstemp(file_name));
        path = file_name;
    }
    assert_ms_ok(mss_sql_open(path, MSS_SQL_WRITE, sql, &err), err);
    if (is_shared) {
        script(*sql, "DROP SCHEMA public CASCADE; CREATE SCHEMA public");
    }
}

static void close_and_remove(mss_sql *sql)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char name[64];
    mss_sql_close(sql);
    if (is_shared) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", file_name, endings[i]);
        unlink(name);
    }
}

#endif
