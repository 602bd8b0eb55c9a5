/*
 * shared.h - what servers on one PostgreSQL database tell each other, so that none keeps in its memory what another
 * needs: events of live runs, and buckets of requests.
 *
 * Events: a write handler's event is a notification of its transaction, which PostgreSQL hands to every server after
 * the commit, in the order of commits. A thread with a connection of its own passes them to this server's viewers. If
 * it was cut off, the viewers are told to look again.
 *
 * Buckets: limits.h says how tokens are borrowed. That takes one connection, which threads of the lanes use in turn; the
 * threads that read the network never wait for it.
 *
 * Tests: tests/server/test_postgresql.py.
 */
#ifndef MSS_HTTP_SHARED_H
#define MSS_HTTP_SHARED_H

#include "http/http.h"

typedef struct mss_shared mss_shared;

/* A notification has at most 8000 bytes, the run's identifier among them. */
enum { MSS_EVENT_BYTES_MOST = 7900 };
/* To viewers: there are steps that this event doesn't hold. */
#define MSS_LOOK_AGAIN "{\"sequence\":4611686018427387904}"

/* Connects twice and starts the thread; `live` and `limits` outlive it. MS_EIO, MS_ENOMEM, MS_ESYSTEM. */
MS_NODISCARD int mss_shared_open(const char *database, mss_live *live, mss_limits *limits, mss_shared **shared,
                                 ms_error *err);
/* Ends the thread. Accepts NULL. */
void mss_shared_close(mss_shared *shared);

/* Adds an event of the run to the open transaction. */
MS_NODISCARD int mss_shared_tell(mss_sql *sql, const mss_id *run, const char *event, ms_error *err);

/* Takes one token; `*wait_s` is 0, or the seconds until there will be one. Thread-safe. */
MS_NODISCARD int mss_shared_take(mss_shared *shared, mss_limit limit, const char *who, uint32_t *wait_s, ms_error *err);

#endif
