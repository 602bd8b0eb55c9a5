/* The error table is complete, and errors are filled as base.h promises. */
#include <errno.h>

#include "test_common.h"

static const int codes[] = {
#define CODE(name, value, exception, text) name,
    MS_ERROR_TABLE(CODE)
#undef CODE
};

enum { CODE_COUNT = sizeof codes / sizeof codes[0] };

static void every_code_has_name_text_and_exception(void **state)
{
    (void)state;
    static const char *const exceptions[] = {"MemScaleError",         "ConfigError",  "ProfileError",
                                             "BudgetInfeasibleError", "OffloadError", "IntegrationError",
                                             "PolicyFallbackNeeded"};
    for (int i = 0; i < CODE_COUNT; i++) {
        assert_true(codes[i] < 0);
        assert_memory_equal(ms_error_name(codes[i]), "MS_E", 4);
        assert_true(strlen(ms_error_text(codes[i])) > 5);
        bool known = false;
        for (size_t k = 0; k < sizeof exceptions / sizeof exceptions[0]; k++) {
            known = known || strcmp(ms_error_exception(codes[i]), exceptions[k]) == 0;
        }
        assert_true(known);
        for (int k = 0; k < i; k++) {
            assert_int_not_equal(codes[i], codes[k]);
            assert_string_not_equal(ms_error_text(codes[i]), ms_error_text(codes[k]));
        }
    }
}

static void success_and_unknown_codes_have_fixed_answers(void **state)
{
    (void)state;
    assert_string_equal(ms_error_name(MS_OK), "MS_OK");
    assert_string_equal(ms_error_text(MS_OK), "no error");
    assert_string_equal(ms_error_exception(MS_OK), "");
    static const int unknown[] = {1, 4711, -4711, INT32_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        assert_string_equal(ms_error_text(unknown[i]), ms_error_text(4712));
        assert_string_equal(ms_error_exception(unknown[i]), "MemScaleError");
    }
}

static void fail_fills_the_error_and_returns_the_code(void **state)
{
    (void)state;
    ms_error err;
    memset(&err, 0x5A, sizeof err);
    assert_int_equal(ms_fail(&err, MS_EINVAL, "layer %d: bad", 3), MS_EINVAL);
    assert_int_equal(err.code, MS_EINVAL);
    assert_int_equal(err.system_errno, 0);
    assert_int_equal(err.hint_bytes, 0);
    assert_string_equal(err.text, "layer 3: bad");
    assert_int_equal(ms_fail(NULL, MS_EIO, "nobody reads %d", 1), MS_EIO);
    assert_int_equal(ms_fail_errno(NULL, MS_EIO, ENOSPC, "nobody"), MS_ENOSPC);
}

static void fail_may_quote_the_error_that_it_replaces(void **state)
{
    (void)state;
    ms_error err;
    ms_fail(&err, MS_EIO, "inner");
    ms_fail(&err, MS_EPROFILE, "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
}

static void an_error_is_one_line(void **state)
{
    (void)state;
    ms_error err;
    ms_fail(&err, MS_EFORMAT, "member \"%s\"", "a\nb\r\tc\x01\x7f\xc3\xa4");
    assert_string_equal(err.text, "member \"a b  c  \xc3\xa4\"");
}

static void fail_cuts_long_texts(void **state)
{
    (void)state;
    char text[2 * MS_ERROR_TEXT_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ms_error err;
    ms_fail(&err, MS_EIO, "%s", text);
    assert_int_equal(strlen(err.text), MS_ERROR_TEXT_MAX - 1);
    ms_fail_errno(&err, MS_EIO, EIO, "%s", text);
    assert_int_equal(strlen(err.text), MS_ERROR_TEXT_MAX - 1);
}

static void fail_keeps_the_text_on_one_line(void **state)
{
    (void)state;
    ms_error err;
    ms_fail(&err, MS_EFORMAT, "name \"%s\"", "a\nb\tc\x7f \303\244");
    assert_string_equal(err.text, "name \"a b c  \303\244\"");
}

static void fail_errno_tells_the_reason_and_picks_the_code(void **state)
{
    (void)state;
    ms_error err;
    assert_int_equal(ms_fail_errno(&err, MS_ESYSTEM, EACCES, "opening %s", "a"), MS_ESYSTEM);
    assert_int_equal(err.system_errno, EACCES);
    assert_string_equal(err.text, "opening a: Permission denied (errno 13)");
    assert_int_equal(ms_fail_errno(&err, MS_EIO, ENOSPC, "w"), MS_ENOSPC);
    assert_int_equal(ms_fail_errno(&err, MS_EIO, EDQUOT, "w"), MS_ENOSPC);
    assert_int_equal(ms_fail_errno(&err, MS_EIO, EFBIG, "w"), MS_ENOSPC);
    assert_int_equal(ms_fail_errno(&err, MS_EIO, ENOMEM, "w"), MS_ENOMEM);
    assert_int_equal(err.code, MS_ENOMEM);
}

static void version_is_three_numbers(void **state)
{
    (void)state;
    int major, minor, patch;
    assert_int_equal(sscanf(ms_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_name_text_and_exception),
        cmocka_unit_test(success_and_unknown_codes_have_fixed_answers),
        cmocka_unit_test(fail_fills_the_error_and_returns_the_code),
        cmocka_unit_test(fail_may_quote_the_error_that_it_replaces),
        cmocka_unit_test(an_error_is_one_line),
        cmocka_unit_test(fail_cuts_long_texts),
        cmocka_unit_test(fail_keeps_the_text_on_one_line),
        cmocka_unit_test(fail_errno_tells_the_reason_and_picks_the_code),
        cmocka_unit_test(version_is_three_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
