/* Runs, teams, tokens. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/units.h"
#include "pages/pages.h"
#include "store/statements.h"

/* ---- runs --------------------------------------------------------------------- */

static void add_text(json_t *run, const char *name, const char *text_name, ms__unit_text (*format)(uint64_t))
{
    const json_t *value = json_object_get(run, name);
    json_object_set_new(run, text_name,
                        json_string(json_is_integer(value) ? format((uint64_t)json_integer_value(value)).text : "-"));
}

void mss_page_bytes_text(json_t *object, const char *name, const char *text_name)
{
    add_text(object, name, text_name, ms__text_bytes);
}

void mss_page_duration_text(json_t *object, const char *name, const char *text_name)
{
    add_text(object, name, text_name, ms__text_ns);
}

void mss_page_time_text(json_t *object, const char *name, const char *text_name)
{
    const char *time = json_string_value(json_object_get(object, name));
    char text[32] = "-";
    if (time != NULL) {
        snprintf(text, sizeof text, "%.10s %.8s", time, time + 11);
    }
    json_object_set_new(object, text_name, json_string(text));
}

void mss_page_run_texts(json_t *run)
{
    add_text(run, "peak_bytes", "peak_text", ms__text_bytes);
    add_text(run, "budget_bytes", "budget_text", ms__text_bytes);
    add_text(run, "predicted_peak_bytes", "predicted_peak_text", ms__text_bytes);
    add_text(run, "mean_step_ns", "mean_step_text", ms__text_ns);
    add_text(run, "predicted_step_ns", "predicted_step_text", ms__text_ns);
    mss_page_time_text(run, "started_at", "started_text");
    mss_page_time_text(run, "finished_at", "finished_text");
    const json_t *name = json_object_get(run, "name");
    json_object_set_new(
        run, "title_text",
        json_string(json_is_string(name) ? json_string_value(name) : json_string_value(json_object_get(run, "model"))));
    const char *outcome = json_string_value(json_object_get(run, "outcome"));
    json_object_set_new(run, "is_running", json_boolean(outcome != NULL && strcmp(outcome, "running") == 0));
}

static void keep_filter(const mss_request *r, json_t *page, const char *name)
{
    const char *value = mss_pairs_get(&r->query, name);
    char member[32];
    snprintf(member, sizeof member, "filter_%s", name);
    json_object_set_new(page, member, json_string(value != NULL ? value : ""));
}

int mss_page_runs(mss_request *r)
{
    int status = 200;
    json_t *page = mss_run_page(r, &status);
    if (page == NULL) {
        return status;
    }
    json_t *items = json_object_get(page, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        mss_page_run_texts(json_array_get(items, i));
    }
    json_object_set_new(page, "title", json_string("Runs"));
    keep_filter(r, page, "project");
    keep_filter(r, page, "model");
    keep_filter(r, page, "outcome");
    return mss_page_show(r, 200, "runs.html", page);
}

/* "1.050" for 1050 permille; nothing if it is unknown. */
static void add_ratio(json_t *page, const json_t *permille, const char *text_name)
{
    char text[40];
    if (json_is_integer(permille)) {
        json_int_t value = json_integer_value(permille);
        snprintf(text, sizeof text, "%lld.%03lld", (long long)(value / 1000), (long long)(value % 1000));
        json_object_set_new(page, text_name, json_string(text));
    }
}

int mss_page_compare(mss_request *r)
{
    int status = 200;
    const char *other = mss_pairs_get(&r->query, "with");
    json_t *both = mss_run_comparison(r, r->parameters[0], other != NULL ? other : "", &status);
    if (both == NULL) {
        return status;
    }
    mss_page_run_texts(json_object_get(both, "one"));
    mss_page_run_texts(json_object_get(both, "other"));
    const json_t *ratios = json_object_get(both, "other_permille");
    add_ratio(both, json_object_get(ratios, "peak_bytes"), "peak_ratio_text");
    add_ratio(both, json_object_get(ratios, "mean_step_ns"), "time_ratio_text");
    json_object_set_new(both, "title", json_string("Two runs"));
    return mss_page_show(r, 200, "compare.html", both);
}

/* ---- lists of a team ------------------------------------------------------------ */

/* A page of a list as member `name`, in the page's own words, and as "next_..." the cursor of the next one, which the
 * query has under `name`. 0, or the status of a refusal. */
static int add_list(mss_request *r, json_t *page, const char *name, const mss_list *list)
{
    int status = 200;
    char next[32];
    mss_list named = *list;
    named.cursor = name;
    json_t *part = mss_api_page(r, &named, MSS_WITH(MSS_TEXT(r->object.team.text)), &status);
    json_t *items = json_object_get(part, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        json_t *item = json_array_get(items, i);
        mss_page_time_text(item, "created_at", "created_text");
        mss_page_time_text(item, "last_used_at", "last_used_text");
        mss_page_time_text(item, "expires_at", "expires_text");
        mss_page_time_text(item, "happened_at", "happened_text");
    }
    if (part == NULL) {
        return status;
    }
    snprintf(next, sizeof next, "next_%s", name);
    json_object_set(page, name, items);
    json_object_set(page, next, json_object_get(part, "next_cursor"));
    json_decref(part);
    return 0;
}

int mss_page_projects(mss_request *r)
{
    json_t *page = json_pack("{s:s}", "title", "Projects");
    int status = add_list(r, page, "projects", &mss_project_list);
    if (status != 0) {
        json_decref(page);
        return status;
    }
    return mss_page_show(r, 200, "projects.html", page);
}

