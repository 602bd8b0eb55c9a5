/* Targets, pairs and cookies: read exactly, or refused. */
#include "http/uri.h"
#include "test_common.h"

static void test_pairs_are_decoded(void **state)
{
    (void)state;
    mss_pairs pairs;
    const char text[] = "a=1&b=two+words&c=%C3%A9%26%3D&empty=&alone&&d=x=y";
    assert_int_equal(mss_pairs_read(text, sizeof text - 1, &pairs, NULL), MS_OK);
    assert_int_equal(pairs.count, 6);
    assert_string_equal(mss_pairs_get(&pairs, "a"), "1");
    assert_string_equal(mss_pairs_get(&pairs, "b"), "two words");
    assert_string_equal(mss_pairs_get(&pairs, "c"), "\xc3\xa9&=");
    assert_string_equal(mss_pairs_get(&pairs, "empty"), "");
    assert_string_equal(mss_pairs_get(&pairs, "alone"), "");
    assert_string_equal(mss_pairs_get(&pairs, "d"), "x=y");
    assert_null(mss_pairs_get(&pairs, "missing"));
    mss_pairs_free(&pairs);
}

static void test_a_name_that_is_there_twice_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"a=1&a=2", "a=1&b=2&%61=3", "a&a"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        mss_pairs pairs;
        ms_error err;
        assert_ms_fails(mss_pairs_read(texts[i], strlen(texts[i]), &pairs, &err), MS_EFORMAT, err, "repeated");
    }
}

static void test_malformed_pairs_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"a=%",   "a=%4",  "a=%zz",       "a=%00", "a=%01",
                                        "a=%7f", "a=%ff", "%ed%a0%80=1", "a=%c3"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        mss_pairs pairs;
        ms_error err;
        assert_ms_fails(mss_pairs_read(texts[i], strlen(texts[i]), &pairs, &err), MS_EFORMAT, err, "malformed");
        assert_null(pairs.text);
    }
}

static void test_only_so_many_pairs(void **state)
{
    (void)state;
    char text[MSS_PAIRS_MOST * 5 + 3] = "";
    size_t length = 0;
    mss_pairs pairs;
    for (int i = 0; i < MSS_PAIRS_MOST; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "a%d&", i);
    }
    assert_int_equal(mss_pairs_read(text, length, &pairs, NULL), MS_OK);
    mss_pairs_free(&pairs);
    strcpy(text + length, "a");
    assert_int_equal(mss_pairs_read(text, length + 1, &pairs, NULL), MS_EFORMAT);
}

static void test_pairs_without_memory(void **state)
{
    (void)state;
    mss_pairs pairs;
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(mss_pairs_read("a=1", 3, &pairs, NULL), MS_ENOMEM);
    ms_fault_disarm_all();
}

static void test_targets_are_split(void **state)
{
    (void)state;
    char path[MSS_PATH_BYTES];
    const char *query;
    assert_int_equal(mss_target_split("/api/v1/runs?limit=5?x", path, &query, NULL), MS_OK);
    assert_string_equal(path, "/api/v1/runs");
    assert_string_equal(query, "limit=5?x");
    assert_int_equal(mss_target_split("/", path, &query, NULL), MS_OK);
    assert_string_equal(query, "");
}

static void test_paths_of_nobody_are_refused(void **state)
{
    (void)state;
    static const char *const targets[] = {"",           "*",         "a",    "//a",  "/a//b", "/../a",
                                          "/a/./b",     "/.a",       "/%61", "/a b", "/a\\b", "/a;b",
                                          "http://h/a", "/\xc3\xa9", "/a:b", "/a\nb"};
    char path[MSS_PATH_BYTES], longest[MSS_PATH_BYTES + 8];
    const char *query;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        assert_int_equal(mss_target_split(targets[i], path, &query, NULL), MS_EFORMAT);
    }
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[MSS_PATH_BYTES] = '\0';
    assert_int_equal(mss_target_split(longest, path, &query, NULL), MS_EFORMAT);
    longest[MSS_PATH_BYTES - 1] = '\0';
    assert_int_equal(mss_target_split(longest, path, &query, NULL), MS_OK);
}

