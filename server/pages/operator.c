/* For the operator, the first account: who is here, what it takes, what waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api.h"
#include "log/log.h"
#include "pages/pages.h"
#include "store/statements.h"

enum { TEAMS_MOST = 100, ACCOUNTS_MOST = 100, DAYS_MOST = 36500 };
#define DAY_MS ((int64_t)24 * 3600 * 1000)

static int add_counts(mss_request *r, json_t *page, ms_error *err)
{
    static const struct {
        mss_statement statement;
        const char *name;
    } counts[] = {{MSS_ACCOUNT_COUNT, "account_count"},
                  {MSS_COUNT_RUNS, "run_count"},
                  {MSS_COUNT_STEPS, "step_count"},
                  {MSS_TELEMETRY_COUNT, "telemetry_count"},
                  {MSS_DATABASE_BYTES, "database_bytes"}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        int64_t value;
        int rc = mss_sql_number(r->sql, counts[i].statement, MSS_NONE, &value, err);
        if (rc != MS_OK) {
            return rc;
        }
        json_object_set_new(page, counts[i].name, json_integer(value));
    }
    mss_page_bytes_text(page, "database_bytes", "database_text");
    return MS_OK;
}

static void add_work(mss_request *r, json_t *page)
{
    mss_server_numbers n;
    mss_server_count(r->server, &n);
    json_object_set_new(page, "viewers", json_integer((json_int_t)n.viewers));
    json_object_set_new(page, "commits", json_integer((json_int_t)n.commits));
    json_object_set_new(page, "written", json_integer((json_int_t)n.written));
    json_object_set_new(page, "waiting_read", json_integer((json_int_t)n.waiting[MSS_LANE_READ]));
    json_object_set_new(page, "waiting_write", json_integer((json_int_t)n.waiting[MSS_LANE_WRITE]));
    json_object_set_new(page, "waiting_slow", json_integer((json_int_t)n.waiting[MSS_LANE_SLOW]));
}

static int add_teams(mss_request *r, json_t *page, ms_error *err)
{
    json_t *teams = mss_sql_objects(r->sql, MSS_OPERATOR_TEAMS, MSS_WITH(MSS_INT(TEAMS_MOST)), err);
    for (size_t i = 0; i < json_array_size(teams); i++) {
        mss_page_bytes_text(json_array_get(teams, i), "stored_bytes", "stored_text");
    }
    json_object_set_new(page, "team_list", teams); /* "teams" are those of the menu */
    return teams != NULL ? MS_OK : err->code;
}

/* A page of accounts by address, from behind ?after=. */
static int add_accounts(mss_request *r, json_t *page, ms_error *err)
{
    const char *after = mss_pairs_get(&r->query, "after");
    json_t *accounts = mss_sql_objects(r->sql, MSS_OPERATOR_ACCOUNTS,
                                       MSS_WITH(MSS_TEXT(after != NULL ? after : ""), MSS_INT(ACCOUNTS_MOST + 1)), err);
    if (json_array_size(accounts) > ACCOUNTS_MOST) {
        json_array_remove(accounts, ACCOUNTS_MOST); /* asked for to see that there is more */
        const json_t *last = json_array_get(accounts, ACCOUNTS_MOST - 1);
        json_object_set(page, "next_email", json_object_get(last, "email"));
    }
    for (size_t i = 0; i < json_array_size(accounts); i++) {
        mss_page_time_text(json_array_get(accounts, i), "created_at", "created_text");
    }
    json_object_set_new(page, "accounts", accounts);
    return accounts != NULL ? MS_OK : err->code;
}

/* Frontiers of all teams, the latest first, from behind ?frontiers=, and how many are in each state. */
static int add_jobs(mss_request *r, json_t *page, int *status, ms_error *err)
{
    static const mss_list list = {
        .statement = MSS_OPERATOR_JOBS, .order = MSS_FALLING, .is_by_id = true, .cursor = "frontiers"};
    static const char *const states[] = {"queued", "running", "done", "failed"};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        int64_t count;
        char name[32];
        int rc = mss_sql_number(r->sql, MSS_COUNT_JOBS, MSS_WITH(MSS_TEXT(states[i])), &count, err);
        if (rc != MS_OK) {
            return rc;
        }
        snprintf(name, sizeof name, "jobs_%s", states[i]);
        json_object_set_new(page, name, json_integer(count));
    }
    json_t *jobs = mss_api_page(r, &list, MSS_NONE, status), *items = json_object_get(jobs, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        mss_page_time_text(json_array_get(items, i), "created_at", "created_text");
        mss_page_time_text(json_array_get(items, i), "finished_at", "finished_text");
    }
    json_object_set(page, "jobs", items);
    json_object_set(page, "next_jobs", json_object_get(jobs, "next_cursor"));
    json_decref(jobs);
    return MS_OK;
}

int mss_page_operator(mss_request *r)
{
    ms_error err = {0};
    json_t *page = json_pack("{s:s}", "title", "This server");
    int rc = add_counts(r, page, &err);
    if (rc == MS_OK) {
        rc = add_teams(r, page, &err);
    }
    if (rc == MS_OK) {
        rc = add_accounts(r, page, &err);
    }
    int status = 200;
    if (rc == MS_OK) {
        rc = add_jobs(r, page, &status, &err);
    }
    if (rc != MS_OK) {
        json_decref(page);
        return mss_answer_failure(r, &err);
    }
    if (status != 200) {
        json_decref(page);
        return status;
    }
    add_work(r, page);
    return mss_page_show(r, 200, "operator.html", page);
}

/* Events have a day and no time: those of before that day go. */
int mss_page_telemetry_forget(mss_request *r)
{
    ms_error err;
    const char *given = mss_page_field(r, "days");
    bool is_number = given[0] != '\0' && strlen(given) <= 5 && strspn(given, "0123456789") == strlen(given);
    long days = is_number ? strtol(given, NULL, 10) : -1;
    if (days < 0 || days > DAYS_MOST) {
        return mss_answer_problem(r, 422, "Give a number of days from 0 to %d.", DAYS_MOST);
    }
    char day[MSS_TIME_TEXT_BYTES];
    int64_t at_ms = mss_now_ms() - days * DAY_MS;
    mss_time_text(at_ms > 0 ? at_ms : 0, day);
    day[strlen("2026-01-31")] = '\0';
    int rc = mss_sql_run(r->sql, MSS_TELEMETRY_FORGET, MSS_WITH(MSS_TEXT(day)), NULL, &err);
    if (rc == MS_OK) {
        rc = mss_api_audit(r, "telemetry deleted", day, &err);
    }
    return rc == MS_OK ? mss_answer_redirect(r, "/operator") : mss_answer_failure(r, &err);
}
