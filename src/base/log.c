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

#include "base/log.h"

static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static ms_log_sink sink_function;
static void *sink_context;
static atomic_bool sink_is_set;

/* A fork may happen while another thread holds the lock; that thread does not
 * exist in the child, so the child starts with a free one. */
static void renew_lock_in_child(void)
{
    pthread_rwlock_init(&sink_lock, NULL);
}

static void cover_fork(void)
{
    pthread_atfork(NULL, NULL, renew_lock_in_child);
}

void ms_log_set_sink(ms_log_sink sink, void *context)
{
    pthread_once(&fork_once, cover_fork);
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
    pthread_rwlock_rdlock(&sink_lock);
    if (sink_function != NULL) {
        sink_function(sink_context, level, line);
    }
    pthread_rwlock_unlock(&sink_lock);
}
