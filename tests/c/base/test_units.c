/* Byte and time arithmetic saturates instead of wrapping, and texts are rounded
 * to two decimals in powers of 1000. */
#include "base/units.h"
#include "test_common.h"

static void sums_and_products_saturate(void **state)
{
    (void)state;
    assert_int_equal(ms__add_sat(2, 3), 5);
    assert_int_equal(ms__add_sat(UINT64_MAX - 1, 1), UINT64_MAX);
    assert_int_equal(ms__add_sat(UINT64_MAX, 1), UINT64_MAX);
    assert_int_equal(ms__sub_sat(5, 3), 2);
    assert_int_equal(ms__sub_sat(3, 5), 0);
    assert_int_equal(ms__mul_sat(UINT64_C(1) << 32, UINT64_C(1) << 31), UINT64_C(1) << 63);
    assert_int_equal(ms__mul_sat(UINT64_C(1) << 32, UINT64_C(1) << 32), UINT64_MAX);
}

static void the_checked_product_leaves_the_result_alone_on_overflow(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_false(ms__mul_checked(UINT64_MAX, 2, &out));
    assert_int_equal(out, 7);
    assert_true(ms__mul_checked(4, 5, &out));
    assert_int_equal(out, 20);
}

static void scaling_uses_128_bits(void **state)
{
    (void)state;
    assert_int_equal(ms__mul_div(UINT64_MAX, UINT64_MAX, UINT64_MAX), UINT64_MAX);
    assert_int_equal(ms__mul_div(UINT64_C(10000000000), UINT64_C(1000000000), 3), UINT64_C(3333333333333333333));
    assert_int_equal(ms__mul_div(7, 1, 2), 3);
    assert_int_equal(ms__mul_div_up(7, 1, 2), 4);
    assert_int_equal(ms__mul_div_up(8, 1, 2), 4);
    assert_int_equal(ms__mul_div(UINT64_MAX, 2, 1), UINT64_MAX);
    assert_int_equal(ms__mul_div(1, 1, 0), UINT64_MAX);
    assert_int_equal(ms__mul_div_up(1, 1, 0), UINT64_MAX);
}

static void quotients_are_compared_without_rounding(void **state)
{
    (void)state;
    assert_true(ms__compare_quotients(1, 3, 1, 2) < 0);
    assert_true(ms__compare_quotients(1, 2, 1, 3) > 0);
    assert_int_equal(ms__compare_quotients(2, 4, 1, 2), 0);
    /* The products exceed 64 bits, and the quotients differ by far less than a double's precision. */
    assert_true(ms__compare_quotients(UINT64_MAX - 1, UINT64_MAX, UINT64_MAX - 2, UINT64_MAX - 1) > 0);
    assert_int_equal(ms__compare_quotients(UINT64_MAX, UINT64_MAX, 1, 1), 0);
    assert_int_equal(ms__compare_quotients(0, 5, 0, 7), 0);
}

static void alignment_goes_to_multiples(void **state)
{
    (void)state;
    assert_int_equal(ms__align_up(0, 4096), 0);
    assert_int_equal(ms__align_up(1, 4096), 4096);
    assert_int_equal(ms__align_up(4096, 4096), 4096);
    assert_int_equal(ms__align_up(7, 3), 9);
    assert_int_equal(ms__align_up(UINT64_MAX - 1, 4096), UINT64_MAX);
    assert_int_equal(ms__align_down(8191, 4096), 4096);
    assert_int_equal(ms__div_up(10, 5), 2);
    assert_int_equal(ms__div_up(11, 5), 3);
    assert_int_equal(ms__div_up(UINT64_MAX, 1), UINT64_MAX);
}

static void texts_of_bytes_have_two_decimals(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {999, "999 B"},
        {1000, "1.00 kB"},
        {4096, "4.10 kB"},
        {999994, "999.99 kB"},
        {999995, "1.00 MB"},
        {UINT64_C(25165824), "25.17 MB"},
        {UINT64_C(4000000000), "4.00 GB"},
        {UINT64_C(7236000000), "7.24 GB"},
        {UINT64_C(999995000000), "1.00 TB"},
        {UINT64_MAX, "18446744.07 TB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(ms__text_bytes(cases[i].bytes).text, cases[i].text);
    }
}

static void texts_of_the_least_that_will_do_are_rounded_up(void **state)
{
    (void)state;
    assert_string_equal(ms__text_bytes_up(0).text, "0 B");
    assert_string_equal(ms__text_bytes_up(999).text, "999 B");
    assert_string_equal(ms__text_bytes_up(1001).text, "1.01 kB");
    assert_string_equal(ms__text_bytes_up(775640001).text, "775.65 MB");
    assert_string_equal(ms__text_bytes_up(1001000000).text, "1.01 GB");
    assert_string_equal(ms__text_bytes_up(1010000000).text, "1.01 GB");
    assert_string_equal(ms__text_bytes_up(999999999).text, "1.00 GB");
    assert_string_equal(ms__text_bytes_up(UINT64_C(2500000000000001)).text, "2500.01 TB");
    assert_string_equal(ms__text_bytes_up(UINT64_MAX).text, ms__text_bytes(UINT64_MAX).text);
}

static void texts_of_times_have_two_decimals(void **state)
{
    (void)state;
    assert_string_equal(ms__text_ns(850).text, "850 ns");
    assert_string_equal(ms__text_ns(12000).text, "12.00 us");
    assert_string_equal(ms__text_ns(1500000).text, "1.50 ms");
    assert_string_equal(ms__text_ns(UINT64_C(2047000000)).text, "2.05 s");
    assert_string_equal(ms__text_ns(UINT64_C(3600000000000)).text, "3600.00 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products_saturate),
        cmocka_unit_test(the_checked_product_leaves_the_result_alone_on_overflow),
        cmocka_unit_test(scaling_uses_128_bits),
        cmocka_unit_test(quotients_are_compared_without_rounding),
        cmocka_unit_test(alignment_goes_to_multiples),
        cmocka_unit_test(texts_of_bytes_have_two_decimals),
        cmocka_unit_test(texts_of_the_least_that_will_do_are_rounded_up),
        cmocka_unit_test(texts_of_times_have_two_decimals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
