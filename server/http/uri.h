/*
 * uri.h - paths, query strings, forms and cookies, read strictly: what is not plainly well formed is
 * refused. Pure functions; fuzzed by tests/fuzz/fuzz_request.c.
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

/* Reads "a=1&b=two+words". MS_EFORMAT for a bad escape, a control character but line feeds, bytes that are
 * no UTF-8, more than MSS_PAIRS_MOST pairs; MS_ENOMEM. Free with mss_pairs_free(), which takes zeros. */
MS_NODISCARD int mss_pairs_read(const char *text, size_t length, mss_pairs *pairs, ms_error *err);
void mss_pairs_free(mss_pairs *pairs);

/* The value of `name`, or NULL where it is missing or there are two. */
const char *mss_pairs_get(const mss_pairs *pairs, const char *name);

/* Splits a request's target: `path` receives the part before "?", `*query` points behind it (or at the
 * end). MS_EFORMAT where the path is too long or holds anything but A-Z a-z 0-9 / . _ ~ -, "//" or a
 * segment of dots: no path of ours does. */
MS_NODISCARD int mss_target_split(const char *target, char path[MSS_PATH_BYTES], const char **query, ms_error *err);

/* Whether `path` is the pattern's; "{name}" in the pattern stands for one segment, copied to
 * `parameters` in order. */
bool mss_path_matches(const char *pattern, const char *path, char parameters[][MSS_PARAMETER_BYTES]);

/* The value of cookie `name` in a Cookie header, copied; false where it is missing, empty or does not fit. */
bool mss_cookie_get(const char *header, const char *name, char *value, size_t room);

#endif
