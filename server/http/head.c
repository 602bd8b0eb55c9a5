#include "http/head.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *mss_session_cookie_name(const mss_server *server)
{
    return mss_server_is_https(server) ? "__Host-ms_session" : "ms_session";
}

/* ---- headers -------------------------------------------------------------------- */

typedef struct one_header {
    const char *name, *value;
    size_t count;
} one_header;

static enum MHD_Result see_header(void *argument, enum MHD_ValueKind kind, const char *name, const char *value)
{
    one_header *wanted = argument;
    (void)kind;
    if (strcasecmp(name, wanted->name) == 0) {
        wanted->count++;
        wanted->value = value != NULL ? value : "";
    }
    return MHD_YES;
}

/* "" if it is missing; NULL if it is there twice, which nobody does in good faith. */
static const char *header(struct MHD_Connection *connection, const char *name)
{
    one_header wanted = {name, "", 0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, see_header, &wanted);
    return wanted.count > 1 ? NULL : wanted.value;
}

static bool copy_header(struct MHD_Connection *connection, const char *name, char *to, size_t room)
{
    const char *value = header(connection, name);
    if (value == NULL || strlen(value) >= room) {
        return false;
    }
    strcpy(to, value);
    return true;
}

/* ---- who is at the other end ------------------------------------------------------- */

static void write_address(struct MHD_Connection *connection, char *to, size_t room)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    to[0] = '\0';
    if (info == NULL || info->client_addr == NULL) {
        return;
    }
    if (info->client_addr->sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)info->client_addr)->sin6_addr, to,
                  (socklen_t)room);
    } else {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)info->client_addr)->sin_addr, to,
                  (socklen_t)room);
    }
}

/* Whether a text is an address; then it is written in its usual form. */
static bool read_address(const char *text, char *to, size_t room)
{
    struct in6_addr six;
    struct in_addr four;
    if (inet_pton(AF_INET, text, &four) == 1) {
        return inet_ntop(AF_INET, &four, to, (socklen_t)room) != NULL;
    }
    return inet_pton(AF_INET6, text, &six) == 1 && inet_ntop(AF_INET6, &six, to, (socklen_t)room) != NULL;
}

/* The last address of X-Forwarded-For is the one that the proxy itself saw: what a client puts before it
 * proves nothing. */
static void find_address(mss_request *request, struct MHD_Connection *connection)
{
    const char *proxy = mss_server_settings(request->server)->trusted_proxy;
    write_address(connection, request->address, sizeof request->address);
    const char *forwarded = header(connection, "X-Forwarded-For");
    if (proxy == NULL || strcmp(proxy, request->address) != 0 || forwarded == NULL) {
        return;
    }
    const char *last = strrchr(forwarded, ',');
    last = last != NULL ? last + 1 : forwarded;
    (void)read_address(last + strspn(last, " "), request->address, sizeof request->address);
}

/* An IPv6 customer has 2^64 addresses: they share a bucket. */
static void bucket_of_address(const mss_request *request, char *key, size_t room)
{
    struct in6_addr six;
    if (inet_pton(AF_INET6, request->address, &six) == 1) {
        memset(six.s6_addr + 8, 0, 8);
        char prefix[INET6_ADDRSTRLEN];
        inet_ntop(AF_INET6, &six, prefix, sizeof prefix);
        snprintf(key, room, "address %s", prefix);
    } else {
        snprintf(key, room, "address %s", request->address);
    }
}

/* ---- host and origin --------------------------------------------------------------- */

static bool is_loopback_name(const char *host, size_t length)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == length && strncasecmp(names[i], host, length) == 0) {
            return true;
        }
    }
    return false;
}

/* A page of another site that had its name point at us (DNS rebinding) asks for its own host. */
static bool is_our_host(const mss_request *request, const char *host)
{
    const mss_settings *settings = mss_server_settings(request->server);
    if (settings->public_url != NULL) {
        return strcasecmp(host, strstr(settings->public_url, "://") + 3) == 0;
    }
    const char *port = strrchr(host, ':');
    size_t length = port != NULL && strchr(port, ']') == NULL ? (size_t)(port - host) : strlen(host);
    bool is_address =
        strlen(settings->listen_address) == length && strncmp(settings->listen_address, host, length) == 0;
    return is_address || is_loopback_name(host, length);
}

static bool is_cross_site(const mss_request *request, struct MHD_Connection *connection, const char *host)
{
    const char *site = header(connection, "Sec-Fetch-Site"), *origin = header(connection, "Origin");
    if (site == NULL || origin == NULL) {
        return true;
    }
    if (site[0] != '\0') {
        return strcmp(site, "same-origin") != 0 && strcmp(site, "none") != 0;
    }
    char own[300];
    snprintf(own, sizeof own, "%s://%s", mss_server_is_https(request->server) ? "https" : "http", host);
    return origin[0] != '\0' && strcasecmp(origin, own) != 0;
}

/* ---- route ------------------------------------------------------------------- */

static int find_method(const char *text, mss_method *method)
{
    for (int i = 0; i < MSS_METHOD_COUNT; i++) {
        if (strcmp(text, mss_method_name((mss_method)i)) == 0) {
            *method = (mss_method)i;
            return 0;
        }
    }
    *method = MSS_GET;
    return strcmp(text, "HEAD") == 0 ? 0 : 405;
}

