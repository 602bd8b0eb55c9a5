/*
 * connections.h - the connections that are open: how many one address may have, how long it may take to send a request,
 * and one line of the log for what never became one. Owned by server.c, which calls it from libmicrohttpd's threads;
 * everything here is thread-safe.
 *
 * libmicrohttpd ends a connection that is silent for a while, and any byte begins that time anew. Here a thread looks once
 * a second for heads and bodies that are late as a whole. It answers 408 with a problem document itself, because
 * libmicrohttpd takes no answer before a request is complete, and shuts the connection, which ends it there.
 *
 * Tests: tests/server/test_slow.py.
 */
#ifndef MSS_HTTP_CONNECTIONS_H
#define MSS_HTTP_CONNECTIONS_H

#include "http/http.h"

struct sockaddr;

enum {
    MSS_HEAD_S = 20,          /* for the head of a connection's first request */
    MSS_BODY_S = 30,          /* for a body, from the end of its head */
    MSS_IDLE_S = 30,          /* for the whole next head, from the end of an answer */
    MSS_REQUESTS_MOST = 1000, /* of a connection; the last one's answer closes it */
    MSS_CONNECTIONS_OF_ONE = 256,
};

typedef struct mss_connections mss_connections;
typedef struct mss_connection mss_connection; /* one of them */

/* The settings' proxies and Cloudflare may have any number of connections; the settings live as long. MS_ENOMEM,
 * MS_ESYSTEM. */
MS_NODISCARD int mss_connections_open(const mss_settings *settings, mss_connections **connections, ms_error *err);
/* After the last mss_connection_close(). Accepts NULL. */
void mss_connections_close(mss_connections *connections);

/* Whether this address may have one more; if not, the log says so, at most once a minute. */
bool mss_connections_have_room(mss_connections *connections, const struct sockaddr *from);

/* `socket` is accepted. NULL if memory is out; the others accept that. */
mss_connection *mss_connection_open(mss_connections *connections, const struct sockaddr *from, int socket);
/* Before the socket is closed. Logs what came and never began a request. */
void mss_connection_close(mss_connection *connection);

/* A request's first line is there; `request` is its number in the log and in a problem document. */
void mss_connection_begin(mss_connection *connection, const mss_id *request);
/* Its head is complete: the body's time begins. False: it was late and has its answer; end the connection. */
bool mss_connection_has_head(mss_connection *connection);
/* It is there as a whole. False as above. */
bool mss_connection_has_all(mss_connection *connection);
/* Whether its answer is the connection's last. */
bool mss_connection_is_last(mss_connection *connection);
/* It was answered, or given up, and the log has its line. `is_last`: nothing that comes now is a request. */
void mss_connection_end(mss_connection *connection, bool is_last);

#endif
