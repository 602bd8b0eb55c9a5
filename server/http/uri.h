/*
 * uri.h - reads paths, query strings, forms and cookies strictly: anything malformed is refused. And writes values of
 * addresses. Pure functions; fuzzed by tests/fuzz/fuzz_request.c.
 */
#ifndef MSS_HTTP_URI_H
#define MSS_HTTP_URI_H

#include "memscale/base.h"

enum { MSS_PAIRS_MOST = 32, MSS_PATH_BYTES = 256, MSS_PARAMETERS_MOST = 2, MSS_PARAMETER_BYTES = 64 };

/* Names and values of a query or a form, decoded: UTF-8 without NUL. */
typedef struct mss_pairs {
    char *text; /* owns the bytes */
    size_t count;
    const char *names[MSS_PAIRS_MOST], *values[MSS_PAIRS_MOST];
} mss_pairs;

/* Reads "a=1&b=two+words". MS_EFORMAT for a bad escape, a control character other than a line feed, bytes that
 * are not UTF-8, a repeated name, or more than MSS_PAIRS_MOST pairs; MS_ENOMEM. Free the pairs with
 * mss_pairs_free(), which also accepts a zeroed struct. */
MS_NODISCARD int mss_pairs_read(const char *text, size_t length, mss_pairs *pairs, ms_error *err);
void mss_pairs_free(mss_pairs *pairs);

/* The value of `name`, or NULL if it is missing. */
const char *mss_pairs_get(const mss_pairs *pairs, const char *name);

/* Writes a byte of an address's value: itself if it may stand there, else "%" and hexadecimal. */
enum { MSS_URI_BYTE_BYTES = 4 };
void mss_uri_write_byte(unsigned char byte, char coded[MSS_URI_BYTE_BYTES]);

/* Splits a request's target: `path` gets the part before "?", `*query` points behind the "?" (or at the end).
 * MS_EFORMAT if the path is too long, has other characters than A-Z a-z 0-9 / . _ ~ -, or has "//" or a segment
 * of dots. */
MS_NODISCARD int mss_target_split(const char *target, char path[MSS_PATH_BYTES], const char **query, ms_error *err);

/* Whether `path` matches the pattern. "{name}" in the pattern matches one segment, which is copied to the next
 * of `parameters`. */
bool mss_path_matches(const char *pattern, const char *path, char parameters[][MSS_PARAMETER_BYTES]);

/* Whether a Host header names this server: the host of `public_url`, or with NULL `listen_address` or a name of loopback,
 * with any port. A page of another site that had its name point at us (DNS rebinding) asks for its own host. */
bool mss_host_is_ours(const char *host, const char *public_url, const char *listen_address);

/* Copies the value of cookie `name` from a Cookie header; false if it is missing, empty or too long. */
bool mss_cookie_get(const char *header, const char *name, char *value, size_t room);

#endif
