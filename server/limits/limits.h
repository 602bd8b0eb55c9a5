/*
 * limits.h - token buckets: how often an address, an account or a token may make a request. The table
 * has a fixed size, in memory. If it is full, the bucket that has been full longest makes room.
 * Thread-safe.
 *
 * Servers on one database also share buckets (http/shared.h): a server borrows a few tokens at a time from the shared
 * bucket and spends them here. Together they give out what one server alone would, plus in a burst at most what each has
 * borrowed and not yet spent: nothing where a loan is one token, as for guesses of a password.
 *
 * Tests: tests/server/c/test_limits.c.
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

/* ---- buckets that servers share --------------------------------------------------- */

/* The number of the shared bucket of `who` in the class. */
int64_t mss_limits_key(mss_limit limit, const char *who);

/* What a shared bucket lends: `tokens`, at most a sixteenth of the burst and at least one, and the time at which it is
 * full again then; or no token, and the seconds until there will be one. */
typedef struct mss_loan {
    uint32_t tokens, wait_s;
    int64_t full_at_ns;
} mss_loan;

/* The loan of a bucket that is full again at `full_at_ns`. Both times are by the database's clock. */
mss_loan mss_limits_borrow(const mss_limits *limits, mss_limit limit, int64_t full_at_ns, int64_t now_ns);
/* Keeps borrowed tokens for `who`. */
void mss_limits_keep(mss_limits *limits, mss_limit limit, const char *who, uint32_t tokens);
/* Takes one of the borrowed tokens; false if none is left. */
bool mss_limits_spend(mss_limits *limits, mss_limit limit, const char *who);

#endif
