#include "dispatch.h"

#include <stdio.h>
#include <string.h>

#include "log/log.h"
#include "store/statements.h"

#define TOUCH_AFTER_MS ((int64_t)60 * 1000)

/* ---- who ---------------------------------------------------------------------- */

/* A token goes before a cookie: who sends one means it. */
static int identify(mss_request *r, ms_error *err)
{
    const mss_id *local = &mss_server_settings(r->server)->local_account;
    r->who = (mss_who){.kind = MSS_ANYONE};
    if (mss_id_is(local)) {
        r->who = (mss_who){.kind = MSS_PERSON, .account = *local};
        return MS_OK;
    }
    if (r->bearer[0] != '\0') {
        return mss_identify_token(r->sql, r->bearer, &r->who, err);
    }
    int rc = r->session[0] != '\0' ? mss_identify_session(r->sql, r->session, &r->who, err) : MS_OK;
    if (rc == MS_OK && r->who.kind == MSS_PERSON) {
        mss_session_csrf(&r->who, r->csrf_wanted);
    }
    return rc;
}

/* A browser sends cookies along with what other sites make it ask. */
static int check_forgery(mss_request *r)
{
    if (r->method == MSS_GET || r->who.kind == MSS_PROGRAM) {
        return 0;
    }
    if (mss_id_is(&mss_server_settings(r->server)->local_account)) {
        return mss_answer_problem(r, 403, "This dashboard only shows.");
    }
    if (r->is_cross_site) {
        return mss_answer_problem(r, 403, "This was asked for by another site.");
    }
    if (r->who.kind == MSS_ANYONE) {
        return 0;
    }
    const char *field = mss_pairs_get(&r->form, "csrf"), *given = field != NULL ? field : r->csrf;
    return mss_secret_equal(given, r->csrf_wanted)
               ? 0
               : mss_answer_problem(r, 403, "The form is out of date; load the page again.");
}

/* ---- object --------------------------------------------------------------------- */

static int find_text(mss_request *r, mss_statement statement, const char *key, mss_id *id, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *id = (mss_id){""};
    int rc = mss_sql_first(r->sql, statement, MSS_WITH(MSS_TEXT(key)), &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, id->text, sizeof id->text);
    }
    mss_rows_end(&rows);
    return rc;
}

static int find_team(mss_request *r, mss_id *team, ms_error *err)
{
    switch (r->route->subject) {
    case MSS_TEAM_IN_PATH:
        *team = mss_id_of(r->parameters[0]);
        return MS_OK;
    case MSS_RUN_IN_PATH:
        return find_text(r, MSS_RUN_TEAM, r->parameters[0], team, err);
    case MSS_JOB_IN_PATH:
        return find_text(r, MSS_JOB_TEAM, r->parameters[0], team, err);
    case MSS_TEAM_IN_QUERY:
        if (mss_pairs_get(&r->query, "team") != NULL) {
            *team = mss_id_of(mss_pairs_get(&r->query, "team"));
            return MS_OK;
        }
        if (r->who.kind == MSS_PROGRAM) {
            *team = r->who.token_team;
            return MS_OK;
        }
        return find_text(r, MSS_TEAM_OF_ACCOUNT, r->who.account.text, team, err);
    default:
        *team = (mss_id){""};
        return MS_OK;
    }
}

static int find_object(mss_request *r, ms_error *err)
{
    int64_t role = MSS_NO_MEMBER;
    r->object = (mss_object){.role = MSS_NO_MEMBER};
    int rc = r->who.kind == MSS_ANYONE ? MS_OK : find_team(r, &r->object.team, err);
    if (rc == MS_OK && mss_id_is(&r->object.team)) {
        rc = mss_sql_number(r->sql, MSS_MEMBER_ROLE,
                            MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(r->who.account.text)), &role, err);
    }
    /* A token never owns. */
    r->object.role = r->who.kind == MSS_PROGRAM && role > MSS_ADMIN ? MSS_ADMIN : (mss_role)role;
    return rc;
}

/* ---- refusals ------------------------------------------------------------------- */

static int refuse(mss_request *r, int status)
{
    if (status == 401 && !mss_request_is_api(r) && r->method == MSS_GET) {
        return mss_answer_redirect(r, "/sign-in");
    }
    return mss_answer_problem(r, status, "%s",
                              status == 401   ? "Sign in, or send a token that is still valid."
                              : status == 404 ? "There is nothing at this address."
                              : r->who.kind == MSS_PROGRAM
                                  ? "This token's scopes or its owner's role do not allow this."
                                  : "Your role in this team does not allow this.");
}

/* An account's and a token's own buckets; the address was asked before the body was read. */
static int check_limits(mss_request *r)
{
    if (r->who.kind == MSS_ANYONE || r->is_prepared) { /* if prepared, it was counted before that */
        return 0;
    }
    char key[64];
    bool is_program = r->who.kind == MSS_PROGRAM;
    snprintf(key, sizeof key, "%s %s", is_program ? "token" : "account",
             is_program ? r->who.token.text : r->who.account.text);
    int status = mss_request_limit(r, r->route->limit, key);
    if (status != 0) {
        return status;
    }
    if (is_program && mss_now_ms() - r->who.token_used_at > TOUCH_AFTER_MS) {
        mss_server_touch(r->server, &r->who.token);
    }
    return 0;
}

int mss_dispatch(mss_request *r, bool is_preparing)
{
    ms_error err;
    if (r->sql != NULL) { /* inline routes are public */
        int status = r->is_prepared ? 0 : mss_request_limit_address(r);
        if (status != 0) {
            return status;
        }
        int rc = identify(r, &err);
        status = rc != MS_OK ? mss_answer_failure(r, &err) : check_forgery(r);
        if (status != 0) {
            return status;
        }
        rc = find_object(r, &err);
        if (rc != MS_OK) {
            return mss_answer_failure(r, &err);
        }
    }
    int refusal = mss_permit(&r->who, r->route->verb, &r->object);
    if (refusal != 0) {
        return refuse(r, refusal);
    }
    int status = check_limits(r);
    if (status != 0) {
        return status;
    }
    return is_preparing ? r->route->prepare(r) : r->route->handle(r);
}
