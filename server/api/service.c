/* Health, metrics and the API's own document. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "assets.h"
#include "store/statements.h"

static int answer_fixed(mss_request *r, const char *type, const void *bytes, size_t size)
{
    r->answer.fixed = bytes;
    r->answer.bytes = size;
    r->answer.type = type;
    return 200;
}

int mss_api_openapi(mss_request *r)
{
    const mss_asset *document = mss_asset_find("openapi.json");
    r->answer.may_be_cached = true;
    return answer_fixed(r, "application/json", document->bytes, document->size);
}

int mss_api_healthz(mss_request *r)
{
    return answer_fixed(r, "text/plain; charset=utf-8", "ok\n", 3);
}

int mss_api_readyz(mss_request *r)
{
    ms_error err;
    int64_t accounts;
    if (mss_sql_number(r->sql, MSS_ACCOUNT_COUNT, MSS_NONE, &accounts, &err) != MS_OK) {
        return mss_answer_failure(r, &err);
    }
    return answer_fixed(r, "text/plain; charset=utf-8", "ready\n", 6);
}

/* ---- metrics ------------------------------------------------------------------- */

typedef struct page {
    char *text;
    size_t length, room;
} page;

static void add_metric(page *p, const char *name, const char *kind, const char *help, const char *labels,
                       uint64_t value)
{
    if (kind != NULL) {
        p->length += (size_t)snprintf(p->text + p->length, p->room - p->length, "# HELP %s %s\n# TYPE %s %s\n", name,
                                      help, name, kind);
    }
    p->length += (size_t)snprintf(p->text + p->length, p->room - p->length, "%s%s %" PRIu64 "\n", name, labels, value);
}

static void add_numbers(page *p, const mss_server_numbers *n)
{
    static const char *const waiting[] = {"inline", "read", "write", "slow"};
    char labels[40];
    for (int i = 1; i < 6; i++) {
        snprintf(labels, sizeof labels, "{status=\"%dxx\"}", i);
        add_metric(p, "memscale_server_requests_total", i == 1 ? "counter" : NULL, "requests that have ended", labels,
                   n->requests[i]);
    }
    add_metric(p, "memscale_server_request_microseconds_total", "counter", "from the first header to the end", "",
               n->busy_ns / 1000);
    add_metric(p, "memscale_server_commits_total", "counter", "transactions of the write lane", "", n->commits);
    add_metric(p, "memscale_server_writes_total", "counter", "requests that those held", "", n->written);
    add_metric(p, "memscale_server_viewers", "gauge", "streams of live runs", "", n->viewers);
    for (int i = 1; i < MSS_LANE_COUNT; i++) {
        snprintf(labels, sizeof labels, "{lane=\"%s\"}", waiting[i]);
        add_metric(p, "memscale_server_waiting", i == 1 ? "gauge" : NULL, "requests that wait for a lane", labels,
                   n->waiting[i]);
    }
}

int mss_api_metrics(mss_request *r)
{
    static const struct {
        mss_statement statement;
        const char *name, *help;
    } counts[] = {
        {MSS_ACCOUNT_COUNT, "memscale_server_accounts", "accounts"},
        {MSS_COUNT_RUNS, "memscale_server_runs", "runs that are stored"},
        {MSS_COUNT_STEPS, "memscale_server_steps", "steps that are stored"},
        {MSS_TELEMETRY_COUNT, "memscale_server_telemetry_events", "telemetry events that are stored"},
    };
    ms_error err;
    mss_server_numbers numbers;
    page p = {.room = 4096, .text = ms_malloc(4096)};
    if (p.text == NULL) {
        return mss_answer_text(r, 200, NULL, NULL);
    }
    mss_server_count(r->server, &numbers);
    add_numbers(&p, &numbers);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int64_t value;
        if (mss_sql_number(r->sql, counts[i].statement, MSS_NONE, &value, &err) != MS_OK) {
            ms_free(p.text);
            return mss_answer_failure(r, &err);
        }
        add_metric(&p, counts[i].name, "gauge", counts[i].help, "", (uint64_t)value);
    }
    return mss_answer_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", p.text);
}
