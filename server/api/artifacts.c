/* Documents that a run's sender adds to it: graph, hardware and config as JSON, the report as HTML. They are stored as they
 * came, byte for byte. The server never runs them: JSON is data, and http/server.c sends a download with a sandbox, so that
 * a report's script can't act as who opens it. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "log/log.h"
#include "store/statements.h"

/* The last segment of the route: each kind has routes of its own, with its limit and media type. */
static const char *kind_of(const mss_request *r)
{
    return strrchr(r->route->path, '/') + 1;
}

typedef struct stored {
    int64_t bytes;
    bool is_there, is_same;
} stored;

static int find(mss_request *r, const mss_hash *hash, stored *found, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *found = (stored){0};
    int rc = mss_sql_first(r->sql, MSS_ARTIFACT_FIND, MSS_WITH(MSS_TEXT(r->parameters[0]), MSS_TEXT(kind_of(r))), &rows,
                           &has, err);
    if (rc == MS_OK && has) {
        size_t bytes;
        const void *before = mss_rows_blob(&rows, 0, &bytes);
        found->is_there = true;
        found->is_same = bytes == sizeof hash->bytes && memcmp(before, hash->bytes, bytes) == 0;
        found->bytes = mss_rows_int(&rows, 1);
    }
    mss_rows_end(&rows);
    return rc;
}

static int put(mss_request *r, const char *run, const char *kind, const char *data, size_t bytes, ms_error *err)
{
    mss_hash hash = mss_hash_of(data, bytes);
    return mss_sql_run(r->sql, MSS_ARTIFACT_SET,
                       MSS_WITH(MSS_TEXT(run), MSS_TEXT(kind), MSS_HASH(&hash), MSS_INT(bytes), MSS_BLOB(data, bytes),
                                MSS_INT(mss_now_ms())),
                       NULL, err);
}

int mss_artifact_add(mss_request *r, const char *run, const char *kind, const char *text, ms_error *err)
{
    return text == NULL ? MS_OK : put(r, run, kind, text, strlen(text), err);
}

static int store(mss_request *r, int64_t more_bytes, ms_error *err)
{
    int rc = put(r, r->parameters[0], kind_of(r), r->body, r->body_bytes, err);
    return rc == MS_OK ? mss_sql_run(r->sql, MSS_RUN_STORED, MSS_WITH(MSS_INT(more_bytes), MSS_TEXT(r->parameters[0])),
                                     NULL, err)
                       : rc;
}

int mss_api_artifact_set(mss_request *r)
{
    ms_error err;
    stored before;
    bool is_used_up = false;
    if (r->route->body == MSS_BODY_HTML && (r->body_bytes == 0 || r->body[0] != '<')) {
        return mss_answer_problem(r, 422, "A report is HTML, which begins with \"<\".");
    }
    mss_hash hash = mss_hash_of(r->body, r->body_bytes);
    int rc = find(r, &hash, &before, &err);
    int64_t more_bytes = (int64_t)r->body_bytes - before.bytes;
    if (rc == MS_OK && !before.is_same && more_bytes > 0) {
        rc = mss_quota_check(r, (uint64_t)more_bytes, &is_used_up, &err);
    }
    if (rc == MS_OK && is_used_up) {
        return mss_answer_problem(r, 507, "The team's storage is used up; delete runs.");
    }
    if (rc == MS_OK && !before.is_same) {
        rc = store(r, more_bytes, &err);
    }
    json_t *shown = rc == MS_OK ? mss_sql_object(r->sql, MSS_ARTIFACT_SHOW,
                                                 MSS_WITH(MSS_TEXT(r->parameters[0]), MSS_TEXT(kind_of(r))), &err)
                                : NULL;
    return shown != NULL ? mss_answer_json(r, before.is_there ? 200 : 201, shown) : mss_answer_failure(r, &err);
}

int mss_artifact_read(mss_request *r, const char *run, const char *kind, char **text, size_t *bytes, ms_error *err)
{
    mss_rows rows;
    bool has = false;
    *text = NULL;
    *bytes = 0;
    int rc = mss_sql_first(r->sql, MSS_ARTIFACT_DATA, MSS_WITH(MSS_TEXT(run), MSS_TEXT(kind)), &rows, &has, err);
    if (rc == MS_OK && has) {
        const void *data = mss_rows_blob(&rows, 0, bytes);
        *text = ms_malloc(*bytes + 1);
        if (*text != NULL) {
            memcpy(*text, data, *bytes);
            (*text)[*bytes] = '\0';
        } else {
            rc = ms_fail(err, MS_ENOMEM, "artifact: out of memory for %zu bytes", *bytes);
        }
    }
    mss_rows_end(&rows);
    return rc;
}

int mss_api_artifact_show(mss_request *r)
{
    ms_error err;
    char *text;
    size_t bytes;
    if (mss_artifact_read(r, r->parameters[0], kind_of(r), &text, &bytes, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    if (text == NULL) {
        return mss_answer_problem(r, 404, "This run has no such document.");
    }
    bool is_report = strcmp(kind_of(r), "report") == 0;
    int status = mss_answer_text(r, 200, is_report ? "text/html" : "application/json", text);
    r->answer.bytes = bytes; /* a report may hold any byte */
    r->answer.is_download = is_report;
    return status;
}

json_t *mss_run_document(mss_request *r, const char *run, ms_error *err)
{
    json_t *document = mss_sql_object(r->sql, MSS_RUN_SHOW, MSS_WITH(MSS_TEXT(run)), err);
    json_t *list = document != NULL ? mss_sql_objects(r->sql, MSS_ARTIFACT_LIST, MSS_WITH(MSS_TEXT(run)), err) : NULL;
    if (list == NULL) {
        json_decref(document);
        return NULL;
    }
    json_object_set_new(document, "artifacts", list);
    return document;
}
