#include "routes.h"

#include "api/api.h"
#include "pages/pages.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum { KB = 1000, MB = 1000 * KB };

#define GET_READ(path, verb, subject, handle) \
    {MSS_GET, path, MSS_MAY_##verb, subject, MSS_LANE_READ, MSS_BODY_NONE, 0, MSS_LIMIT_PAGE, handle, NULL}
#define JSON_WRITE(method, path, verb, subject, most, handle) \
    {method, path, MSS_MAY_##verb, subject, MSS_LANE_WRITE, MSS_BODY_JSON, most, MSS_LIMIT_WRITE, handle, NULL}
#define EMPTY_WRITE(method, path, verb, subject, handle) \
    {method, path, MSS_MAY_##verb, subject, MSS_LANE_WRITE, MSS_BODY_NONE, 0, MSS_LIMIT_PAGE, handle, NULL}
#define FORM_WRITE(path, verb, subject, limit, prepare, handle) \
    {MSS_POST, path, MSS_MAY_##verb, subject, MSS_LANE_WRITE, MSS_BODY_FORM, 4 * KB, limit, handle, prepare}
#define ARTIFACT(kind, body, most, limit) \
    {MSS_PUT, \
     "/api/v1/runs/{run}/artifacts/" kind, \
     MSS_MAY_RUN_WRITE, \
     MSS_RUN_IN_PATH, \
     MSS_LANE_WRITE, \
     body, \
     most, \
     limit, \
     mss_api_artifact_set, \
     NULL}, \
        GET_READ("/api/v1/runs/{run}/artifacts/" kind, RUN_READ, MSS_RUN_IN_PATH, mss_api_artifact_show)
#define INLINE(path, handle) \
    {MSS_GET, path, MSS_MAY_PUBLIC, MSS_NO_SUBJECT, MSS_LANE_INLINE, MSS_BODY_NONE, 0, MSS_LIMIT_NONE, handle, NULL}

static const mss_route routes[] = {
    /* operation */
    INLINE("/healthz", mss_api_healthz),
    INLINE("/assets/{file}", mss_page_asset),
    INLINE("/api/v1/openapi.json", mss_api_openapi),
    GET_READ("/readyz", PUBLIC, MSS_NO_SUBJECT, mss_api_readyz),
    GET_READ("/metrics", OPERATE, MSS_NO_SUBJECT, mss_api_metrics),
    {MSS_POST, "/api/v1/telemetry", MSS_MAY_PUBLIC, MSS_NO_SUBJECT, MSS_LANE_WRITE, MSS_BODY_JSON, 8 * KB,
     MSS_LIMIT_TELEMETRY, mss_api_telemetry, NULL},

    /* runs */
    JSON_WRITE(MSS_POST, "/api/v1/runs", RUN_WRITE, MSS_TEAM_IN_QUERY, 4 * MB, mss_api_run_create),
    GET_READ("/api/v1/runs", RUN_READ, MSS_TEAM_IN_QUERY, mss_api_run_list),
    GET_READ("/api/v1/runs/{run}", RUN_READ, MSS_RUN_IN_PATH, mss_api_run_show),
    EMPTY_WRITE(MSS_DELETE, "/api/v1/runs/{run}", RUN_DELETE, MSS_RUN_IN_PATH, mss_api_run_delete),
    GET_READ("/api/v1/runs/{run}/plan", RUN_READ, MSS_RUN_IN_PATH, mss_api_run_plan),
    ARTIFACT("graph", MSS_BODY_JSON, 16 * MB, MSS_LIMIT_PLAN),
    ARTIFACT("hardware", MSS_BODY_JSON, 64 * KB, MSS_LIMIT_PAGE),
    ARTIFACT("config", MSS_BODY_JSON, 64 * KB, MSS_LIMIT_PAGE),
    ARTIFACT("report", MSS_BODY_HTML, 4 * MB, MSS_LIMIT_PAGE),
    JSON_WRITE(MSS_POST, "/api/v1/runs/{run}/steps", RUN_WRITE, MSS_RUN_IN_PATH, 512 * KB, mss_api_run_append),
    GET_READ("/api/v1/runs/{run}/steps", RUN_READ, MSS_RUN_IN_PATH, mss_api_run_steps),
    GET_READ("/api/v1/runs/{run}/events", RUN_READ, MSS_RUN_IN_PATH, mss_api_run_events),
    JSON_WRITE(MSS_POST, "/api/v1/runs/{run}/finish", RUN_WRITE, MSS_RUN_IN_PATH, 64 * KB, mss_api_run_finish),
    GET_READ("/api/v1/runs/{run}/compare/{other}", RUN_READ, MSS_RUN_IN_PATH, mss_api_run_compare),
    GET_READ("/api/v1/projects", RUN_READ, MSS_TEAM_IN_QUERY, mss_api_projects),

    /* plans */
    {MSS_POST, "/api/v1/plans", MSS_MAY_PLAN_MAKE, MSS_TEAM_IN_QUERY, MSS_LANE_READ, MSS_BODY_JSON, 16 * MB,
     MSS_LIMIT_PLAN, mss_api_plan, mss_api_plan_prepare},
    GET_READ("/api/v1/frontiers", PLAN_MAKE, MSS_TEAM_IN_QUERY, mss_api_frontiers),
    {MSS_POST, "/api/v1/frontiers", MSS_MAY_PLAN_MAKE, MSS_TEAM_IN_QUERY, MSS_LANE_WRITE, MSS_BODY_JSON, 16 * MB,
     MSS_LIMIT_PLAN, mss_api_frontier_create, NULL},
    {MSS_POST, "/api/v1/runs/{run}/frontier", MSS_MAY_PLAN_MAKE, MSS_RUN_IN_PATH, MSS_LANE_WRITE, MSS_BODY_JSON, 4 * KB,
     MSS_LIMIT_PLAN, mss_api_run_frontier, NULL},
    GET_READ("/api/v1/frontiers/{job}", PLAN_MAKE, MSS_JOB_IN_PATH, mss_api_frontier_show),
    GET_READ("/api/v1/frontiers/{job}/result", PLAN_MAKE, MSS_JOB_IN_PATH, mss_api_frontier_result),

    /* teams */
    GET_READ("/api/v1/teams", SELF, MSS_NO_SUBJECT, mss_api_teams),
    JSON_WRITE(MSS_POST, "/api/v1/teams", SELF, MSS_NO_SUBJECT, 4 * KB, mss_api_team_create),
    EMPTY_WRITE(MSS_DELETE, "/api/v1/teams/{team}", TEAM_OWN, MSS_TEAM_IN_PATH, mss_api_team_delete),
    GET_READ("/api/v1/teams/{team}/members", TEAM_READ, MSS_TEAM_IN_PATH, mss_api_members),
    JSON_WRITE(MSS_PUT, "/api/v1/teams/{team}/members/{account}", TEAM_MANAGE, MSS_TEAM_IN_PATH, 4 * KB,
               mss_api_member_set),
    EMPTY_WRITE(MSS_DELETE, "/api/v1/teams/{team}/members/{account}", TEAM_MANAGE, MSS_TEAM_IN_PATH,
                mss_api_member_remove),
    GET_READ("/api/v1/teams/{team}/invitations", TEAM_MANAGE, MSS_TEAM_IN_PATH, mss_api_invitations),
    JSON_WRITE(MSS_POST, "/api/v1/teams/{team}/invitations", TEAM_MANAGE, MSS_TEAM_IN_PATH, 4 * KB, mss_api_invite),
    EMPTY_WRITE(MSS_DELETE, "/api/v1/teams/{team}/invitations/{invitation}", TEAM_MANAGE, MSS_TEAM_IN_PATH,
                mss_api_invitation_delete),
    GET_READ("/api/v1/teams/{team}/tokens", TOKEN_MANAGE, MSS_TEAM_IN_PATH, mss_api_tokens),
    JSON_WRITE(MSS_POST, "/api/v1/teams/{team}/tokens", TOKEN_MANAGE, MSS_TEAM_IN_PATH, 4 * KB, mss_api_token_create),
    EMPTY_WRITE(MSS_DELETE, "/api/v1/teams/{team}/tokens/{token}", TOKEN_MANAGE, MSS_TEAM_IN_PATH,
                mss_api_token_delete),
    GET_READ("/api/v1/teams/{team}/audit", TEAM_MANAGE, MSS_TEAM_IN_PATH, mss_api_audit_list),
    GET_READ("/api/v1/account", SELF, MSS_NO_SUBJECT, mss_api_account_export),

    /* pages: in and out */
    GET_READ("/", PUBLIC, MSS_NO_SUBJECT, mss_page_home),
    GET_READ("/privacy", PUBLIC, MSS_NO_SUBJECT, mss_page_privacy),
    GET_READ("/api", PUBLIC, MSS_NO_SUBJECT, mss_page_reference),
    GET_READ("/sign-in", PUBLIC, MSS_NO_SUBJECT, mss_page_sign_in),
    FORM_WRITE("/sign-in", PUBLIC, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_sign_in_prepare, mss_page_sign_in_sent),
    FORM_WRITE("/sign-in/code", PUBLIC, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, NULL, mss_page_sign_in_code),
    FORM_WRITE("/sign-out", SELF, MSS_NO_SUBJECT, MSS_LIMIT_PAGE, NULL, mss_page_sign_out),
    GET_READ("/welcome/{key}", PUBLIC, MSS_NO_SUBJECT, mss_page_welcome),
    FORM_WRITE("/welcome/{key}", PUBLIC, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_welcome_prepare,
               mss_page_welcome_sent),
    GET_READ("/account", SELF, MSS_NO_SUBJECT, mss_page_account),
    FORM_WRITE("/account/password", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_password_prepare,
               mss_page_password_sent),
    FORM_WRITE("/account/delete", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_password_ask,
               mss_page_account_delete),

    FORM_WRITE("/account/second-factor", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_password_ask,
               mss_page_second_factor_begin),
    FORM_WRITE("/account/second-factor/confirm", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, NULL,
               mss_page_second_factor_confirm),
    FORM_WRITE("/account/second-factor/codes", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_password_ask,
               mss_page_recovery_codes),
    FORM_WRITE("/account/second-factor/off", SELF, MSS_NO_SUBJECT, MSS_LIMIT_SIGN_IN, mss_page_password_ask,
               mss_page_second_factor_off),

    /* pages: runs and teams */
    GET_READ("/runs", RUN_READ, MSS_TEAM_IN_QUERY, mss_page_runs),
    GET_READ("/runs/{run}", RUN_READ, MSS_RUN_IN_PATH, mss_page_run),
    GET_READ("/runs/{run}/compare", RUN_READ, MSS_RUN_IN_PATH, mss_page_compare),
    GET_READ("/projects", RUN_READ, MSS_TEAM_IN_QUERY, mss_page_projects),
    FORM_WRITE("/runs/{run}/delete", RUN_DELETE, MSS_RUN_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_run_delete),
    FORM_WRITE("/runs/{run}/frontier", PLAN_MAKE, MSS_RUN_IN_PATH, MSS_LIMIT_PLAN, NULL, mss_page_run_frontier),
    FORM_WRITE("/teams", SELF, MSS_NO_SUBJECT, MSS_LIMIT_PAGE, NULL, mss_page_team_make),
    GET_READ("/teams/{team}", TEAM_READ, MSS_TEAM_IN_PATH, mss_page_team),
    FORM_WRITE("/teams/{team}/invitations", TEAM_MANAGE, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_invite),
    FORM_WRITE("/teams/{team}/invitations/withdraw", TEAM_MANAGE, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL,
               mss_page_withdraw),
    FORM_WRITE("/teams/{team}/delete", TEAM_OWN, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_team_delete),
    FORM_WRITE("/teams/{team}/leave", TEAM_READ, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_leave),
    FORM_WRITE("/teams/{team}/members", TEAM_MANAGE, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_member),
    GET_READ("/teams/{team}/tokens", TOKEN_MANAGE, MSS_TEAM_IN_PATH, mss_page_tokens),
    FORM_WRITE("/teams/{team}/tokens", TOKEN_MANAGE, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL, mss_page_token_make),
    FORM_WRITE("/teams/{team}/tokens/revoke", TOKEN_MANAGE, MSS_TEAM_IN_PATH, MSS_LIMIT_PAGE, NULL,
               mss_page_token_revoke),

    /* pages: who operates the server */
    GET_READ("/operator", OPERATE, MSS_NO_SUBJECT, mss_page_operator),
    FORM_WRITE("/operator/telemetry", OPERATE, MSS_NO_SUBJECT, MSS_LIMIT_PAGE, NULL, mss_page_telemetry_forget),
};

const mss_route *mss_routes(size_t *count)
{
    *count = COUNT(routes);
    return routes;
}

char *mss_routes_json(void)
{
    static const char *const verbs[] = {
#define VERB_NAME(name, role, scope, signed_in, operator) #name,
        MSS_VERB_TABLE(VERB_NAME)
#undef VERB_NAME
    };
    static const char *const subjects[] = {"none", "team", "run", "job", "query"}, *const bodies[] = {"none", "json",
                                                                                                      "form", "html"};
    json_t *list = json_array();
    for (size_t i = 0; i < COUNT(routes); i++) {
        const mss_route *route = &routes[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "method", mss_method_name(route->method),
                                              "path", route->path, "verb", verbs[route->verb], "subject",
                                              subjects[route->subject], "body", bodies[route->body]));
    }
    char *text = ms__json_text(list, false);
    json_decref(list);
    return text;
}
