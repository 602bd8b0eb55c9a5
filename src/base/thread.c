/*
 * thread.h over POSIX threads.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/thread.h"

enum { THREAD_NAME_BYTES = 16 };

typedef struct thread_start {
    ms__thread_body body;
    void *argument;
    char name[THREAD_NAME_BYTES];
} thread_start;

static void *thread_main(void *pointer)
{
    thread_start start = *(thread_start *)pointer;
    ms_free(pointer);
    pthread_setname_np(pthread_self(), start.name);
    start.body(start.argument);
    return NULL;
}

/* Threads of the library take no signals: these belong to the program's own threads. */
static int create_without_signals(pthread_t *handle, thread_start *start)
{
    int failure = 0;
    if (ms__fault(MS_FAULT_THREAD, &failure)) {
        return failure != 0 ? failure : EAGAIN;
    }
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failure = pthread_create(handle, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

int ms__thread_start(ms__thread *thread, const char *name, ms__thread_body body, void *argument, ms_error *err)
{
    thread_start *start = ms_malloc(sizeof *start);
    if (start == NULL) {
        return ms_fail(err, MS_ENOMEM, "starting thread %s: out of memory", name);
    }
    start->body = body;
    start->argument = argument;
    snprintf(start->name, sizeof start->name, "%s", name);
    int failure = create_without_signals(&thread->handle, start);
    if (failure != 0) {
        ms_free(start);
        return ms_fail_errno(err, MS_ESYSTEM, failure, "starting thread %s", name);
    }
    thread->is_started = true;
    return MS_OK;
}

void ms__thread_join(ms__thread *thread)
{
    if (thread->is_started) {
        pthread_join(thread->handle, NULL);
        thread->is_started = false;
    }
}

void ms__thread_detach(ms__thread *thread)
{
    if (thread->is_started) {
        pthread_detach(thread->handle);
        thread->is_started = false;
    }
}

void ms__mutex_init(ms__mutex *mutex)
{
    pthread_mutex_init(&mutex->handle, NULL);
}

void ms__mutex_destroy(ms__mutex *mutex)
{
    pthread_mutex_destroy(&mutex->handle);
}

void ms__mutex_lock(ms__mutex *mutex)
{
    pthread_mutex_lock(&mutex->handle);
}

void ms__mutex_unlock(ms__mutex *mutex)
{
    pthread_mutex_unlock(&mutex->handle);
}

void ms__cond_init(ms__cond *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cond->handle, &attributes);
    pthread_condattr_destroy(&attributes);
}

void ms__cond_destroy(ms__cond *cond)
{
    pthread_cond_destroy(&cond->handle);
}

void ms__cond_broadcast(ms__cond *cond)
{
    pthread_cond_broadcast(&cond->handle);
}

void ms__cond_signal(ms__cond *cond)
{
    pthread_cond_signal(&cond->handle);
}

void ms__cond_wait(ms__cond *cond, ms__mutex *mutex)
{
    pthread_cond_wait(&cond->handle, &mutex->handle);
}

bool ms__cond_wait_until(ms__cond *cond, ms__mutex *mutex, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        ms__cond_wait(cond, mutex);
        return true;
    }
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / UINT64_C(1000000000)),
        .tv_nsec = (long)(deadline_ns % UINT64_C(1000000000)),
    };
    return pthread_cond_timedwait(&cond->handle, &mutex->handle, &deadline) != ETIMEDOUT;
}

void ms__sleep_ns(uint64_t ns)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

void ms__once_run(ms__once *once, void (*body)(void))
{
    pthread_once(once, body);
}
