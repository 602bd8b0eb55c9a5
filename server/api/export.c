/* All that is stored of an account. Text is appended run by run, because the steps and artifacts of many runs are large; an
 * answer that has become long ends with the cursor of the next part. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/units.h"
#include "store/statements.h"
#include "store/steps.h"

/* A part ends behind the run that makes it longer than this. */
enum { PART_BYTES = 64 * 1000 * 1000 };

typedef struct output {
    char *text; /* owned */
    size_t length, room;
    int code; /* MS_ENOMEM: it can't grow, and nothing more is appended */
} output;

/* ---- text ----------------------------------------------------------------------- */

static void add_bytes(output *out, const char *bytes, size_t count)
{
    if (out->code == MS_OK && out->length + count + 1 > out->room) {
        size_t room = (size_t)ms__max_u64(2 * out->room, out->length + count + 1);
        char *larger = ms_realloc_array(out->text, room, 1);
        out->code = larger != NULL ? MS_OK : MS_ENOMEM;
        out->text = larger != NULL ? larger : out->text;
        out->room = larger != NULL ? room : out->room;
    }
    if (out->code == MS_OK) {
        memcpy(out->text + out->length, bytes, count);
        out->length += count;
        out->text[out->length] = '\0';
    }
}

static void add_text(output *out, const char *text)
{
    add_bytes(out, text, strlen(text));
}

/* An object without its closing brace, so that more members can follow. Takes over `object`. */
static void add_open_object(output *out, json_t *object)
{
    char *text = object != NULL ? ms__json_text(object, true) : NULL;
    if (text != NULL) {
        add_bytes(out, text, strlen(text) - 1);
    } else {
        out->code = MS_ENOMEM;
    }
    ms_free(text);
    json_decref(object);
}

/* ---- a run ---------------------------------------------------------------------- */

/* Every step, a column after the other. */
static int add_steps(mss_request *r, const char *run, output *out, ms_error *err)
{
    mss_steps steps = {0};
    int rc = mss_steps_load(r->sql, run, 0, &steps, err);
    add_text(out, ",\"steps\":{");
    for (int column = 0; rc == MS_OK && column < MSS_STEP_COLUMNS; column++) {
        add_text(out, column > 0 ? "],\"" : "\"");
        add_text(out, mss_step_column_name((mss_step_column)column));
        add_text(out, "\":[");
        for (size_t i = 0; i < steps.count; i++) {
            char number[32];
            uint64_t value = steps.items[i].value[column];
            snprintf(number, sizeof number, "%s%" PRIu64, i > 0 ? "," : "", value);
            add_text(out, value != UINT64_MAX ? number : i > 0 ? ",null" : "null");
        }
    }
    add_text(out, "]}");
    MS__ARRAY_FREE(&steps);
    return rc;
}

/* HTML may hold any byte. */
static void add_base64(output *out, const char *bytes, size_t count)
{
    size_t room = sodium_base64_ENCODED_LEN(count, sodium_base64_VARIANT_ORIGINAL);
    char *text = ms_malloc(room);
    if (text == NULL) {
        out->code = MS_ENOMEM;
        return;
    }
    sodium_bin2base64(text, room, (const unsigned char *)bytes, count, sodium_base64_VARIANT_ORIGINAL);
    add_text(out, "\"content_base64\":\"");
    add_text(out, text);
    add_text(out, "\"");
    ms_free(text);
}

static int add_artifact(mss_request *r, const char *run, const char *kind, output *out, ms_error *err)
{
    char *text;
    size_t bytes;
    int rc = mss_artifact_read(r, run, kind, &text, &bytes, err);
    if (rc != MS_OK || text == NULL) {
        return rc;
    }
    if (strcmp(kind, "report") == 0) {
        add_base64(out, text, bytes);
    } else {
        add_text(out, "\"content\":");
        add_bytes(out, text, bytes); /* a JSON object, as it came */
    }
    ms_free(text);
    return MS_OK;
}

static int add_artifacts(mss_request *r, const char *run, output *out, ms_error *err)
{
    json_t *list = mss_sql_objects(r->sql, MSS_ARTIFACT_LIST, MSS_WITH(MSS_TEXT(run)), err);
    int rc = list != NULL ? MS_OK : err->code;
    add_text(out, ",\"artifacts\":[");
    for (size_t i = 0; rc == MS_OK && i < json_array_size(list); i++) {
        json_t *artifact = json_array_get(list, i);
        add_text(out, i > 0 ? "," : "");
        add_open_object(out, json_incref(artifact));
        add_text(out, ",");
        rc = add_artifact(r, run, json_string_value(json_object_get(artifact, "kind")), out, err);
        add_text(out, "}");
    }
    add_text(out, "]");
    json_decref(list);
    return rc;
}

/* ---- runs ----------------------------------------------------------------------- */

static const mss_list run_list = {.statement = MSS_ACCOUNT_RUNS, .is_by_id = true};

