#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/connections.h"
#include "http/head.h"
#include "http/lanes.h"
#include "http/live.h"
#include "http/request.h"
#include "http/shared.h"
#include "log/log.h"

/* Memory of a connection: its head has to fit into it. 10,000 idle ones take some 160 MB of it at most. */
enum { NETWORK_THREADS = 2, CONNECTIONS_MOST = 12000, CONNECTION_BYTES = 16384, BACKLOG = 1024 };

struct mss_server {
    mss_settings settings;
    char url[280];
    uint16_t port;
    struct MHD_Daemon *daemon;
    mss_connections *connections;
    mss_lanes *lanes;
    mss_live *live;
    mss_limits *limits;
    mss_shared *shared; /* NULL: no other server uses the database */
    _Atomic uint64_t statuses[6], busy_ns;
};

const char *mss_method_name(mss_method method)
{
    static const char *const names[] = {"GET", "POST", "PUT", "DELETE"};
    return names[method];
}

/* ---- what others ask ------------------------------------------------------------- */

const mss_settings *mss_server_settings(const mss_server *server)
{
    return &server->settings;
}

bool mss_server_is_https(const mss_server *server)
{
    return strncmp(server->url, "https:", 6) == 0;
}

const char *mss_server_url(const mss_server *server)
{
    return server->url;
}

void mss_server_touch(mss_server *server, const mss_id *token)
{
    mss_lanes_touch(server->lanes, token);
}

void mss_server_tell(mss_server *server, const mss_id *run, const char *data)
{
    mss_live_tell(server->live, run, data);
}

bool mss_server_is_watched(mss_server *server)
{
    return server->shared != NULL || mss_live_count(server->live) > 0; /* another server's viewers aren't known here */
}

static int answer_wait(mss_request *r, uint32_t wait_s)
{
    r->answer.retry_after_s = wait_s;
    return wait_s == 0 ? 0 : mss_answer_problem(r, 429, "Too many requests; try again in %u seconds.", wait_s);
}

/* Only lanes have `sql`: the threads that read the network wait for no database. */
static int take_shared(mss_request *r, mss_limit limit, const char *who)
{
    ms_error err;
    uint32_t wait_s = 0;
    int rc = r->server->shared != NULL && r->sql != NULL ? mss_shared_take(r->server->shared, limit, who, &wait_s, &err)
                                                         : MS_OK;
    return rc == MS_OK ? answer_wait(r, wait_s) : mss_answer_failure(r, &err);
}

int mss_request_limit(mss_request *r, mss_limit limit, const char *who)
{
    uint32_t wait_s = mss_limits_take(r->server->limits, limit, who, ms_now_ns());
    return wait_s > 0 ? answer_wait(r, wait_s) : take_shared(r, limit, who);
}

int mss_request_limit_address(mss_request *r)
{
    return take_shared(r, r->route->limit, r->bucket);
}

void mss_server_count(mss_server *server, mss_server_numbers *numbers)
{
    *numbers = (mss_server_numbers){.viewers = mss_live_count(server->live), .busy_ns = atomic_load(&server->busy_ns)};
    for (int i = 0; i < 6; i++) {
        numbers->requests[i] = atomic_load(&server->statuses[i]);
    }
    mss_lanes_count(server->lanes, numbers);
}

/* ---- requests ------------------------------------------------------------------ */

/* `target` is the raw one; its request lives as long as MHD's context of it. */
typedef struct context {
    mss_request request;
    mss_connection *line; /* what it came over; NULL if memory was out */
    bool has_head;
    char target[];
} context;

/* ---- connections ---------------------------------------------------------------- */

static enum MHD_Result may_connect(void *argument, const struct sockaddr *from, socklen_t size)
{
    mss_server *server = argument;
    (void)size;
    return mss_connections_have_room(server->connections, from) ? MHD_YES : MHD_NO;
}

static void note_connection(void *argument, struct MHD_Connection *connection, void **slot,
                            enum MHD_ConnectionNotificationCode what)
{
    mss_server *server = argument;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        mss_connection_close(*slot);
        *slot = NULL;
        return;
    }
    const union MHD_ConnectionInfo *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const union MHD_ConnectionInfo *file = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    *slot = from != NULL && file != NULL ? mss_connection_open(server->connections, from->client_addr, file->connect_fd)
                                         : NULL;
}

