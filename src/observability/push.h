/*
 * push.h - sends logs of runs to a memscale-server: which request is next, when it may be sent, and what its answer
 * means. The caller does the HTTP (python/memscale/observability/sender.py), so everything here runs without a network.
 *
 *     ms__push_new(&options, &push, err);  ms__push_add(push, "run.log", false, err);
 *     for (;;) {
 *         ms__push_next(push, ms_now_ns(), &turn, err);
 *         SEND: POST turn.request, then ms__push_answered()     WAIT, IDLE: look again later     STOPPED: give up
 *     }
 *
 * Requests go out one after the other, those of a log in its order. A log may be sent again from its start at any time:
 * the server counts each step once (push_file.h). What is sent of a run: model class, plan, graph, hardware and config
 * without paths and values of arguments (push_body.h), budget, predictions, versions, numbers of steps, counters, outcome,
 * and the log's file name without its folder. Messages, paths and host names are not sent.
 *
 * Not thread-safe: one thread uses a push.
 * Tests: tests/c/observability/test_push.c, test_push_refused.c, tests/server/test_client.py.
 */
#ifndef MS_OBSERVABILITY_PUSH_H
#define MS_OBSERVABILITY_PUSH_H

#include "memscale/base.h"

typedef struct ms__push ms__push;

/* Texts are copied; NULL: the log's own, else the server's default. */
typedef struct ms__push_options {
    const char *project, *name;
    bool is_ended;        /* the logs grow no more: a run whose end is not in its log has stopped */
    uint64_t patience_ns; /* stop if nothing was taken for so long; 0: never */
} ms__push_options;

typedef struct ms__push_request {
    const char *target; /* the path to POST to, behind the server's own: "/api/v1/runs" */
    const char *key;    /* the header Idempotency-Key; NULL: none */
    const char *body;   /* JSON, ended by NUL */
} ms__push_request;

typedef struct ms__push_answer {
    int status;             /* of HTTP; 0: no answer came */
    uint64_t retry_after_s; /* the header; 0: none */
    const char *body;       /* may be NULL; what is said of `status` 0 */
    size_t length;
} ms__push_answer;

typedef enum ms__push_state { MS__PUSH_SEND, MS__PUSH_WAIT, MS__PUSH_IDLE, MS__PUSH_STOPPED } ms__push_state;

typedef struct ms__push_turn {
    ms__push_state state;
    ms__push_request request; /* of SEND: until ms__push_answered() */
    uint64_t wait_ns;         /* of WAIT */
    const char *reason;       /* of STOPPED and WAIT: one line */
} ms__push_turn;

typedef struct ms__push_counts {
    uint64_t runs, steps, refused_runs, requests;
} ms__push_counts;

MS_NODISCARD int ms__push_new(const ms__push_options *options, ms__push **push, ms_error *err);
/* Accepts NULL. */
void ms__push_free(ms__push *push);

/* Adds a log; one that was added before stays as it is. A file that is no log is left out: without a word if it
 * `is_found` (in a folder) and not named by the user. MS_ENOMEM. */
MS_NODISCARD int ms__push_add(ms__push *push, const char *path, bool is_found, ms_error *err);

/*
 * Adds the files of a spool (spool.h) that are there now: those that begin with `own` (NULL: none), and those whose
 * writers have gone. Each is removed when all of it is sent. A run of a writer that has gone without ending it has
 * stopped. MS_ESYSTEM if the folder can't be read, MS_ENOMEM.
 */
MS_NODISCARD int ms__push_add_spool(ms__push *push, const char *folder, const char *own, ms_error *err);

/* What to do now. MS_ENOMEM. */
MS_NODISCARD int ms__push_next(ms__push *push, uint64_t now_ns, ms__push_turn *turn, ms_error *err);

/*
 * The answer to the request of the last turn. By status:
 *   2xx                  taken
 *   413                  the batch is halved, or graph and plan are left out, until it is taken
 *   404, 409, other 4xx  this run is left out; a gap is sent again
 *   401, 403, 421, 3xx, and 404 for a new run: nothing more is sent, as every request would be refused
 *   0, 408, 429, 5xx     again after a while: Retry-After, else 1 s, doubled with each failure up to 5 minutes, less a
 *                        random part of up to a half
 */
void ms__push_answered(ms__push *push, uint64_t now_ns, const ms__push_answer *answer);

/* The next line that the user should read, to be freed with ms_free(); NULL: none. */
char *ms__push_news(ms__push *push);

ms__push_counts ms__push_count(const ms__push *push);

#endif
