/* The second factor: set-up, recovery codes, turning it off, and the second step of a sign-in. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "auth/second_factor.h"
#include "pages/pages.h"
#include "pages/qr.h"
#include "store/audit.h"
#include "store/statements.h"

enum { URI_BYTES = 2048, QR_EDGE = 4 };

/* ---- checks --------------------------------------------------------------------- */

/* Checks the form's code. Returns 0 if the code is right, and if `may_be_off` is set and the account has no second factor.
 * Otherwise answers the request and returns the status of that answer. */
static int check_code(mss_request *r, bool may_be_off)
{
    ms_error err;
    bool is_on = false;
    mss_code_kind kind = MSS_CODE_WRONG;
    int rc = mss_second_factor_is_on(r->sql, &r->who.account, &is_on, &err);
    if (rc == MS_OK && is_on) {
        rc = mss_second_factor_use(r->sql, &r->who.account, mss_page_field(r, "code"), &kind, &err);
    }
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (!is_on) {
        return may_be_off ? 0 : mss_answer_problem(r, 409, "There is no second factor.");
    }
    return kind == MSS_CODE_WRONG ? mss_answer_problem(r, 403, "This code is wrong, or was used already.") : 0;
}

int mss_page_code_ask(mss_request *r)
{
    return check_code(r, true);
}

/* ---- set-up ------------------------------------------------------------------- */

static void add_coded(char *uri, const char *text)
{
    size_t length = strlen(uri);
    for (; *text != '\0' && length + MSS_URI_BYTE_BYTES < URI_BYTES; text++) {
        mss_uri_write_byte((unsigned char)*text, uri + length);
        length += strlen(uri + length);
    }
}

/* Names this server for authenticators, because people may have accounts on several. */
static void write_issuer(const mss_request *r, char *issuer, size_t room)
{
    const char *host = strstr(mss_server_url(r->server), "://") + 3;
    size_t length = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":"); /* without the port */
    snprintf(issuer, room, "memscale %.*s", (int)length, host);
}

/* The address that authenticators read, otpauth://totp/ISSUER:ACCOUNT?secret=BASE32&issuer=ISSUER; what it leaves out is
 * SHA-1, six digits and 30 s. */
static void write_uri(const mss_request *r, const char *base32, char uri[URI_BYTES])
{
    char issuer[280];
    write_issuer(r, issuer, sizeof issuer);
    strcpy(uri, "otpauth://totp/");
    add_coded(uri, issuer);
    strcat(uri, ":");
    add_coded(uri, r->who.email);
    size_t length = strlen(uri);
    snprintf(uri + length, URI_BYTES - length, "?secret=%s&issuer=", base32);
    add_coded(uri, issuer);
}

static int show_secret(mss_request *r, const mss_totp_secret *secret)
{
    ms_error err;
    char base32[MSS_TOTP_BASE32_BYTES] = "", uri[URI_BYTES] = "", *path = NULL;
    int side = 0;
    json_t *page = NULL;
    int rc = mss_totp_base32(secret, base32, &err);
    if (rc == MS_OK) {
        write_uri(r, base32, uri);
        rc = mss_qr_path(uri, &path, &side, &err);
    }
    if (rc == MS_OK) {
        page = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i}", "title", "Second factor", "secret", base32, "uri", uri,
                         "qr_path", path, "qr_from", -QR_EDGE, "qr_side", side + 2 * QR_EDGE);
    }
    mss_secret_wipe(base32, sizeof base32);
    mss_secret_wipe(uri, sizeof uri);
    ms_free(path);
    return rc == MS_OK ? mss_page_show(r, 200, "second_factor.html", page) : mss_answer_failure(r, &err);
}

