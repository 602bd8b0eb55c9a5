#include "store/audit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "auth/secret.h"
#include "log/log.h"
#include "store/statements.h"

enum { ROWS_AT_ONCE = 1000 };

typedef struct row {
    int64_t number, happened_at;
    const char *account, *team, *verb, *object;
} row;

/* None of the texts holds a line feed, so that no two rows give the same text. */
static mss_hash hash_of(const mss_hash *before, const row *r)
{
    char text[512], hex[MSS_HASH_TEXT_BYTES];
    mss_hash_text(before, hex);
    int length = snprintf(text, sizeof text, "%s\n%" PRId64 "\n%" PRId64 "\n%s\n%s\n%s\n%s\n", hex, r->number,
                          r->happened_at, r->account, r->team, r->verb, r->object);
    return mss_hash_of(text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

static void read_hash(const mss_rows *rows, int column, mss_hash *hash)
{
    size_t bytes;
    const void *data = mss_rows_blob(rows, column, &bytes);
    memset(hash, 0, sizeof *hash);
    memcpy(hash->bytes, data, bytes < sizeof hash->bytes ? bytes : sizeof hash->bytes);
}

int mss_audit_add(mss_sql *sql, const char *account, const char *team, const char *verb, const char *object,
                  ms_error *err)
{
    mss_rows rows;
    mss_hash before = {{0}};
    bool has = false;
    row r = {1, mss_now_ms(), account, team, verb, object};
    int rc = mss_sql_first(sql, MSS_AUDIT_LAST, MSS_NONE, &rows, &has, err);
    if (rc == MS_OK && has) {
        r.number = mss_rows_int(&rows, 0) + 1;
        read_hash(&rows, 1, &before);
    }
    mss_rows_end(&rows);
    if (rc != MS_OK) {
        return rc;
    }
    mss_hash hash = hash_of(&before, &r);
    return mss_sql_run(sql, MSS_AUDIT_ADD,
                       MSS_WITH(MSS_INT(r.number), MSS_INT(r.happened_at), MSS_TEXT(account), MSS_TEXT(team),
                                MSS_TEXT(verb), MSS_TEXT(object), MSS_HASH(&hash)),
                       NULL, err);
}

static int check_row(const mss_rows *rows, int64_t number, mss_hash *before, ms_error *err)
{
    mss_hash stored;
    row r = {mss_rows_int(rows, 0),  mss_rows_int(rows, 1),  mss_rows_text(rows, 2),
             mss_rows_text(rows, 3), mss_rows_text(rows, 4), mss_rows_text(rows, 5)};
    mss_hash hash = hash_of(before, &r);
    read_hash(rows, 6, &stored);
    if (r.number != number || memcmp(&hash, &stored, sizeof hash) != 0) {
        return ms_fail(err, MS_EFORMAT, "audit: row %" PRId64 " does not follow from the one before", r.number);
    }
    *before = hash;
    return MS_OK;
}

/* The next rows behind number `*checked`; `*has_more` if there may be others behind them. */
static int check_some(mss_sql *sql, int64_t *checked, mss_hash *before, bool *has_more, ms_error *err)
{
    mss_rows rows;
    bool has = true;
    int64_t first = *checked;
    int rc = mss_sql_query(sql, MSS_AUDIT_FROM, MSS_WITH(MSS_INT(first), MSS_INT(ROWS_AT_ONCE)), &rows, err);
    while (rc == MS_OK && (rc = mss_rows_next(&rows, &has, err)) == MS_OK && has) {
        rc = check_row(&rows, ++*checked, before, err);
    }
    mss_rows_end(&rows);
    *has_more = *checked - first == ROWS_AT_ONCE;
    return rc;
}

int mss_audit_check(mss_sql *sql, int64_t *count, ms_error *err)
{
    mss_hash before = {{0}};
    bool has_more = true;
    int64_t checked = 0;
    int rc = MS_OK;
    while (rc == MS_OK && has_more) {
        rc = check_some(sql, &checked, &before, &has_more, err);
    }
    if (rc == MS_OK) {
        *count = checked;
    }
    return rc;
}
