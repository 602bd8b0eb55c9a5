/*
 * Fibres over ucontext. A mutex is one word (its handle's first), a condition only an address to
 * wait at. Each choice advances the time by a microsecond, or to the next sleeper if no fibre is
 * ready.
 */
#include "fibres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { FIBRES_MAX = 48, STACK_BYTES = 256 << 10, TICK_NS = 1000 };

/* A wait this long counts as endless: fibres work for microseconds. */
#define HANG_NS (UINT64_C(10) * 1000 * 1000 * 1000)

typedef enum fibre_state { UNUSED, READY, ASLEEP, WAITING } fibre_state;

typedef struct fibre {
    fibre_state state;
    ucontext_t context;
    void *stack;
    ms__thread_body body;
    void *argument;
    const void *place;     /* WAITING: at this mutex, condition or fibre */
    uint64_t until_ns;     /* ASLEEP, or WAITING with a deadline; else UINT64_MAX */
    bool is_late;          /* its deadline passed */
} fibre;

static fibre fibres[FIBRES_MAX] = {{.state = READY}};
static int current;
static uint64_t random_state = 1, trace, now_ns = UINT64_C(1000000000);
void (*fibres_stuck)(void);

uint64_t fibres_trace(void)
{
    return trace;
}

uintptr_t fibres_self(void)
{
    return (uintptr_t)current + 1;
}

uint64_t ms_now_ns(void)
{
    return now_ns;
}

/* ---- choosing ------------------------------------------------------------------ */

static uint64_t next_random(uint64_t state)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void wake_due(void)
{
    for (int i = 0; i < FIBRES_MAX; i++) {
        fibre *one = &fibres[i];
        bool is_timed = one->state == ASLEEP || one->state == WAITING;
        if (is_timed && one->until_ns <= now_ns) {
            one->is_late = one->state == WAITING;
            one->state = READY;
        }
    }
}

static int ready_count(void)
{
    int count = 0;
    for (int i = 0; i < FIBRES_MAX; i++) {
        count += fibres[i].state == READY;
    }
    return count;
}

static void pass_to_next_sleeper(void)
{
    uint64_t next_ns = UINT64_MAX;
    for (int i = 0; i < FIBRES_MAX; i++) {
        bool is_timed = fibres[i].state == ASLEEP || fibres[i].state == WAITING;
        if (is_timed && fibres[i].until_ns < next_ns) {
            next_ns = fibres[i].until_ns;
        }
    }
    if (next_ns == UINT64_MAX || next_ns - now_ns > HANG_NS) {
        fibres_stuck();
        abort();
    }
    now_ns = next_ns;
}

static int choose(void)
{
    now_ns += TICK_NS;
    wake_due();
    int count = ready_count();
    while (count == 0) {
        pass_to_next_sleeper();
        wake_due();
        count = ready_count();
    }
    random_state = next_random(random_state);
    int nth = (int)((random_state >> 16) % (uint64_t)count);
    trace = (trace ^ (uint64_t)nth) * UINT64_C(0xD6E8FEB86659FD93) + 1;
    int chosen = 0;
    while (fibres[chosen].state != READY || nth-- > 0) {
        chosen++;
    }
    return chosen;
}

static void go_on_with(int chosen)
{
    int before = current;
    if (chosen != before) {
        current = chosen;
        swapcontext(&fibres[before].context, &fibres[chosen].context);
    }
}

void fibres_yield(void)
{
    go_on_with(choose());
}

void fibres_sleep(uint64_t ns)
{
    fibres[current].state = ASLEEP;
    fibres[current].until_ns = now_ns + ns;
    fibres_yield();
}

/* False if the deadline passed. */
static bool wait_at(const void *place, uint64_t until_ns)
{
    fibre *self = &fibres[current];
    self->state = WAITING;
    self->place = place;
    self->until_ns = until_ns;
    self->is_late = false;
    fibres_yield();
    return !fibres[current].is_late;
}

static void wake_all(const void *place)
{
    for (int i = 0; i < FIBRES_MAX; i++) {
        if (fibres[i].state == WAITING && fibres[i].place == place) {
            fibres[i].state = READY;
        }
    }
}

