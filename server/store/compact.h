/*
 * compact.h - merges the batches of old runs. A client sends a batch every few seconds, so a long run has thousands of small
 * rows; merged, the same steps are in a few large ones. Every step stays, with its exact numbers. The number of the next
 * batch is in the run's row and doesn't change.
 *
 * jobs.c calls it, from one thread with a connection of its own. Each group of batches is one short transaction under the
 * write lock: so it is safe beside appends and beside other servers on the database, and after a kill the database has the
 * batches of before or the merged one.
 *
 * Tests: tests/server/c/test_compact.c and tests/server/test_compaction.py, on both databases.
 */
#ifndef MSS_STORE_COMPACT_H
#define MSS_STORE_COMPACT_H

#include "auth/secret.h"
#include "store/sql.h"

/* A batch with fewer steps is merged with its neighbours; no batch gets more than MSS_MERGED_STEPS_MOST. */
enum { MSS_LOOSE_STEPS = 8192, MSS_MERGED_STEPS_MOST = 16384 };

/* A pass over all runs. Zeroed, it begins. */
typedef struct mss_compaction {
    mss_id run; /* the one that is being merged, or was the last */
    bool is_within;
} mss_compaction;

/* Merges at most one group of batches, of a run that began before `before_ms`. `*is_done` says that the pass has come to its
 * end; the next call begins another. If it fails, the next call goes on behind this run: MS_EFORMAT if a batch is damaged,
 * and the codes of mss_sql_run(). Nothing is changed then. */
MS_NODISCARD int mss_compact_step(mss_sql *sql, int64_t before_ms, mss_compaction *pass, bool *is_done, ms_error *err);

#endif
