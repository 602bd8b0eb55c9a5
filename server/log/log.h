/*
 * log.h - the server's log: one JSON object per line on standard error. A request's line has its route's
 * pattern, and nothing of its path, query or headers. So the log holds no tokens and no links that work
 * once. Thread-safe.
 */
#ifndef MSS_LOG_LOG_H
#define MSS_LOG_LOG_H

#include "memscale/base.h"

/* One finished request. Texts may be NULL. */
typedef struct mss_log_request {
    const char *id, *method, *route, *address, *account;
    int status;
    uint64_t duration_ns, sent_bytes;
    const char *reason; /* of a failure of the server; clients don't see it */
} mss_log_request;

void mss_log_request_done(const mss_log_request *request);

/* Anything else: start, stop, failures outside of requests. */
void mss_log_event(ms_log_level level, const char *fmt, ...) MS_PRINTF(2, 3);

/* Milliseconds since 1970, UTC. */
int64_t mss_now_ms(void);

enum { MSS_TIME_TEXT_BYTES = 32 };
/* "2026-01-31T12:00:00.000Z" (RFC 3339). */
void mss_time_text(int64_t time_ms, char text[MSS_TIME_TEXT_BYTES]);

#endif
