#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "assets.h"
#include "http/head.h"
#include "pages/pages.h"
#include "pages/template.h"
#include "store/statements.h"

const char *mss_page_field(const mss_request *r, const char *name)
{
    const char *value = mss_pairs_get(&r->form, name);
    return value != NULL ? value : "";
}

void mss_page_set_cookie(mss_request *r, const char *secret)
{
    snprintf(r->answer.cookie, sizeof r->answer.cookie, "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%lld%s",
             mss_session_cookie_name(r->server), secret != NULL ? secret : "",
             secret != NULL ? (long long)(MSS_SESSION_MS / 1000) : 0LL,
             mss_server_is_https(r->server) ? "; Secure" : "");
}

/* Names of the teams for the menu; the one whose page this is, is marked. */
static void add_teams(mss_request *r, json_t *data)
{
    json_t *teams = mss_sql_objects(r->sql, MSS_TEAM_OF_ACCOUNT, MSS_WITH(MSS_TEXT(r->who.account.text)), NULL);
    for (size_t i = 0; i < json_array_size(teams); i++) {
        json_t *team = json_array_get(teams, i);
        bool is_this = strcmp(json_string_value(json_object_get(team, "id")), r->object.team.text) == 0;
        json_object_set_new(team, "is_this", json_boolean(is_this));
    }
    json_object_set_new(data, "teams", teams != NULL ? teams : json_array());
}

static void add_common(mss_request *r, json_t *data)
{
    bool is_local = mss_id_is(&mss_server_settings(r->server)->local_account);
    bool is_signed_in = r->sql != NULL && r->who.kind == MSS_PERSON && !is_local;
    json_object_set_new(data, "is_local", json_boolean(is_local));
    json_object_set_new(data, "is_operator", json_boolean(is_signed_in && r->who.is_operator));
    json_object_set_new(data, "is_signed_in", json_boolean(is_signed_in));
    json_object_set_new(data, "csrf", json_string(r->csrf_wanted));
    json_object_set_new(data, "email", json_string(r->who.email));
    json_object_set_new(data, "team_id", json_string(r->object.team.text));
    json_object_set_new(data, "can_write", json_boolean(r->object.role >= MSS_MEMBER));
    json_object_set_new(data, "can_manage", json_boolean(r->object.role >= MSS_ADMIN));
    json_object_set_new(data, "can_own", json_boolean(r->object.role >= MSS_OWNER));
    json_object_set_new(data, "version", json_string(ms_version()));
    if (is_signed_in) {
        add_teams(r, data);
    }
}

int mss_page_show(mss_request *r, int status, const char *name, json_t *data)
{
    ms_error err;
    char *html = NULL;
    const mss_asset *layout = mss_asset_find("layout.html"), *page = mss_asset_find(name);
    if (data == NULL) {
        return mss_answer_text(r, status, NULL, NULL);
    }
    add_common(r, data);
    int rc = mss_template_render((const char *)layout->bytes, (const char *)page->bytes, data, &html, &err);
    json_decref(data);
    if (rc != MS_OK) { /* not as a page, which would fail again */
        static const char sorry[] = "The server has no room at the moment.\n";
        snprintf(r->reason, sizeof r->reason, "%s", err.text);
        r->answer.fixed = sorry;
        r->answer.bytes = sizeof sorry - 1;
        r->answer.type = "text/plain; charset=utf-8";
        return 503;
    }
    return mss_answer_text(r, status, "text/html; charset=utf-8", html);
}

int mss_page_problem(mss_request *r, int status, const char *title, const char *detail)
{
    return mss_page_show(r, status, "problem.html",
                         json_pack("{s:s, s:i, s:s}", "title", title, "status", status, "detail", detail));
}

int mss_page_asset(mss_request *r)
{
    static const struct {
        const char *ending, *type;
    } types[] = {
        {".css", "text/css; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"}, {".svg", "image/svg+xml"}};
    const char *name = r->parameters[0], *ending = strrchr(name, '.');
    const mss_asset *asset = mss_asset_find(name);
    for (size_t i = 0; asset != NULL && ending != NULL && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(ending, types[i].ending) == 0) { /* templates are no files of the site */
            r->answer.fixed = asset->bytes;
            r->answer.bytes = asset->size;
            r->answer.type = types[i].type;
            r->answer.may_be_cached = true;
            return 200;
        }
    }
    return mss_answer_problem(r, 404, "There is nothing at this address.");
}

int mss_page_home(mss_request *r)
{
    return mss_answer_redirect(r, r->who.kind == MSS_PERSON ? "/runs" : "/sign-in");
}
