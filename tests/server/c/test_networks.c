/* Ranges of addresses, and whom a proxy is believed about. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/networks.h"
#include "test_common.h"

static mss_address address(const char *text)
{
    mss_address read;
    assert_true(mss_address_read(text, strlen(text), &read));
    return read;
}

static mss_networks networks_of(const char *const *texts)
{
    mss_networks made = {0};
    ms_error err;
    for (; *texts != NULL; texts++) {
        assert_ms_ok(mss_networks_add(&made, *texts, strlen(*texts), &err), err);
    }
    return made;
}

static void test_addresses_are_written_in_their_usual_form(void **state)
{
    (void)state;
    static const char *const forms[][2] = {
        {"192.0.2.1", "192.0.2.1"},
        {"2001:DB8:0:0::1", "2001:db8::1"},
        {"::1", "::1"},
        {"::ffff:192.0.2.1", "192.0.2.1"},
        {"0.0.0.0", "0.0.0.0"},
        {"::", "::"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char text[MSS_ADDRESS_BYTES];
        mss_address read = address(forms[i][0]);
        mss_address_write(&read, text);
        assert_string_equal(text, forms[i][1]);
    }
}

static void test_what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        " ",
        "1",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.256",
        "01.2.3.4",
        "1.2.3.4 ",
        " 1.2.3.4",
        "1.2.3.4:80",
        "[::1]",
        "::1%lo",
        "1::2::3",
        ":::",
        "fe80::1%eth0",
        "localhost",
        "0x7f.0.0.1",
        "1.2.3.-4",
        "1.2.3.4/32",
        "::ffff:1.2.3",
        "-",
        "1111:2222:3333:4444:5555:6666:7777:8888:9999",
        "11111111111111111111111111111111111111111111111111111",
    };
    mss_address read;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(mss_address_read(wrong[i], strlen(wrong[i]), &read));
    }
    assert_false(mss_address_read("1.2.3.4\0", 8, &read));
}

static void test_ranges_hold_what_they_should(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "10.0.0.0/8", "192.0.2.128/25", "198.51.100.7", "203.0.113.4/30", "2001:db8::/33", "::1", "fe80::/10", NULL};
    static const char *const held[] = {
        "10.0.0.0",    "10.255.255.255",       "192.0.2.128", "192.0.2.255", "198.51.100.7",   "203.0.113.7",
        "2001:db8::1", "2001:db8:7fff:ffff::", "::1",         "febf::1",     "::ffff:10.1.2.3"};
    static const char *const others[] = {
        "9.255.255.255",   "11.0.0.0", "192.0.2.127", "198.51.100.6", "203.0.113.8", "203.0.113.3",
        "2001:db8:8000::", "::2",      "fec0::1",     "::10.0.0.1",   "a00::"};
    mss_networks networks = networks_of(texts);
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) {
        mss_address a = address(held[i]);
        assert_true(mss_networks_hold(&networks, &a));
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        mss_address a = address(others[i]);
        assert_false(mss_networks_hold(&networks, &a));
    }
    assert_false(mss_networks_hold(&(mss_networks){0}, &networks.items[0].first));
}

static void test_what_is_no_range_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "/",
        "/8",
        "10.0.0.0/",
        "10.0.0.0/0",
        "0.0.0.0/0",
        "::/0",
        "10.0.0.0/33",
        "::/129",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/ 8",
        "10.0.0.0/08",
        "10.0.0.0/8/8",
        "10.0.0.1/8",
        "10.0.0.0/8 ",
        "10.0.0.0/8x",
        "10.0.0.0/1e1",
        "10.0.0.0/4294967304",
        "2001:db8::1/64",
        "10/8",
        "10.0.0.0-10.0.0.9",
        "10.0.0.0/255.0.0.0",
        "*",
        "all",
        "10.0.0.*",
        "::ffff:10.0.0.0/8",
        "10.0.0.0,10.0.0.1",
    };
    mss_networks networks = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_error err = {0};
        assert_int_equal(mss_networks_add(&networks, wrong[i], strlen(wrong[i]), &err), MS_ECONFIG);
        assert_true(err.text[0] == '"');
    }
    assert_int_equal(networks.count, 0);
}

static void test_ranges_are_not_endless(void **state)
{
    (void)state;
    mss_networks networks = {0};
    ms_error err;
    for (size_t i = 0; i < MSS_NETWORKS_MOST; i++) {
        assert_ms_ok(mss_networks_add(&networks, "::1", 3, &err), err);
    }
    assert_ms_fails(mss_networks_add(&networks, "::1", 3, &err), MS_ECONFIG, err, "more than 256");
}

/* ---- files ------------------------------------------------------------------------------ */

