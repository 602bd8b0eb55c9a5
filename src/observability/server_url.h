/*
 * server_url.h - the address of a memscale-server, and which addresses a token may be sent to. Used by the
 * extension.
 *
 * The grammar is narrower than RFC 3986: http or https, a name or a number, perhaps a port and a path. An
 * address with a user, a password, a query or a fragment is refused, because secrets in addresses end up in logs.
 * Tests: tests/c/observability/test_server_url.c, tests/fuzz/fuzz_server_url.c.
 */
#ifndef MS_OBSERVABILITY_SERVER_URL_H
#define MS_OBSERVABILITY_SERVER_URL_H

#include "memscale/base.h"

enum { MS__URL_HOST_BYTES = 256, MS__URL_PATH_BYTES = 512, MS__TOKEN_MOST_BYTES = 256 };

typedef struct ms__server_url {
    bool is_https;
    char host[MS__URL_HOST_BYTES]; /* in lower case; an IPv6 address without its brackets */
    uint16_t port;                 /* 80 or 443 if none is named */
    char path[MS__URL_PATH_BYTES]; /* what the server's paths follow: "" or "/some/place", no "/" at the end */
} ms__server_url;

/* Reads an address. Plain http is allowed to this machine (localhost, 127.0.0.0/8, ::1), and anywhere with
 * `allow_http`. MS_ECONFIG; the error never repeats the address, which may hold a password. */
MS_NODISCARD int ms__server_url_read(const char *text, bool allow_http, ms__server_url *url, ms_error *err);

/* MS_ECONFIG for a token that can't be sent in a header: empty, too long, or with other bytes than letters, digits,
 * "-" and "_". The error never repeats it. */
MS_NODISCARD int ms__token_check(const char *token, ms_error *err);

#endif
