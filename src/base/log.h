/*
 * The log inside the library: ms__log_enabled() saves building a costly text that no sink would get.
 *
 * A sink runs under a shared lock and ms_log_set_sink() under an exclusive one. A sink that waits for a lock of its
 * host (Python's interpreter lock) is therefore only safe if that lock is released around ms_log_set_sink().
 *
 * A fork waits for lines that are being written, so that the sink's own locks are free in the child. The wait ends
 * after 0.2 s, because a sink may itself wait for the forking thread.
 * Tests: tests/c/base/test_thread.c.
 */
#ifndef MS_BASE_LOG_H
#define MS_BASE_LOG_H

#include "memscale/base.h"

enum { MS__LOG_LINE_MAX = 1024 };

/* True while a sink is set. Thread-safe. */
bool ms__log_enabled(void);

/* Replaces control characters by spaces. Applied to every error and log line. */
void ms__keep_to_one_line(char *text);

#endif
