/*
 * observability.h - gets out what the rooms count and say: log lines held for a host
 * that can only take them now and then, and counters as JSON.
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

/* {"steps": 3, ...}: every counter under its name. NULL when out of memory. */
MS_API char *ms_counters_to_json(const ms_counters *counters);

#ifdef __cplusplus
}
#endif

#endif
