/*
 * plan_worker.h - plans are made in a process of their own, which has neither the database nor the
 * network: a document that finds a way to crash or to fill the memory takes nothing else with it.
 * The server runs itself as `memscale-server plan-worker`, one process per plan.
 */
#ifndef MSS_API_PLAN_WORKER_H
#define MSS_API_PLAN_WORKER_H

#include "memscale/base.h"

/* How the worker ends: with the plan on standard output, or one line that says why not. */
enum { MSS_PLAN_MADE = 0, MSS_PLAN_REFUSED = 2, MSS_PLAN_INFEASIBLE = 3, MSS_PLAN_FAILED = 4 };
enum { MSS_PLAN_SECONDS = 20, MSS_PLAN_OUTPUT_MOST = 32 * 1024 * 1024 };

/* The worker: reads {"graph": ..., "hardware": ..., "config": ...} from standard input. Returns the status
 * to exit with. */
int mss_plan_worker(void);

/* Runs a worker on `body` and waits for it, MSS_PLAN_SECONDS at most. `*ending` is one of the above, and
 * `*output` what it printed, to be freed. MS_ESYSTEM where no process could be started. */
MS_NODISCARD int mss_plan_run(const char *body, size_t bytes, int *ending, char **output, ms_error *err);

#endif
