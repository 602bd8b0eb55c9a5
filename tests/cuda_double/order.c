/*
 * The order of pieces of work. Each stream numbers its pieces; the number is the stream's time. A vector
 * clock holds a time for each stream: the stream's work up to that time comes before. All threads of the
 * host share one clock: work that any thread has waited for comes before all later work.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

void violate(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (the.violations++ == 0) {
        vsnprintf(the.violation, sizeof the.violation, format, arguments);
    }
    va_end(arguments);
}

void clock_join(clock_vector *into, const clock_vector *other)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        into->at[i] = other->at[i] > into->at[i] ? other->at[i] : into->at[i];
    }
}

static bool touches(const touch *one, const unsigned char *begin, size_t bytes)
{
    return begin < one->begin + one->bytes && one->begin < begin + bytes;
}

/* Forgets accesses of work that the host has waited for: they come before all new work. */
static void forget_seen(void)
{
    touch **link = &the.accesses;
    while (*link != NULL) {
        touch *one = *link;
        if (one->time <= the.host.at[one->stream]) {
            *link = one->next;
            free(one);
        } else {
            link = &one->next;
        }
    }
}

/* Forgets accesses that the new one replaces. Work that is ordered after a write is also ordered after the
 * accesses before that write. Work that is ordered after a stream's read is also ordered after the
 * stream's earlier reads. */
static void forget_covered(const stream *which, const unsigned char *begin, size_t bytes, bool is_write)
{
    touch **link = &the.accesses;
    while (*link != NULL) {
        touch *one = *link;
        bool is_inside = begin <= one->begin && one->begin + one->bytes <= begin + bytes;
        bool is_own_read = !one->is_write && one->stream == (uint32_t)(which - the.streams);
        if (is_inside && (is_write || is_own_read)) {
            *link = one->next;
            free(one);
        } else {
            link = &one->next;
        }
    }
}

void order_access(const stream *which, const unsigned char *begin, size_t bytes, bool is_write)
{
    forget_seen();
    for (const touch *one = the.accesses; one != NULL; one = one->next) {
        bool is_conflict = (is_write || one->is_write) && touches(one, begin, bytes);
        bool is_before = one->stream == (uint32_t)(which - the.streams) || one->time <= which->clock.at[one->stream] ||
                         one->time <= the.host.at[one->stream];
        if (is_conflict && !is_before) {
            violate("stream %d %s memory that stream %u may still be %s", (int)(which - the.streams),
                    is_write ? "writes" : "reads", one->stream, one->is_write ? "writing" : "reading");
        }
    }
    forget_covered(which, begin, bytes, is_write);
    touch *made = malloc(sizeof *made);
    if (made != NULL) {
        *made = (touch){.begin = begin,
                        .bytes = bytes,
                        .is_write = is_write,
                        .stream = (uint32_t)(which - the.streams),
                        .time = which->queued + 1,
                        .next = the.accesses};
        the.accesses = made;
    }
}

void order_check_idle(const unsigned char *begin, size_t bytes, const char *what)
{
    forget_seen();
    for (const touch *one = the.accesses; one != NULL; one = one->next) {
        if (touches(one, begin, bytes)) {
            violate("%s while stream %u may still use it", what, one->stream);
        }
    }
}
