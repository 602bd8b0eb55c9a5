#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/units.h"
#include "log/log.h"
#include "store/statements.h"
#include "store/steps.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum { NAME_BYTES = 120, OUTCOME_COUNT = 4 };
/* Bytes that a run without documents counts for, and the number of appends between two sums over a team's runs. */
enum { RUN_BYTES = 1000, QUOTA_EVERY = 64 };

static const char *const outcomes[OUTCOME_COUNT] = {"finished", "failed", "infeasible", "stopped"};

/* ---- how far a run is --------------------------------------------------------------- */

typedef struct run_state {
    uint64_t last_sequence, last_step, step_count;
    bool is_running;
} run_state;

static int read_state(mss_request *r, const char *run, run_state *state, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_first(r->sql, MSS_RUN_STATE, MSS_WITH(MSS_TEXT(run)), &rows, &has, err);
    if (rc == MS_OK && has) {
        state->last_sequence = (uint64_t)mss_rows_int(&rows, 0);
        state->last_step = (uint64_t)mss_rows_int(&rows, 1);
        state->is_running = strcmp(mss_rows_text(&rows, 2), "running") == 0;
        state->step_count = (uint64_t)mss_rows_int(&rows, 3);
    }
    mss_rows_end(&rows);
    return rc;
}

/* ---- create -------------------------------------------------------------------- */

typedef struct new_run {
    const char *project, *name, *model, *machine, *graph_digest;
    uint64_t budget_bytes, predicted_peak_bytes, predicted_step_ns;
    char *versions, *config, *plan, *graph, *hardware; /* JSON texts, NULL when missing */
    mss_id id;
} new_run;

static void free_new_run(new_run *run)
{
    ms_free(run->versions);
    ms_free(run->config);
    ms_free(run->plan);
    ms_free(run->graph);
    ms_free(run->hardware);
}

/* An optional object, as compact text. */
static int read_document(const ms__json_at *body, const char *name, char **text)
{
    ms__json_at object;
    if (!ms__json_has(body, name)) {
        return MS_OK;
    }
    int rc = ms__json_object(body, name, &object);
    if (rc == MS_OK && (*text = ms__json_text(object.value, true)) == NULL) {
        rc = ms_fail(body->err, MS_ENOMEM, "run: out of memory");
    }
    return rc;
}

static int read_texts(const ms__json_at *body, new_run *run)
{
    int rc = mss_api_text(body, "project", NAME_BYTES, true, &run->project);
    if (rc == MS_OK) {
        rc = mss_api_text(body, "name", NAME_BYTES, true, &run->name);
    }
    if (rc == MS_OK) {
        rc = mss_api_text(body, "model", NAME_BYTES, false, &run->model);
    }
    if (rc == MS_OK) {
        rc = mss_api_text(body, "machine", NAME_BYTES, true, &run->machine);
    }
    if (rc == MS_OK) {
        rc = mss_api_text(body, "graph_digest", NAME_BYTES, true, &run->graph_digest);
    }
    run->project = run->project != NULL && run->project[0] != '\0' ? run->project : "default";
    return rc;
}

