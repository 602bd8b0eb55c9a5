/* One run: its facts, its plan layer by layer, and what another budget would buy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/plan_worker.h"
#include "pages/pages.h"
#include "store/statements.h"

enum { LAYERS_MOST = 500, OTHERS_MOST = 50 };

/* The plan layer by layer, as in the report: nodes without a name are the root's own work. */
static void add_layers(json_t *data, const json_t *plan)
{
    json_t *layers = json_array();
    const json_t *entries = json_object_get(plan, "entries");
    for (size_t i = 0; i < json_array_size(entries) && json_array_size(layers) < LAYERS_MOST; i++) {
        json_t *entry = json_array_get(entries, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name == NULL || name[0] == '\0') {
            continue;
        }
        json_t *layer =
            json_pack("{s:O?, s:O?, s:O?, s:O?, s:O?}", "name", json_object_get(entry, "name"), "technique",
                      json_object_get(entry, "technique"), "rule", json_object_get(entry, "rule"), "saved_bytes",
                      json_object_get(entry, "saved_bytes"), "cost_ns", json_object_get(entry, "cost_ns"));
        mss_page_bytes_text(layer, "saved_bytes", "saved_text");
        mss_page_duration_text(layer, "cost_ns", "cost_text");
        json_array_append_new(layers, layer);
    }
    json_object_set_new(data, "layers", layers);
}

/* The team's latest runs but this one, to compare with. */
static int add_others(mss_request *r, json_t *data, ms_error *err)
{
    json_t *runs = mss_sql_objects(r->sql, MSS_RUN_LIST,
                                   MSS_WITH(MSS_TEXT(r->object.team.text), MSS_TEXT(""), MSS_TEXT(""), MSS_TEXT(""),
                                            MSS_INT(INT64_MAX), MSS_TEXT(""), MSS_INT(OTHERS_MOST)),
                                   err);
    json_t *others = json_array();
    for (size_t i = 0; i < json_array_size(runs); i++) {
        json_t *run = json_array_get(runs, i);
        if (strcmp(json_string_value(json_object_get(run, "id")), r->parameters[0]) != 0) {
            mss_page_run_texts(run);
            json_array_append(others, run);
        }
    }
    json_object_set_new(data, "has_others", json_boolean(json_array_size(others) > 0));
    json_object_set_new(data, "others", others);
    int rc = runs != NULL ? MS_OK : err->code;
    json_decref(runs);
    return rc;
}

/* The members of a document as rows of a table; what is no text is shown as JSON. */
static int add_facts(json_t *data, const char *name, ms_error *err)
{
    json_t *rows = json_array(), *value;
    const char *member;
    char list[40];
    int rc = MS_OK;
    json_object_foreach(json_object_get(data, name), member, value)
    {
        char *text = json_is_string(value) ? ms_strdup(json_string_value(value)) : ms__json_text(value, true);
        rc = text != NULL ? rc : ms_fail(err, MS_ENOMEM, "page: out of memory");
        json_array_append_new(rows, json_pack("{s:s, s:s}", "member", member, "text", text != NULL ? text : ""));
        ms_free(text);
    }
    snprintf(list, sizeof list, "has_%s", name);
    json_object_set_new(data, list, json_boolean(json_array_size(rows) > 0));
    snprintf(list, sizeof list, "%s_rows", name);
    json_object_set_new(data, list, rows);
    return rc;
}

static int add_documents(json_t *run, ms_error *err)
{
    static const char *const names[] = {"counters", "versions", "config"};
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < sizeof names / sizeof names[0]; i++) {
        rc = add_facts(run, names[i], err);
    }
    json_t *artifacts = json_object_get(run, "artifacts");
    for (size_t i = 0; i < json_array_size(artifacts); i++) {
        mss_page_bytes_text(json_array_get(artifacts, i), "bytes", "bytes_text");
        mss_page_time_text(json_array_get(artifacts, i), "stored_at", "stored_text");
    }
    json_object_set_new(run, "has_artifacts", json_boolean(json_array_size(artifacts) > 0));
    return rc;
}

/* ---- what another budget would buy -------------------------------------------------- */

