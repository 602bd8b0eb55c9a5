/*
 * The process's one log sink. Lines are formatted on the caller's stack and
 * handed over under a shared lock, so that threads log side by side and a
 * replaced sink is never called again.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/forks.h"
#include "base/log.h"

/* Writers first: otherwise a writer would starve while threads log without a pause. */
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#define SINK_LOCK_INIT PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define SINK_LOCK_INIT PTHREAD_RWLOCK_INITIALIZER
#endif

/* The longest that a fork waits for lines being written. */
#define FORK_WAIT_NS 200000000L

static pthread_rwlock_t sink_lock = SINK_LOCK_INIT;
static ms_log_sink sink_function;
static void *sink_context;
static atomic_bool sink_is_set;

/* Used only by the forking thread, between the handlers of one fork. */
static _Thread_local bool is_held_for_fork;

static void before_fork(void)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_nsec += FORK_WAIT_NS;
    deadline.tv_sec += deadline.tv_nsec / 1000000000L;
    deadline.tv_nsec %= 1000000000L;
    is_held_for_fork = pthread_rwlock_timedwrlock(&sink_lock, &deadline) == 0;
}

static void after_fork_in_parent(void)
{
    if (is_held_for_fork) {
        pthread_rwlock_unlock(&sink_lock);
    }
}

/* The lock records its owner's thread number, which differs in the child: the child needs a fresh lock, released
 * or not. */
static void after_fork_in_child(void)
{
    static const pthread_rwlock_t fresh = SINK_LOCK_INIT;
    if (is_held_for_fork) {
        pthread_rwlock_unlock(&sink_lock);
    }
    sink_lock = fresh;
}

/* Tried until it succeeds: otherwise a child could inherit a lock that is never released. */
static void cover_fork(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_covered;
    pthread_mutex_lock(&lock);
    if (!is_covered) {
        is_covered = ms__hear_of_forks(before_fork, after_fork_in_parent, after_fork_in_child);
    }
    pthread_mutex_unlock(&lock);
}

void ms_log_set_sink(ms_log_sink sink, void *context)
{
    cover_fork();
    pthread_rwlock_wrlock(&sink_lock);
    sink_function = sink;
    sink_context = context;
    atomic_store(&sink_is_set, sink != NULL);
    pthread_rwlock_unlock(&sink_lock);
}

bool ms__log_enabled(void)
{
    return atomic_load_explicit(&sink_is_set, memory_order_relaxed);
}

void ms_log(ms_log_level level, const char *fmt, ...)
{
    if (!ms__log_enabled()) {
        return;
    }
    char line[MS__LOG_LINE_MAX];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (length >= (int)sizeof line) {
        memcpy(line + sizeof line - 4, "...", 4);
    }
    ms__keep_to_one_line(line);
    pthread_rwlock_rdlock(&sink_lock);
    if (sink_function != NULL) {
        sink_function(sink_context, level, line);
    }
    pthread_rwlock_unlock(&sink_lock);
}
