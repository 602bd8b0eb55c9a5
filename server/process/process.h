/*
 * process.h - before it listens, the server's process gives up core files and new privileges, and by Landlock writes
 * outside its data, other programs, and outgoing connections, but for those to its database. So an attacker who runs code in it reaches the database
 * and nothing else. Reads of other files are not restricted here, because the loader and the resolver of names need
 * many; the unit restricts them (deploy/). filter.h takes system calls away, and user.h the rights of root.
 *
 * Tests: tests/server/c/test_process.c.
 */
#ifndef MSS_PROCESS_PROCESS_H
#define MSS_PROCESS_PROCESS_H

#include "memscale/base.h"

/* No core files, no new privileges, new files for this user alone, the highest limit of open files. Never fails. */
void mss_process_close(void);

/* What is left to a confined process. */
typedef struct mss_confines {
    const char *data;       /* it may write only below this folder; NULL: nowhere */
    const char *above_data; /* below this one it may remove empty folders, such as `data` itself; may be NULL */
    const uint16_t *ports; /* it may open TCP connections only to these, of any host, because Landlock knows no hosts */
    size_t port_count;
} mss_confines;

/*
 * Confines this thread and everything that it starts later, and lets it run only this program. `*level` is the kernel's
 * version of Landlock: 0 means that nothing is confined, and below 4 connections aren't. Call it after
 * mss_process_close(), before any thread starts. MS_ESYSTEM.
 */
MS_NODISCARD int mss_process_confine(const mss_confines *to, int *level, ms_error *err);

/* Takes the TCP connections away that mss_process_confine() has left: for processes that get a stranger's input. If the
 * kernel can't, nothing happens. Never fails. */
void mss_process_cut_off(void);

#endif
