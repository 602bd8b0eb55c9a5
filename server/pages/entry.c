/* In and out: sign-in, invitations, the first owner, password, end of an account. second_factor.c has what comes after a
 * right password. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "auth/password.h"
#include "auth/second_factor.h"
#include "log/log.h"
#include "pages/pages.h"
#include "store/statements.h"

/* ---- sign-in -------------------------------------------------------------------- */

int mss_page_sign_in(mss_request *r)
{
    return mss_page_show(r, 200, "sign_in.html", json_pack("{s:s}", "title", "Sign in"));
}

static void lower(char *to, size_t room, const char *from)
{
    size_t i = 0;
    for (; from[i] != '\0' && i + 1 < room; i++) {
        to[i] = from[i] >= 'A' && from[i] <= 'Z' ? (char)(from[i] - 'A' + 'a') : from[i];
    }
    to[i] = '\0';
}

/* Account and stored hash of an address; both empty for a stranger. */
static int find_account(mss_request *r, const char *email, mss_id *account, char hash[MSS_PASSWORD_HASH_BYTES],
                        ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *account = (mss_id){""};
    hash[0] = '\0';
    int rc = mss_sql_first(r->sql, MSS_ACCOUNT_BY_EMAIL, MSS_WITH(MSS_TEXT(email)), &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, account->text, sizeof account->text);
        mss_rows_copy(&rows, 1, hash, MSS_PASSWORD_HASH_BYTES);
    }
    mss_rows_end(&rows);
    return rc;
}

int mss_page_limit_guesses(mss_request *r, const char *email)
{
    char key[360];
    snprintf(key, sizeof key, "guess %s %s", email, r->address);
    return mss_request_limit(r, MSS_LIMIT_SIGN_IN, key);
}