static void allow(mss_answer *answer, mss_method method)
{
    size_t length = strlen(answer->allow);
    snprintf(answer->allow + length, sizeof answer->allow - length, "%s%s%s", length > 0 ? ", " : "",
             mss_method_name(method), method == MSS_GET ? ", HEAD" : "");
}

static int find_route(mss_request *request, bool is_known_method)
{
    const mss_settings *settings = mss_server_settings(request->server);
    bool has_path = false;
    for (size_t i = 0; i < settings->route_count; i++) {
        const mss_route *route = &settings->routes[i];
        if (!mss_path_matches(route->path, request->path, request->parameters)) {
            continue;
        }
        has_path = true;
        if (is_known_method && route->method == request->method) {
            request->route = route;
            request->answer.allow[0] = '\0';
            return 0;
        }
        allow(&request->answer, route->method);
    }
    return has_path ? mss_answer_problem(request, 405, "This address does not take this method.")
                    : mss_answer_problem(request, 404, "There is nothing at this address.");
}

/* ---- body ------------------------------------------------------------------- */

static bool is_media_type(const char *value, const char *type)
{
    size_t length = strlen(type);
    return value != NULL && strncasecmp(value, type, length) == 0 &&
           (value[length] == '\0' || strchr("; ", value[length]) != NULL);
}

static int check_body(mss_request *request, struct MHD_Connection *connection)
{
    const mss_route *route = request->route;
    const char *length = header(connection, "Content-Length"), *coding = header(connection, "Transfer-Encoding");
    if (length == NULL || coding == NULL || coding[0] != '\0') {
        return mss_answer_problem(request, 411, "Send the body in one piece, with its Content-Length.");
    }
    if (strspn(length, "0123456789") != strlen(length) || strlen(length) > 18) {
        return mss_answer_problem(request, 400, "Content-Length is no number.");
    }
    if (strtoull(length[0] != '\0' ? length : "0", NULL, 10) >
        (route->body == MSS_BODY_NONE ? 0 : route->body_most_bytes)) {
        return mss_answer_problem(request, 413, "The body may have at most %u bytes.", route->body_most_bytes);
    }
    if (route->body == MSS_BODY_NONE) {
        return 0;
    }
    const char *type = header(connection, "Content-Type");
    static const char *const wanted_types[] = {"", "application/json", "application/x-www-form-urlencoded",
                                               "text/html"};
    const char *wanted = wanted_types[route->body];
    return is_media_type(type, wanted) ? 0 : mss_answer_problem(request, 415, "Send %s.", wanted);
}

/* ---- all of it ------------------------------------------------------------------ */

static int read_headers(mss_request *request, struct MHD_Connection *connection)
{
    static const char bearer[] = "Bearer ";
    char authorization[128];
    const char *cookies = header(connection, "Cookie"), *host = header(connection, "Host");
    if (host == NULL || host[0] == '\0' || strlen(host) > 255 || !is_our_host(request, host)) {
        return mss_answer_problem(request, 421, "This server has another name.");
    }
    if (cookies == NULL || !copy_header(connection, "Authorization", authorization, sizeof authorization) ||
        !copy_header(connection, "Idempotency-Key", request->idempotency_key, sizeof request->idempotency_key) ||
        !copy_header(connection, "X-CSRF-Token", request->csrf, sizeof request->csrf)) {
        return mss_answer_problem(request, 400, "A header is too long or there twice.");
    }
    if (strncasecmp(authorization, bearer, sizeof bearer - 1) == 0 &&
        strlen(authorization) - (sizeof bearer - 1) < sizeof request->bearer) {
        strcpy(request->bearer, authorization + sizeof bearer - 1);
    } else if (authorization[0] != '\0') {
        strcpy(request->bearer, "?"); /* known to nobody */
    }
    mss_secret_wipe(authorization, sizeof authorization);
    (void)mss_cookie_get(cookies, mss_session_cookie_name(request->server), request->session, sizeof request->session);
    request->is_cross_site = is_cross_site(request, connection, host);
    return 0;
}

int mss_head_read(mss_request *request, struct MHD_Connection *connection, const char *method, const char *target)
{
    ms_error err;
    const char *query = "";
    bool is_known_method = find_method(method, &request->method) == 0;
    find_address(request, connection);
    int rc = mss_target_split(target, request->path, &query, &err);
    if (rc != MS_OK) {
        request->path[0] = '\0';
        return mss_answer_problem(request, 404, "There is nothing at this address.");
    }
    int status = find_route(request, is_known_method);
    if (status == 0) {
        status = read_headers(request, connection);
    }
    if (status != 0) {
        return status;
    }
    bucket_of_address(request, request->bucket, sizeof request->bucket);
    status = mss_request_limit(request, request->route->limit, request->bucket);
    if (status != 0) {
        return status;
    }
    rc = mss_pairs_read(query, strlen(query), &request->query, &err);
    if (rc == MS_EFORMAT) {
        return mss_answer_problem(request, 400, "The query is malformed.");
    }
    return rc == MS_OK ? check_body(request, connection) : mss_answer_failure(request, &err);
}
