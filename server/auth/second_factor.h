/*
 * second_factor.h - what an account may ask for beside its password, in the database: the secret of an authenticator,
 * recovery codes, and sign-ins that wait for a code. The pages' handlers (pages/second_factor.c) call it in the write
 * lane, in their request's savepoint; they have checked passwords and limits before.
 *
 * It promises that a code is accepted once, also by several servers at the same time: the step of an authenticator's
 * last code only rises, and a recovery code's row goes with its use, both by one statement that tells whether it changed
 * anything. Stored are: the authenticator's secret as it is, because codes can't be computed from a hash; hashes of
 * recovery codes and of the secrets of sign-ins that wait.
 *
 * Errors are those of sql.h. Tests: tests/server/c/test_second_factor.c, on both databases.
 */
#ifndef MSS_AUTH_SECOND_FACTOR_H
#define MSS_AUTH_SECOND_FACTOR_H

#include "auth/secret.h"
#include "auth/totp.h"
#include "store/sql.h"

enum { MSS_RECOVERY_CODES = 10, MSS_PENDING_TRIES = 5 };
#define MSS_SETUP_MS ((int64_t)60 * 60 * 1000)
#define MSS_PENDING_MS ((int64_t)5 * 60 * 1000)

/* The kinds of codes. */
typedef enum mss_code_kind { MSS_CODE_WRONG, MSS_CODE_OF_AUTHENTICATOR, MSS_CODE_OF_RECOVERY } mss_code_kind;

/* ---- set-up ------------------------------------------------------------------- */

/* Begins a set-up with a new secret, in place of one that was not confirmed. `*is_begun` is false if the account has a
 * second factor already. A set-up that nobody confirms within MSS_SETUP_MS is deleted by a later one. */
MS_NODISCARD int mss_second_factor_begin(mss_sql *sql, const mss_id *account, mss_totp_secret *secret, bool *is_begun,
                                         ms_error *err);
/* Whether the account has a set-up that waits to be confirmed. */
MS_NODISCARD int mss_second_factor_has_begun(mss_sql *sql, const mss_id *account, bool *has_begun, ms_error *err);
/* From now on the second factor counts, if this is a code of the set-up's secret. */
MS_NODISCARD int mss_second_factor_confirm(mss_sql *sql, const mss_id *account, const char *code, bool *is_right,
                                           ms_error *err);
/* Makes new recovery codes in place of all older ones. They are for the account's owner, once. */
MS_NODISCARD int mss_recovery_codes_make(mss_sql *sql, const mss_id *account, mss_short_code codes[MSS_RECOVERY_CODES],
                                         ms_error *err);
/* Deletes it, its recovery codes, and sign-ins that wait for one of its codes. */
MS_NODISCARD int mss_second_factor_remove(mss_sql *sql, const mss_id *account, ms_error *err);

/* ---- use ---------------------------------------------------------------------- */

/* Whether the account has a second factor that was confirmed. */
MS_NODISCARD int mss_second_factor_is_on(mss_sql *sql, const mss_id *account, bool *is_on, ms_error *err);
/* Accepts what a person typed, a code of the authenticator or a recovery code, and uses it up. MSS_CODE_WRONG also for
 * a code that was used before, and if the account has no second factor. */
MS_NODISCARD int mss_second_factor_use(mss_sql *sql, const mss_id *account, const char *typed, mss_code_kind *kind,
                                       ms_error *err);

/* ---- sign-ins that wait for a code ----------------------------------------------- */

typedef struct mss_pending {
    mss_id account; /* empty if the sign-in does not exist, has expired or has no try left */
    char email[256];
    int64_t tries_left;
} mss_pending;

/* Begins one for an account whose password was right. Its secret allows nothing but to send codes. */
MS_NODISCARD int mss_pending_start(mss_sql *sql, const mss_id *account, char secret[MSS_SECRET_BYTES], ms_error *err);
/* Finds it and takes one of its tries. */
MS_NODISCARD int mss_pending_try(mss_sql *sql, const char *secret, mss_pending *pending, ms_error *err);
/* Ends one; ends all of an account. */
MS_NODISCARD int mss_pending_end(mss_sql *sql, const char *secret, ms_error *err);
MS_NODISCARD int mss_pending_end_all(mss_sql *sql, const mss_id *account, ms_error *err);

#endif
