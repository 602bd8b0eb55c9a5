/*
 * The log inside the library. Callers check ms__log_enabled() before they build a costly text.
 *
 * A sink runs under a shared lock and ms_log_set_sink() under an exclusive one. So if a sink waits for a lock of its
 * host (Python's interpreter lock), the host must release that lock around ms_log_set_sink().
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

/* Replaces control characters by spaces, in every error and log line. */
void ms__keep_to_one_line(char *text);

#endif
