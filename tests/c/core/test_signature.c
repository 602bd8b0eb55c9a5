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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_signatures_cover_each_other),
        cmocka_unit_test(smaller_sizes_are_covered_and_larger_are_not),
        cmocka_unit_test(anything_but_sizes_must_be_equal),
        cmocka_unit_test(sizes_beyond_64_bits_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
