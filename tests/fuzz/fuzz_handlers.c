/*
 * Any request that reads or writes the database is answered: by what it asked for or by one problem document, never by a
 * failure of the server. The input is a line "POST /api/v1/runs?team=...", then its body. It goes through the real
 * permission, handler and database, as a token of the operator with all scopes, and everything is rolled back.
 */
#include <unistd.h>

#include "auth/totp.h"
#include "base/json.h"
#include "dispatch.h"
#include "fuzz.h"
#include "http/request.h"
#include "log/log.h"
#include "routes.h"
#include "store/statements.h"

enum { LIMIT_PERCENT = 1000000 };

static const char account[] = "a0000000000000000", team[] = "t0000000000000000", run[] = "r0000000000000000",
                  project[] = "p0000000000000000", token_id[] = "k0000000000000000",
                  token[] = "ms_0000000000000000000000000000000000000000000000000000";

static char database[] = "/tmp/memscale-fuzz-XXXXXX";
static mss_server *server;
static mss_sql *sql;

#define RUN(...) FUZZ_CHECK(mss_sql_run(sql, __VA_ARGS__, NULL, NULL) == MS_OK)

/* One account with a team, a run and a token. */
static void fill(void)
{
    int64_t now = mss_now_ms();
    mss_hash hash = mss_hash_of(token, sizeof token - 1);
    RUN(MSS_ACCOUNT_ADD,
        MSS_WITH(MSS_TEXT(account), MSS_TEXT("a@example.com"), MSS_TEXT("a"), MSS_TEXT(""), MSS_INT(1), MSS_INT(now)));
    RUN(MSS_TEAM_ADD, MSS_WITH(MSS_TEXT(team), MSS_TEXT("team"), MSS_INT(now)));
    RUN(MSS_MEMBER_SET, MSS_WITH(MSS_TEXT(team), MSS_TEXT(account), MSS_INT(MSS_OWNER), MSS_INT(now)));
    RUN(MSS_PROJECT_ADD, MSS_WITH(MSS_TEXT(project), MSS_TEXT(team), MSS_TEXT("default"), MSS_INT(now)));
    RUN(MSS_RUN_ADD, MSS_WITH(MSS_TEXT(run), MSS_TEXT(team), MSS_TEXT(project), MSS_TEXT(account), MSS_TEXT("first"),
                              MSS_HASH(&hash), MSS_TEXT(NULL), MSS_TEXT("M"), MSS_TEXT(NULL), MSS_TEXT(NULL),
                              MSS_TEXT(NULL), MSS_TEXT(NULL), MSS_TEXT(NULL), MSS_U64_OR_NULL(UINT64_MAX),
                              MSS_U64_OR_NULL(UINT64_MAX), MSS_U64_OR_NULL(UINT64_MAX), MSS_INT(now), MSS_INT(1000)));
    RUN(MSS_TOKEN_ADD, MSS_WITH(MSS_TEXT(token_id), MSS_HASH(&hash), MSS_TEXT(team), MSS_TEXT(account),
                                MSS_TEXT("fuzz"), MSS_INT(MSS_SCOPE_ALL), MSS_INT(now)));
}

static void remove_database(void)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    char path[sizeof database + 4];
    mss_server_stop(server);
    mss_sql_close(sql);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", database, endings[i]);
        (void)unlink(path);
    }
}

/* A server that nobody connects to: handlers ask it for settings, limits and viewers. */
static void start(void)
{
    ms__json_writer writer = {0};
    json_decref(ms__json_new(&writer));
    mss_settings settings = {.database = database,
                             .listen_address = "127.0.0.1",
                             .limit_scale_percent = LIMIT_PERCENT,
                             .team_quota_bytes = UINT64_MAX,
                             .dispatch = mss_dispatch};
    settings.routes = mss_routes(&settings.route_count);
    int file = mkstemp(database);
    FUZZ_CHECK(file >= 0);
    close(file);
    FUZZ_CHECK(mss_secret_start(NULL) == MS_OK && mss_totp_start(NULL) == MS_OK);
    FUZZ_CHECK(mss_sql_open(database, MSS_SQL_WRITE, &sql, NULL) == MS_OK && mss_sql_migrate(sql, NULL) == MS_OK);
    fill();
    FUZZ_CHECK(mss_server_start(&settings, &server, NULL) == MS_OK);
    (void)atexit(remove_database);
}

/* False for routes that need a worker process, a password's hash or no database. */
static bool find_route(mss_request *r, const char *method)
{
    const mss_settings *settings = mss_server_settings(server);
    for (size_t i = 0; i < settings->route_count; i++) {
        const mss_route *route = &settings->routes[i];
        bool is_simple = route->prepare == NULL && (route->lane == MSS_LANE_READ || route->lane == MSS_LANE_WRITE);
        if (is_simple && strcmp(mss_method_name(route->method), method) == 0 &&
            mss_path_matches(route->path, r->path, r->parameters)) {
            r->route = route;
            r->method = route->method;
            return true;
        }
    }
    return false;
}

/* What the input names; false if it is no request of ours. `line` is cut into pieces. */
static bool read_head(mss_request *r, char *line)
{
    const char *query;
    char *target = strchr(line, ' ');
    if (target == NULL) {
        return false;
    }
    *target++ = '\0';
    return mss_target_split(target, r->path, &query, NULL) == MS_OK && find_route(r, line) &&
           mss_pairs_read(query, strlen(query), &r->query, NULL) == MS_OK;
}

static void check_answer(const mss_request *r, int status)
{
    const mss_answer *answer = &r->answer;
    FUZZ_CHECK(status >= 200 && status < 500);
    FUZZ_CHECK(answer->text == NULL || strlen(answer->text) == answer->bytes);
    if (mss_request_is_api(r) && status >= 400) {
        json_t *problem = json_loads(answer->text != NULL ? answer->text : "", 0, NULL);
        FUZZ_CHECK(json_integer_value(json_object_get(problem, "status")) == status);
        FUZZ_CHECK(json_is_string(json_object_get(problem, "detail")));
        json_decref(problem);
    }
}

static void run_request(mss_request *r, const char *body, size_t bytes)
{
    if (bytes > r->route->body_most_bytes) {
        return;
    }
    FUZZ_CHECK(bytes == 0 || mss_request_add(r, body, bytes));
    strcpy(r->bearer, token);
    strcpy(r->idempotency_key, "key");
    strcpy(r->address, "127.0.0.1");
    strcpy(r->bucket, "address 127.0.0.1");
    r->sql = sql;
    FUZZ_CHECK(mss_sql_transaction(sql, MSS_BEGIN, NULL) == MS_OK);
    int status = mss_request_parse(r);
    status = status == 0 ? mss_dispatch(r, false) : status;
    check_answer(r, status);
    mss_sql_rollback(sql);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (server == NULL) {
        start();
    }
    mss_request *r = ms_calloc(1, sizeof *r);
    FUZZ_CHECK(r != NULL);
    r->server = server;
    memcpy(r->id, mss_id_new('q').text, MSS_ID_BYTES);
    char *text = fuzz_text(data, size), *end = memchr(text, '\n', size);
    if (end != NULL) {
        *end = '\0';
        if (read_head(r, text)) {
            run_request(r, end + 1, size - (size_t)(end + 1 - text));
        }
    }
    free(text);
    mss_request_wipe(r);
    ms_free(r);
    return 0;
}
