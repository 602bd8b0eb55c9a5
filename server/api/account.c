/* All that is stored of an account, and its end. */
#include <string.h>

#include "api/api.h"
#include "store/statements.h"
#include "store/steps.h"

enum { EXPORT_POINTS_MOST = 100000 };

static int add_steps(mss_request *r, json_t *run, ms_error *err)
{
    mss_steps steps = {0};
    int rc = mss_steps_load(r->sql, json_string_value(json_object_get(run, "id")), 0, &steps, err);
    if (rc == MS_OK) {
        json_object_set_new(run, "steps_per_point",
                            json_integer((json_int_t)mss_steps_thin(&steps, EXPORT_POINTS_MOST)));
        json_object_set_new(run, "steps", mss_steps_json(&steps));
    }
    MS__ARRAY_FREE(&steps);
    return rc;
}

int mss_api_account_export(mss_request *r)
{
    ms_error err = {0};
    const char *who = r->who.account.text;
    json_t *account = mss_sql_object(r->sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT(who)), &err);
    json_t *teams = account ? mss_sql_objects(r->sql, MSS_TEAM_OF_ACCOUNT, MSS_WITH(MSS_TEXT(who)), &err) : NULL;
    json_t *sessions = teams ? mss_sql_objects(r->sql, MSS_SESSION_LIST, MSS_WITH(MSS_TEXT(who)), &err) : NULL;
    json_t *runs = sessions ? mss_sql_objects(r->sql, MSS_ACCOUNT_RUNS, MSS_WITH(MSS_TEXT(who)), &err) : NULL;
    int rc = runs != NULL ? MS_OK : err.code;
    for (size_t i = 0; i < json_array_size(teams); i++) {
        mss_api_name_role(json_array_get(teams, i));
    }
    for (size_t i = 0; rc == MS_OK && i < json_array_size(runs); i++) {
        rc = add_steps(r, json_array_get(runs, i), &err);
    }
    json_t *all = rc == MS_OK ? json_pack("{s:O, s:O, s:O, s:O}", "account", account, "teams", teams, "sessions",
                                          sessions, "runs", runs)
                              : NULL;
    json_decref(account);
    json_decref(teams);
    json_decref(sessions);
    json_decref(runs);
    r->answer.is_download = rc == MS_OK;
    return rc == MS_OK ? mss_answer_json(r, 200, all) : mss_answer_failure(r, &err);
}

int mss_account_remove(mss_request *r)
{
    ms_error err;
    int64_t needed;
    const char *who = r->who.account.text;
    int rc = mss_sql_number(r->sql, MSS_ACCOUNT_SOLE_OWNER, MSS_WITH(MSS_TEXT(who)), &needed, &err);
    if (rc == MS_OK && needed > 0) {
        return mss_answer_problem(r, 409,
                                  "You are the only owner of a team that others are in: give it another owner first.");
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(r->sql, MSS_ACCOUNT_LONELY_TEAMS, MSS_WITH(MSS_TEXT(who)), NULL, &err);
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(r->sql, MSS_ACCOUNT_DELETE, MSS_WITH(MSS_TEXT(who)), NULL, &err);
    }
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "account deleted", who, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}
