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

/* Adds the lists of an account, and its second factor. The caller adds the account's row and the steps of runs. */
static int add_rows(mss_request *r, json_t *all, ms_error *err)
{
    static const struct {
        const char *name;
        mss_statement statement;
    } lists[] = {{"teams", MSS_TEAM_OF_ACCOUNT},
                 {"sessions", MSS_SESSION_LIST},
                 {"pending_sign_ins", MSS_PENDING_LIST},
                 {"runs", MSS_ACCOUNT_RUNS}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        json_t *rows = mss_sql_objects(r->sql, lists[i].statement, MSS_WITH(MSS_TEXT(r->who.account.text)), err);
        if (rows == NULL) {
            return err->code;
        }
        json_object_set_new(all, lists[i].name, rows);
    }
    json_t *factor = mss_sql_object(r->sql, MSS_SECOND_FACTOR_SHOW, MSS_WITH(MSS_TEXT(r->who.account.text)), err);
    json_object_set_new(all, "second_factor", factor);
    return factor != NULL ? MS_OK : err->code;
}

int mss_api_account_export(mss_request *r)
{
    ms_error err = {0};
    json_t *account = mss_sql_object(r->sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT(r->who.account.text)), &err);
    if (account == NULL) {
        return mss_answer_failure(r, &err);
    }
    json_t *all = json_pack("{s:o}", "account", account);
    int rc = all != NULL ? add_rows(r, all, &err) : ms_fail(&err, MS_ENOMEM, "out of memory for an account");
    json_t *teams = json_object_get(all, "teams"), *runs = json_object_get(all, "runs");
    for (size_t i = 0; i < json_array_size(teams); i++) {
        mss_api_name_role(json_array_get(teams, i));
    }
    for (size_t i = 0; rc == MS_OK && i < json_array_size(runs); i++) {
        rc = add_steps(r, json_array_get(runs, i), &err);
    }
    if (rc != MS_OK) {
        json_decref(all);
        return mss_answer_failure(r, &err);
    }
    r->answer.is_download = true;
    return mss_answer_json(r, 200, all);
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
