/*
 * The order of pieces of work. Every stream has a time; a clock holds for each stream the time up to
 * which its work came before. The host is one clock: work that any of its threads has waited for
 * comes before all later work.
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

/* Work that the host has waited for comes before everything new. */
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

/* What comes after a write also comes after whatever had to come before it; and what comes after
 * a stream's read comes after its earlier ones. So those need not be remembered. */
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
