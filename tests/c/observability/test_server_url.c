/* Addresses are read to the byte or refused without being repeated; tokens go only where nobody listens in. */
#include "observability/server_url.h"
#include "test_common.h"

static ms_error err;

static void assert_url(const char *text, bool is_https, const char *host, uint16_t port, const char *path)
{
    ms__server_url url;
    assert_ms_ok(ms__server_url_read(text, false, &url, &err), err);
    assert_int_equal(url.is_https, is_https);
    assert_string_equal(url.host, host);
    assert_int_equal(url.port, port);
    assert_string_equal(url.path, path);
}

static void addresses_are_read(void **state)
{
    (void)state;
    assert_url("https://runs.example.com", true, "runs.example.com", 443, "");
    assert_url("HTTPS://Runs.Example.COM:8443/", true, "runs.example.com", 8443, "");
    assert_url("https://example.com/tools/memscale//", true, "example.com", 443, "/tools/memscale");
    assert_url("http://localhost:8000", false, "localhost", 8000, "");
    assert_url("http://127.0.0.1", false, "127.0.0.1", 80, "");
    assert_url("http://[::1]:65535/a", false, "::1", 65535, "/a");
    assert_url("https://[2001:DB8::1]", true, "2001:db8::1", 443, "");
    assert_url("https://example.com/.well/..x", true, "example.com", 443, "/.well/..x");
}

static void other_addresses_are_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "begin with"},
        {"example.com", "begin with"},
        {"ftp://example.com", "begin with"},
        {" https://example.com", "begin with"},
        {"https://", "no host"},
        {"https:///path", "no host"},
        {"https://[::1", "no host"},
        {"https://[]", "no host"},
        {"https://user:secret@example.com", "user or a password"},
        {"https://example.com/a@b", "user or a password"},
        {"https://example.com?token=secret", "query"},
        {"https://example.com/#secret", "query"},
        {"https://example.com:0", "port"},
        {"https://example.com:65536", "port"},
        {"https://example.com:99999999999999999999", "port"},
        {"https://example.com:", "port"},
        {"https://example.com:80x", "behind the host"},
        {"https://example.com/a b", "behind the host"},
        {"https://example.com/%2e", "behind the host"},
        {"https://example.com\\evil", "behind the host"},
        {"https://example.com\r\nHost: evil", "behind the host"},
        {"https://ex\xc3\xa4mple.com", "behind the host"},
        {"https://example.com/a/../b", "goes up"},
        {"https://example.com/.", "goes up"},
        {"http://example.com", "plain http"},
        {"http://127.evil.example", "plain http"},
        {"http://localhost.example.com", "plain http"},
        {"http://192.168.0.1:8000", "plain http"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms__server_url url;
        assert_ms_fails(ms__server_url_read(cases[i][0], false, &url, &err), MS_ECONFIG, err, cases[i][1]);
        assert_null(strstr(err.text, "secret"));
    }
    char longest[2048] = "https://";
    memset(longest + 8, 'a', 300);
    ms__server_url url;
    assert_ms_fails(ms__server_url_read(longest, false, &url, &err), MS_ECONFIG, err, "no host");
    longest[20] = '/';
    memset(longest + 21, 'a', 2000);
    assert_ms_fails(ms__server_url_read(longest, false, &url, &err), MS_ECONFIG, err, "too long");
}

static void plain_http_elsewhere_needs_leave(void **state)
{
    (void)state;
    ms__server_url url;
    assert_ms_ok(ms__server_url_read("http://192.168.0.1:8000", true, &url, &err), err);
    assert_false(url.is_https);
}

static void tokens_are_checked_and_never_repeated(void **state)
{
    (void)state;
    char longest[MS__TOKEN_MOST_BYTES + 2];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    static const char *const bad[] = {"", "secret token", "secret\n", "s\xc3\xa4", "secret\r\nHost: evil"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_ms_fails(ms__token_check(bad[i], &err), MS_ECONFIG, err, "token");
        assert_null(strstr(err.text, "secret"));
    }
    assert_ms_fails(ms__token_check(longest, &err), MS_ECONFIG, err, "token");
    longest[sizeof longest - 2] = '\0';
    assert_ms_ok(ms__token_check(longest, &err), err);
    assert_ms_ok(ms__token_check("ms_aZ09-_", &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_read),
        cmocka_unit_test(other_addresses_are_refused),
        cmocka_unit_test(plain_http_elsewhere_needs_leave),
        cmocka_unit_test(tokens_are_checked_and_never_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
