/*
 * observability.h - log lines held until the host takes them, counters as metrics, and the history of a run's
 * steps.
 *
 * Worker threads write log lines at any time; a Python interpreter can take them only while it holds its
 * lock. A ring decouples the two: writing never waits for the reader. A full ring drops its oldest lines and
 * counts them.
 *
 * Tests: tests/c/observability/test_log_ring.c, test_history.c.
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
/* Frees a ring that is no longer the process's sink. */
MS_API void ms_log_ring_free(ms_log_ring *ring);

/* An ms_log_sink: pass it to ms_log_set_sink(), with the ring as context. */
MS_API void ms_log_ring_write(void *ring, ms_log_level level, const char *line);

/* Takes the oldest line; NULL if there is none. Free it with ms_free(). */
MS_API char *ms_log_ring_take(ms_log_ring *ring, ms_log_level *level);

/* Lines dropped unread because the ring was full or memory ran out. */
MS_API uint64_t ms_log_ring_lost(const ms_log_ring *ring);

/* ---- metrics ------------------------------------------------------------- */

/* A counter or gauge for monitoring systems: a name that contains the base unit, and the divisor that
 * converts a value to that unit. */
typedef struct ms_metric {
    char name[64];     /* "memscale_forward_stall_seconds" */
    const char *help;
    uint64_t per_unit; /* 1000000000 for a counter of nanoseconds, else 1 */
} ms_metric;

/* A counter as a metric. */
MS_API ms_metric ms_counter_metric(ms_counter id);

/* ---- history --------------------------------------------------------------- */

/*
 * Records of finished steps, for reports and metrics. A full history merges each pair of neighbours into one
 * record, with the larger peak and the sum of times, so it covers a run of any length from its first step.
 * Thread-safe.
 */
typedef struct ms_history ms_history;

/* Unmeasured numbers are UINT64_MAX. */
typedef struct ms_step_record {
    uint64_t first_step, last_step; /* counted from 1 after wrap() */
    uint64_t step_ns;               /* sum over these steps */
    uint64_t peak_bytes;            /* of the training device */
    uint64_t resident_bytes;        /* at the boundary */
    uint64_t tier_bytes;            /* largest measured on the lower tier */
    uint64_t budget_bytes;
    uint64_t predicted_peak_bytes;
    uint64_t predicted_step_ns;     /* of one step */
    ms_counters total;              /* counters at the end of the last step */
} ms_step_record;

/* At most `capacity` records (0: 512; an odd number is rounded up). */
MS_API int ms_history_new(size_t capacity, ms_history **history, ms_error *err);
MS_API void ms_history_free(ms_history *history);
MS_API void ms_history_add(ms_history *history, const ms_step_record *record);
MS_API size_t ms_history_count(const ms_history *history);
/* False if there is no record `index`. */
MS_API bool ms_history_get(const ms_history *history, size_t index, ms_step_record *record);

/* The histogram of step times. `bound_ns` are upper bounds; the last bucket has none. */
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
