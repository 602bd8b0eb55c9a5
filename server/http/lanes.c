#include "http/lanes.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"
#include "log/log.h"
#include "store/statements.h"

enum { READ_THREADS = 3, SLOW_THREADS = 2, SLOW_NICE = 10, TOUCHED_MOST = 64 };

typedef struct lane {
    mss_request *first, **last;
    size_t count, most;
    ms__cond filled;
} lane;

typedef struct worker {
    mss_lanes *lanes;
    mss_lane kind;
    mss_sql *sql;
    ms__thread thread;
} worker;

struct mss_lanes {
    const mss_settings *settings;
    mss_lanes_done done;
    bool is_shared; /* other servers use the database too */
    ms__mutex lock;
    lane lanes[MSS_LANE_COUNT];
    bool is_closing;            /* nothing more is taken in */
    bool ends[MSS_LANE_COUNT];  /* nothing more will come */
    mss_id touched[TOUCHED_MOST];
    size_t touched_count;
    uint64_t commits, written;
    worker workers[READ_THREADS + SLOW_THREADS + 1];
    size_t worker_count;
};

/* ---- queues: with the lock held --------------------------------------------------- */

static bool push(mss_lanes *lanes, mss_request *request, mss_lane kind)
{
    lane *to = &lanes->lanes[kind];
    if (to->count >= to->most) {
        return false;
    }
    request->next = NULL;
    request->waits_in = kind;
    *to->last = request;
    to->last = &request->next;
    to->count++;
    ms__cond_signal(&to->filled);
    return true;
}

static mss_request *pop(lane *from)
{
    mss_request *request = from->first;
    if (request != NULL) {
        from->first = request->next;
        from->last = from->first != NULL ? from->last : &from->first;
        from->count--;
    }
    return request;
}

bool mss_lanes_submit(mss_lanes *lanes, mss_request *request)
{
    mss_lane kind = request->route->prepare != NULL ? MSS_LANE_SLOW : request->route->lane;
    ms__mutex_lock(&lanes->lock);
    bool is_taken = !lanes->is_closing && push(lanes, request, kind);
    ms__mutex_unlock(&lanes->lock);
    return is_taken;
}

/* The next request, NULL when there will be none. The lock is held before and after. */
static mss_request *wait_for_one(mss_lanes *lanes, mss_lane kind)
{
    while (lanes->lanes[kind].count == 0 && !lanes->ends[kind]) {
        ms__cond_wait(&lanes->lanes[kind].filled, &lanes->lock);
    }
    return pop(&lanes->lanes[kind]);
}

/* ---- read and slow ------------------------------------------------------------- */

static void run(mss_lanes *lanes, mss_request *request, mss_sql *sql, bool is_preparing)
{
    request->sql = sql;
    request->answer.status = lanes->settings->dispatch(request, is_preparing);
    request->sql = NULL;
}

/* Whether the request, prepared, has gone on to its lane. */
static bool hand_on(mss_lanes *lanes, mss_request *request)
{
    if (request->answer.status >= 400) {
        return false;
    }
    request->is_prepared = true;
    ms__mutex_lock(&lanes->lock);
    bool is_taken = push(lanes, request, request->route->lane);
    ms__mutex_unlock(&lanes->lock);
    if (!is_taken) {
        request->answer.status = mss_answer_problem(request, 503, "The server is busy.");
    }
    return is_taken;
}

static void run_others(void *argument)
{
    worker *self = argument;
    mss_lanes *lanes = self->lanes;
    bool is_slow = self->kind == MSS_LANE_SLOW;
    if (is_slow) { /* sign-ins leave the processors to everyone else */
        (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), SLOW_NICE);
    }
    for (;;) {
        ms__mutex_lock(&lanes->lock);
        mss_request *request = wait_for_one(lanes, self->kind);
        ms__mutex_unlock(&lanes->lock);
        if (request == NULL) {
            return;
        }
        run(lanes, request, self->sql, is_slow);
        if (!is_slow || !hand_on(lanes, request)) {
            lanes->done(request);
        }
    }
}

