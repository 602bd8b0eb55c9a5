#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "log/log.h"
#include "store/statements.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum { NAME_BYTES = 80 };

static const char *team_of(const mss_request *r)
{
    return r->object.team.text;
}

/* ---- teams --------------------------------------------------------------------- */

int mss_api_teams(mss_request *r)
{
    static const mss_list list = {.statement = MSS_TEAM_LIST, .map = mss_api_name_role};
    return mss_api_list(r, &list, MSS_WITH(MSS_TEXT(r->who.account.text)));
}

int mss_team_make(mss_request *r, const char *name, const char *owner, mss_id *team)
{
    ms_error err;
    if (!mss_api_is_line(name, NAME_BYTES)) {
        return mss_answer_problem(r, 422, "A team's name has 1 to %d bytes.", NAME_BYTES);
    }
    *team = mss_id_new('t');
    int64_t now = mss_now_ms();
    int rc =
        mss_sql_run(r->sql, MSS_TEAM_ADD, MSS_WITH(MSS_TEXT(team->text), MSS_TEXT(name), MSS_INT(now)), NULL, &err);
    if (rc == MS_OK) {
        rc = mss_sql_run(r->sql, MSS_MEMBER_SET,
                         MSS_WITH(MSS_TEXT(team->text), MSS_TEXT(owner), MSS_INT(MSS_OWNER), MSS_INT(now)), NULL, &err);
    }
    r->object = (mss_object){*team, MSS_OWNER};
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "team made", team->text, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

/* The one text member of a body that has nothing else. */
static int read_one(mss_request *r, const char *name, const char **text, ms_error *err)
{
    ms__json_at body = mss_api_body(r, err);
    int rc = ms__json_only(&body, &name, 1);
    return rc == MS_OK ? mss_api_text(&body, name, NAME_BYTES, false, text) : rc;
}

int mss_api_team_create(mss_request *r)
{
    ms_error err;
    const char *name;
    mss_id team;
    if (read_one(r, "name", &name, &err) != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    int status = mss_team_make(r, name, r->who.account.text, &team);
    return status != 0 ? status : mss_answer_json(r, 201, json_pack("{s:s}", "id", team.text));
}

int mss_team_remove(mss_request *r)
{
    ms_error err;
    int rc = mss_sql_run(r->sql, MSS_TEAM_DELETE, MSS_WITH(MSS_TEXT(team_of(r))), NULL, &err);
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "team deleted", team_of(r), &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_team_delete(mss_request *r)
{
    int status = mss_team_remove(r);
    return status != 0 ? status : mss_answer_empty(r);
}

/* ---- members -------------------------------------------------------------------- */

const mss_list mss_member_list = {.statement = MSS_MEMBER_LIST, .map = mss_api_name_role};

int mss_api_members(mss_request *r)
{
    return mss_api_list(r, &mss_member_list, MSS_WITH(MSS_TEXT(team_of(r))));
}

/* Whether who asks may change what `account` is, and someone is left to own the team afterwards. */
static int check_change(mss_request *r, const char *account, mss_role to)
{
    ms_error err;
    int64_t role = 0, owners = 0;
    int rc = mss_sql_number(r->sql, MSS_MEMBER_ROLE, MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(account)), &role, &err);
    if (rc == MS_OK) {
        rc = mss_sql_number(r->sql, MSS_MEMBER_OWNERS, MSS_WITH(MSS_TEXT(team_of(r))), &owners, &err);
    }
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (role == MSS_NO_MEMBER) {
        return mss_answer_problem(r, 404, "The team has no such member.");
    }
    bool is_self = strcmp(account, r->who.account.text) == 0 && to < (mss_role)role;
    if (!is_self && !(mss_role_may_give(r->object.role, to) && mss_role_may_give(r->object.role, (mss_role)role))) {
        return mss_answer_problem(r, 403, "Your role in this team does not allow this.");
    }
    if (role == MSS_OWNER && to != MSS_OWNER && owners == 1) {
        return mss_answer_problem(r, 409, "A team needs an owner.");
    }
    return 0;
}

int mss_member_change(mss_request *r, const char *account, mss_role role)
{
    ms_error err;
    if (role == MSS_NO_MEMBER) {
        return mss_answer_problem(r, 422, "A role is viewer, member, admin or owner.");
    }
    int status = check_change(r, account, role);
    if (status != 0) {
        return status;
    }
    int rc = mss_sql_run(r->sql, MSS_MEMBER_SET,
                         MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(account), MSS_INT(role), MSS_INT(mss_now_ms())), NULL,
                         &err);
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "role changed", account, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_member_set(mss_request *r)
{
    ms_error err;
    const char *role;
    if (read_one(r, "role", &role, &err) != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    int status = mss_member_change(r, r->parameters[1], mss_role_of(role));
    return status != 0 ? status : mss_answer_empty(r);
}

int mss_member_remove(mss_request *r, const char *account)
{
    ms_error err;
    int status = check_change(r, account, MSS_NO_MEMBER);
    if (status != 0) {
        return status;
    }
    int rc = mss_sql_run(r->sql, MSS_MEMBER_DELETE, MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(account)), NULL, &err);
    if (rc == MS_OK) {
        rc = mss_sql_run(r->sql, MSS_TOKEN_DELETE_OF_MEMBER, MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(account)), NULL,
                         &err);
    }
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "member removed", account, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_member_remove(mss_request *r)
{
    int status = mss_member_remove(r, r->parameters[1]);
    return status != 0 ? status : mss_answer_empty(r);
}

/* ---- invitations ----------------------------------------------------------------- */

const mss_list mss_invitation_list = {.statement = MSS_INVITATION_LIST, .is_by_id = true, .map = mss_api_name_role};

int mss_api_invitations(mss_request *r)
{
    return mss_api_list(r, &mss_invitation_list, MSS_WITH(MSS_TEXT(team_of(r))));
}

int mss_invitation_add(mss_request *r, mss_role role, char secret[MSS_SECRET_BYTES])
{
    ms_error err;
    if (role == MSS_NO_MEMBER) {
        return mss_answer_problem(r, 422, "A role is viewer, member, admin or owner.");
    }
    if (!mss_role_may_give(r->object.role, role)) {
        return mss_answer_problem(r, 403, "Your role in this team does not allow this.");
    }
    int rc = mss_invitation_make(r->sql, team_of(r), role, r->who.account.text, secret, &err);
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "invitation made", mss_role_name(role), &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_invite(mss_request *r)
{
    ms_error err;
    const char *role;
    char secret[MSS_SECRET_BYTES], link[400];
    if (read_one(r, "role", &role, &err) != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    int status = mss_invitation_add(r, mss_role_of(role), secret);
    if (status != 0) {
        return status;
    }
    snprintf(link, sizeof link, "%s/welcome/%s", mss_server_url(r->server), secret);
    return mss_answer_json(r, 201, json_pack("{s:s}", "link", link));
}

int mss_invitation_withdraw(mss_request *r, const char *invitation)
{
    ms_error err;
    int64_t changed = 0;
    int rc = mss_sql_run(r->sql, MSS_INVITATION_DELETE, MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(invitation)), &changed,
                         &err);
    if (rc == MS_OK && changed == 0) {
        return mss_answer_problem(r, 404, "The team has no such invitation.");
    }
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "invitation withdrawn", invitation, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_invitation_delete(mss_request *r)
{
    int status = mss_invitation_withdraw(r, r->parameters[1]);
    return status != 0 ? status : mss_answer_empty(r);
}

/* ---- tokens --------------------------------------------------------------------- */

const mss_list mss_token_list = {.statement = MSS_TOKEN_LIST, .is_by_id = true, .map = mss_api_name_scopes};

int mss_api_tokens(mss_request *r)
{
    return mss_api_list(r, &mss_token_list, MSS_WITH(MSS_TEXT(team_of(r))));
}

int mss_token_make(mss_request *r, const char *name, uint32_t scopes, char token[MSS_TOKEN_BYTES], mss_id *id)
{
    ms_error err;
    if (!mss_api_is_line(name, NAME_BYTES) || scopes == 0) {
        return mss_answer_problem(r, 422, "A token has a name of 1 to %d bytes and a scope.", NAME_BYTES);
    }
    if ((scopes & MSS_SCOPE_ADMIN) != 0 && r->object.role < MSS_ADMIN) {
        return mss_answer_problem(r, 403, "Your role in this team does not allow this scope.");
    }
    char secret[MSS_SECRET_BYTES];
    mss_secret_new(secret);
    snprintf(token, MSS_TOKEN_BYTES, "ms_%s", secret);
    mss_secret_wipe(secret, sizeof secret);
    mss_hash hash = mss_hash_of(token, strlen(token));
    *id = mss_id_new('k');
    int rc =
        mss_sql_run(r->sql, MSS_TOKEN_ADD,
                    MSS_WITH(MSS_TEXT(id->text), MSS_HASH(&hash), MSS_TEXT(team_of(r)), MSS_TEXT(r->who.account.text),
                             MSS_TEXT(name), MSS_INT(scopes), MSS_INT(mss_now_ms())),
                    NULL, &err);
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "token made", id->text, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

static int read_scopes(const ms__json_at *body, uint32_t *scopes)
{
    ms__json_at array;
    int rc = ms__json_array(body, "scopes", &array);
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(&array); i++) {
        const char *name;
        rc = ms__json_item_string(&array, i, &name);
        uint32_t scope = rc == MS_OK ? mss_scope_of(name) : 0;
        rc = rc == MS_OK && scope == 0
                 ? ms__json_fail(&array, MS_EFORMAT, "expected \"runs:read\", \"runs:write\" or \"admin\"")
                 : rc;
        *scopes |= scope;
    }
    return rc;
}

int mss_api_token_create(mss_request *r)
{
    static const char *const members[] = {"name", "scopes"};
    ms_error err;
    const char *name = "";
    uint32_t scopes = 0;
    ms__json_at body = mss_api_body(r, &err);
    int rc = ms__json_only(&body, members, COUNT(members));
    if (rc == MS_OK) {
        rc = mss_api_text(&body, "name", NAME_BYTES, false, &name);
    }
    if (rc == MS_OK) {
        rc = read_scopes(&body, &scopes);
    }
    if (rc != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    char token[MSS_TOKEN_BYTES];
    mss_id id;
    int status = mss_token_make(r, name, scopes, token, &id);
    if (status != 0) {
        return status;
    }
    json_t *made = json_pack("{s:s, s:s}", "id", id.text, "token", token);
    mss_secret_wipe(token, sizeof token);
    return mss_answer_json(r, 201, made);
}

int mss_token_revoke(mss_request *r, const char *token)
{
    ms_error err;
    int64_t changed = 0;
    /* One's own; those of others from admin on. */
    int rc = mss_sql_run(
        r->sql, MSS_TOKEN_DELETE,
        MSS_WITH(MSS_TEXT(team_of(r)), MSS_TEXT(token), MSS_INT(r->object.role), MSS_TEXT(r->who.account.text)),
        &changed, &err);
    if (rc == MS_OK && changed == 0) {
        return mss_answer_problem(r, 404, "The team has no such token.");
    }
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "token revoked", token, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

int mss_api_token_delete(mss_request *r)
{
    int status = mss_token_revoke(r, r->parameters[1]);
    return status != 0 ? status : mss_answer_empty(r);
}

/* ---- audit --------------------------------------------------------------------- */

const mss_list mss_audit_list = {
    .statement = MSS_AUDIT_OF_TEAM,
    .order = MSS_FALLING,
};

int mss_api_audit_list(mss_request *r)
{
    return mss_api_list(r, &mss_audit_list, MSS_WITH(MSS_TEXT(team_of(r))));
}