/* The secret is shown on the page that answers, and never again. */
int mss_page_second_factor_begin(mss_request *r)
{
    ms_error err;
    mss_totp_secret secret;
    bool is_begun = false;
    if (mss_second_factor_begin(r->sql, &r->who.account, &secret, &is_begun, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    int status = is_begun ? show_secret(r, &secret)
                          : mss_answer_problem(r, 409, "There is a second factor already: turn it off first.");
    mss_secret_wipe(&secret, sizeof secret);
    return status;
}

/* New recovery codes, on the page that answers and never again. */
static int show_new_codes(mss_request *r)
{
    ms_error err;
    mss_short_code codes[MSS_RECOVERY_CODES];
    if (mss_recovery_codes_make(r->sql, &r->who.account, codes, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    json_t *list = json_array();
    for (size_t i = 0; i < MSS_RECOVERY_CODES; i++) {
        json_array_append_new(list, json_pack("{s:s}", "code", codes[i].text));
    }
    mss_secret_wipe(codes, sizeof codes);
    return mss_page_show(r, 200, "recovery_codes.html",
                         json_pack("{s:s, s:o}", "title", "Recovery codes", "codes", list));
}

static int answer_unconfirmed(mss_request *r)
{
    ms_error err;
    bool has_begun = false;
    if (mss_second_factor_has_begun(r->sql, &r->who.account, &has_begun, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return has_begun
               ? mss_page_show(r, 422, "second_factor.html",
                               json_pack("{s:s, s:b}", "title", "Second factor", "is_wrong", 1))
               : mss_answer_problem(r, 409, "Nothing waits to be confirmed: begin again on the page \"Account\".");
}

/* Every session of the account ends: they began without the second factor. */
int mss_page_second_factor_confirm(mss_request *r)
{
    ms_error err;
    bool is_right = false;
    mss_id account = r->who.account;
    int rc = mss_second_factor_confirm(r->sql, &account, mss_page_field(r, "code"), &is_right, &err);
    if (rc == MS_OK && !is_right) {
        return answer_unconfirmed(r);
    }
    if (rc == MS_OK) {
        rc = mss_page_start_only_session(r, &account, "second factor set up", &err);
    }
    return rc == MS_OK ? show_new_codes(r) : mss_answer_failure(r, &err);
}

/* ---- later -------------------------------------------------------------------- */

int mss_page_recovery_codes(mss_request *r)
{
    ms_error err;
    int status = check_code(r, false);
    if (status != 0) {
        return status;
    }
    return mss_api_audit(r, "recovery codes made", r->who.account.text, &err) == MS_OK ? show_new_codes(r)
                                                                                       : mss_answer_failure(r, &err);
}

int mss_page_second_factor_off(mss_request *r)
{
    ms_error err;
    mss_id account = r->who.account;
    int status = check_code(r, false);
    if (status != 0) {
        return status;
    }
    int rc = mss_second_factor_remove(r->sql, &account, &err);
    if (rc == MS_OK) {
        rc = mss_page_start_session(r, &account, "second factor turned off", &err);
    }
    return rc == MS_OK ? mss_answer_redirect(r, "/account") : mss_answer_failure(r, &err);
}

/* ---- the second step of a sign-in ------------------------------------------------- */

/* The page holds the secret of the sign-in in its form: no cookie, so that a browser sends it nowhere by itself. */
static int ask_for_code(mss_request *r, int status, const char *secret, bool is_wrong)
{
    return mss_page_show(
        r, status, "sign_in_code.html",
        json_pack("{s:s, s:s, s:b}", "title", "Sign in", "pending", secret, "is_wrong", (int)is_wrong));
}

int mss_page_sign_in_wait(mss_request *r, const mss_id *account)
{
    ms_error err;
    char secret[MSS_SECRET_BYTES];
    int status = mss_pending_start(r->sql, account, secret, &err) == MS_OK ? ask_for_code(r, 200, secret, false)
                                                                           : mss_answer_failure(r, &err);
    mss_secret_wipe(secret, sizeof secret);
    return status;
}

/* The try that was taken stays taken: this refusal's writes are kept. */
static int refuse_code(mss_request *r, const mss_pending *pending, const char *secret)
{
    ms_error err;
    if (pending->tries_left > 0) {
        r->answer.keeps_writes = true;
        return ask_for_code(r, 401, secret, true);
    }
    int rc = mss_pending_end(r->sql, secret, &err);
    if (rc == MS_OK) { /* someone knows the password and not the code */
        rc = mss_audit_add(r->sql, pending->account.text, "", "second factor refused", pending->account.text, &err);
    }
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    r->answer.keeps_writes = true;
    return mss_page_sign_in_over(r);
}

static int complete(mss_request *r, const mss_pending *pending, const char *secret, mss_code_kind kind)
{
    ms_error err;
    bool is_recovery = kind == MSS_CODE_OF_RECOVERY;
    int rc = mss_pending_end(r->sql, secret, &err);
    if (rc == MS_OK) {
        rc = mss_page_start_session(r, &pending->account, is_recovery ? "signed in with a recovery code" : "signed in",
                                    &err);
    }
    return rc == MS_OK ? mss_answer_redirect(r, is_recovery ? "/account" : "/runs") : mss_answer_failure(r, &err);
}

int mss_page_sign_in_code(mss_request *r)
{
    ms_error err;
    mss_pending pending;
    mss_code_kind kind = MSS_CODE_WRONG;
    const char *secret = mss_page_field(r, "pending");
    int rc = mss_pending_try(r->sql, secret, &pending, &err);
    if (rc == MS_OK && !mss_id_is(&pending.account)) {
        return mss_page_sign_in_over(r);
    }
    int status = rc == MS_OK ? mss_page_limit_guesses(r, pending.email) : 0;
    if (status != 0) {
        return status;
    }
    if (rc == MS_OK) {
        rc = mss_second_factor_use(r->sql, &pending.account, mss_page_field(r, "code"), &kind, &err);
    }
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return kind == MSS_CODE_WRONG ? refuse_code(r, &pending, secret) : complete(r, &pending, secret, kind);
}