static mss_connection *line_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* MHD calls this first, with the target as it came over the wire: its own decoding is not used. */
static void *begin_request(void *argument, const char *target, struct MHD_Connection *connection)
{
    size_t bytes = strlen(target) + 1;
    context *c = ms_calloc(1, sizeof *c + bytes);
    if (c != NULL) {
        memcpy(c->target, target, bytes);
        c->request.server = argument;
        c->request.connection = connection;
        c->request.begun_ns = ms_now_ns();
        mss_id id = mss_id_new('q');
        memcpy(c->request.id, id.text, MSS_ID_BYTES);
        mss_head_peer(&c->request, connection);
        c->line = line_of(connection);
        mss_connection_begin(c->line, &id);
    }
    return c;
}

/* Of a request that MHD itself has refused, or that never came to an answer. */
static int status_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *told = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_HTTP_STATUS);
    return told != NULL && told->http_status != 0 ? (int)told->http_status : 408;
}

static void end_request(void *argument, struct MHD_Connection *connection, void **slot,
                        enum MHD_RequestTerminationCode how)
{
    context *c = *slot;
    mss_server *server = argument;
    if (c == NULL) {
        return;
    }
    mss_request *r = &c->request;
    mss_connection_end(c->line, how != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    uint64_t duration_ns = ms_now_ns() - r->begun_ns;
    int status = r->answer.status != 0 ? r->answer.status : status_of(connection);
    bool hides_sender = r->route != NULL && r->route->limit == MSS_LIMIT_TELEMETRY;
    atomic_fetch_add(&server->statuses[status / 100 % 6], 1);
    atomic_fetch_add(&server->busy_ns, duration_ns);
    mss_log_request_done(&(mss_log_request){.id = r->id,
                                            .method = mss_method_name(r->method),
                                            .route = r->route != NULL ? r->route->path : "",
                                            .address = hides_sender ? NULL : r->address,
                                            .account = hides_sender ? NULL : r->who.account.text,
                                            .status = status,
                                            .duration_ns = duration_ns,
                                            .sent_bytes = r->answer.bytes,
                                            .reason = r->reason});
    mss_request_wipe(r);
    ms_free(c);
    *slot = NULL;
}

/* ---- answers -------------------------------------------------------------------- */

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    if (value != NULL && value[0] != '\0') {
        (void)MHD_add_response_header(response, name, value);
    }
}

/* Nothing but our own scripts, styles and pictures; nobody frames us. What others wrote runs nothing, and has an origin of
 * its own. */
static void add_security_headers(const mss_server *server, bool is_download, struct MHD_Response *response)
{
    add_header(
        response, "Content-Security-Policy",
        is_download
            ? "sandbox; default-src 'none'; frame-ancestors 'none'"
            : "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
              "form-action 'self'; frame-ancestors 'none'; base-uri 'none'");
    add_header(response, "X-Content-Type-Options", "nosniff");
    add_header(response, "Referrer-Policy", "same-origin");
    add_header(response, "Cross-Origin-Opener-Policy", "same-origin");
    add_header(response, "Cross-Origin-Resource-Policy", "same-origin");
    add_header(response, "Permissions-Policy", "camera=(), geolocation=(), microphone=()");
    if (mss_server_is_https(server)) {
        add_header(response, "Strict-Transport-Security", "max-age=31536000");
    }
}