/* ---- write ---------------------------------------------------------------------- */

typedef struct group {
    mss_request *requests[MSS_GROUP_MOST];
    size_t count;
    mss_id touched[TOUCHED_MOST];
    size_t touched_count;
} group;

/* False when nothing is left and nothing will come. */
static bool take_group(mss_lanes *lanes, group *taken)
{
    ms__mutex_lock(&lanes->lock);
    mss_request *request = wait_for_one(lanes, MSS_LANE_WRITE);
    for (taken->count = 0; request != NULL; request = pop(&lanes->lanes[MSS_LANE_WRITE])) {
        taken->requests[taken->count++] = request;
        if (taken->count == MSS_GROUP_MOST) {
            break;
        }
    }
    taken->touched_count = lanes->touched_count;
    memcpy(taken->touched, lanes->touched, lanes->touched_count * sizeof lanes->touched[0]);
    lanes->touched_count = 0;
    ms__mutex_unlock(&lanes->lock);
    return taken->count > 0 || taken->touched_count > 0;
}

/* Whether what the request wrote is part of its answer. */
static bool keeps_writes(const mss_request *request)
{
    return request->answer.status < 400 || request->answer.keeps_writes;
}

/* A request's savepoint: kept or undone. */
static int run_saved(mss_lanes *lanes, mss_request *request, mss_sql *sql, ms_error *err)
{
    int rc = mss_sql_transaction(sql, MSS_SAVE, err);
    if (rc != MS_OK) {
        return rc;
    }
    run(lanes, request, sql, false);
    bool is_kept = keeps_writes(request);
    if (is_kept && lanes->is_shared && request->answer.event != NULL) {
        rc = mss_shared_tell(sql, &request->answer.told, request->answer.event, err);
    }
    return rc == MS_OK ? mss_sql_transaction(sql, is_kept ? MSS_RELEASE : MSS_UNDO, err) : rc;
}

