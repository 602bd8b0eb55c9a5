/*
 * password.h - Argon2id. Called in the slow lane only: a check takes tens of milliseconds and 64 MiB,
 * and the lane's threads bound how many run at once.
 */
#ifndef MSS_AUTH_PASSWORD_H
#define MSS_AUTH_PASSWORD_H

#include "memscale/base.h"

enum { MSS_PASSWORD_LEAST = 10, MSS_PASSWORD_MOST = 256, MSS_PASSWORD_HASH_BYTES = 128 };

/* The text to store. MS_ENOMEM if the computation gets no memory. */
MS_NODISCARD int mss_password_hash(const char *password, char hash[MSS_PASSWORD_HASH_BYTES], ms_error *err);

/* Whether it is the password. With an empty `hash` (no such account) it takes as long and returns false. */
bool mss_password_check(const char *password, const char *hash);

#endif
