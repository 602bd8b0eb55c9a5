/*
 * Threads, mutexes and conditions for the rooms that have workers. Starting a thread is a fault point; waits with a
 * deadline use the clock of ms_now_ns().
 * Tests: tests/c/base/test_thread.c.
 */
#ifndef MS_BASE_THREAD_H
#define MS_BASE_THREAD_H

#include <pthread.h>

#include "memscale/base.h"

/* All zeros are a thread that was never started; joining it does nothing. */
typedef struct ms__thread {
    pthread_t handle;
    bool is_started;
} ms__thread;

typedef void (*ms__thread_body)(void *argument);

/* Runs body(argument) in a new thread that takes no signals. Its name is `name`, cut
 * to 15 characters. MS_ESYSTEM if the system refuses a thread; MS_ENOMEM. */
MS_NODISCARD int ms__thread_start(ms__thread *thread, const char *name, ms__thread_body body, void *argument,
                                  ms_error *err);

/* Waits until the thread's body ends. Does nothing if the thread was never started or is already joined. */
void ms__thread_join(ms__thread *thread);

/* Detaches a thread that may never end; the system releases it if it does. Objects that its body uses must live as
 * long as the process. */
void ms__thread_detach(ms__thread *thread);

typedef struct ms__mutex {
    pthread_mutex_t handle;
} ms__mutex;

typedef struct ms__cond {
    pthread_cond_t handle;
} ms__cond;

#define MS__MUTEX_INIT {PTHREAD_MUTEX_INITIALIZER}

void ms__mutex_init(ms__mutex *mutex);
void ms__mutex_destroy(ms__mutex *mutex);
void ms__mutex_lock(ms__mutex *mutex);
void ms__mutex_unlock(ms__mutex *mutex);

void ms__cond_init(ms__cond *cond);
void ms__cond_destroy(ms__cond *cond);
void ms__cond_broadcast(ms__cond *cond);
/* Wakes one waiting thread. Use it only if any of them can go on. */
void ms__cond_signal(ms__cond *cond);

/* Both may return without a signal: call them in a loop over the condition. */
void ms__cond_wait(ms__cond *cond, ms__mutex *mutex);

/* False once ms_now_ns() has passed `deadline_ns` (UINT64_MAX: never). */
bool ms__cond_wait_until(ms__cond *cond, ms__mutex *mutex, uint64_t deadline_ns);

/* Sleeps for at least `ns` (below one second), unless a signal ends it. */
void ms__sleep_ns(uint64_t ns);

typedef pthread_once_t ms__once;
#define MS__ONCE_INIT PTHREAD_ONCE_INIT

/* Runs `body` at the first call with this `once`. Every call returns only after `body` has ended. */
void ms__once_run(ms__once *once, void (*body)(void));

#endif
