#include "auth/second_factor.h"

#include <string.h>

#include "log/log.h"
#include "store/statements.h"

/* The secret and the last code's step of an account. */
typedef struct factor {
    mss_totp_secret secret;
    int64_t last_step;
    bool is_there;
} factor;

static int load(mss_sql *sql, mss_statement statement, const mss_value *values, size_t count, factor *f, ms_error *err)
{
    mss_rows rows;
    *f = (factor){0};
    int rc = mss_sql_first(sql, statement, values, count, &rows, &f->is_there, err);
    if (rc == MS_OK && f->is_there) {
        size_t bytes = 0;
        const void *secret = mss_rows_blob(&rows, 0, &bytes);
        f->last_step = mss_rows_int(&rows, 1);
        if (bytes == sizeof f->secret.bytes) {
            memcpy(f->secret.bytes, secret, bytes);
        } else {
            rc = ms_fail(err, MS_EFORMAT, "the secret of a second factor has %zu bytes", bytes);
        }
    }
    mss_rows_end(&rows);
    return rc;
}

static int load_setup(mss_sql *sql, const mss_id *account, factor *f, ms_error *err)
{
    return load(sql, MSS_SECOND_FACTOR_SETUP, MSS_WITH(MSS_TEXT(account->text), MSS_INT(mss_now_ms() - MSS_SETUP_MS)),
                f, err);
}

/* ---- set-up ------------------------------------------------------------------- */

int mss_second_factor_begin(mss_sql *sql, const mss_id *account, mss_totp_secret *secret, bool *is_begun, ms_error *err)
{
    int64_t now = mss_now_ms(), changed = 0;
    mss_totp_secret_new(secret);
    int rc = mss_sql_run(sql, MSS_SECOND_FACTOR_EXPIRE, MSS_WITH(MSS_INT(now - MSS_SETUP_MS)), NULL, err);
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_SECOND_FACTOR_BEGIN,
                         MSS_WITH(MSS_TEXT(account->text), MSS_BLOB(secret->bytes, sizeof secret->bytes), MSS_INT(now)),
                         &changed, err);
    }
    *is_begun = rc == MS_OK && changed > 0;
    return rc;
}

int mss_second_factor_has_begun(mss_sql *sql, const mss_id *account, bool *has_begun, ms_error *err)
{
    factor f;
    int rc = load_setup(sql, account, &f, err);
    *has_begun = rc == MS_OK && f.is_there;
    mss_secret_wipe(&f, sizeof f);
    return rc;
}

int mss_second_factor_confirm(mss_sql *sql, const mss_id *account, const char *code, bool *is_right, ms_error *err)
{
    factor f;
    mss_typed_code typed;
    int64_t now = mss_now_ms(), step = 0, changed = 0;
    mss_code_read(code, &typed);
    int rc = load_setup(sql, account, &f, err);
    if (rc == MS_OK && f.is_there) {
        rc = mss_totp_check(&f.secret, typed.text, now / 1000, f.last_step, &step, err);
    }
    if (rc == MS_OK && step > 0) {
        rc = mss_sql_run(sql, MSS_SECOND_FACTOR_CONFIRM, MSS_WITH(MSS_INT(now), MSS_INT(step), MSS_TEXT(account->text)),
                         &changed, err);
    }
    mss_secret_wipe(&f, sizeof f);
    mss_secret_wipe(&typed, sizeof typed);
    *is_right = rc == MS_OK && changed > 0;
    return rc;
}

int mss_recovery_codes_make(mss_sql *sql, const mss_id *account, mss_short_code codes[MSS_RECOVERY_CODES],
                            ms_error *err)
{
    int rc = mss_sql_run(sql, MSS_RECOVERY_CODE_DELETE_ALL, MSS_WITH(MSS_TEXT(account->text)), NULL, err);
    for (int i = 0; rc == MS_OK && i < MSS_RECOVERY_CODES; i++) {
        mss_typed_code plain;
        mss_short_code_new(&codes[i]);
        mss_code_read(codes[i].text, &plain);
        mss_hash hash = mss_hash_of(plain.text, strlen(plain.text));
        mss_secret_wipe(&plain, sizeof plain);
        rc = mss_sql_run(sql, MSS_RECOVERY_CODE_ADD, MSS_WITH(MSS_TEXT(account->text), MSS_HASH(&hash)), NULL, err);
    }
    return rc;
}

int mss_second_factor_remove(mss_sql *sql, const mss_id *account, ms_error *err)
{
    int rc = mss_sql_run(sql, MSS_SECOND_FACTOR_DELETE, MSS_WITH(MSS_TEXT(account->text)), NULL, err);
    return rc == MS_OK ? mss_pending_end_all(sql, account, err) : rc;
}

/* ---- use ---------------------------------------------------------------------- */