static int show_team(mss_request *r, const char *link)
{
    ms_error err = {0};
    json_t *page = mss_sql_object(r->sql, MSS_TEAM_SHOW, MSS_WITH(MSS_TEXT(r->object.team.text)), &err);
    if (page == NULL) {
        return mss_answer_failure(r, &err);
    }
    json_object_set_new(page, "title", json_incref(json_object_get(page, "name")));
    json_object_set_new(page, "link", json_string(link));
    int status = add_list(r, page, "members", &mss_member_list);
    if (status == 0 && r->object.role >= MSS_ADMIN) {
        status = add_list(r, page, "invitations", &mss_invitation_list);
    }
    if (status == 0 && r->object.role >= MSS_ADMIN) {
        status = add_list(r, page, "audit", &mss_audit_list);
    }
    if (status != 0) {
        json_decref(page);
        return status;
    }
    return mss_page_show(r, 200, "team.html", page);
}

int mss_page_team(mss_request *r)
{
    return show_team(r, "");
}

int mss_page_team_make(mss_request *r)
{
    mss_id team;
    int status = mss_team_make(r, mss_page_field(r, "name"), r->who.account.text, &team);
    return status != 0 ? status : mss_answer_redirect(r, "/teams/%s", team.text);
}

/* The link is shown once, on the page that answers: it can't be found again. */
int mss_page_invite(mss_request *r)
{
    char secret[MSS_SECRET_BYTES], link[400];
    int status = mss_invitation_add(r, mss_role_of(mss_page_field(r, "role")), secret);
    if (status != 0) {
        return status;
    }
    snprintf(link, sizeof link, "%s/welcome/%s", mss_server_url(r->server), secret);
    return show_team(r, link);
}

int mss_page_withdraw(mss_request *r)
{
    int status = mss_invitation_withdraw(r, mss_page_field(r, "invitation"));
    return status != 0 ? status : mss_answer_redirect(r, "/teams/%s", r->object.team.text);
}

/* The name has to be typed: all runs go along, and nothing brings them back. */
int mss_page_team_delete(mss_request *r)
{
    ms_error err;
    json_t *team = mss_sql_object(r->sql, MSS_TEAM_SHOW, MSS_WITH(MSS_TEXT(r->object.team.text)), &err);
    if (team == NULL) {
        return mss_answer_failure(r, &err);
    }
    const char *name = json_string_value(json_object_get(team, "name"));
    bool is_meant = name != NULL && strcmp(name, mss_page_field(r, "name")) == 0;
    json_decref(team);
    if (!is_meant) {
        return mss_answer_problem(r, 422, "Type the team's name as it is, to delete the team.");
    }
    int status = mss_team_remove(r);
    return status != 0 ? status : mss_answer_redirect(r, "/account");
}

int mss_page_member(mss_request *r)
{
    const char *role = mss_page_field(r, "role"), *account = mss_page_field(r, "account");
    int status =
        strcmp(role, "remove") == 0 ? mss_member_remove(r, account) : mss_member_change(r, account, mss_role_of(role));
    return status != 0 ? status : mss_answer_redirect(r, "/teams/%s", r->object.team.text);
}

int mss_page_leave(mss_request *r)
{
    int status = mss_member_remove(r, r->who.account.text);
    return status != 0 ? status : mss_answer_redirect(r, "/account");
}

/* ---- tokens --------------------------------------------------------------------- */

static int show_tokens(mss_request *r, const char *made)
{
    json_t *page = json_pack("{s:s, s:s}", "title", "Tokens", "made", made);
    int status = add_list(r, page, "tokens", &mss_token_list);
    if (status != 0) {
        json_decref(page);
        return status;
    }
    json_t *tokens = json_object_get(page, "tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        char text[MSS_SCOPES_TEXT_BYTES];
        uint32_t bits = 0;
        json_t *token = json_array_get(tokens, i), *scopes = json_object_get(token, "scopes");
        for (size_t j = 0; j < json_array_size(scopes); j++) {
            bits |= mss_scope_of(json_string_value(json_array_get(scopes, j)));
        }
        mss_scopes_text(bits, text);
        json_object_set_new(token, "scopes_text", json_string(text));
    }
    return mss_page_show(r, 200, "tokens.html", page);
}

int mss_page_tokens(mss_request *r)
{
    return show_tokens(r, "");
}

int mss_page_token_make(mss_request *r)
{
    char token[MSS_TOKEN_BYTES];
    mss_id id;
    uint32_t scopes = (mss_page_field(r, "read")[0] != '\0' ? MSS_SCOPE_RUNS_READ : 0) |
                      (mss_page_field(r, "write")[0] != '\0' ? MSS_SCOPE_RUNS_WRITE : 0) |
                      (mss_page_field(r, "admin")[0] != '\0' ? MSS_SCOPE_ADMIN : 0);
    int status = mss_token_make(r, mss_page_field(r, "name"), scopes, token, &id);
    if (status != 0) {
        return status;
    }
    status = show_tokens(r, token);
    mss_secret_wipe(token, sizeof token);
    return status;
}

int mss_page_token_revoke(mss_request *r)
{
    int status = mss_token_revoke(r, mss_page_field(r, "token"));
    return status != 0 ? status : mss_answer_redirect(r, "/teams/%s/tokens", r->object.team.text);
}
