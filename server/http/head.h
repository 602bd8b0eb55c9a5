/*
 * head.h - everything that is decided from a request's head, before a byte of its body is read. Used by
 * server.c only.
 */
#ifndef MSS_HTTP_HEAD_H
#define MSS_HTTP_HEAD_H

#include "http/http.h"

struct MHD_Connection;

/* Fills the request from the head of its connection: route, headers, address, cross-site or not. 0, or the
 * status of a refusal that has been answered: wrong host, path, method or media type, a length that is
 * missing or too large, an empty bucket of the address. */
int mss_head_read(mss_request *request, struct MHD_Connection *connection, const char *method, const char *target);

/* "__Host-ms_session" over https, which browsers then tie to this host; "ms_session" else. */
const char *mss_session_cookie_name(const mss_server *server);

#endif
