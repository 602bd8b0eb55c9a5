#include "http/head.h"

#include <microhttpd.h>
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

static mss_address peer_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info != NULL && info->client_addr != NULL ? mss_address_of(info->client_addr) : (mss_address){{0}};
}

void mss_head_peer(mss_request *request, struct MHD_Connection *connection)
{
    mss_address peer = peer_of(connection);
    mss_address_write(&peer, request->address);
}

/* A header that is there twice is believed by nobody. */
static mss_address find_address(mss_request *request, struct MHD_Connection *connection)
{
    const mss_settings *settings = mss_server_settings(request->server);
    mss_address client = peer_of(connection), told;
    const char *forwarded = header(connection, "X-Forwarded-For"), *cloudflare = header(connection, "CF-Connecting-IP");
    if (forwarded != NULL) {
        client = mss_forwarded_client(&settings->proxies, &client, forwarded);
    }
    if (cloudflare != NULL && mss_networks_hold(&settings->cloudflare, &client) &&
        mss_address_read(cloudflare, strlen(cloudflare), &told)) {
        client = told;
    }
    mss_address_write(&client, request->address);
    return client;
}

static void name_bucket(const mss_address *client, char *key, size_t room)
{
    char text[MSS_ADDRESS_BYTES];
    mss_address bucket = mss_address_bucket(client);
    mss_address_write(&bucket, text);
    snprintf(key, room, "address %s", text);
}

/* ---- host and origin --------------------------------------------------------------- */

static bool is_our_host(const mss_request *request, const char *host)
{
    const mss_settings *settings = mss_server_settings(request->server);
    return mss_host_is_ours(host, settings->public_url, settings->listen_address);
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
    mss_address client = find_address(request, connection);
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
    name_bucket(&client, request->bucket, sizeof request->bucket);
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
