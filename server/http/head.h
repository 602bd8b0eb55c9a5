/*
 * head.h - reads and checks a request's head before its body is read. Used by server.c only.
 */
#ifndef MSS_HTTP_HEAD_H
#define MSS_HTTP_HEAD_H

#include "http/http.h"

struct MHD_Connection;

/* Fills the request from the head: route, headers, address, cross-site or not. Returns 0, or the status of a
 * refusal that it has answered: wrong host, path, method or media type, a length that is missing or too
 * large, too many requests of the address. */
int mss_head_read(mss_request *request, struct MHD_Connection *connection, const char *method, const char *target);

/* Until the head is read, the address is the connection's other end. */
void mss_head_peer(mss_request *request, struct MHD_Connection *connection);

/* "__Host-ms_session" over https, because browsers bind such a cookie to the host; else "ms_session". */
const char *mss_session_cookie_name(const mss_server *server);

#endif
