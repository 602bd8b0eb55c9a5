/*
 * identity.h - finds out who asks, from a session's cookie or a bearer token, and makes and ends sessions.
 * Only hashes are stored: a stolen database holds nothing that signs in.
 */
#ifndef MSS_AUTH_IDENTITY_H
#define MSS_AUTH_IDENTITY_H

#include "auth/permission.h"
#include "store/sql.h"

#define MSS_SESSION_MS ((int64_t)14 * 24 * 3600 * 1000)
#define MSS_INVITATION_MS ((int64_t)7 * 24 * 3600 * 1000)

/* Who has this secret; MSS_ANYONE where it is unknown or expired. `who` is written whole. */
MS_NODISCARD int mss_identify_session(mss_sql *sql, const char *secret, mss_who *who, ms_error *err);
MS_NODISCARD int mss_identify_token(mss_sql *sql, const char *token, mss_who *who, ms_error *err);

/* A new session: its secret is for the cookie and kept nowhere. Ends those that have expired. */
MS_NODISCARD int mss_session_start(mss_sql *sql, const mss_id *account, char secret[MSS_SECRET_BYTES], ms_error *err);

/* What a form of this session must send back. */
void mss_session_csrf(const mss_who *who, char csrf[MSS_HASH_TEXT_BYTES]);

/* A link that works once: `team` NULL makes the first owner. Gives its secret. */
MS_NODISCARD int mss_invitation_make(mss_sql *sql, const char *team, mss_role role, const char *created_by,
                                     char secret[MSS_SECRET_BYTES], ms_error *err);

#endif