static int read_new_run(const ms__json_at *body, new_run *run)
{
    static const char *const members[] = {"project",
                                          "name",
                                          "model",
                                          "machine",
                                          "versions",
                                          "config",
                                          "graph_digest",
                                          "plan",
                                          "budget_bytes",
                                          "predicted_peak_bytes",
                                          "predicted_step_ns",
                                          "graph",
                                          "hardware"};
    int rc = ms__json_only(body, members, COUNT(members));
    if (rc == MS_OK) {
        rc = read_texts(body, run);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(body, "budget_bytes", 0, MSS_STEP_VALUE_MOST, UINT64_MAX, &run->budget_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(body, "predicted_peak_bytes", 0, MSS_STEP_VALUE_MOST, UINT64_MAX,
                             &run->predicted_peak_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(body, "predicted_step_ns", 0, MSS_STEP_VALUE_MOST, UINT64_MAX, &run->predicted_step_ns);
    }
    const struct {
        const char *name;
        char **text;
    } documents[] = {{"versions", &run->versions},
                     {"config", &run->config},
                     {"plan", &run->plan},
                     {"graph", &run->graph},
                     {"hardware", &run->hardware}};
    for (size_t i = 0; rc == MS_OK && i < COUNT(documents); i++) {
        rc = read_document(body, documents[i].name, documents[i].text);
    }
    return rc;
}

/* The run that this key has made before; empty if there is none. */
static int find_by_key(mss_request *r, const mss_hash *body, mss_id *id, bool *is_same, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *id = (mss_id){""};
    int rc = mss_sql_first(r->sql, MSS_RUN_BY_KEY,
                           MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(r->idempotency_key)), &rows, &has, err);
    if (rc == MS_OK && has) {
        size_t bytes;
        const void *hash = mss_rows_blob(&rows, 1, &bytes);
        mss_rows_copy(&rows, 0, id->text, sizeof id->text);
        *is_same = bytes == sizeof body->bytes && memcmp(hash, body->bytes, bytes) == 0;
    }
    mss_rows_end(&rows);
    return rc;
}

static int find_project(mss_request *r, const char *name, mss_id *project, ms_error *err)
{
    mss_id fresh = mss_id_new('p');
    mss_rows rows;
    bool has = false;
    int rc = mss_sql_run(
        r->sql, MSS_PROJECT_ADD,
        MSS_WITH(MSS_TEXT(fresh.text), MSS_TEXT(r->object.team.text), MSS_TEXT(name), MSS_INT(mss_now_ms())), NULL,
        err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = mss_sql_first(r->sql, MSS_PROJECT_FIND, MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(name)), &rows, &has,
                       err);
    if (rc == MS_OK) {
        mss_rows_copy(&rows, 0, project->text, sizeof project->text);
    }
    mss_rows_end(&rows);
    return rc;
}

static const char *or_null(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

static int insert_run(mss_request *r, const new_run *run, const mss_hash *body, ms_error *err)
{
    mss_id project;
    int rc = find_project(r, run->project, &project, err);
    if (rc != MS_OK) {
        return rc;
    }
    rc = mss_sql_run(r->sql, MSS_RUN_ADD,
                     MSS_WITH(MSS_TEXT(run->id.text), MSS_TEXT(r->object.team.text), MSS_TEXT(project.text),
                              MSS_TEXT(r->who.account.text), MSS_TEXT(r->idempotency_key), MSS_HASH(body),
                              MSS_TEXT(or_null(run->name)), MSS_TEXT(run->model), MSS_TEXT(or_null(run->machine)),
                              MSS_TEXT(run->versions), MSS_TEXT(run->config), MSS_TEXT(run->plan),
                              MSS_TEXT(or_null(run->graph_digest)), MSS_U64_OR_NULL(run->budget_bytes),
                              MSS_U64_OR_NULL(run->predicted_peak_bytes), MSS_U64_OR_NULL(run->predicted_step_ns),
                              MSS_INT(mss_now_ms()), MSS_INT(RUN_BYTES + r->body_bytes)),
                     NULL, err);
    if (rc == MS_OK) {
        rc = mss_artifact_add(r, run->id.text, "graph", run->graph, err);
    }
    return rc == MS_OK ? mss_artifact_add(r, run->id.text, "hardware", run->hardware, err) : rc;
}

static bool is_key(const char *text)
{
    size_t length = strlen(text);
    return length > 0 && strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") == length;
}

/* How far the run is too, so that a client that has lost its place finds it again. */
static int answer_run(mss_request *r, int status, const char *id)
{
    ms_error err;
    run_state state = {0};
    int rc = read_state(r, id, &state, &err);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    snprintf(r->answer.location, sizeof r->answer.location, "/api/v1/runs/%s", id);
    return mss_answer_json(r, status,
                           json_pack("{s:s, s:I, s:I}", "id", id, "last_sequence", (json_int_t)state.last_sequence,
                                     "last_step", (json_int_t)state.last_step));
}

int mss_quota_check(mss_request *r, uint64_t more_bytes, bool *is_used_up, ms_error *err)
{
    int64_t used;
    uint64_t quota = mss_server_settings(r->server)->team_quota_bytes;
    int rc = mss_sql_number(r->sql, MSS_RUN_TEAM_USE, MSS_WITH(MSS_TEXT(r->object.team.text)), &used, err);
    *is_used_up = rc == MS_OK && ((uint64_t)used >= quota || ms__add_sat((uint64_t)used, more_bytes) > quota);
    return rc;
}

int mss_api_run_create(mss_request *r)
{
    ms_error err = {0};
    new_run run = {.id = mss_id_new('r')};
    ms__json_at body = mss_api_body(r, &err);
    mss_hash hash = mss_hash_of(r->body, r->body_bytes);
    mss_id found;
    bool is_same = false, is_used_up = false;
    int status;
    if (!is_key(r->idempotency_key)) {
        return mss_answer_problem(r, 400, "Send an Idempotency-Key of 1 to 64 letters, digits, \"_\" or \"-\".");
    }
    int rc = read_new_run(&body, &run);
    if (rc == MS_OK) {
        rc = find_by_key(r, &hash, &found, &is_same, &err);
    }
    if (rc == MS_OK) {
        rc = mss_quota_check(r, 0, &is_used_up, &err);
    }
    if (rc != MS_OK) {
        status = mss_api_refuse(r, &err);
    } else if (mss_id_is(&found)) {
        status = is_same ? answer_run(r, 200, found.text)
                         : mss_answer_problem(r, 409, "This Idempotency-Key has made another run.");
    } else if (is_used_up) {
        status = mss_answer_problem(r, 507, "The team's storage is used up; delete runs.");
    } else {
        rc = insert_run(r, &run, &hash, &err);
        status = rc == MS_OK ? answer_run(r, 201, run.id.text) : mss_answer_failure(r, &err);
    }
    free_new_run(&run);
    return status;
}

/* ---- list and show --------------------------------------------------------------- */

static const char *query_or_empty(const mss_request *r, const char *name)
{
    const char *text = mss_pairs_get(&r->query, name);
    return text != NULL ? text : "";
}

json_t *mss_run_page(mss_request *r, int *status)
{
    static const mss_list list = {.statement = MSS_RUN_LIST, .order = MSS_FALLING, .is_by_id = true};
    return mss_api_page(r, &list,
                        MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(query_or_empty(r, "project")),
                                 MSS_TEXT(query_or_empty(r, "model")), MSS_TEXT(query_or_empty(r, "outcome"))),
                        status);
}

int mss_api_run_list(mss_request *r)
{
    int status = 200;
    json_t *page = mss_run_page(r, &status);
    return page != NULL ? mss_answer_json(r, 200, page) : status;
}

int mss_api_run_show(mss_request *r)
{
    ms_error err;
    json_t *run = mss_run_document(r, r->parameters[0], &err);
    return run != NULL ? mss_answer_json(r, 200, run) : mss_answer_failure(r, &err);
}

int mss_api_run_plan(mss_request *r)
{
    ms_error err;
    json_t *row = mss_sql_object(r->sql, MSS_RUN_PLAN, MSS_WITH(MSS_TEXT(r->parameters[0])), &err);
    if (row == NULL) {
        return mss_answer_failure(r, &err);
    }
    json_t *plan = json_incref(json_object_get(row, "plan"));
    json_decref(row);
    if (json_is_object(plan)) {
        return mss_answer_json(r, 200, plan);
    }
    json_decref(plan);
    return mss_answer_problem(r, 404, "This run sent no plan.");
}

const mss_list mss_project_list = {.statement = MSS_PROJECT_LIST};

int mss_api_projects(mss_request *r)
{
    return mss_api_list(r, &mss_project_list, MSS_WITH(MSS_TEXT(r->object.team.text)));
}

/* ---- append -------------------------------------------------------------------- */

/* Viewers get the new points; a long batch as a sign to ask. */
static void tell_viewers(mss_request *r, uint64_t sequence, uint64_t step_count, mss_steps *steps)
{
    if (!mss_server_is_watched(r->server)) {
        return;
    }
    mss_steps_thin(steps, 200);
    json_t *event = json_pack("{s:I, s:I, s:o}", "sequence", (json_int_t)sequence, "step_count", (json_int_t)step_count,
                              "columns", mss_steps_json(steps));
    r->answer.event = event != NULL ? ms__json_text(event, true) : NULL;
    r->answer.told = mss_id_of(r->parameters[0]);
    json_decref(event);
}

static int answer_sequence(mss_request *r, uint64_t last_sequence, uint64_t last_step, bool is_new)
{
    return mss_answer_json(r, 200,
                           json_pack("{s:I, s:I, s:b}", "last_sequence", (json_int_t)last_sequence, "last_step",
                                     (json_int_t)last_step, "counted", (int)is_new));
}

static int append(mss_request *r, uint64_t sequence, mss_steps *steps)
{
    ms_error err = {0};
    run_state state = {0};
    int rc = read_state(r, r->parameters[0], &state, &err);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (sequence <= state.last_sequence) {
        return answer_sequence(r, state.last_sequence, state.last_step, false);
    }
    if (sequence > state.last_sequence + 1) {
        return mss_answer_problem(r, 409, "Batch %" PRIu64 " is missing; %" PRIu64 " came.", state.last_sequence + 1,
                                  sequence);
    }
    if (!state.is_running) {
        return mss_answer_problem(r, 409, "The run has finished.");
    }
    bool is_used_up = false;
    if (sequence % QUOTA_EVERY == 0 && mss_quota_check(r, 0, &is_used_up, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (is_used_up) {
        return mss_answer_problem(r, 507, "The team's storage is used up; delete runs.");
    }
    if (steps->items[0].value[0] <= state.last_step) {
        return mss_answer_problem(r, 422, "Steps must rise: %" PRIu64 " was the last one.", state.last_step);
    }
    rc = mss_run_append(r->sql, r->parameters[0], sequence, steps, &err);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    uint64_t last_step = steps->items[steps->count - 1].value[MSS_STEP_NUMBER];
    tell_viewers(r, sequence, state.step_count + steps->count, steps);
    return answer_sequence(r, sequence, last_step, true);
}

int mss_api_run_append(mss_request *r)
{
    static const char *const members[] = {"sequence", "columns"};
    ms_error err = {0};
    mss_steps steps = {0};
    uint64_t sequence = 0;
    ms__json_at body = mss_api_body(r, &err);
    int rc = ms__json_only(&body, members, COUNT(members));
    if (rc == MS_OK) {
        rc = ms__json_u64(&body, "sequence", 1, MSS_STEP_VALUE_MOST, &sequence);
    }
    if (rc == MS_OK) {
        rc = mss_steps_read(&body, "columns", &steps);
    }
    int status = rc == MS_OK ? append(r, sequence, &steps) : mss_api_refuse(r, &err);
    MS__ARRAY_FREE(&steps);
    return status;
}

/* ---- steps --------------------------------------------------------------------- */

int mss_api_run_steps(mss_request *r)
{
    ms_error err = {0};
    mss_steps steps = {0};
    run_state state = {0};
    int64_t after = mss_api_query_number(r, "after", 0, INT64_MAX);
    int64_t points = mss_api_query_number(r, "points", 1000, MSS_POINTS_MOST);
    if (after < 0 || points < 1) {
        return mss_answer_problem(r, 400, "\"after\" is a step's number, \"points\" 1 to %d.", MSS_POINTS_MOST);
    }
    int rc = read_state(r, r->parameters[0], &state, &err);
    if (rc == MS_OK) {
        rc = mss_steps_load(r->sql, r->parameters[0], (uint64_t)after, &steps, &err);
    }
    size_t each = rc == MS_OK ? mss_steps_thin(&steps, (size_t)points) : 1;
    json_t *columns = rc == MS_OK ? mss_steps_json(&steps) : NULL;
    MS__ARRAY_FREE(&steps);
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return mss_answer_json(r, 200,
                           json_pack("{s:I, s:I, s:I, s:b, s:o}", "last_sequence", (json_int_t)state.last_sequence,
                                     "step_count", (json_int_t)state.step_count, "steps_per_point", (json_int_t)each,
                                     "is_running", (int)state.is_running, "columns", columns));
}

int mss_api_run_events(mss_request *r)
{
    r->answer.watch = mss_id_of(r->parameters[0]);
    return 200;
}

/* ---- finish, delete, compare ------------------------------------------------------- */

static int finish(mss_request *r, const char *outcome, const char *counters)
{
    ms_error err = {0};
    run_state state = {0};
    int rc = read_state(r, r->parameters[0], &state, &err);
    if (rc == MS_OK && !state.is_running) {
        json_t *run = mss_sql_object(r->sql, MSS_RUN_SHOW, MSS_WITH(MSS_TEXT(r->parameters[0])), &err);
        const char *was = json_string_value(json_object_get(run, "outcome"));
        bool is_same = was != NULL && strcmp(was, outcome) == 0;
        json_decref(run);
        return is_same ? mss_answer_empty(r) : mss_answer_problem(r, 409, "The run has finished with another outcome.");
    }
    if (rc == MS_OK) {
        rc = mss_sql_run(
            r->sql, MSS_RUN_FINISH,
            MSS_WITH(MSS_TEXT(outcome), MSS_INT(mss_now_ms()), MSS_TEXT(counters), MSS_TEXT(r->parameters[0])), NULL,
            &err);
    }
    if (rc != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    r->answer.event = ms_strdup("{\"finished\":true}");
    r->answer.told = mss_id_of(r->parameters[0]);
    return mss_answer_empty(r);
}

int mss_api_run_finish(mss_request *r)
{
    static const char *const members[] = {"outcome", "counters"};
    ms_error err = {0};
    size_t outcome = 0;
    char *counters = NULL;
    ms__json_at body = mss_api_body(r, &err);
    int rc = ms__json_only(&body, members, COUNT(members));
    if (rc == MS_OK) {
        rc = ms__json_enum(&body, "outcome", outcomes, OUTCOME_COUNT, &outcome);
    }
    if (rc == MS_OK) {
        rc = read_document(&body, "counters", &counters);
    }
    int status = rc == MS_OK ? finish(r, outcomes[outcome], counters) : mss_api_refuse(r, &err);
    ms_free(counters);
    return status;
}

int mss_run_remove(mss_request *r, const char *run, ms_error *err)
{
    int rc = mss_sql_run(r->sql, MSS_RUN_DELETE, MSS_WITH(MSS_TEXT(run)), NULL, err);
    return rc == MS_OK ? mss_api_audit(r, "run deleted", run, err) : rc;
}

int mss_api_run_delete(mss_request *r)
{
    ms_error err;
    return mss_run_remove(r, r->parameters[0], &err) == MS_OK ? mss_answer_empty(r) : mss_answer_failure(r, &err);
}

/* Second over first, in permille; null if either is unknown. */
static json_t *ratio(const json_t *one, const json_t *other, const char *name)
{
    json_int_t a = json_integer_value(json_object_get(one, name)), b = json_integer_value(json_object_get(other, name));
    return a > 0 && b > 0 ? json_integer((json_int_t)ms__mul_div((uint64_t)b, 1000, (uint64_t)a)) : json_null();
}

static int team_of(mss_request *r, const char *run, mss_id *team, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *team = (mss_id){""};
    int rc = mss_sql_first(r->sql, MSS_RUN_TEAM, MSS_WITH(MSS_TEXT(run)), &rows, &has, err);
    if (rc == MS_OK && has) {
        mss_rows_copy(&rows, 0, team->text, sizeof team->text);
    }
    mss_rows_end(&rows);
    return rc;
}

json_t *mss_run_comparison(mss_request *r, const char *one, const char *other, int *status)
{
    ms_error err;
    mss_id team;
    if (team_of(r, other, &team, &err) != MS_OK) {
        *status = mss_answer_failure(r, &err);
        return NULL;
    }
    if (strcmp(team.text, r->object.team.text) != 0) { /* permission was asked for this team alone */
        *status = mss_answer_problem(r, 404, "The team has no such run.");
        return NULL;
    }
    json_t *a = mss_sql_object(r->sql, MSS_RUN_SHOW, MSS_WITH(MSS_TEXT(one)), &err);
    json_t *b = a != NULL ? mss_sql_object(r->sql, MSS_RUN_SHOW, MSS_WITH(MSS_TEXT(other)), &err) : NULL;
    if (b == NULL) {
        json_decref(a);
        *status = mss_answer_failure(r, &err);
        return NULL;
    }
    json_t *peak = ratio(a, b, "peak_bytes"), *time = ratio(a, b, "mean_step_ns");
    return json_pack("{s:o, s:o, s:{s:o, s:o}}", "one", a, "other", b, "other_permille", "peak_bytes", peak,
                     "mean_step_ns", time);
}

int mss_api_run_compare(mss_request *r)
{
    int status = 200;
    json_t *both = mss_run_comparison(r, r->parameters[0], r->parameters[1], &status);
    return both != NULL ? mss_answer_json(r, 200, both) : status;
}
