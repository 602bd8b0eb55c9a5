/*
 * Streams. Each has a queue and a thread, which runs the work in order, each piece after its delay.
 * Queuing work runs nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

static void sleep_for(uint64_t ns)
{
    struct timespec pause = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&pause, NULL);
}

EXPORT void (*cuda_double_pass_time)(uint64_t ns) = sleep_for;

/* The host may write this memory meanwhile, which the double itself reports; the thread sanitizer must not. */
__attribute__((no_sanitize("thread"))) uint64_t fingerprint_of(const void *memory, size_t bytes)
{
    const unsigned char *from = memory;
    uint64_t hash = bytes;
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t word;
        __builtin_memcpy(&word, from + at, 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    for (; at < bytes; at++) {
        hash = (hash ^ from[at]) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return hash;
}

stream *stream_of(void *handle)
{
    int device = current_device();
    stream *found = handle == NULL ? &the.streams[device > 0 ? device : 0] : handle;
    if (found < the.streams || found >= the.streams + STREAMS_MAX || (!found->is_used && handle != NULL)) {
        violate("used a stream that does not exist");
        return NULL;
    }
    return found;
}

static bool is_filled(const unsigned char *memory, int value, size_t bytes)
{
    return bytes == 0 || (memory[0] == value && memcmp(memory, memory + 1, bytes - 1) == 0);
}

/* Copies in two halves with a pause between them, so that an early reader sees half a copy. */
static void do_copy(const work *what)
{
    size_t half = what->bytes / 2;
    bool was_changed = what->is_fingerprinted && fingerprint_of(what->from, what->bytes) != what->fingerprint;
    bool was_written = what->is_poisoned && !is_filled(what->to, POISON, what->bytes);
    memcpy(what->to, what->from, half);
    if (what->delay_ns > 0) {
        cuda_double_pass_time(what->delay_ns / 4);
    }
    memcpy(what->to + half, what->from + half, what->bytes - half);
    if (was_changed || was_written) {
        ms__mutex_lock(&the.lock);
        violate(was_changed ? "the host changed memory that a copy had not read yet"
                            : "the host wrote to memory that a copy had not written yet");
        ms__mutex_unlock(&the.lock);
    }
}

/* Called without the lock. */
static void do_work(const work *what)
{
    if (what->delay_ns > 0) {
        cuda_double_pass_time(what->delay_ns);
    }
    if (what->kind == WORK_COPY) {
        do_copy(what);
    } else if (what->kind == WORK_KERNEL) {
        what->kernel(what->argument, what->memory, what->bytes);
    } else if (what->kind == WORK_PROGRAM) {
        what->program(what->argument, what->memories);
    }
}

/* Called under the lock: counts the piece of work; returns whether the device is broken. */
static bool work_fails(const work *what)
{
    bool is_work = what->kind == WORK_COPY || what->kind == WORK_KERNEL || what->kind == WORK_PROGRAM;
    planned_failure *plan = &the.failure;
    if (is_work && the.sticky == OK && plan->left > 0 && strcmp(plan->function, "work") == 0 && --plan->left == 0) {
        the.sticky = plan->result;
    }
    return the.sticky != OK;
}

static void conclude(stream *self, work *what)
{
    self->first = what->next;
    self->last = self->first == NULL ? NULL : self->last;
    self->finished++;
    free(what->memories);
    free(what);
    ms__cond_broadcast(&the.changed);
}

static bool is_ready(const stream *self)
{
    const work *what = self->first;
    return what != NULL && !the.hangs && (what->kind != WORK_WAIT || what->after->finished >= what->at);
}

static void stream_main(void *argument)
{
    stream *self = argument;
    ms__mutex_lock(&the.lock);
    for (;;) {
        while (!is_ready(self) && !self->is_ending) {
            ms__cond_wait(&the.changed, &the.lock);
        }
        if (self->is_ending) {
            break;
        }
        work *what = self->first;
        if (!work_fails(what)) {
            ms__mutex_unlock(&the.lock);
            do_work(what);
            ms__mutex_lock(&the.lock);
        }
        conclude(self, what);
    }
    ms__mutex_unlock(&the.lock);
}

/* May reuse the place of a destroyed stream, whose time continues. */
int stream_new(int device, stream **made)
{
    for (int i = DEVICES; i < STREAMS_MAX; i++) {
        stream *one = &the.streams[i];
        if (one->is_used) {
            continue;
        }
        one->is_used = true;
        one->is_ending = false;
        one->device = device;
        one->clock = the.host;
        if (ms__thread_start(&one->thread, "double-stream", stream_main, one, NULL) != MS_OK) {
            one->is_used = false;
            return OUT_OF_MEMORY;
        }
        the.counts.streams++;
        *made = one;
        return OK;
    }
    return OUT_OF_MEMORY;
}

static bool copy_uses(const work *what, const unsigned char *memory, size_t bytes)
{
    bool reads = what->from < memory + bytes && memory < what->from + what->bytes;
    bool writes = what->to < memory + bytes && memory < what->to + what->bytes;
    return what->kind == WORK_COPY && (reads || writes);
}

bool copies_use(const unsigned char *memory, size_t bytes)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        for (const work *what = the.streams[i].first; what != NULL; what = what->next) {
            if (copy_uses(what, memory, bytes)) {
                return true;
            }
        }
    }
    return false;
}

void stream_end(stream *which)
{
    if (which->first != NULL) {
        violate("destroyed a stream with work in it");
        stream_wait_finished(which, which->queued);
    }
    which->is_ending = true;
    ms__cond_broadcast(&the.changed);
    ms__mutex_unlock(&the.lock);
    ms__thread_join(&which->thread);
    ms__mutex_lock(&the.lock);
    which->is_used = false;
    the.counts.streams--;
}

static uint64_t random_delay(void)
{
    if (the.most_delay_ns == 0) {
        return 0;
    }
    the.random ^= the.random << 13;
    the.random ^= the.random >> 7;
    the.random ^= the.random << 17;
    return the.random % (the.most_delay_ns + 1);
}

void stream_make_room(const stream *which)
{
    while (the.queue_limit > 0 && which->queued - which->finished >= the.queue_limit && !the.hangs &&
           the.sticky == OK) {
        ms__cond_wait(&the.changed, &the.lock);
    }
}

int stream_queue(stream *which, const work *what)
{
    work *made = malloc(sizeof *made);
    if (made == NULL) {
        return OUT_OF_MEMORY;
    }
    if (which < &the.streams[DEVICES] && !which->is_used) {
        which->is_used = true;
        which->device = (int)(which - the.streams);
        if (ms__thread_start(&which->thread, "double-legacy", stream_main, which, NULL) != MS_OK) {
            which->is_used = false;
            free(made);
            return OUT_OF_MEMORY;
        }
    }
    *made = *what;
    made->next = NULL;
    made->delay_ns = random_delay();
    *(which->first != NULL ? &which->last->next : &which->first) = made;
    which->last = made;
    which->queued++;
    clock_join(&which->clock, &the.host);
    which->clock.at[which - the.streams] = which->queued;
    ms__cond_broadcast(&the.changed);
    return OK;
}

void stream_wait_finished(stream *which, uint64_t until)
{
    while (which->finished < until) {
        ms__cond_wait(&the.changed, &the.lock);
    }
}