static int add_file(mss_networks *networks, const char *text, ms_error *err)
{
    char path[] = "/tmp/memscale-networks-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    int rc = mss_networks_add_file(networks, path, err);
    assert_int_equal(unlink(path), 0);
    return rc;
}

static void test_a_file_of_ranges_is_read(void **state)
{
    (void)state;
    mss_networks networks = {0};
    ms_error err;
    assert_ms_ok(add_file(&networks, "# of a provider\n\n 192.0.2.0/24 \r\n2001:db8::/32", &err), err);
    assert_int_equal(networks.count, 2);
    assert_ms_fails(add_file(&networks, "::1\nx y\n", &err), MS_ECONFIG, err, "line 2: \"x y\"");
    assert_ms_fails(add_file(&networks, "# none\n", &err), MS_ECONFIG, err, "no range");
    assert_ms_fails(mss_networks_add_file(&networks, "/nowhere", &err), MS_ESYSTEM, err, "/nowhere");
    char longest[400];
    memset(longest, '1', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_ms_fails(add_file(&networks, longest, &err), MS_ECONFIG, err, "line 1");
}

/* ---- whom a proxy is believed about --------------------------------------------------------- */

static void test_the_client_is_the_last_one_that_no_trusted_proxy_is(void **state)
{
    (void)state;
    static const char *const proxies[] = {"127.0.0.1", "10.0.0.0/8", NULL};
    static const struct {
        const char *peer, *forwarded, *client;
    } rows[] = {
        {"127.0.0.1", "203.0.113.7", "203.0.113.7"},
        {"127.0.0.1", "", "127.0.0.1"},
        {"127.0.0.1", "6.6.6.6, 203.0.113.7", "203.0.113.7"}, /* what stands before is the client's claim */
        {"127.0.0.1", "6.6.6.6,203.0.113.7,\t10.1.1.1 , 10.2.2.2", "203.0.113.7"},
        {"127.0.0.1", "10.1.1.1, 10.2.2.2", "10.1.1.1"},
        {"127.0.0.1", "2001:DB8::1", "2001:db8::1"},
        {"127.0.0.1", "203.0.113.7, x", "127.0.0.1"}, /* nothing behind it was told */
        {"127.0.0.1", "203.0.113.7, x, 10.1.1.1", "10.1.1.1"},
        {"127.0.0.1", "203.0.113.7,", "127.0.0.1"},
        {"127.0.0.1", ",,,", "127.0.0.1"},
        {"127.0.0.1", "203.0.113.7:80", "127.0.0.1"},
        {"127.0.0.1", "\"203.0.113.7\"", "127.0.0.1"},
        {"192.0.2.1", "203.0.113.7", "192.0.2.1"}, /* not trusted */
        {"192.0.2.1", "127.0.0.1", "192.0.2.1"},
    };
    mss_networks networks = networks_of(proxies);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[MSS_ADDRESS_BYTES];
        mss_address peer = address(rows[i].peer), client = mss_forwarded_client(&networks, &peer, rows[i].forwarded);
        mss_address_write(&client, text);
        assert_string_equal(text, rows[i].client);
    }
}

static void test_a_customer_of_ipv6_is_one(void **state)
{
    (void)state;
    mss_address one = address("2001:db8:1:2:3::4"), other = address("2001:db8:1:2:ffff::"), four = address("192.0.2.1");
    mss_address a = mss_address_bucket(&one), b = mss_address_bucket(&other), c = mss_address_bucket(&four);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_equal(&c, &four, sizeof c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_are_written_in_their_usual_form),
        cmocka_unit_test(test_what_is_no_address_is_refused),
        cmocka_unit_test(test_ranges_hold_what_they_should),
        cmocka_unit_test(test_what_is_no_range_is_refused_and_changes_nothing),
        cmocka_unit_test(test_ranges_are_not_endless),
        cmocka_unit_test(test_a_file_of_ranges_is_read),
        cmocka_unit_test(test_the_client_is_the_last_one_that_no_trusted_proxy_is),
        cmocka_unit_test(test_a_customer_of_ipv6_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