int mss_page_sign_in_prepare(mss_request *r)
{
    ms_error err;
    mss_id account;
    char hash[MSS_PASSWORD_HASH_BYTES], email[256];
    lower(email, sizeof email, mss_page_field(r, "email"));
    const char *password = mss_page_field(r, "password");
    int status = mss_page_limit_guesses(r, email);
    if (status != 0) {
        return status;
    }
    if (find_account(r, email, &account, hash, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    bool is_right = strlen(password) <= MSS_PASSWORD_MOST && mss_password_check(password, hash);
    mss_secret_wipe(hash, sizeof hash);
    if (!is_right) {
        return mss_page_show(r, 401, "sign_in.html",
                             json_pack("{s:s, s:b, s:s}", "title", "Sign in", "is_wrong", 1, "given_email", email));
    }
    r->prepared = account;
    return 200;
}

int mss_page_start_session(mss_request *r, const mss_id *account, const char *verb, ms_error *err)
{
    char secret[MSS_SECRET_BYTES];
    int rc = r->who.kind == MSS_PERSON
                 ? mss_sql_run(r->sql, MSS_SESSION_DELETE, MSS_WITH(MSS_HASH(&r->who.session)), NULL, err)
                 : MS_OK;
    r->who.account = *account;
    if (rc == MS_OK) {
        rc = mss_session_start(r->sql, account, secret, err);
    }
    if (rc == MS_OK) {
        rc = mss_api_audit(r, verb, account->text, err);
    }
    if (rc == MS_OK) {
        mss_page_set_cookie(r, secret);
        r->who.kind = MSS_PERSON;
        r->who.session = mss_hash_of(secret, strlen(secret));
        mss_session_csrf(&r->who, r->csrf_wanted); /* of the forms on a page that answers */
    }
    mss_secret_wipe(secret, sizeof secret);
    return rc;
}

int mss_page_start_only_session(mss_request *r, const mss_id *account, const char *verb, ms_error *err)
{
    int rc = mss_sql_run(r->sql, MSS_SESSION_DELETE_ALL, MSS_WITH(MSS_TEXT(account->text)), NULL, err);
    if (rc == MS_OK) {
        rc = mss_pending_end_all(r->sql, account, err);
    }
    return rc == MS_OK ? mss_page_start_session(r, account, verb, err) : rc;
}

/* The password was right. What it is worth alone is decided here, behind it: who doesn't know it learns nothing. */
int mss_page_sign_in_sent(mss_request *r)
{
    ms_error err;
    bool needs_code = false;
    int rc = mss_second_factor_is_on(r->sql, &r->prepared, &needs_code, &err);
    if (rc == MS_OK && needs_code) {
        return mss_page_sign_in_wait(r, &r->prepared);
    }
    if (rc == MS_OK) {
        rc = mss_page_start_session(r, &r->prepared, "signed in", &err);
    }
    return rc == MS_OK ? mss_answer_redirect(r, "/runs") : mss_answer_failure(r, &err);
}

int mss_page_sign_in_over(mss_request *r)
{
    return mss_page_show(r, 401, "sign_in.html", json_pack("{s:s, s:b}", "title", "Sign in", "is_over", 1));
}

int mss_page_sign_out(mss_request *r)
{
    ms_error err;
    int rc = mss_sql_run(r->sql, MSS_SESSION_DELETE, MSS_WITH(MSS_HASH(&r->who.session)), NULL, &err);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    mss_page_set_cookie(r, NULL);
    return mss_answer_redirect(r, "/sign-in");
}

/* ---- invitations ------------------------------------------------------------------ */

typedef struct invitation {
    mss_id id, team; /* no team: the link of the first start */
    mss_role role;
    char team_name[256];
} invitation;

static int find_invitation(mss_request *r, invitation *found, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    mss_hash hash = mss_hash_of(r->parameters[0], strlen(r->parameters[0]));
    *found = (invitation){0};
    int rc =
        mss_sql_first(r->sql, MSS_INVITATION_FIND, MSS_WITH(MSS_HASH(&hash), MSS_INT(mss_now_ms())), &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, found->id.text, sizeof found->id.text);
        mss_rows_copy(&rows, 1, found->team.text, sizeof found->team.text);
        found->role = (mss_role)mss_rows_int(&rows, 2);
        mss_rows_copy(&rows, 3, found->team_name, sizeof found->team_name);
    }
    mss_rows_end(&rows);
    return rc;
}

static int answer_used_up(mss_request *r)
{
    return mss_answer_problem(r, 404, "This link has been used, withdrawn or has expired. Ask for another.");
}

static json_t *welcome_data(const mss_request *r, const invitation *found)
{
    return json_pack("{s:s, s:s, s:b, s:s, s:s, s:s}", "title", "Welcome", "key", r->parameters[0], "is_first",
                     (int)!mss_id_is(&found->team), "team_name", found->team_name, "role", mss_role_name(found->role),
                     "wrong", "");
}

int mss_page_welcome(mss_request *r)
{
    ms_error err;
    invitation found;
    if (find_invitation(r, &found, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return mss_id_is(&found.id) ? mss_page_show(r, 200, "welcome.html", welcome_data(r, &found)) : answer_used_up(r);
}

/* The form's fault; NULL if it has none. */
static const char *first_wrong(const mss_request *r)
{
    const char *password = mss_page_field(r, "password");
    if (!mss_api_is_line(mss_page_field(r, "name"), 80)) {
        return "Give a name of 1 to 80 bytes.";
    }
    if (!mss_api_is_email(mss_page_field(r, "email"))) {
        return "Give an e-mail address.";
    }
    return strlen(password) < MSS_PASSWORD_LEAST || strlen(password) > MSS_PASSWORD_MOST
               ? "A password has 10 to 256 bytes."
               : NULL;
}

int mss_page_welcome_prepare(mss_request *r)
{
    ms_error err;
    invitation found;
    if (find_invitation(r, &found, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (!mss_id_is(&found.id)) {
        return answer_used_up(r);
    }
    if (r->who.kind == MSS_PERSON) { /* joins as who they are */
        return 200;
    }
    const char *wrong = first_wrong(r);
    if (wrong != NULL) {
        json_t *data = welcome_data(r, &found);
        json_object_set_new(data, "wrong", json_string(wrong));
        return mss_page_show(r, 422, "welcome.html", data);
    }
    return mss_password_hash(mss_page_field(r, "password"), r->password_hash, &err) == MS_OK
               ? 200
               : mss_answer_failure(r, &err);
}

static int insert_account(mss_request *r, bool is_operator, mss_id *account)
{
    ms_error err;
    char email[256];
    lower(email, sizeof email, mss_page_field(r, "email"));
    *account = mss_id_new('a');
    int rc = mss_sql_run(r->sql, MSS_ACCOUNT_ADD,
                         MSS_WITH(MSS_TEXT(account->text), MSS_TEXT(email), MSS_TEXT(mss_page_field(r, "name")),
                                  MSS_TEXT(r->password_hash), MSS_INT(is_operator), MSS_INT(mss_now_ms())),
                         NULL, &err);
    mss_secret_wipe(r->password_hash, sizeof r->password_hash);
    if (rc == MS_ESTATE) {
        return mss_answer_problem(r, 409, "There is an account with this address: sign in, then open the link again.");
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

/* The link's team, or a first one; the role never falls by it. */
static int join(mss_request *r, const invitation *found, const mss_id *account)
{
    ms_error err;
    mss_id team;
    int64_t role = 0;
    if (!mss_id_is(&found->team)) {
        return mss_team_make(r, "My team", account->text, &team);
    }
    int rc = mss_sql_number(r->sql, MSS_MEMBER_ROLE, MSS_WITH(MSS_TEXT(found->team.text), MSS_TEXT(account->text)),
                            &role, &err);
    if (rc == MS_OK && role < (int64_t)found->role) {
        rc = mss_sql_run(
            r->sql, MSS_MEMBER_SET,
            MSS_WITH(MSS_TEXT(found->team.text), MSS_TEXT(account->text), MSS_INT(found->role), MSS_INT(mss_now_ms())),
            NULL, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

/* Takes the link: of two at the same time one gets it. */
static int use_up(mss_request *r)
{
    ms_error err;
    int64_t used = 0;
    mss_hash hash = mss_hash_of(r->parameters[0], strlen(r->parameters[0]));
    int rc = mss_sql_run(r->sql, MSS_INVITATION_USE, MSS_WITH(MSS_HASH(&hash), MSS_INT(mss_now_ms())), &used, &err);
    return rc != MS_OK ? mss_answer_failure(r, &err) : used == 0 ? answer_used_up(r) : 0;
}

int mss_page_welcome_sent(mss_request *r)
{
    ms_error err;
    invitation found;
    mss_id account = r->who.account;
    bool is_known = r->who.kind == MSS_PERSON;
    if (find_invitation(r, &found, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    int status = use_up(r);
    if (status == 0 && !is_known && r->password_hash[0] == '\0') { /* signed out since it was prepared */
        status = mss_answer_redirect(r, "/sign-in");
    }
    if (status == 0 && !is_known) {
        status = insert_account(r, !mss_id_is(&found.team), &account);
    }
    if (status != 0) {
        return status;
    }
    r->who.account = account;
    r->object.team = found.team;
    status = join(r, &found, &account);
    if (status == 0 && mss_page_start_session(r, &account, "joined", &err) != MS_OK) {
        status = mss_answer_failure(r, &err);
    }
    return status != 0 ? status : mss_answer_redirect(r, "/runs");
}

/* ---- the account ------------------------------------------------------------------ */

int mss_page_account(mss_request *r)
{
    ms_error err;
    const char *who = r->who.account.text;
    json_t *account = mss_sql_object(r->sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT(who)), &err);
    json_t *factor = account ? mss_sql_object(r->sql, MSS_SECOND_FACTOR_SHOW, MSS_WITH(MSS_TEXT(who)), &err) : NULL;
    if (factor == NULL) {
        json_decref(account);
        return mss_answer_failure(r, &err);
    }
    if (json_is_object(factor)) {
        mss_page_time_text(factor, "confirmed_at", "confirmed_text");
    }
    return mss_page_show(r, 200, "account.html",
                         json_pack("{s:s, s:o, s:o}", "title", "Account", "account", account, "second_factor", factor));
}

/* A stolen session is not enough for what can't be undone. */
static int check_password(mss_request *r)
{
    ms_error err;
    mss_rows rows;
    bool has = false;
    char hash[MSS_PASSWORD_HASH_BYTES] = "";
    int status = mss_page_limit_guesses(r, r->who.email);
    if (status != 0) {
        return status;
    }
    int rc = mss_sql_first(r->sql, MSS_ACCOUNT_PASSWORD, MSS_WITH(MSS_TEXT(r->who.account.text)), &rows, &has, &err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, hash, sizeof hash);
    }
    mss_rows_end(&rows);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    const char *password = mss_page_field(r, "password");
    bool is_right = strlen(password) <= MSS_PASSWORD_MOST && mss_password_check(password, hash);
    mss_secret_wipe(hash, sizeof hash);
    return is_right ? 0 : mss_answer_problem(r, 403, "This is not your password.");
}

int mss_page_password_ask(mss_request *r)
{
    int status = check_password(r);
    return status != 0 ? status : 200;
}

int mss_page_password_prepare(mss_request *r)
{
    ms_error err;
    size_t length = strlen(mss_page_field(r, "new_password"));
    if (length < MSS_PASSWORD_LEAST || length > MSS_PASSWORD_MOST) {
        return mss_answer_problem(r, 422, "A password has %d to %d bytes.", MSS_PASSWORD_LEAST, MSS_PASSWORD_MOST);
    }
    int status = check_password(r);
    if (status != 0) {
        return status;
    }
    return mss_password_hash(mss_page_field(r, "new_password"), r->password_hash, &err) == MS_OK
               ? 200
               : mss_answer_failure(r, &err);
}

/* Every session of the account ends, and every sign-in that waits: who changes a password may do it because someone
 * else has one. */
int mss_page_password_sent(mss_request *r)
{
    ms_error err;
    mss_id account = r->who.account;
    int status = mss_page_code_ask(r);
    if (status != 0) {
        return status;
    }
    int rc = mss_sql_run(r->sql, MSS_ACCOUNT_SET_PASSWORD, MSS_WITH(MSS_TEXT(r->password_hash), MSS_TEXT(account.text)),
                         NULL, &err);
    if (rc == MS_OK) {
        rc = mss_page_start_only_session(r, &account, "password changed", &err);
    }
    return rc == MS_OK ? mss_answer_redirect(r, "/account") : mss_answer_failure(r, &err);
}

int mss_page_account_delete(mss_request *r)
{
    int status = mss_page_code_ask(r);
    if (status == 0) {
        status = mss_account_remove(r);
    }
    if (status != 0) {
        return status;
    }
    mss_page_set_cookie(r, NULL);
    return mss_answer_redirect(r, "/sign-in");
}
