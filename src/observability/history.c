/*
 * The history of a run's steps: records in a bounded array that is halved if full, and a histogram of step
 * times. Written at step boundaries, read by reports and by the exporter's threads.
 */
#include <string.h>

#include "base/thread.h"
#include "base/units.h"
#include "memscale/observability.h"

enum { DEFAULT_RECORDS = 512 };

struct ms_history {
    ms__mutex lock;
    size_t capacity; /* even */
    size_t count;
    ms_histogram times;
    ms_step_record records[];
};

/* 1, 2, 5 in each power of ten, from 10 ms to 1000 s. */
static const uint64_t bounds_ns[MS_HISTOGRAM_BOUNDS] = {
    10000000,    20000000,    50000000,     100000000,    200000000,    500000000,    1000000000,    2000000000,
    5000000000u, 10000000000, 20000000000u, 50000000000u, 100000000000, 200000000000, 500000000000u, 1000000000000,
};

int ms_history_new(size_t capacity, ms_history **history, ms_error *err)
{
    size_t wanted = capacity != 0 ? capacity + capacity % 2 : DEFAULT_RECORDS;
    uint64_t bytes;
    ms_history *made = NULL;
    if (ms__mul_checked(wanted, sizeof made->records[0], &bytes)) {
        made = ms_calloc(1, sizeof *made + bytes);
    }
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "history: out of memory for %zu steps", wanted);
    }
    made->capacity = wanted;
    memcpy(made->times.bound_ns, bounds_ns, sizeof bounds_ns);
    ms__mutex_init(&made->lock);
    *history = made;
    return MS_OK;
}

void ms_history_free(ms_history *history)
{
    if (history != NULL) {
        ms__mutex_destroy(&history->lock);
        ms_free(history);
    }
}

/* The larger of two numbers, either of which may be unknown. */
static uint64_t larger_known(uint64_t a, uint64_t b)
{
    if (a == UINT64_MAX || b == UINT64_MAX) {
        return ms__min_u64(a, b);
    }
    return ms__max_u64(a, b);
}

static ms_step_record merge_records(const ms_step_record *first, const ms_step_record *second)
{
    ms_step_record both = *second;
    both.first_step = first->first_step;
    both.step_ns = ms__add_sat(first->step_ns, second->step_ns);
    both.peak_bytes = larger_known(first->peak_bytes, second->peak_bytes);
    both.resident_bytes = larger_known(first->resident_bytes, second->resident_bytes);
    both.tier_bytes = larger_known(first->tier_bytes, second->tier_bytes);
    both.predicted_peak_bytes = larger_known(first->predicted_peak_bytes, second->predicted_peak_bytes);
    return both;
}

static void history_halve(ms_history *history)
{
    for (size_t i = 0; i < history->count / 2; i++) {
        history->records[i] = merge_records(&history->records[2 * i], &history->records[2 * i + 1]);
    }
    history->count /= 2;
}

static void count_time(ms_histogram *times, uint64_t step_ns)
{
    size_t bucket = 0;
    while (bucket < MS_HISTOGRAM_BOUNDS && step_ns > times->bound_ns[bucket]) {
        bucket++;
    }
    times->count[bucket]++;
    times->sum_ns = ms__add_sat(times->sum_ns, step_ns);
}

void ms_history_add(ms_history *history, const ms_step_record *record)
{
    ms__mutex_lock(&history->lock);
    if (history->count == history->capacity) {
        history_halve(history);
    }
    history->records[history->count++] = *record;
    count_time(&history->times, record->step_ns);
    ms__mutex_unlock(&history->lock);
}

/* The lock is not part of a history's value. */
static ms_history *history_mutable(const ms_history *history)
{
    return (ms_history *)(uintptr_t)history;
}

size_t ms_history_count(const ms_history *history)
{
    ms__mutex_lock(&history_mutable(history)->lock);
    size_t count = history->count;
    ms__mutex_unlock(&history_mutable(history)->lock);
    return count;
}

bool ms_history_get(const ms_history *history, size_t index, ms_step_record *record)
{
    ms__mutex_lock(&history_mutable(history)->lock);
    bool found = index < history->count;
    if (found) {
        *record = history->records[index];
    }
    ms__mutex_unlock(&history_mutable(history)->lock);
    return found;
}

ms_histogram ms_history_step_times(const ms_history *history)
{
    ms__mutex_lock(&history_mutable(history)->lock);
    ms_histogram times = history->times;
    ms__mutex_unlock(&history_mutable(history)->lock);
    return times;
}