/* Lets woken fibres check and sleep again, so that each seed begins alike. */
void fibres_seed(uint64_t seed)
{
    while (ready_count() > 1) {
        fibres_yield();
    }
    random_state = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    trace = 0;
    for (int i = 0; i < 4; i++) {
        random_state = next_random(random_state);
    }
}

/* ---- thread.h --------------------------------------------------------------------- */

static void fibre_main(void)
{
    int self = current;
    fibres[self].body(fibres[self].argument);
    fibres[self].state = UNUSED;
    wake_all(&fibres[self]);
    current = choose();
    setcontext(&fibres[current].context);
}

/* FIBRES_MAX if there is none. */
static int unused_fibre(void)
{
    int index = 1;
    while (index < FIBRES_MAX && fibres[index].state != UNUSED) {
        index++;
    }
    return index;
}

int ms__thread_start(ms__thread *thread, const char *name, ms__thread_body body, void *argument, ms_error *err)
{
    const int index = unused_fibre();
    if (index == FIBRES_MAX) {
        return ms_fail(err, MS_ESYSTEM, "no fibre for %s", name);
    }
    fibre *made = &fibres[index];
    if (made->stack == NULL) {
        made->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = made->stack;
    made->context.uc_stack.ss_size = STACK_BYTES;
    made->context.uc_link = NULL;
    made->body = body;
    made->argument = argument;
    made->state = READY;
    made->is_late = false;
    makecontext(&made->context, fibre_main, 0);
    memcpy(&thread->handle, &index, sizeof index);
    thread->is_started = true;
    return MS_OK;
}

void ms__thread_join(ms__thread *thread)
{
    int index = 0;
    memcpy(&index, &thread->handle, sizeof index);
    while (thread->is_started && fibres[index].state != UNUSED) {
        wait_at(&fibres[index], UINT64_MAX);
    }
    thread->is_started = false;
}

void ms__thread_detach(ms__thread *thread)
{
    thread->is_started = false;
}

static uint32_t *word_of(ms__mutex *mutex)
{
    return (uint32_t *)(void *)&mutex->handle;
}

void ms__mutex_init(ms__mutex *mutex)
{
    *word_of(mutex) = 0;
}

void ms__mutex_destroy(ms__mutex *mutex)
{
    (void)mutex;
}

void ms__mutex_lock(ms__mutex *mutex)
{
    fibres_yield();
    while (*word_of(mutex) != 0) {
        wait_at(mutex, UINT64_MAX);
    }
    *word_of(mutex) = 1;
}

void ms__mutex_unlock(ms__mutex *mutex)
{
    *word_of(mutex) = 0;
    wake_all(mutex);
}

void ms__cond_init(ms__cond *cond)
{
    (void)cond;
}

void ms__cond_destroy(ms__cond *cond)
{
    (void)cond;
}

void ms__cond_broadcast(ms__cond *cond)
{
    wake_all(cond);
}

/* Wakes exactly one waiter, chosen by the seed, to expose code that relies on more. */
void ms__cond_signal(ms__cond *cond)
{
    int waiting = 0;
    for (int i = 0; i < FIBRES_MAX; i++) {
        waiting += fibres[i].state == WAITING && fibres[i].place == cond;
    }
    if (waiting == 0) {
        return;
    }
    random_state = next_random(random_state);
    int nth = (int)((random_state >> 16) % (uint64_t)waiting);
    for (int i = 0; i < FIBRES_MAX; i++) {
        if (fibres[i].state == WAITING && fibres[i].place == cond && nth-- == 0) {
            fibres[i].state = READY;
            return;
        }
    }
}

bool ms__cond_wait_until(ms__cond *cond, ms__mutex *mutex, uint64_t deadline_ns)
{
    ms__mutex_unlock(mutex);
    bool in_time = wait_at(cond, deadline_ns);
    while (*word_of(mutex) != 0) {
        wait_at(mutex, UINT64_MAX);
    }
    *word_of(mutex) = 1;
    return in_time;
}

void ms__sleep_ns(uint64_t ns)
{
    fibres_sleep(ns);
}

void ms__cond_wait(ms__cond *cond, ms__mutex *mutex)
{
    (void)ms__cond_wait_until(cond, mutex, UINT64_MAX);
}

void ms__once_run(ms__once *once, void (*body)(void))
{
    if (*once == 0) {
        *once = 1;
        body();
    }
}
