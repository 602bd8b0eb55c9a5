/*
 * user.h - the server never serves as root. Started by root, it becomes another user before it opens its database; then
 * nothing gives root's rights back. Called by main.c after mss_process_close(), before any thread starts.
 *
 * Tests: tests/server/test_process.py.
 */
#ifndef MSS_PROCESS_USER_H
#define MSS_PROCESS_USER_H

#include <sys/types.h>

#include "memscale/base.h"

typedef struct mss_user {
    uid_t user;
    gid_t group;
} mss_user;

/*
 * Finds the user to become: `name`, or with NULL the one that it is already. MS_ECONFIG, with a text that says what to do,
 * if root names nobody, someone else names another user, or there is no such user; MS_ENOMEM, MS_ESYSTEM.
 */
MS_NODISCARD int mss_user_find(const char *name, mss_user *user, ms_error *err);

/*
 * Becomes that user, in its group alone and without capabilities, and checks that there is no way back. "root" keeps its
 * number and its files, but no capability: for containers whose root is nobody outside. Does nothing if the process isn't
 * root's. MS_ESYSTEM: don't go on.
 */
MS_NODISCARD int mss_user_become(const mss_user *user, ms_error *err);

#endif
