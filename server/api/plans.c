/* Plan as a service: the documents in, the library's plan out, the same bytes as `memscale plan --json`. A frontier, the
 * bytes of `memscale plan --sweep N --json`, takes longer: it is a job (jobs.h). */
#include <stdio.h>

#include "api/api.h"
#include "api/plan_worker.h"
#include "log/log.h"
#include "store/statements.h"

enum { JOBS_MOST = 8 };

int mss_api_plan_prepare(mss_request *r)
{
    ms_error err;
    char *output = NULL;
    int ending = MSS_PLAN_FAILED;
    if (mss_plan_run(r->body, r->body_bytes, NULL, &ending, &output, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    int status;
    switch (ending) {
    case MSS_PLAN_MADE:
        return mss_answer_text(r, 200, "application/json", output);
    case MSS_PLAN_REFUSED:
    case MSS_PLAN_INFEASIBLE:
        status = mss_answer_problem(r, 422, "%s", output);
        break;
    default:
        status = mss_answer_problem(
            r, 422, "This plan takes more than %d seconds or 4 GiB here; make it with the program.", MSS_PLAN_SECONDS);
    }
    ms_free(output);
    return status;
}

/* The answer is there already. */
int mss_api_plan(mss_request *r)
{
    (void)r;
    return 200;
}

/* ---- frontiers ------------------------------------------------------------------ */

static json_t *show_job(mss_request *r, const char *id, ms_error *err)
{
    return mss_sql_object(r->sql, MSS_JOB_SHOW, MSS_WITH(MSS_TEXT(id)), err);
}

/* The documents are read by the worker; here only that they are there. */
static int check_documents(const ms__json_at *body, uint64_t *points)
{
    static const char *const members[] = {"graph", "hardware", "config", "points"};
    ms__json_at object;
    int rc = ms__json_only(body, members, sizeof members / sizeof members[0]);
    if (rc == MS_OK) {
        rc = ms__json_object(body, "graph", &object);
    }
    if (rc == MS_OK) {
        rc = ms__json_object(body, "hardware", &object);
    }
    if (rc == MS_OK && ms__json_has(body, "config")) {
        rc = ms__json_object(body, "config", &object);
    }
    return rc == MS_OK ? ms__json_u64(body, "points", 1, MSS_FRONTIER_POINTS_MOST, points) : rc;
}

static int add_job(mss_request *r, uint64_t points)
{
    ms_error err;
    mss_id id = mss_id_new('j');
    int rc = mss_sql_run(r->sql, MSS_JOB_ADD,
                         MSS_WITH(MSS_TEXT(id.text), MSS_TEXT(r->object.team.text), MSS_TEXT(r->who.account.text),
                                  MSS_INT(points), MSS_TEXT(r->body), MSS_INT(mss_now_ms())),
                         NULL, &err);
    json_t *job = rc == MS_OK ? show_job(r, id.text, &err) : NULL;
    if (job == NULL) {
        return mss_answer_failure(r, &err);
    }
    snprintf(r->answer.location, sizeof r->answer.location, "/api/v1/frontiers/%s", id.text);
    return mss_answer_json(r, 202, job);
}

int mss_api_frontier_create(mss_request *r)
{
    ms_error err = {0};
    uint64_t points = 0;
    int64_t waiting = 0;
    ms__json_at body = mss_api_body(r, &err);
    int rc = check_documents(&body, &points);
    if (rc == MS_OK) {
        rc = mss_sql_number(r->sql, MSS_JOB_WAITING, MSS_WITH(MSS_TEXT(r->object.team.text)), &waiting, &err);
    }
    if (rc != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    if (waiting >= JOBS_MOST) {
        r->answer.retry_after_s = 60;
        return mss_answer_problem(r, 429, "%d frontiers of this team wait already.", JOBS_MOST);
    }
    return add_job(r, points);
}

int mss_api_frontier_show(mss_request *r)
{
    ms_error err;
    json_t *job = show_job(r, r->parameters[0], &err);
    return job != NULL ? mss_answer_json(r, 200, job) : mss_answer_failure(r, &err);
}

int mss_api_frontier_result(mss_request *r)
{
    ms_error err;
    mss_rows rows;
    bool has = false;
    char *text = NULL;
    int rc = mss_sql_first(r->sql, MSS_JOB_RESULT, MSS_WITH(MSS_TEXT(r->parameters[0])), &rows, &has, &err);
    if (rc == MS_OK && has && !mss_rows_is_null(&rows, 0)) {
        text = ms_strdup(mss_rows_text(&rows, 0));
        rc = text != NULL ? MS_OK : ms_fail(&err, MS_ENOMEM, "frontier: out of memory");
    }
    mss_rows_end(&rows);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return text != NULL ? mss_answer_text(r, 200, "application/json", text)
                        : mss_answer_problem(r, 404, "This frontier is not done, or has failed.");
}
