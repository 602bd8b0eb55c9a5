/*
 * spool.h - a bounded folder in which lines of runs wait until they are sent (push.h), also after the process that wrote
 * them has gone. The files are logs of their own (run_log.h): `memscale push` can send them too.
 *
 * A file is locked (flock) as long as its writer lives. When a file has a part of the folder's bound, its run goes on in
 * a next one, which begins with the same line. If the folder is full, or the disk is, the oldest files that nobody
 * writes are removed, so that the newest steps are kept; what can't be written is lost. Nothing here waits for a server.
 *
 * Not thread-safe: one thread writes. In a forked child only ms__spool_close() may be called.
 * Tests: tests/c/observability/test_spool.c.
 */
#ifndef MS_OBSERVABILITY_SPOOL_H
#define MS_OBSERVABILITY_SPOOL_H

#include "memscale/base.h"

typedef struct ms__spool ms__spool;

enum { MS__SPOOL_LEAST_BYTES = 1024 * 1024 };

/* Makes the folder if needed, for this user alone. At most `most_bytes` (at least MS__SPOOL_LEAST_BYTES) are kept in it, for
 * all processes together. Names of its files begin with `own`, which no other process uses. MS_ESYSTEM, also for a folder of
 * another user or one that others may write; MS_ENOMEM. */
MS_NODISCARD int ms__spool_open(const char *folder, uint64_t most_bytes, const char *own, ms__spool **spool,
                                ms_error *err);
/* Closes all files, which others may then send. Accepts NULL. */
void ms__spool_close(ms__spool *spool);

/* Begins a run with its first line (without newline, as below) and gives its number. If no file can be made now, later
 * lines try again. MS_ENOMEM. */
MS_NODISCARD int ms__spool_begin(ms__spool *spool, const char *line, size_t *run, ms_error *err);

/* Adds a line to a run. On failure the line is lost and the run may go on. MS_ENOSPC, MS_ESYSTEM, MS_ENOMEM. */
MS_NODISCARD int ms__spool_write(ms__spool *spool, size_t run, const char *line, ms_error *err);

/* Adds the last line of a run (NULL: none) and closes its file. */
MS_NODISCARD int ms__spool_end(ms__spool *spool, size_t run, const char *line, ms_error *err);

/* Whether steps that had not been sent were removed to make room. */
bool ms__spool_has_dropped(const ms__spool *spool);

#endif
