#include "store/compact.h"

#include "store/statements.h"
#include "store/steps.h"

enum { ROWS_MOST = 4096 };

/* Neighbours that become one batch. */
typedef struct group {
    mss_steps steps;
    int64_t first_sequence, last_sequence, bytes;
    size_t batches;
} group;

static int find_run(mss_sql *sql, int64_t before_ms, mss_id *run, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc =
        mss_sql_first(sql, MSS_RUN_LOOSE, MSS_WITH(MSS_TEXT(run->text), MSS_INT(before_ms), MSS_INT(MSS_LOOSE_STEPS)),
                      &rows, &has, err);
    if (rc == MS_OK) {
        *run = (mss_id){""};
    }
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, run->text, sizeof run->text);
    }
    mss_rows_end(&rows);
    return rc;
}

static int add_batch(const mss_rows *rows, group *g, ms_error *err)
{
    size_t bytes;
    const void *data = mss_rows_blob(rows, 2, &bytes);
    int rc = mss_steps_unpack(data, bytes, (size_t)mss_rows_int(rows, 1), &g->steps, err);
    if (rc == MS_OK) {
        g->last_sequence = mss_rows_int(rows, 0);
        g->first_sequence = g->batches == 0 ? g->last_sequence : g->first_sequence;
        g->bytes += (int64_t)bytes;
        g->batches++;
    }
    return rc;
}

/* The first of the small batches behind the last large one: so groups become large from the run's beginning on. */
static int read_group(mss_sql *sql, const char *run, group *g, ms_error *err)
{
    mss_rows rows;
    bool has = true;
    int rc = mss_sql_query(sql, MSS_BATCH_TAIL, MSS_WITH(MSS_TEXT(run), MSS_INT(MSS_LOOSE_STEPS), MSS_INT(ROWS_MOST)),
                           &rows, err);
    while (rc == MS_OK && g->steps.count < MSS_LOOSE_STEPS && (rc = mss_rows_next(&rows, &has, err)) == MS_OK && has) {
        rc = add_batch(&rows, g, err);
    }
    mss_rows_end(&rows);
    return rc;
}

static int write_group(mss_sql *sql, const char *run, const group *g, ms_error *err)
{
    unsigned char *data = NULL;
    size_t bytes = 0;
    uint64_t first = g->steps.items[0].value[MSS_STEP_NUMBER],
             last = g->steps.items[g->steps.count - 1].value[MSS_STEP_NUMBER];
    int rc = mss_steps_pack(&g->steps, &data, &bytes, err);
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_BATCH_DELETE,
                         MSS_WITH(MSS_TEXT(run), MSS_INT(g->first_sequence), MSS_INT(g->last_sequence)), NULL, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_BATCH_ADD,
                         MSS_WITH(MSS_TEXT(run), MSS_INT(g->last_sequence), MSS_INT(first), MSS_INT(last),
                                  MSS_INT(g->steps.count), MSS_BLOB(data, bytes)),
                         NULL, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_RUN_STORED, MSS_WITH(MSS_INT((int64_t)bytes - g->bytes), MSS_TEXT(run)), NULL, err);
    }
    ms_free(data);
    return rc;
}

static int merge_one(mss_sql *sql, const char *run, bool *has_merged, ms_error *err)
{
    group g = {0};
    int rc = mss_sql_transaction(sql, MSS_BEGIN, err);
    if (rc == MS_OK) {
        rc = read_group(sql, run, &g, err);
    }
    *has_merged = rc == MS_OK && g.batches > 1;
    if (*has_merged) {
        rc = write_group(sql, run, &g, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_transaction(sql, MSS_COMMIT, err);
    }
    if (rc != MS_OK) {
        mss_sql_rollback(sql);
    }
    MS__ARRAY_FREE(&g.steps);
    return rc;
}

int mss_compact_step(mss_sql *sql, int64_t before_ms, mss_compaction *pass, bool *is_done, ms_error *err)
{
    *is_done = false;
    if (!pass->is_within) {
        int rc = find_run(sql, before_ms, &pass->run, err);
        *is_done = rc == MS_OK && !mss_id_is(&pass->run);
        if (rc != MS_OK || *is_done) {
            return rc;
        }
    }
    bool has_merged = false;
    int rc = merge_one(sql, pass->run.text, &has_merged, err);
    pass->is_within = rc == MS_OK && has_merged;
    return rc;
}
