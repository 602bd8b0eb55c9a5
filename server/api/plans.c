/* Plan as a service: the documents in, the library's plan out, the same bytes as `memscale plan --json`. A frontier, the
 * bytes of `memscale plan --sweep N --json`, takes longer: it is a job (jobs.h). */
#include <inttypes.h>
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

/* 0, or the status of a refusal. */
static int add_job(mss_request *r, const char *run, const char *documents, uint64_t points, mss_id *id)
{
    ms_error err;
    int64_t waiting = 0;
    int rc = mss_sql_number(r->sql, MSS_JOB_WAITING, MSS_WITH(MSS_TEXT(r->object.team.text)), &waiting, &err);
    if (rc == MS_OK && waiting >= JOBS_MOST) {
        r->answer.retry_after_s = 60;
        return mss_answer_problem(r, 429, "%d frontiers of this team wait already.", JOBS_MOST);
    }
    *id = mss_id_new('j');
    if (rc == MS_OK) {
        rc = mss_sql_run(r->sql, MSS_JOB_ADD,
                         MSS_WITH(MSS_TEXT(id->text), MSS_TEXT(r->object.team.text), MSS_TEXT(r->who.account.text),
                                  MSS_TEXT(run), MSS_INT(points), MSS_TEXT(documents), MSS_INT(mss_now_ms())),
                         NULL, &err);
    }
    return rc == MS_OK ? 0 : mss_answer_failure(r, &err);
}

static int answer_job(mss_request *r, const mss_id *id)
{
    ms_error err;
    json_t *job = show_job(r, id->text, &err);
    if (job == NULL) {
        return mss_answer_failure(r, &err);
    }
    snprintf(r->answer.location, sizeof r->answer.location, "/api/v1/frontiers/%s", id->text);
    return mss_answer_json(r, 202, job);
}

int mss_api_frontier_create(mss_request *r)
{
    ms_error err = {0};
    uint64_t points = 0;
    mss_id id;
    ms__json_at body = mss_api_body(r, &err);
    if (check_documents(&body, &points) != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    int status = add_job(r, NULL, r->body, points, &id);
    return status != 0 ? status : answer_job(r, &id);
}

/* ---- of a run's artifacts ---------------------------------------------------------- */

typedef struct artifacts {
    char *graph, *hardware, *config; /* owned; NULL: the run has none */
} artifacts;

static void free_artifacts(artifacts *of)
{
    ms_free(of->graph);
    ms_free(of->hardware);
    ms_free(of->config);
}

/* Copies the config that the run was created with; leaves `*config` alone if there was none. */
static int read_own_config(mss_request *r, const char *run, char **config, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_first(r->sql, MSS_RUN_CONFIG, MSS_WITH(MSS_TEXT(run)), &rows, &has, err);
    const char *text = rc == MS_OK && has ? mss_rows_text(&rows, 0) : "";
    if (text[0] != '\0' && (*config = ms_strdup(text)) == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "frontier: out of memory");
    }
    mss_rows_end(&rows);
    return rc;
}

static int read_artifacts(mss_request *r, const char *run, artifacts *of, ms_error *err)
{
    size_t bytes;
    int rc = mss_artifact_read(r, run, "graph", &of->graph, &bytes, err);
    if (rc == MS_OK) {
        rc = mss_artifact_read(r, run, "hardware", &of->hardware, &bytes, err);
    }
    if (rc == MS_OK) {
        rc = mss_artifact_read(r, run, "config", &of->config, &bytes, err);
    }
    return rc == MS_OK && of->config == NULL ? read_own_config(r, run, &of->config, err) : rc;
}

/* What a client would send to /frontiers: the stored texts are JSON objects, and stay as they are. */
static char *join(const artifacts *of, uint64_t points)
{
    static const char form[] = "{\"graph\":%s,\"hardware\":%s%s%s,\"points\":%" PRIu64 "}";
    const char *before = of->config != NULL ? ",\"config\":" : "", *config = of->config != NULL ? of->config : "";
    int length = snprintf(NULL, 0, form, of->graph, of->hardware, before, config, points);
    char *text = ms_malloc((size_t)length + 1);
    if (text != NULL) {
        snprintf(text, (size_t)length + 1, form, of->graph, of->hardware, before, config, points);
    }
    return text;
}

int mss_frontier_of_run(mss_request *r, const char *run, uint64_t points, mss_id *job)
{
    ms_error err;
    artifacts of = {0};
    int status;
    if (read_artifacts(r, run, &of, &err) != MS_OK) {
        status = mss_answer_failure(r, &err);
    } else if (of.graph == NULL || of.hardware == NULL) {
        status = mss_answer_problem(r, 409, "A frontier needs the run's graph and hardware: store them first.");
    } else {
        char *documents = join(&of, points);
        status = documents != NULL ? add_job(r, run, documents, points, job)
                                   : mss_answer_failure(r, &(ms_error){.code = MS_ENOMEM, .text = "out of memory"});
        ms_free(documents);
    }
    free_artifacts(&of);
    return status;
}

int mss_api_run_frontier(mss_request *r)
{
    static const char *const members[] = {"points"};
    ms_error err = {0};
    uint64_t points = 0;
    mss_id id;
    ms__json_at body = mss_api_body(r, &err);
    int rc = ms__json_only(&body, members, 1);
    if (rc == MS_OK) {
        rc = ms__json_u64(&body, "points", 1, MSS_FRONTIER_POINTS_MOST, &points);
    }
    if (rc != MS_OK) {
        return mss_api_refuse(r, &err);
    }
    int status = mss_frontier_of_run(r, r->parameters[0], points, &id);
    return status != 0 ? status : answer_job(r, &id);
}

/* ---- how far, and the result --------------------------------------------------------- */

int mss_api_frontiers(mss_request *r)
{
    static const mss_list list = {.statement = MSS_JOB_LIST, .order = MSS_FALLING, .is_by_id = true};
    const char *run = mss_pairs_get(&r->query, "run");
    return mss_api_list(r, &list, MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(run != NULL ? run : "")));
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
