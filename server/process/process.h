/*
 * process.h - before it listens, the server's process gives up core files and new privileges, and by Landlock writes
 * outside its data, other programs, and outgoing connections. So an attacker who runs code in it reaches the database
 * and nothing else. Reads of other files are not restricted here, because the loader and the resolver of names need
 * many; the unit restricts them (deploy/).
 *
 * Tests: tests/server/c/test_process.c.
 */
#ifndef MSS_PROCESS_PROCESS_H
#define MSS_PROCESS_PROCESS_H

#include "memscale/base.h"

/* No core files, no new privileges, new files for this user alone, the highest limit of open files. Never fails. */
void mss_process_close(void);

/*
 * Confines this thread and everything that it starts later: it may write only below `data`, run only this program, and
 * open no TCP connections. `*level` is the kernel's version of Landlock: 0 means that nothing is confined, and below 4
 * connections aren't. Call it after mss_process_close(), before any thread starts. MS_ESYSTEM.
 */
MS_NODISCARD int mss_process_confine(const char *data, int *level, ms_error *err);

#endif
