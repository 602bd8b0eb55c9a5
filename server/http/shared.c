#include "http/shared.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "http/live.h"
#include "log/log.h"
#include "store/statements.h"

/* Another server may change a bucket between two statements; some server always gets on. */
enum { TRIES_MOST = 64, TEXT_BYTES = 8192 };
#define PAUSE_NS ((uint64_t)1000000000)
#define CLEANING_NS ((int64_t)60 * 1000000000)

struct mss_shared {
    mss_live *live;
    mss_limits *limits;
    const char *database;
    /* events: the thread's */
    mss_sql *events;
    ms__thread thread;
    bool is_lost;
    int wake; /* readable once the thread has to end */
    /* buckets: with their lock held */
    ms__mutex bucket_lock;
    mss_sql *buckets;
    int64_t cleaned_ns; /* by the database's clock */
    /* the end */
    ms__mutex lock;
    ms__cond ending;
    bool is_ending;
};

/* ---- events ------------------------------------------------------------------- */

int mss_shared_tell(mss_sql *sql, const mss_id *run, const char *event, ms_error *err)
{
    char text[TEXT_BYTES];
    bool fits = strlen(event) <= MSS_EVENT_BYTES_MOST;
    snprintf(text, sizeof text, "%s %s", run->text, fits ? event : MSS_LOOK_AGAIN);
    return mss_sql_run(sql, MSS_NOTIFY, MSS_WITH(MSS_TEXT(text)), NULL, err);
}

static void pass_on(mss_shared *shared, const char *text)
{
    mss_id run = {""};
    const char *space = strchr(text, ' ');
    if (space != NULL && (size_t)(space - text) < sizeof run.text) {
        memcpy(run.text, text, (size_t)(space - text));
        mss_live_tell(shared->live, &run, space + 1);
    }
}

static int listen_again(mss_shared *shared, ms_error *err)
{
    int rc = mss_sql_listen(shared->events, err);
    if (rc == MS_OK && shared->is_lost) {
        shared->is_lost = false;
        mss_log_event(MS_LOG_INFO, "the database is back");
        mss_live_missed(shared->live);
    }
    return rc;
}

static void note_loss(mss_shared *shared, const ms_error *err)
{
    if (!shared->is_lost) { /* one line, however long it lasts */
        shared->is_lost = true;
        mss_log_event(MS_LOG_ERROR, "the database is gone, and is tried again: %s", err->text);
    }
}

/* True once the thread has to end. */
static bool wait_a_while(mss_shared *shared)
{
    uint64_t until_ns = ms_now_ns() + PAUSE_NS;
    ms__mutex_lock(&shared->lock);
    while (!shared->is_ending && ms__cond_wait_until(&shared->ending, &shared->lock, until_ns)) {
    }
    bool is_ending = shared->is_ending;
    ms__mutex_unlock(&shared->lock);
    return is_ending;
}

static bool is_ending(mss_shared *shared)
{
    ms__mutex_lock(&shared->lock);
    bool is = shared->is_ending;
    ms__mutex_unlock(&shared->lock);
    return is;
}

static void hear(void *argument)
{
    mss_shared *shared = argument;
    char text[TEXT_BYTES];
    bool is_listening = true;
    while (!is_ending(shared)) {
        ms_error err;
        int rc = is_listening ? mss_sql_wait(shared->events, shared->wake, text, sizeof text, &err)
                              : listen_again(shared, &err);
        if (rc == MS_OK && is_listening) {
            pass_on(shared, text);
        }
        is_listening = rc == MS_OK;
        if (rc != MS_OK) {
            note_loss(shared, &err);
            (void)wait_a_while(shared);
        }
    }
}

/* ---- buckets ------------------------------------------------------------------- */

static int read_bucket(mss_sql *sql, int64_t key, int64_t *now_ns, int64_t *full_at_ns, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_first(sql, MSS_BUCKET_READ, MSS_WITH(MSS_INT(key)), &rows, &has, err);
    if (rc == MS_OK && has) {
        *now_ns = mss_rows_int(&rows, 0);
        *full_at_ns = mss_rows_int(&rows, 1);
    }
    mss_rows_end(&rows);
    return rc;
}

/* Full buckets say nothing, so none of them is kept for longer than a minute while there are requests. */
static int clean(mss_shared *shared, int64_t now_ns, ms_error *err)
{
    if (now_ns - shared->cleaned_ns < CLEANING_NS) {
        return MS_OK;
    }
    shared->cleaned_ns = now_ns;
    return mss_sql_run(shared->buckets, MSS_BUCKET_EXPIRE, MSS_WITH(MSS_INT(now_ns)), NULL, err);
}