static void test_patterns(void **state)
{
    (void)state;
    char parameters[MSS_PARAMETERS_MOST][MSS_PARAMETER_BYTES];
    assert_true(mss_path_matches("/runs/{run}/compare/{other}", "/runs/r1/compare/r2", parameters));
    assert_string_equal(parameters[0], "r1");
    assert_string_equal(parameters[1], "r2");
    assert_true(mss_path_matches("/", "/", parameters));
    assert_false(mss_path_matches("/runs/{run}", "/runs/", parameters));
    assert_false(mss_path_matches("/runs/{run}", "/runs/a/b", parameters));
    assert_false(mss_path_matches("/runs/{run}", "/runs", parameters));
    assert_false(mss_path_matches("/runs", "/runs/", parameters));
    char longest[8 + MSS_PARAMETER_BYTES] = "/runs/";
    memset(longest + 6, 'a', MSS_PARAMETER_BYTES);
    assert_false(mss_path_matches("/runs/{run}", longest, parameters));
}

static void test_cookies(void **state)
{
    (void)state;
    char value[8];
    assert_true(mss_cookie_get("a=1; ms=secret; b=2", "ms", value, sizeof value));
    assert_string_equal(value, "secret");
    assert_true(mss_cookie_get("ms=x", "ms", value, sizeof value));
    assert_false(mss_cookie_get("ams=1; msx=2", "ms", value, sizeof value));
    assert_false(mss_cookie_get("ms=", "ms", value, sizeof value));
    assert_false(mss_cookie_get("ms=12345678", "ms", value, sizeof value));
    assert_false(mss_cookie_get("", "ms", value, sizeof value));
    assert_false(mss_cookie_get(";;; ", "ms", value, sizeof value));
}

/* Every byte is written so that it reads back, and stays within a value. */
static void test_bytes_of_values_read_back(void **state)
{
    (void)state;
    for (int byte = 1; byte < 0x80; byte++) {
        char coded[MSS_URI_BYTE_BYTES], pair[8];
        mss_pairs pairs;
        mss_uri_write_byte((unsigned char)byte, coded);
        assert_null(strpbrk(coded, "&=+#?/: \"'<>"));
        if (byte >= 0x20 && byte != 0x7f) { /* others are refused when read */
            snprintf(pair, sizeof pair, "a=%s", coded);
            assert_int_equal(mss_pairs_read(pair, strlen(pair), &pairs, NULL), MS_OK);
            assert_int_equal(mss_pairs_get(&pairs, "a")[0], byte);
            mss_pairs_free(&pairs);
        }
    }
    char coded[MSS_URI_BYTE_BYTES];
    mss_uri_write_byte(0, coded);
    assert_string_equal(coded, "%00");
    mss_uri_write_byte(0xff, coded);
    assert_string_equal(coded, "%FF");
}

static void test_only_our_names_are_ours(void **state)
{
    (void)state;
    static const char *const ours[] = {"localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:80",
                                       "[::1]",     "[::1]:8321",  "192.0.2.1", "192.0.2.1:8321"};
    static const char *const others[] = {"",
                                         "evil.example",
                                         "localhost.evil.example",
                                         "localhost@evil.example",
                                         "localhos",
                                         "127.0.0.1.nip.io",
                                         "::1",
                                         "[::1",
                                         "192.0.2.10",
                                         "localhost:80:80",
                                         "evil.example:localhost"};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        assert_true(mss_host_is_ours(ours[i], NULL, "192.0.2.1"));
        assert_false(mss_host_is_ours(ours[i], "https://runs.example.com", "192.0.2.1"));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_false(mss_host_is_ours(others[i], NULL, "192.0.2.1"));
    }
    assert_true(mss_host_is_ours("Runs.Example.com", "https://runs.example.com", "192.0.2.1"));
    assert_false(mss_host_is_ours("runs.example.com:443", "https://runs.example.com", "192.0.2.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_are_decoded),
        cmocka_unit_test(test_a_name_that_is_there_twice_is_refused),
        cmocka_unit_test(test_malformed_pairs_are_refused),
        cmocka_unit_test(test_only_so_many_pairs),
        cmocka_unit_test(test_pairs_without_memory),
        cmocka_unit_test(test_targets_are_split),
        cmocka_unit_test(test_paths_of_nobody_are_refused),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_cookies),
        cmocka_unit_test(test_only_our_names_are_ours),
        cmocka_unit_test(test_bytes_of_values_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
