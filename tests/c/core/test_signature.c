/*
 * A plan serves inputs that are alike and nowhere larger, and no others.
 */
#include "memscale/graph.h"
#include "test_common.h"

static void equal_signatures_cover_each_other(void **state)
{
    (void)state;
    assert_true(ms_signature_covers("x:float32[4,512]", "x:float32[4,512]"));
    assert_true(ms_signature_covers("", ""));
}

static void smaller_sizes_are_covered_and_larger_are_not(void **state)
{
    (void)state;
    assert_true(ms_signature_covers("x:float32[4,512]", "x:float32[4,99]"));
    assert_true(ms_signature_covers("x:int64[16,128];y:int64[16,128]", "x:int64[16,7];y:int64[1,128]"));
    assert_false(ms_signature_covers("x:float32[4,99]", "x:float32[4,512]"));
    assert_false(ms_signature_covers("x:float32[4,512]", "x:float32[5,12]"));
}

static void anything_but_sizes_must_be_equal(void **state)
{
    (void)state;
    assert_false(ms_signature_covers("x:float32[4,512]", "x:float16[4,512]"));
    assert_false(ms_signature_covers("x:float32[4,512]", "y:float32[4,512]"));
    assert_false(ms_signature_covers("x:float32[4,512]", "x:float32[4]"));
    assert_false(ms_signature_covers("x:float32[4]", "x:float32[4,2]"));
    assert_false(ms_signature_covers("x:float32[4]", "x:float32[4];y:int64[1]"));
    assert_false(ms_signature_covers("n=9;x:float32[4]", "n=8;x:float32[4]"));
}

static void sizes_beyond_64_bits_do_not_wrap(void **state)
{
    (void)state;
    assert_false(ms_signature_covers("x[1]", "x[18446744073709551617]"));
}

static void numbers_that_are_values_are_dropped_and_nothing_else(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"train: 0:float32[4,5],beta=0.25,step=17", "train: 0:float32[4,5],beta=#,step=#"},
        {"a=-1e-05,b=True,c=None,d=DynamicCache", "a=#,b=True,c=None,d=DynamicCache"},
        {"mode='x=3,y=4',k=3", "mode='x=3,y=4',k=#"},
        {"a=3x,b=-x", "a=3x,b=-x"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", pairs[i][0]);
        ms_signature_drop_numbers(text);
        assert_string_equal(text, pairs[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_signatures_cover_each_other),
        cmocka_unit_test(smaller_sizes_are_covered_and_larger_are_not),
        cmocka_unit_test(anything_but_sizes_must_be_equal),
        cmocka_unit_test(sizes_beyond_64_bits_do_not_wrap),
        cmocka_unit_test(numbers_that_are_values_are_dropped_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
