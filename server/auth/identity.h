/*
 * identity.h - identifies the client by a session's cookie or a bearer token, and makes and ends sessions.
 * Only hashes are stored, so nobody can sign in with a stolen database.
 */
#ifndef MSS_AUTH_IDENTITY_H
#define MSS_AUTH_IDENTITY_H

#include "auth/permission.h"
#include "store/sql.h"

#define MSS_SESSION_MS ((int64_t)14 * 24 * 3600 * 1000)
#define MSS_INVITATION_MS ((int64_t)7 * 24 * 3600 * 1000)

/* Who has this secret; MSS_ANYONE if it is unknown or expired. Writes all of `who`. */
MS_NODISCARD int mss_identify_session(mss_sql *sql, const char *secret, mss_who *who, ms_error *err);
MS_NODISCARD int mss_identify_token(mss_sql *sql, const char *token, mss_who *who, ms_error *err);

/* Starts a session. Its secret is for the cookie and is stored nowhere. Deletes expired sessions. */
MS_NODISCARD int mss_session_start(mss_sql *sql, const mss_id *account, char secret[MSS_SECRET_BYTES], ms_error *err);

/* The CSRF token that a form of this session must send back. */
void mss_session_csrf(const mss_who *who, char csrf[MSS_HASH_TEXT_BYTES]);

/* Makes a link that works once, and returns its secret. If `team` is NULL, the link makes the first owner. */
MS_NODISCARD int mss_invitation_make(mss_sql *sql, const char *team, mss_role role, const char *created_by,
                                     char secret[MSS_SECRET_BYTES], ms_error *err);

#endif
