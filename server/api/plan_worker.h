/*
 * plan_worker.h - makes each plan in its own process, without database or network: a document that makes it
 * crash or exhaust its memory harms nothing else. The server runs itself as `memscale-server plan-worker` or
 * `frontier-worker`, one process per plan or frontier.
 */
#ifndef MSS_API_PLAN_WORKER_H
#define MSS_API_PLAN_WORKER_H

#include "memscale/base.h"

/* Exit statuses of the worker. It prints the plan, or one line that says why there is none. */
enum { MSS_PLAN_MADE = 0, MSS_PLAN_REFUSED = 2, MSS_PLAN_INFEASIBLE = 3, MSS_PLAN_FAILED = 4 };
enum {
    MSS_PLAN_SECONDS = 20,
    MSS_FRONTIER_SECONDS = 600,
    MSS_FRONTIER_POINTS_MOST = 200,
    MSS_PLAN_OUTPUT_MOST = 32 * 1024 * 1024
};

/* The worker: reads {"graph": ..., "hardware": ..., "config": ...} from standard input. For a frontier there is
 * also "points", and it prints a "." for each finished point. Returns the exit status. */
int mss_plan_worker(bool is_frontier);

/* `look` is called at least once a second with the number of finished points; false ends the worker. */
typedef struct mss_plan_watch {
    bool (*look)(void *argument, uint32_t points_done);
    void *argument;
} mss_plan_watch;

/* Runs a worker on `body` and waits for it. With a `watch` it makes a frontier, in at most MSS_FRONTIER_SECONDS;
 * without, a plan in at most MSS_PLAN_SECONDS. `*ending` gets one of the exit statuses above, `*output` its output;
 * free it. MS_ESYSTEM if no process can be started. */
MS_NODISCARD int mss_plan_run(const char *body, size_t bytes, const mss_plan_watch *watch, int *ending, char **output,
                              ms_error *err);

#endif
