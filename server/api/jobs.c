#include "api/jobs.h"

#include <stdio.h>
#include <string.h>

#include "api/plan_worker.h"
#include "auth/secret.h"
#include "base/thread.h"
#include "log/log.h"
#include "store/compact.h"
#include "store/sql.h"
#include "store/statements.h"

#define POLL_NS ((uint64_t)500000000)
#define TELL_NS ((uint64_t)1000000000)
#define COMPACT_EVERY_NS ((uint64_t)3600 * 1000000000)
#define COMPACT_PAUSE_NS ((uint64_t)20000000) /* so that writes needn't wait for a whole pass */
#define COMPACT_AFTER_MS ((int64_t)24 * 3600 * 1000)

struct mss_jobs {
    mss_sql *sql;
    ms__thread thread;
    ms__mutex lock;
    ms__cond stopping;
    bool is_stopping;
    mss_compaction pass; /* over the runs' batches */
    uint64_t next_pass_ns;
};

typedef struct job {
    mss_jobs *jobs;
    mss_id id;
    char *request; /* owned */
    uint32_t points_done;
    uint64_t told_ns;
} job;

static bool is_stopping(mss_jobs *jobs)
{
    ms__mutex_lock(&jobs->lock);
    bool is = jobs->is_stopping;
    ms__mutex_unlock(&jobs->lock);
    return is;
}

/* False, without an error, if the job is gone because its run or its team was deleted meanwhile. */
static bool write(mss_jobs *jobs, mss_statement statement, const mss_value *values, size_t count)
{
    ms_error err;
    int64_t changed = 1;
    if (mss_sql_run(jobs->sql, statement, values, count, &changed, &err) != MS_OK) {
        mss_log_event(MS_LOG_ERROR, "jobs: %s", err.text);
    }
    return changed > 0;
}

static int take_next(mss_jobs *jobs, job *next, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_first(jobs->sql, MSS_JOB_NEXT, MSS_NONE, &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, next->id.text, sizeof next->id.text);
        next->request = ms_strdup(mss_rows_text(&rows, 1));
        rc = next->request != NULL ? MS_OK : ms_fail(err, MS_ENOMEM, "jobs: out of memory");
    }
    mss_rows_end(&rows);
    return rc;
}

static bool look(void *argument, uint32_t points_done)
{
    job *j = argument;
    uint64_t now_ns = ms_now_ns();
    bool is_there = true;
    if (points_done > j->points_done && now_ns - j->told_ns > TELL_NS) {
        j->points_done = points_done;
        j->told_ns = now_ns;
        is_there = write(j->jobs, MSS_JOB_PROGRESS, MSS_WITH(MSS_INT(points_done), MSS_TEXT(j->id.text)));
    }
    return is_there && !is_stopping(j->jobs);
}

static void make(job *j)
{
    ms_error err;
    int ending = MSS_PLAN_FAILED;
    char *output = NULL;
    mss_plan_watch watch = {look, j};
    write(j->jobs, MSS_JOB_START, MSS_WITH(MSS_INT(mss_now_ms()), MSS_TEXT(j->id.text)));
    int rc = mss_plan_run(j->request, strlen(j->request), &watch, &ending, &output, &err);
    if (is_stopping(j->jobs)) { /* the next start begins it anew */
        ms_free(output);
        return;
    }
    const char *printed = output != NULL ? output + strspn(output, ".") : "";
    bool is_made = rc == MS_OK && ending == MSS_PLAN_MADE;
    bool is_told = rc == MS_OK && (ending == MSS_PLAN_REFUSED || ending == MSS_PLAN_INFEASIBLE);
    const char *problem =
        is_told       ? printed
        : rc != MS_OK ? "The server could not start a worker."
                      : "This frontier takes more time or memory than is allowed here: make it with the program.";
    write(j->jobs, MSS_JOB_END,
          MSS_WITH(MSS_TEXT(is_made ? "done" : "failed"), MSS_TEXT(is_made ? printed : NULL),
                   MSS_TEXT(is_made ? NULL : problem), MSS_INT(mss_now_ms()), MSS_TEXT(j->id.text)));
    ms_free(output);
}

