/*
 * limits.h - token buckets: how often an address, an account or a token may make a request. The table
 * has a fixed size, in memory. If it is full, the bucket that has been full longest makes room.
 * Thread-safe.
 */
#ifndef MSS_LIMITS_LIMITS_H
#define MSS_LIMITS_LIMITS_H

#include "memscale/base.h"

/* Name, requests per minute, burst. Routes name their class; each has buckets of its own. */
#define MSS_LIMIT_TABLE(X) \
    X(PAGE, 600, 120)       /* pages and reads */ \
    X(WRITE, 6000, 600)     /* steps of runs, the bulk of the traffic */ \
    X(SIGN_IN, 10, 10)      /* guesses of a password, per address and per account at an address */ \
    X(PLAN, 30, 10)         /* seconds of a processor each */ \
    X(TELEMETRY, 60, 60)

typedef enum mss_limit {
#define MSS_LIMIT_ENUM(name, per_minute, burst) MSS_LIMIT_##name,
    MSS_LIMIT_TABLE(MSS_LIMIT_ENUM)
#undef MSS_LIMIT_ENUM
        MSS_LIMIT_COUNT,
    MSS_LIMIT_NONE = MSS_LIMIT_COUNT
} mss_limit;

typedef struct mss_limits mss_limits;

/* `scale_percent` multiplies every rate and burst (100: as in the table). MS_ENOMEM. */
MS_NODISCARD int mss_limits_new(uint32_t scale_percent, mss_limits **limits, ms_error *err);
void mss_limits_free(mss_limits *limits);

/* Takes one token from the bucket of `who` ("address 127.0.0.1") in the class. Returns 0, or the seconds
 * until there will be one. `now_ns` is ms_now_ns()'s. */
uint32_t mss_limits_take(mss_limits *limits, mss_limit limit, const char *who, uint64_t now_ns);

#endif
