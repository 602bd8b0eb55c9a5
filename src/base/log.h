/*
 * What rooms need of the log beyond ms_log(): whether a line would go anywhere,
 * so that a costly text is not built for nothing.
 *
 * A sink runs under a shared lock and ms_log_set_sink() under an exclusive one.
 * A sink that waits for a lock of its host (Python's interpreter lock) is
 * therefore only safe if that lock is released around ms_log_set_sink().
 */
#ifndef MS_BASE_LOG_H
#define MS_BASE_LOG_H

#include "memscale/base.h"

enum { MS__LOG_LINE_MAX = 1024 };

/* True while a sink is set. Thread-safe. */
bool ms__log_enabled(void);

#endif