/* "2 keep, 3 recompute" for {"keep": 2, "recompute": 3, "offload": 0}. */
static json_t *layers_text(const json_t *layers)
{
    char text[600] = "";
    size_t length = 0;
    const char *technique;
    json_t *count;
    json_object_foreach((json_t *)(uintptr_t)layers, technique, count)
    {
        if (json_integer_value(count) == 0) {
            continue;
        }
        int more = snprintf(text + length, sizeof text - length, "%s%lld %s", length > 0 ? ", " : "",
                            (long long)json_integer_value(count), technique);
        length = more > 0 && length + (size_t)more < sizeof text ? length + (size_t)more : sizeof text - 1;
    }
    return json_string(text);
}

static void add_points(json_t *frontier)
{
    json_t *points = json_object_get(json_object_get(frontier, "result"), "points");
    for (size_t i = 0; i < json_array_size(points); i++) {
        json_t *point = json_array_get(points, i);
        mss_page_bytes_text(point, "budget_bytes", "budget_text");
        mss_page_bytes_text(point, "peak_bytes", "peak_text");
        mss_page_duration_text(point, "step_ns", "step_text");
        json_object_set_new(point, "layers_text", layers_text(json_object_get(point, "layers")));
    }
    json_object_set(frontier, "budgets", points);
}

/* The run's latest frontier, and whether another one may begin: its documents are there and none waits. */
static int add_frontier(mss_request *r, json_t *data, ms_error *err)
{
    json_t *frontier = mss_sql_object(r->sql, MSS_JOB_OF_RUN, MSS_WITH(MSS_TEXT(r->parameters[0])), err);
    if (frontier == NULL) {
        return err->code;
    }
    const json_t *artifacts = json_object_get(data, "artifacts");
    int needed = 0;
    for (size_t i = 0; i < json_array_size(artifacts); i++) {
        const char *kind = json_string_value(json_object_get(json_array_get(artifacts, i), "kind"));
        needed += strcmp(kind, "graph") == 0 || strcmp(kind, "hardware") == 0;
    }
    bool is_waiting = json_is_object(frontier) && json_is_null(json_object_get(frontier, "finished_at"));
    json_object_set_new(data, "has_frontier", json_boolean(needed == 2 || json_is_object(frontier)));
    json_object_set_new(data, "can_begin_frontier", json_boolean(needed == 2 && !is_waiting));
    if (json_is_object(frontier)) {
        json_object_set_new(frontier, "is_waiting", json_boolean(is_waiting));
        add_points(frontier);
        json_object_set(data, "frontier", frontier);
    }
    json_decref(frontier);
    return MS_OK;
}

int mss_page_run_frontier(mss_request *r)
{
    mss_id job;
    const char *given = mss_page_field(r, "points");
    bool is_number = given[0] != '\0' && strlen(given) <= 4 && strspn(given, "0123456789") == strlen(given);
    int points = is_number ? atoi(given) : 0;
    if (points < 1 || points > MSS_FRONTIER_POINTS_MOST) {
        return mss_answer_problem(r, 422, "Give a number of budgets from 1 to %d.", MSS_FRONTIER_POINTS_MOST);
    }
    int status = mss_frontier_of_run(r, r->parameters[0], (uint64_t)points, &job);
    return status != 0 ? status : mss_answer_redirect(r, "/runs/%s#frontier", r->parameters[0]);
}

/* ---- the page ----------------------------------------------------------------------- */

int mss_page_run(mss_request *r)
{
    ms_error err;
    json_t *run = mss_run_document(r, r->parameters[0], &err);
    json_t *row = run != NULL ? mss_sql_object(r->sql, MSS_RUN_PLAN, MSS_WITH(MSS_TEXT(r->parameters[0])), &err) : NULL;
    if (row == NULL || add_others(r, run, &err) != MS_OK || add_frontier(r, run, &err) != MS_OK ||
        add_documents(run, &err) != MS_OK) {
        json_decref(run);
        json_decref(row);
        return mss_answer_failure(r, &err);
    }
    mss_page_run_texts(run);
    json_object_set_new(run, "title", json_incref(json_object_get(run, "title_text")));
    add_layers(run, json_object_get(row, "plan"));
    json_decref(row);
    return mss_page_show(r, 200, "run.html", run);
}

int mss_page_run_delete(mss_request *r)
{
    ms_error err;
    if (mss_run_remove(r, r->parameters[0], &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return mss_answer_redirect(r, "/runs?team=%s", r->object.team.text);
}
