/* Codes of an authenticator: those of RFC 6238, the tolerance, replay, and texts that are not codes. */
#include "auth/secret.h"
#include "auth/totp.h"
#include "test_common.h"

static const mss_totp_secret rfc_secret = {"12345678901234567890"};

static int64_t step_of(const mss_totp_secret *secret, const char *code, int64_t now_s, int64_t last_step)
{
    ms_error err;
    int64_t step = -1;
    assert_ms_ok(mss_totp_check(secret, code, now_s, last_step, &step, &err), err);
    return step;
}

/* Appendix B, the last six of its eight digits. */
static void test_codes_are_those_of_the_rfc(void **state)
{
    (void)state;
    static const struct {
        int64_t now_s;
        const char *code;
    } rows[] = {{59, "287082"},         {1111111109, "081804"}, {1111111111, "050471"},
                {1234567890, "005924"}, {2000000000, "279037"}, {20000000000, "353130"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(step_of(&rfc_secret, rows[i].code, rows[i].now_s, 0), rows[i].now_s / 30);
    }
}

static void test_a_step_more_or_less_is_tolerated_and_no_two(void **state)
{
    (void)state;
    static const int64_t first_s = 1234567890 / 30 * 30; /* of the step whose code is 005924 */
    assert_int_equal(step_of(&rfc_secret, "005924", first_s - 31, 0), 0);
    assert_int_equal(step_of(&rfc_secret, "005924", first_s - 30, 0), first_s / 30);
    assert_int_equal(step_of(&rfc_secret, "005924", first_s + 59, 0), first_s / 30);
    assert_int_equal(step_of(&rfc_secret, "005924", first_s + 60, 0), 0);
}

static void test_only_later_steps_than_the_last_count(void **state)
{
    (void)state;
    int64_t step = 1234567890 / 30;
    assert_int_equal(step_of(&rfc_secret, "005924", 1234567890, step - 1), step);
    assert_int_equal(step_of(&rfc_secret, "005924", 1234567890, step), 0);
    assert_int_equal(step_of(&rfc_secret, "005924", 1234567890, step + 1), 0);
    assert_int_equal(step_of(&rfc_secret, "005924", 1234567890, INT64_MAX), 0);
}

static void test_what_is_no_code_of_the_secret_is_wrong(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "0", "00592", "05924", "0059240", "005925", "00592a", "89005924", "5924  "};
    mss_totp_secret other = rfc_secret;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(step_of(&rfc_secret, wrong[i], 1234567890, 0), 0);
    }
    other.bytes[19] ^= 1;
    assert_int_equal(step_of(&other, "005924", 1234567890, 0), 0);
    assert_int_equal(step_of(&rfc_secret, "005924", 0, 0), 0);
    assert_int_equal(step_of(&rfc_secret, "005924", -1234567890, -1), 0);
}

static void test_secrets_are_new_and_written_in_base32(void **state)
{
    (void)state;
    ms_error err;
    char text[MSS_TOTP_BASE32_BYTES];
    mss_totp_secret one, other;
    assert_ms_ok(mss_totp_base32(&rfc_secret, text, &err), err);
    assert_string_equal(text, "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
    mss_totp_secret_new(&one);
    mss_totp_secret_new(&other);
    assert_memory_not_equal(&one, &other, sizeof one);
}

/* ---- codes for people ----------------------------------------------------------- */

static void test_what_people_type_is_read_as_they_mean_it(void **state)
{
    (void)state;
    static const struct {
        const char *typed, *meant;
    } rows[] = {{"123456", "123456"},
                {" 123 456 ", "123456"},
                {"ABCD-efgh jkmn-pqrs", "abcdefghjkmnpqrs"},
                {"ilo0-1", "11001"},
                {"", ""},
                {"- -", ""},
                {"abcd-efgh-jkmn-pqrs-", "abcdefghjkmnpqrs"},
                {"abcd-efgh-jkmn-pqrst", ""},
                {"\xc3\xa4", "\xc3\xa4"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mss_typed_code code;
        mss_code_read(rows[i].typed, &code);
        assert_string_equal(code.text, rows[i].meant);
    }
}

static void test_a_short_code_is_four_groups_that_read_back(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        mss_short_code one, other;
        mss_typed_code read;
        mss_short_code_new(&one);
        mss_short_code_new(&other);
        assert_int_equal(strlen(one.text), 19);
        assert_true(one.text[4] == '-' && one.text[9] == '-' && one.text[14] == '-');
        assert_string_not_equal(one.text, other.text);
        mss_code_read(one.text, &read);
        assert_int_equal(strlen(read.text), 16);
        assert_int_equal(strspn(read.text, "0123456789abcdefghjkmnpqrstvwxyz"), 16);
    }
}

int main(void)
{
    ms_error err;
    if (mss_secret_start(&err) != MS_OK || mss_totp_start(&err) != MS_OK) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_are_those_of_the_rfc),
        cmocka_unit_test(test_a_step_more_or_less_is_tolerated_and_no_two),
        cmocka_unit_test(test_only_later_steps_than_the_last_count),
        cmocka_unit_test(test_what_is_no_code_of_the_secret_is_wrong),
        cmocka_unit_test(test_secrets_are_new_and_written_in_base32),
        cmocka_unit_test(test_what_people_type_is_read_as_they_mean_it),
        cmocka_unit_test(test_a_short_code_is_four_groups_that_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