/* The next run behind `at`, which becomes its place; JSON null if there is none. */
static json_t *next_run(mss_request *r, mss_position *at, ms_error *err)
{
    json_t *run = mss_sql_object(
        r->sql, MSS_ACCOUNT_RUNS,
        MSS_WITH(MSS_TEXT(r->who.account.text), MSS_INT(at->number), MSS_TEXT(at->text), MSS_INT(1)), err);
    if (json_is_object(run)) {
        at->number = json_integer_value(json_object_get(run, "cursor_number"));
        snprintf(at->text, sizeof at->text, "%s", json_string_value(json_object_get(run, "cursor_text")));
        json_object_del(run, "cursor_number");
        json_object_del(run, "cursor_text");
    }
    return run;
}

static int add_runs(mss_request *r, mss_position at, output *out, ms_error *err)
{
    bool is_first = true, is_last = false;
    int rc = MS_OK;
    add_text(out, "\"runs\":[");
    while (rc == MS_OK && out->code == MS_OK && !is_last && out->length < PART_BYTES) {
        json_t *run = next_run(r, &at, err);
        is_last = json_is_null(run);
        rc = run != NULL ? MS_OK : err->code;
        if (json_is_object(run)) {
            add_text(out, is_first ? "" : ",");
            add_open_object(out, json_incref(run));
            is_first = false;
            rc = add_artifacts(r, at.text, out, err);
            if (rc == MS_OK) {
                rc = add_steps(r, at.text, out, err);
            }
            add_text(out, "}");
        }
        json_decref(run);
    }
    char next[300] = "null";
    if (!is_last) {
        snprintf(next, sizeof next, "\"%" PRId64 "-%s\"", at.number, at.text);
    }
    add_text(out, "],\"next_cursor\":");
    add_text(out, next);
    return rc;
}

/* ---- the account ------------------------------------------------------------------- */

static int add_lists(mss_request *r, json_t *all, ms_error *err)
{
    static const struct {
        const char *name;
        mss_statement statement;
        void (*map)(json_t *item);
    } lists[] = {{"teams", MSS_TEAM_OF_ACCOUNT, mss_api_name_role},
                 {"sessions", MSS_SESSION_LIST, NULL},
                 {"pending_sign_ins", MSS_PENDING_LIST, NULL},
                 {"invitations", MSS_INVITATION_OF_ACCOUNT, mss_api_name_role},
                 {"tokens", MSS_TOKEN_OF_ACCOUNT, mss_api_name_scopes},
                 {"frontiers", MSS_JOB_OF_ACCOUNT, NULL},
                 {"audit", MSS_AUDIT_OF_ACCOUNT, NULL}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        json_t *rows = mss_sql_objects(r->sql, lists[i].statement, MSS_WITH(MSS_TEXT(r->who.account.text)), err);
        for (size_t j = 0; lists[i].map != NULL && j < json_array_size(rows); j++) {
            lists[i].map(json_array_get(rows, j));
        }
        if (rows == NULL || json_object_set_new(all, lists[i].name, rows) != 0) {
            return rows == NULL ? err->code : ms_fail(err, MS_ENOMEM, "export: out of memory");
        }
    }
    return MS_OK;
}

/* Adds what comes before the runs. Only the first part of an export has it. */
static int add_account(mss_request *r, output *out, ms_error *err)
{
    const char *who = r->who.account.text;
    json_t *account = mss_sql_object(r->sql, MSS_ACCOUNT_SHOW, MSS_WITH(MSS_TEXT(who)), err);
    json_t *factor =
        account != NULL ? mss_sql_object(r->sql, MSS_SECOND_FACTOR_SHOW, MSS_WITH(MSS_TEXT(who)), err) : NULL;
    if (factor == NULL) {
        json_decref(account);
        return err->code;
    }
    json_t *all = json_pack("{s:o, s:o}", "account", account, "second_factor", factor);
    int rc = all != NULL ? add_lists(r, all, err) : ms_fail(err, MS_ENOMEM, "export: out of memory");
    if (rc == MS_OK) {
        add_open_object(out, json_incref(all));
        add_text(out, ",");
    }
    json_decref(all);
    return rc;
}

int mss_api_account_export(mss_request *r)
{
    ms_error err = {0};
    output out = {0};
    mss_position at;
    if (!mss_list_position(r, &run_list, &at)) {
        return mss_answer_problem(r, 400, "The cursor must be one that was given.");
    }
    bool is_first_part = mss_pairs_get(&r->query, "cursor") == NULL;
    int rc = MS_OK;
    if (is_first_part) {
        rc = add_account(r, &out, &err);
    } else {
        add_text(&out, "{");
    }
    if (rc == MS_OK) {
        rc = add_runs(r, at, &out, &err);
    }
    add_text(&out, "}");
    if (rc == MS_OK && out.code != MS_OK) {
        rc = ms_fail(&err, MS_ENOMEM, "export: out of memory");
    }
    if (rc != MS_OK) {
        ms_free(out.text);
        return mss_answer_failure(r, &err);
    }
    r->answer.is_download = true;
    return mss_answer_text(r, 200, "application/json", out.text);
}