static int load_confirmed(mss_sql *sql, const mss_id *account, factor *f, ms_error *err)
{
    return load(sql, MSS_SECOND_FACTOR_FIND, MSS_WITH(MSS_TEXT(account->text)), f, err);
}

int mss_second_factor_is_on(mss_sql *sql, const mss_id *account, bool *is_on, ms_error *err)
{
    factor f;
    int rc = load_confirmed(sql, account, &f, err);
    *is_on = rc == MS_OK && f.is_there;
    mss_secret_wipe(&f, sizeof f);
    return rc;
}

/* The step rises by a statement that compares: of two requests with the same code one changes the row. */
static int use_authenticator(mss_sql *sql, const mss_id *account, const factor *f, const char *code, bool *is_used,
                             ms_error *err)
{
    int64_t step = 0, changed = 0;
    int rc = mss_totp_check(&f->secret, code, mss_now_ms() / 1000, f->last_step, &step, err);
    if (rc == MS_OK && step > 0) {
        rc = mss_sql_run(sql, MSS_SECOND_FACTOR_STEP, MSS_WITH(MSS_INT(step), MSS_TEXT(account->text)), &changed, err);
    }
    *is_used = rc == MS_OK && changed > 0;
    return rc;
}

static int use_recovery(mss_sql *sql, const mss_id *account, const char *code, bool *is_used, ms_error *err)
{
    int64_t changed = 0;
    mss_hash hash = mss_hash_of(code, strlen(code));
    int rc = mss_sql_run(sql, MSS_RECOVERY_CODE_USE, MSS_WITH(MSS_TEXT(account->text), MSS_HASH(&hash)), &changed, err);
    *is_used = rc == MS_OK && changed > 0;
    return rc;
}

int mss_second_factor_use(mss_sql *sql, const mss_id *account, const char *typed, mss_code_kind *kind, ms_error *err)
{
    factor f;
    mss_typed_code code;
    bool is_used = false;
    mss_code_read(typed, &code);
    bool is_recovery = strlen(code.text) != MSS_TOTP_DIGITS;
    int rc = load_confirmed(sql, account, &f, err);
    if (rc == MS_OK && f.is_there) {
        rc = is_recovery ? use_recovery(sql, account, code.text, &is_used, err)
                         : use_authenticator(sql, account, &f, code.text, &is_used, err);
    }
    mss_secret_wipe(&f, sizeof f);
    mss_secret_wipe(&code, sizeof code);
    *kind = !is_used ? MSS_CODE_WRONG : is_recovery ? MSS_CODE_OF_RECOVERY : MSS_CODE_OF_AUTHENTICATOR;
    return rc;
}

/* ---- sign-ins that wait for a code ----------------------------------------------- */

int mss_pending_start(mss_sql *sql, const mss_id *account, char secret[MSS_SECRET_BYTES], ms_error *err)
{
    int64_t now = mss_now_ms();
    mss_secret_new(secret);
    mss_hash hash = mss_hash_of(secret, strlen(secret));
    int rc = mss_sql_run(sql, MSS_PENDING_EXPIRE, MSS_WITH(MSS_INT(now)), NULL, err);
    if (rc == MS_OK) {
        rc = mss_sql_run(sql, MSS_PENDING_ADD,
                         MSS_WITH(MSS_HASH(&hash), MSS_TEXT(account->text), MSS_INT(MSS_PENDING_TRIES), MSS_INT(now),
                                  MSS_INT(now + MSS_PENDING_MS)),
                         NULL, err);
    }
    return rc;
}

int mss_pending_try(mss_sql *sql, const char *secret, mss_pending *pending, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int64_t changed = 0;
    mss_hash hash = mss_hash_of(secret, strlen(secret));
    *pending = (mss_pending){0};
    int rc = mss_sql_run(sql, MSS_PENDING_TRY, MSS_WITH(MSS_HASH(&hash), MSS_INT(mss_now_ms())), &changed, err);
    if (rc != MS_OK || changed == 0) {
        return rc;
    }
    rc = mss_sql_first(sql, MSS_PENDING_FIND, MSS_WITH(MSS_HASH(&hash)), &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, pending->account.text, sizeof pending->account.text);
        mss_rows_copy(&rows, 1, pending->email, sizeof pending->email);
        pending->tries_left = mss_rows_int(&rows, 2);
    }
    mss_rows_end(&rows);
    return rc;
}

int mss_pending_end(mss_sql *sql, const char *secret, ms_error *err)
{
    mss_hash hash = mss_hash_of(secret, strlen(secret));
    return mss_sql_run(sql, MSS_PENDING_DELETE, MSS_WITH(MSS_HASH(&hash)), NULL, err);
}

int mss_pending_end_all(mss_sql *sql, const mss_id *account, ms_error *err)
{
    return mss_sql_run(sql, MSS_PENDING_DELETE_ALL, MSS_WITH(MSS_TEXT(account->text)), NULL, err);
}