static struct MHD_Response *make_response(mss_request *request)
{
    mss_answer *answer = &request->answer;
    if (mss_id_is(&answer->watch)) {
        answer->type = "text/event-stream";
        return mss_live_watch(request->server->live, &answer->watch, request->connection);
    }
    if (answer->text == NULL) {
        return MHD_create_response_from_buffer(
            answer->bytes, (void *)(uintptr_t)(answer->fixed != NULL ? answer->fixed : ""), MHD_RESPMEM_PERSISTENT);
    }
    /* Copied, because jansson's and our allocations go through ms_free() and MHD would call free(). */
    return MHD_create_response_from_buffer(answer->bytes, answer->text, MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result send_answer(mss_request *request)
{
    mss_answer *answer = &request->answer;
    mss_connection *line = line_of(request->connection);
    struct MHD_Response *response = mss_connection_has_all(line) ? make_response(request) : NULL;
    if (response == NULL) {
        return MHD_NO;
    }
    char wait[16] = "";
    snprintf(wait, sizeof wait, "%u", answer->retry_after_s);
    add_security_headers(request->server, answer->is_download, response);
    add_header(response, "Content-Type", answer->type);
    add_header(response, "Location", answer->location);
    add_header(response, "Allow", answer->allow);
    add_header(response, "Set-Cookie", answer->cookie);
    add_header(response, "Retry-After", answer->retry_after_s > 0 ? wait : NULL);
    add_header(response, "Content-Disposition", answer->is_download ? "attachment" : NULL);
    add_header(response, "Cache-Control", answer->may_be_cached ? "public, max-age=3600" : "no-store");
    add_header(response, "Connection", mss_connection_is_last(line) ? "close" : NULL);
    add_header(response, "WWW-Authenticate", answer->status == 401 && mss_request_is_api(request) ? "Bearer" : NULL);
    enum MHD_Result result = MHD_queue_response(request->connection, (unsigned)answer->status, response);
    MHD_destroy_response(response);
    return result;
}

static void answered(mss_request *request)
{
    bool is_told_by_database = request->server->shared != NULL;
    if (request->answer.event != NULL && request->answer.status < 400 && !is_told_by_database) {
        mss_live_tell(request->server->live, &request->answer.told, request->answer.event);
    }
    request->state = MSS_ANSWERED;
    MHD_resume_connection(request->connection);
}

/* ---- work ---------------------------------------------------------------------- */

/* The whole request is there. */
static enum MHD_Result begin_work(mss_request *request)
{
    int status = mss_request_parse(request);
    if (status == 0 && request->route->lane == MSS_LANE_INLINE) {
        status = request->server->settings.dispatch(request, false);
    }
    if (status != 0) {
        request->answer.status = status;
        return send_answer(request);
    }
    request->state = MSS_RUNNING;
    /* First: the lane may be done before this thread goes on. */
    MHD_suspend_connection(request->connection);
    if (!mss_lanes_submit(request->server->lanes, request)) {
        request->answer.retry_after_s = 1;
        request->answer.status = mss_answer_problem(request, 503, "The server is busy.");
        answered(request);
    }
    return MHD_YES;
}

static enum MHD_Result handle(void *argument, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *data, size_t *bytes, void **slot)
{
    context *c = *slot;
    (void)argument;
    (void)url;
    (void)version;
    if (c == NULL) {
        return MHD_NO; /* memory was out */
    }
    mss_request *request = &c->request;
    if (!c->has_head) {
        c->has_head = true;
        if (!mss_connection_has_head(c->line)) {
            return MHD_NO;
        }
        int status = mss_head_read(request, connection, method, c->target);
        if (status != 0) {
            request->answer.status = status;
            return send_answer(request);
        }
        return MHD_YES;
    }
    if (request->state == MSS_ANSWERED) {
        return send_answer(request);
    }
    if (*bytes > 0) {
        bool is_taken = request->answer.status == 0 && mss_request_add(request, data, *bytes);
        *bytes = 0;
        return is_taken ? MHD_YES : MHD_NO;
    }
    return mss_connection_has_all(c->line) ? begin_work(request) : MHD_NO;
}

/* ---- start and stop ---------------------------------------------------------------- */

static void log_daemon(void *argument, const char *fmt, va_list arguments) MS_PRINTF(2, 0);
static void log_daemon(void *argument, const char *fmt, va_list arguments)
{
    char text[512];
    (void)argument;
    vsnprintf(text, sizeof text, fmt, arguments);
    mss_log_event(MS_LOG_DEBUG, "http: %s", text);
}

static int make_socket_address(const mss_settings *settings, struct sockaddr_storage *to, socklen_t *size,
                               ms_error *err)
{
    struct sockaddr_in *four = (void *)to;
    struct sockaddr_in6 *six = (void *)to;
    memset(to, 0, sizeof *to);
    if (inet_pton(AF_INET, settings->listen_address, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(settings->port);
        *size = sizeof *four;
        return MS_OK;
    }
    if (inet_pton(AF_INET6, settings->listen_address, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(settings->port);
        *size = sizeof *six;
        return MS_OK;
    }
    return ms_fail(err, MS_ECONFIG, "--listen %s: give a numeric address", settings->listen_address);
}

static void name_url(mss_server *server)
{
    const mss_settings *s = &server->settings;
    bool is_six = strchr(s->listen_address, ':') != NULL;
    if (s->public_url != NULL) {
        snprintf(server->url, sizeof server->url, "%s", s->public_url);
    } else {
        snprintf(server->url, sizeof server->url, "http://%s%s%s:%u", is_six ? "[" : "", s->listen_address,
                 is_six ? "]" : "", server->port);
    }
}

/* A socket that listens, and the port that it has: known before any thread asks for the URL. */
static int open_socket(mss_server *server, int *out, ms_error *err)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    int rc = make_socket_address(&server->settings, &address, &size, err), yes = 1;
    if (rc != MS_OK) {
        return rc;
    }
    int listening = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listening < 0 || setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(listening, (struct sockaddr *)(void *)&address, size) != 0 || listen(listening, BACKLOG) != 0 ||
        getsockname(listening, (struct sockaddr *)(void *)&address, &size) != 0) {
        rc = ms_fail_errno(err, MS_ESYSTEM, errno, "can't listen on %s port %u", server->settings.listen_address,
                           server->settings.port);
        if (listening >= 0) {
            close(listening);
        }
        return rc;
    }
    bool is_four = address.ss_family == AF_INET;
    server->port = ntohs(is_four ? ((struct sockaddr_in *)(void *)&address)->sin_port
                                 : ((struct sockaddr_in6 *)(void *)&address)->sin6_port);
    *out = listening;
    return MS_OK;
}

static int listen_on(mss_server *server, ms_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    int listening = -1;
    int rc = open_socket(server, &listening, err);
    if (rc != MS_OK) {
        return rc;
    }
    name_url(server);
    server->daemon =
        MHD_start_daemon(flags, server->port, may_connect, server, handle, server, MHD_OPTION_EXTERNAL_LOGGER,
                         log_daemon, NULL, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)listening, MHD_OPTION_THREAD_POOL_SIZE,
                         (unsigned)NETWORK_THREADS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MOST,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)MSS_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_SIGPIPE_HANDLED_BY_APP,
                         1, MHD_OPTION_URI_LOG_CALLBACK, begin_request, server, MHD_OPTION_NOTIFY_COMPLETED,
                         end_request, server, MHD_OPTION_NOTIFY_CONNECTION, note_connection, server, MHD_OPTION_END);
    if (server->daemon == NULL) { /* which has closed the socket */
        return ms_fail(err, MS_ESYSTEM, "the HTTP server could not be started");
    }
    return MS_OK;
}

