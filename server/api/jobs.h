/*
 * jobs.h - makes the frontiers that wait in the database, one after the other. A thread takes the oldest job, runs a
 * worker process (plan_worker.h), stores its progress once a second, and then its output. A job that was running when
 * the process ended is run again at the next start. Ended jobs are deleted after MSS_JOB_KEPT_MS. Of several servers on
 * one database one makes them; if it ends, another takes over. Between two frontiers it merges the batches of runs that
 * are older than a day (compact.h): at the start, and every hour.
 */
#ifndef MSS_API_JOBS_H
#define MSS_API_JOBS_H

#include "memscale/base.h"

#define MSS_JOB_KEPT_MS ((int64_t)7 * 24 * 3600 * 1000)

typedef struct mss_jobs mss_jobs;

/* The database is migrated. */
MS_NODISCARD int mss_jobs_start(const char *database, mss_jobs **jobs, ms_error *err);
/* Ends a running worker within a second. Accepts NULL. */
void mss_jobs_stop(mss_jobs *jobs);

#endif
