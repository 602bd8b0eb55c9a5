#include "http/live.h"

#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "base/units.h"

enum { BLOCK_BYTES = 8192 };
#define NS_PER_S ((uint64_t)1000000000)

typedef struct viewer {
    mss_live *live;
    struct viewer *next, **link;
    struct MHD_Connection *connection;
    mss_id run;
    uint64_t begun_ns;
    char *pending; /* events that were not sent yet */
    size_t pending_bytes, pending_room;
    bool is_suspended, is_ending, has_missed;
} viewer;

struct mss_live {
    ms__mutex lock;
    ms__cond ending;
    viewer *first;
    uint64_t count;
    bool is_ending;
    ms__thread pulse;
};

/* ---- with the lock held ----------------------------------------------------------- */

static void wake(viewer *v)
{
    if (v->is_suspended) {
        v->is_suspended = false;
        MHD_resume_connection(v->connection);
    }
}

static bool reserve(viewer *v, size_t bytes)
{
    if (v->pending_bytes + bytes > MSS_VIEWER_PENDING_BYTES) {
        return false;
    }
    if (v->pending_bytes + bytes > v->pending_room) {
        size_t room = (size_t)ms__max_u64(2 * v->pending_room, v->pending_bytes + bytes);
        char *larger = ms_realloc_array(v->pending, room, 1);
        if (larger == NULL) {
            return false;
        }
        v->pending = larger;
        v->pending_room = room;
    }
    return true;
}

static void add(viewer *v, const char *before, const char *data, const char *after)
{
    const char *parts[] = {before, data, after};
    if (!reserve(v, strlen(before) + strlen(data) + strlen(after))) {
        v->has_missed = true;
        return;
    }
    for (int i = 0; i < 3; i++) {
        memcpy(v->pending + v->pending_bytes, parts[i], strlen(parts[i]));
        v->pending_bytes += strlen(parts[i]);
    }
    wake(v);
}

/* ---- the stream: on MHD's threads -------------------------------------------------- */

static ssize_t read_stream(void *argument, uint64_t position, char *to, size_t room)
{
    viewer *v = argument;
    ssize_t given = 0;
    (void)position;
    ms__mutex_lock(&v->live->lock);
    if (v->has_missed && v->pending_bytes == 0) {
        v->has_missed = false;
        add(v, "event: reload\ndata: ", "{}", "\n\n");
    }
    if (v->pending_bytes > 0) {
        size_t bytes = (size_t)ms__min_u64(room, v->pending_bytes);
        memcpy(to, v->pending, bytes);
        memmove(v->pending, v->pending + bytes, v->pending_bytes - bytes);
        v->pending_bytes -= bytes;
        given = (ssize_t)bytes;
    } else if (v->is_ending) {
        given = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        v->is_suspended = true;
        MHD_suspend_connection(v->connection);
    }
    ms__mutex_unlock(&v->live->lock);
    return given;
}

static void end_stream(void *argument)
{
    viewer *v = argument;
    ms__mutex_lock(&v->live->lock);
    *v->link = v->next;
    if (v->next != NULL) {
        v->next->link = v->link;
    }
    v->live->count--;
    ms__mutex_unlock(&v->live->lock);
    ms_free(v->pending);
    ms_free(v);
}

struct MHD_Response *mss_live_watch(mss_live *live, const mss_id *run, struct MHD_Connection *connection)
{
    viewer *v = ms_calloc(1, sizeof *v);
    struct MHD_Response *response =
        v == NULL ? NULL : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, v, end_stream);
    if (response == NULL) {
        ms_free(v);
        return NULL;
    }
    *v = (viewer){.live = live, .connection = connection, .run = *run, .begun_ns = ms_now_ns()};
    ms__mutex_lock(&live->lock);
    v->is_ending = live->is_ending || live->count >= MSS_VIEWERS_MOST;
    v->next = live->first;
    v->link = &live->first;
    if (v->next != NULL) {
        v->next->link = &v->next;
    }
    live->first = v;
    live->count++;
    add(v, "retry: 3000\n: ", run->text, "\n\n");
    ms__mutex_unlock(&live->lock);
    return response;
}

/* ---- telling ------------------------------------------------------------------- */

void mss_live_tell(mss_live *live, const mss_id *run, const char *data)
{
    ms__mutex_lock(&live->lock);
    for (viewer *v = live->first; v != NULL; v = v->next) {
        if (strcmp(v->run.text, run->text) == 0) {
            add(v, "data: ", data, "\n\n");
        }
    }
    ms__mutex_unlock(&live->lock);
}

void mss_live_missed(mss_live *live)
{
    ms__mutex_lock(&live->lock);
    for (viewer *v = live->first; v != NULL; v = v->next) {
        v->has_missed = true;
        wake(v);
    }
    ms__mutex_unlock(&live->lock);
}

uint64_t mss_live_count(mss_live *live)
{
    ms__mutex_lock(&live->lock);
    uint64_t count = live->count;
    ms__mutex_unlock(&live->lock);
    return count;
}

static void beat(void *argument)
{
    mss_live *live = argument;
    ms__mutex_lock(&live->lock);
    while (!live->is_ending) {
        uint64_t now_ns = ms_now_ns(), next_ns = now_ns + MSS_HEARTBEAT_S * NS_PER_S;
        while (!live->is_ending && ms__cond_wait_until(&live->ending, &live->lock, next_ns)) {
        }
        for (viewer *v = live->first; v != NULL; v = v->next) {
            v->is_ending = v->is_ending || now_ns - v->begun_ns > MSS_STREAM_S * NS_PER_S;
            add(v, ":", "", "\n\n");
        }
    }
    ms__mutex_unlock(&live->lock);
}

int mss_live_open(mss_live **out, ms_error *err)
{
    mss_live *live = ms_calloc(1, sizeof *live);
    if (live == NULL) {
        return ms_fail(err, MS_ENOMEM, "live: out of memory");
    }
    ms__mutex_init(&live->lock);
    ms__cond_init(&live->ending);
    int rc = ms__thread_start(&live->pulse, "mss-live", beat, live, err);
    if (rc != MS_OK) {
        mss_live_close(live);
        return rc;
    }
    *out = live;
    return MS_OK;
}

void mss_live_end(mss_live *live)
{
    ms__mutex_lock(&live->lock);
    live->is_ending = true;
    ms__cond_broadcast(&live->ending);
    for (viewer *v = live->first; v != NULL; v = v->next) {
        v->is_ending = true;
        wake(v);
    }
    ms__mutex_unlock(&live->lock);
    ms__thread_join(&live->pulse);
}

void mss_live_close(mss_live *live)
{
    if (live != NULL) {
        ms__cond_destroy(&live->ending);
        ms__mutex_destroy(&live->lock);
        ms_free(live);
    }
}
