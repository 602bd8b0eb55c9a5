/*
 * observability.h - gets out what the rooms count and say: log lines held for a host
 * that can only take them now and then, counters as metrics, and the
 * history of a run's steps.
 *
 * Worker threads write log lines at any time; a Python interpreter can take them only
 * while it holds its lock. The ring stands between: writing never blocks on the
 * reader, and when nobody reads, the oldest lines go and are counted.
 */
#ifndef MEMSCALE_OBSERVABILITY_H
#define MEMSCALE_OBSERVABILITY_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lines of the log that wait for a host to take them. */
typedef struct ms_log_ring ms_log_ring;

/* A ring of at most `capacity` lines (0: 256). Thread-safe throughout. */
MS_API int ms_log_ring_new(size_t capacity, ms_log_ring **ring, ms_error *err);
/* Not while it is the process's sink. */
MS_API void ms_log_ring_free(ms_log_ring *ring);

/* An ms_log_sink: pass it with the ring as its context to ms_log_set_sink(). */
MS_API void ms_log_ring_write(void *ring, ms_log_level level, const char *line);

/* Takes the oldest line; NULL when there is none. Freed with ms_free(). */
MS_API char *ms_log_ring_take(ms_log_ring *ring, ms_log_level *level);

/* Lines that went unread because the ring was full or memory was out. */
MS_API uint64_t ms_log_ring_lost(const ms_log_ring *ring);

/* ---- metrics ------------------------------------------------------------- */

/* A counter or gauge as monitoring systems want it: a name with its base unit, and what a
 * value is divided by to be in that unit. */
typedef struct ms_metric {
    char name[64];     /* "memscale_forward_stall_seconds" */
    const char *help;
    uint64_t per_unit; /* 1000000000 for a counter of nanoseconds, else 1 */
} ms_metric;

/* A counter's name and unit for monitoring. */
MS_API ms_metric ms_counter_metric(ms_counter id);

/* ---- history --------------------------------------------------------------- */

/*
 * What finished steps showed, for reports and metrics. Bounded: when it is full, pairs of
 * neighbours become one record, of which peaks are the larger and sums the sum, so a run
 * of any length is held from its first step on. Thread-safe throughout.
 */
typedef struct ms_history ms_history;

/* Numbers that were not seen are UINT64_MAX. */
typedef struct ms_step_record {
    uint64_t first_step, last_step; /* 1 for the first after wrap */
    uint64_t step_ns;               /* of all these steps together */
    uint64_t peak_bytes;            /* of the training device */
    uint64_t resident_bytes;        /* at the boundary */
    uint64_t tier_bytes;            /* most seen on the lower tier */
    uint64_t budget_bytes;
    uint64_t predicted_peak_bytes;
    uint64_t predicted_step_ns;     /* of one step */
    ms_counters total;              /* counters when the last of them had ended */
} ms_step_record;

/* At most `capacity` records (0: 512; an odd number is rounded up). */
MS_API int ms_history_new(size_t capacity, ms_history **history, ms_error *err);
MS_API void ms_history_free(ms_history *history);
MS_API void ms_history_add(ms_history *history, const ms_step_record *record);
MS_API size_t ms_history_count(const ms_history *history);
/* False where there is no record `index`. */
MS_API bool ms_history_get(const ms_history *history, size_t index, ms_step_record *record);

/* Upper bounds of the histogram of step times; the last bucket has none. */
enum { MS_HISTOGRAM_BOUNDS = 16 };
typedef struct ms_histogram {
    uint64_t bound_ns[MS_HISTOGRAM_BOUNDS];
    uint64_t count[MS_HISTOGRAM_BOUNDS + 1]; /* of this bucket alone */
    uint64_t sum_ns;
} ms_histogram;
MS_API ms_histogram ms_history_step_times(const ms_history *history);

#ifdef __cplusplus
}
#endif

#endif
