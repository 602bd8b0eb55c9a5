/*
 * request.h - a request's body, from its bytes to what handlers read. Used by server.c, on the thread that reads the
 * connection.
 *
 * Tests: tests/server/test_http.py; fuzzed with the handlers by tests/fuzz/fuzz_handlers.c.
 */
#ifndef MSS_HTTP_REQUEST_H
#define MSS_HTTP_REQUEST_H

#include "http/http.h"

/* Adds what has come. False if it is more than the route takes, or memory is out. */
bool mss_request_add(mss_request *request, const char *data, size_t bytes);

/* Reads the whole body as the route's JSON or form. Returns 0, or the status of a refusal that it has answered. */
int mss_request_parse(mss_request *request);

/* Frees what the request owns and wipes all of it. */
void mss_request_wipe(mss_request *request);

#endif
