/*
 * What rooms need of the log beyond ms_log(): whether a line would go anywhere,
 * so that a costly text is not built for nothing; and texts of one line.
 *
 * A sink runs under a shared lock and ms_log_set_sink() under an exclusive one.
 * A sink that waits for a lock of its host (Python's interpreter lock) is
 * therefore only safe if that lock is released around ms_log_set_sink().
 *
 * A fork waits for the lines that are being written, so that a lock of the sink's
 * is free in the child. Not for ever: a sink may itself wait for who forks.
 */
#ifndef MS_BASE_LOG_H
#define MS_BASE_LOG_H

#include "memscale/base.h"

enum { MS__LOG_LINE_MAX = 1024 };

/* True while a sink is set. Thread-safe. */
bool ms__log_enabled(void);

/* Control characters become spaces. Errors and log lines pass through here. */
void ms__keep_to_one_line(char *text);

#endif