/* One try; `*is_done` unless another server was faster. */
static int borrow_once(mss_shared *shared, mss_limit limit, int64_t key, mss_loan *loan, bool *is_done, ms_error *err)
{
    int64_t now_ns = 0, full_at_ns = 0, changed = 0;
    int rc = read_bucket(shared->buckets, key, &now_ns, &full_at_ns, err);
    if (rc != MS_OK) {
        return rc;
    }
    *loan = mss_limits_borrow(shared->limits, limit, full_at_ns, now_ns);
    *is_done = loan->tokens == 0;
    if (!*is_done) {
        rc = mss_sql_run(shared->buckets, MSS_BUCKET_SET,
                         MSS_WITH(MSS_INT(key), MSS_INT(loan->full_at_ns), MSS_INT(full_at_ns)), &changed, err);
        *is_done = changed > 0;
    }
    return rc == MS_OK ? clean(shared, now_ns, err) : rc;
}

static int borrow(mss_shared *shared, mss_limit limit, const char *who, mss_loan *loan, ms_error *err)
{
    bool is_done = false;
    int rc = MS_OK;
    for (int i = 0; rc == MS_OK && !is_done && i < TRIES_MOST; i++) {
        rc = borrow_once(shared, limit, mss_limits_key(limit, who), loan, &is_done, err);
    }
    if (rc == MS_OK && !is_done) {
        *loan = (mss_loan){.wait_s = 1};
    }
    return rc;
}

int mss_shared_take(mss_shared *shared, mss_limit limit, const char *who, uint32_t *wait_s, ms_error *err)
{
    mss_loan loan = {0};
    *wait_s = 0;
    if (limit == MSS_LIMIT_NONE || mss_limits_spend(shared->limits, limit, who)) {
        return MS_OK;
    }
    ms__mutex_lock(&shared->bucket_lock);
    int rc = borrow(shared, limit, who, &loan, err);
    ms__mutex_unlock(&shared->bucket_lock);
    if (rc == MS_OK && loan.tokens > 1) {
        mss_limits_keep(shared->limits, limit, who, loan.tokens - 1);
    }
    *wait_s = loan.wait_s;
    return rc;
}

/* ---- open, close ------------------------------------------------------------------ */

static int connect_both(mss_shared *shared, ms_error *err)
{
    int rc = mss_sql_open(shared->database, MSS_SQL_READ, &shared->events, err);
    if (rc == MS_OK) {
        rc = mss_sql_listen(shared->events, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_open(shared->database, MSS_SQL_WRITE, &shared->buckets, err);
    }
    return rc;
}

int mss_shared_open(const char *database, mss_live *live, mss_limits *limits, mss_shared **out, ms_error *err)
{
    mss_shared *shared = ms_calloc(1, sizeof *shared);
    if (shared == NULL) {
        return ms_fail(err, MS_ENOMEM, "shared: out of memory");
    }
    *shared = (mss_shared){.live = live, .limits = limits, .database = database, .wake = eventfd(0, EFD_CLOEXEC)};
    ms__mutex_init(&shared->bucket_lock);
    ms__mutex_init(&shared->lock);
    ms__cond_init(&shared->ending);
    int rc = shared->wake >= 0 ? connect_both(shared, err) : ms_fail(err, MS_ESYSTEM, "shared: eventfd");
    if (rc == MS_OK) {
        rc = ms__thread_start(&shared->thread, "mss-shared", hear, shared, err);
    }
    if (rc != MS_OK) {
        mss_shared_close(shared);
        return rc;
    }
    *out = shared;
    return MS_OK;
}

void mss_shared_close(mss_shared *shared)
{
    if (shared == NULL) {
        return;
    }
    ms__mutex_lock(&shared->lock);
    shared->is_ending = true;
    ms__cond_broadcast(&shared->ending);
    ms__mutex_unlock(&shared->lock);
    if (shared->wake >= 0) {
        (void)eventfd_write(shared->wake, 1);
    }
    ms__thread_join(&shared->thread);
    mss_sql_close(shared->events);
    mss_sql_close(shared->buckets);
    if (shared->wake >= 0) {
        close(shared->wake);
    }
    ms__cond_destroy(&shared->ending);
    ms__mutex_destroy(&shared->lock);
    ms__mutex_destroy(&shared->bucket_lock);
    ms_free(shared);
}