int mss_server_start(const mss_settings *settings, mss_server **out, ms_error *err)
{
    mss_server *server = ms_calloc(1, sizeof *server);
    if (server == NULL) {
        return ms_fail(err, MS_ENOMEM, "server: out of memory");
    }
    server->settings = *settings;
    int rc = mss_limits_new(settings->limit_scale_percent, &server->limits, err);
    if (rc == MS_OK) {
        rc = mss_connections_open(&server->settings, &server->connections, err);
    }
    if (rc == MS_OK) {
        rc = mss_live_open(&server->live, err);
    }
    if (rc == MS_OK && mss_sql_is_shared_place(settings->database)) {
        rc = mss_shared_open(server->settings.database, server->live, server->limits, &server->shared, err);
    }
    if (rc == MS_OK) {
        rc = mss_lanes_open(&server->settings, answered, &server->lanes, err);
    }
    if (rc == MS_OK) {
        rc = listen_on(server, err);
    }
    if (rc != MS_OK) {
        mss_server_stop(server);
        return rc;
    }
    *out = server;
    return MS_OK;
}

void mss_server_stop(mss_server *server)
{
    if (server == NULL) {
        return;
    }
    if (server->live != NULL) {
        mss_live_end(server->live);
    }
    if (server->lanes != NULL) {
        mss_lanes_end(server->lanes);
    }
    if (server->daemon != NULL) {
        MHD_stop_daemon(server->daemon);
    }
    mss_connections_close(server->connections);
    mss_lanes_close(server->lanes);
    mss_shared_close(server->shared);
    mss_live_close(server->live);
    mss_limits_free(server->limits);
    ms_free(server);
}