static int run_group(mss_lanes *lanes, group *g, mss_sql *sql, ms_error *err)
{
    int rc = mss_sql_transaction(sql, MSS_BEGIN, err);
    for (size_t i = 0; rc == MS_OK && i < g->touched_count; i++) {
        rc =
            mss_sql_run(sql, MSS_TOKEN_TOUCH, MSS_WITH(MSS_INT(mss_now_ms()), MSS_TEXT(g->touched[i].text)), NULL, err);
    }
    for (size_t i = 0; rc == MS_OK && i < g->count; i++) {
        rc = run_saved(lanes, g->requests[i], sql, err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_transaction(sql, MSS_COMMIT, err);
    }
    if (rc != MS_OK) { /* SQLite may have rolled back already */
        mss_sql_rollback(sql);
    }
    return rc;
}

static void run_writes(void *argument)
{
    worker *self = argument;
    mss_lanes *lanes = self->lanes;
    group g;
    while (take_group(lanes, &g)) {
        ms_error err;
        int rc = run_group(lanes, &g, self->sql, &err);
        ms__mutex_lock(&lanes->lock);
        lanes->commits++;
        lanes->written += g.count;
        ms__mutex_unlock(&lanes->lock);
        for (size_t i = 0; i < g.count; i++) {
            mss_request *request = g.requests[i];
            if (rc != MS_OK && keeps_writes(request)) { /* but nothing of it was kept */
                request->answer.status = mss_answer_failure(request, &err);
            }
            lanes->done(request);
        }
    }
}

void mss_lanes_touch(mss_lanes *lanes, const mss_id *token)
{
    ms__mutex_lock(&lanes->lock);
    if (lanes->touched_count < TOUCHED_MOST) {
        lanes->touched[lanes->touched_count++] = *token;
    }
    ms__mutex_unlock(&lanes->lock);
}

void mss_lanes_count(mss_lanes *lanes, mss_server_numbers *numbers)
{
    ms__mutex_lock(&lanes->lock);
    numbers->commits = lanes->commits;
    numbers->written = lanes->written;
    for (int i = 0; i < MSS_LANE_COUNT; i++) {
        numbers->waiting[i] = lanes->lanes[i].count;
    }
    ms__mutex_unlock(&lanes->lock);
}

/* ---- open, close ------------------------------------------------------------------ */

static int start_worker(mss_lanes *lanes, mss_lane kind, ms_error *err)
{
    static const char *const names[] = {"mss-inline", "mss-read", "mss-write", "mss-slow"};
    worker *w = &lanes->workers[lanes->worker_count];
    *w = (worker){.lanes = lanes, .kind = kind};
    int rc =
        mss_sql_open(lanes->settings->database, kind == MSS_LANE_WRITE ? MSS_SQL_WRITE : MSS_SQL_READ, &w->sql, err);
    if (rc == MS_OK) {
        rc = ms__thread_start(&w->thread, names[kind], kind == MSS_LANE_WRITE ? run_writes : run_others, w, err);
    }
    if (rc != MS_OK) {
        mss_sql_close(w->sql);
        return rc;
    }
    lanes->worker_count++;
    return MS_OK;
}

int mss_lanes_open(const mss_settings *settings, mss_lanes_done done, mss_lanes **out, ms_error *err)
{
    mss_lanes *lanes = ms_calloc(1, sizeof *lanes);
    if (lanes == NULL) {
        return ms_fail(err, MS_ENOMEM, "lanes: out of memory");
    }
    lanes->settings = settings;
    lanes->done = done;
    lanes->is_shared = mss_sql_is_shared_place(settings->database);
    ms__mutex_init(&lanes->lock);
    for (int i = 0; i < MSS_LANE_COUNT; i++) {
        lanes->lanes[i].last = &lanes->lanes[i].first;
        lanes->lanes[i].most = i == MSS_LANE_SLOW ? MSS_SLOW_WAITING_MOST : MSS_LANE_WAITING_MOST;
        ms__cond_init(&lanes->lanes[i].filled);
    }
    int rc = start_worker(lanes, MSS_LANE_WRITE, err);
    for (int i = 0; rc == MS_OK && i < READ_THREADS + SLOW_THREADS; i++) {
        rc = start_worker(lanes, i < READ_THREADS ? MSS_LANE_READ : MSS_LANE_SLOW, err);
    }
    if (rc != MS_OK) {
        mss_lanes_close(lanes);
        return rc;
    }
    *out = lanes;
    return MS_OK;
}

static void end_lane(mss_lanes *lanes, mss_lane kind)
{
    ms__mutex_lock(&lanes->lock);
    lanes->is_closing = true;
    lanes->ends[kind] = true;
    ms__cond_broadcast(&lanes->lanes[kind].filled);
    ms__mutex_unlock(&lanes->lock);
    for (size_t i = 0; i < lanes->worker_count; i++) {
        if (lanes->workers[i].kind == kind) {
            ms__thread_join(&lanes->workers[i].thread);
        }
    }
}

void mss_lanes_end(mss_lanes *lanes)
{
    end_lane(lanes, MSS_LANE_SLOW); /* first: what it prepared still has to run */
    end_lane(lanes, MSS_LANE_READ);
    end_lane(lanes, MSS_LANE_WRITE);
}

void mss_lanes_close(mss_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    mss_lanes_end(lanes);
    for (size_t i = 0; i < lanes->worker_count; i++) {
        mss_sql_close(lanes->workers[i].sql);
    }
    for (int i = 0; i < MSS_LANE_COUNT; i++) {
        ms__cond_destroy(&lanes->lanes[i].filled);
    }
    ms__mutex_destroy(&lanes->lock);
    ms_free(lanes);
}
