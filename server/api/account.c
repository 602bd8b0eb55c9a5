/* The end of an account. */
#include "api/api.h"
#include "store/statements.h"

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
