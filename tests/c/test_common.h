/*
 * Every C test includes this file: cmocka with the headers that it needs, and checks that print
 * the library's text of an unexpected error.
 */
#ifndef MS_TEST_COMMON_H
#define MS_TEST_COMMON_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memscale/base.h"

/* A call that takes longer counts as a hang: even a busy machine, or one that stops for seconds, stays
 * far below. No test measures speed. */
enum { PATIENCE_S = 120 };
#define PATIENCE_NS ((uint64_t)PATIENCE_S * 1000000000)

/* The call succeeds; `err` is the ms_error it was given. */
#define assert_ms_ok(call, err) \
    do { \
        int test_rc = (call); \
        if (test_rc != MS_OK) { \
            fail_msg("%s: %s: %s", #call, ms_error_name(test_rc), (err).text); \
        } \
    } while (0)

/* The call fails with this code and says something that contains `part`. */
#define assert_ms_fails(call, expected_code, err, part) \
    do { \
        int test_rc = (call); \
        if (test_rc != (expected_code)) { \
            fail_msg("%s: %s instead of %s: %s", #call, ms_error_name(test_rc), ms_error_name(expected_code), \
                     (err).text); \
        } \
        assert_int_equal((err).code, (expected_code)); \
        if (strstr((err).text, (part)) == NULL) { \
            fail_msg("%s: \"%s\" does not contain \"%s\"", #call, (err).text, (part)); \
        } \
    } while (0)

/* A path below tests/c, where fixtures lie; in a buffer that the next call
 * overwrites. */
static inline const char *test_data(const char *relative)
{
    static char path[1024];
    const char *base = getenv("MEMSCALE_TEST_DATA");
    snprintf(path, sizeof path, "%s/%s", base != NULL ? base : ".", relative);
    return path;
}

#endif