/* The next job, if this server is the one that makes them. When it begins to be, nobody makes those that are said to
 * be running. */
static int take_if_leading(mss_jobs *jobs, job *next, bool *leads, ms_error *err)
{
    bool is_new = false;
    *leads = false;
    *next = (job){.jobs = jobs};
    int rc = mss_sql_lead(jobs->sql, leads, &is_new, err);
    if (rc == MS_OK && is_new) {
        rc = mss_sql_run(jobs->sql, MSS_JOB_AGAIN, MSS_NONE, NULL, err);
    }
    return rc == MS_OK && *leads ? take_next(jobs, next, err) : rc;
}

/* A database that is gone has its one line from elsewhere (http/shared.c). */
static void note_failure(const ms_error *err)
{
    if (err->code != MS_EIO) {
        mss_log_event(MS_LOG_ERROR, "jobs: %s", err->text);
    }
}

/* Merges some batches, if it is time; false if there is nothing to do for now. A run that fails waits for the next pass. */
static bool compact(mss_jobs *jobs)
{
    ms_error err;
    bool is_done = false;
    if (ms_now_ns() < jobs->next_pass_ns) {
        return false;
    }
    int rc = mss_compact_step(jobs->sql, mss_now_ms() - COMPACT_AFTER_MS, &jobs->pass, &is_done, &err);
    if (rc != MS_OK) {
        note_failure(&err);
    }
    if (is_done) {
        jobs->next_pass_ns = ms_now_ns() + COMPACT_EVERY_NS;
    }
    return rc == MS_OK && !is_done;
}

static void work(void *argument)
{
    mss_jobs *jobs = argument;
    while (!is_stopping(jobs)) {
        ms_error err;
        job next;
        bool leads;
        if (take_if_leading(jobs, &next, &leads, &err) != MS_OK) {
            note_failure(&err);
        }
        if (next.request != NULL) {
            make(&next);
            write(jobs, MSS_JOB_EXPIRE, MSS_WITH(MSS_INT(mss_now_ms() - MSS_JOB_KEPT_MS)));
            ms_free(next.request);
            continue;
        }
        bool has_merged = leads && compact(jobs);
        uint64_t until_ns = ms_now_ns() + (has_merged ? COMPACT_PAUSE_NS : POLL_NS);
        ms__mutex_lock(&jobs->lock);
        while (!jobs->is_stopping && ms__cond_wait_until(&jobs->stopping, &jobs->lock, until_ns)) {
        }
        ms__mutex_unlock(&jobs->lock);
    }
}

int mss_jobs_start(const char *database, mss_jobs **out, ms_error *err)
{
    mss_jobs *jobs = ms_calloc(1, sizeof *jobs);
    if (jobs == NULL) {
        return ms_fail(err, MS_ENOMEM, "jobs: out of memory");
    }
    ms__mutex_init(&jobs->lock);
    ms__cond_init(&jobs->stopping);
    int rc = mss_sql_open(database, MSS_SQL_WRITE, &jobs->sql, err);
    if (rc == MS_OK) {
        rc = ms__thread_start(&jobs->thread, "mss-jobs", work, jobs, err);
    }
    if (rc != MS_OK) {
        mss_jobs_stop(jobs);
        return rc;
    }
    *out = jobs;
    return MS_OK;
}

void mss_jobs_stop(mss_jobs *jobs)
{
    if (jobs == NULL) {
        return;
    }
    ms__mutex_lock(&jobs->lock);
    jobs->is_stopping = true;
    ms__cond_broadcast(&jobs->stopping);
    ms__mutex_unlock(&jobs->lock);
    ms__thread_join(&jobs->thread);
    mss_sql_close(jobs->sql);
    ms__cond_destroy(&jobs->stopping);
    ms__mutex_destroy(&jobs->lock);
    ms_free(jobs);
}
