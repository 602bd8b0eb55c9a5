/*
 * A plan serves inputs that differ only by smaller sizes.
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
        ms_signature_drop_numbers(text, NULL);
        assert_string_equal(text, pairs[i][1]);
    }
}

static void numbers_are_dropped_by_name(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"train: beta=2,depth=3", "train: beta=#,depth=1", "train: beta=#,depth=3"},
        {"train: 0:float32[4,5],beta=2,step=7", "x=1,step=#", "train: 0:float32[4,5],beta=2,step=#"},
        {"beta=2", "a.beta=#,mode='q,beta=#'", "beta=2"},
        {"a.beta=2,b=1", "beta=#,a.beta=3,x,a.beta=#", "a.beta=#,b=1"},
        {"beta=2", "", "beta=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        ms_signature_drop_numbers(text, cases[i][1]);
        assert_string_equal(text, cases[i][2]);
    }
}

static void numbers_that_differ_are_dropped(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"beta=2,depth=3", "beta=1,depth=3", "beta=#,depth=3"},
        {"beta=2,depth=3", "beta=2,depth=3", "beta=2,depth=3"},
        {"beta=#,depth=31,x:int64[3]", "beta=#,depth=3,x:int64[2]", "beta=#,depth=#,x:int64[3]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        ms_signature_drop_different(text, cases[i][1]);
        assert_string_equal(text, cases[i][2]);
    }
}

static void the_equal_signature_is_found_before_one_that_covers(void **state)
{
    (void)state;
    static const char *const known[] = {"x:int64[8]", "x:int64[4]", "x:int64[9]"};
    assert_int_equal(ms_signature_find(known, 3, "x:int64[4]"), 1);
    assert_int_equal(ms_signature_find(known, 3, "x:int64[9]"), 2);
    assert_int_equal(ms_signature_find(known, 3, "x:int64[5]"), 0);
    assert_int_equal(ms_signature_find(known, 3, "x:int64[10]"), 3);
    assert_int_equal(ms_signature_find(NULL, 0, "x:int64[1]"), 0);
}

static void inputs_that_keep_growing_are_traced_ahead(void **state)
{
    (void)state;
    static const char *const known[] = {"x:int64[4,64],y:int64[4,63]", "x:int64[4,66],y:int64[4,65]", "z:int64[4,1]",
                                        "x:int64[4,68],y:int64[4,67]", "x:int64[4,200],y:int64[4,1]"};
    assert_null(ms_signature_ahead(known, 3, "x:int64[4,68],y:int64[4,67]")); /* two known ones are smaller */
    char *ahead = ms_signature_ahead(known, 5, "x:int64[4,70],y:int64[4,69]");
    assert_string_equal(ahead, "x:int64[4,82],y:int64[4,81]");
    ms_free(ahead);
    assert_null(ms_signature_ahead(known, 5, "x:int32[4,70],y:int64[4,69]"));
    assert_null(ms_signature_ahead(known, 4, "x:int64[3,70],y:int64[3,69]")); /* fewer rows */
    assert_null(ms_signature_ahead(NULL, 0, "x:int64[4]"));
}

static void sizes_ahead_are_larger_and_do_not_wrap(void **state)
{
    (void)state;
    static const char *const known[] = {"[0]", "[0,0]", "[0]", "[0]"};
    static const char *const cases[][2] = {
        {"[1]", "[2]"},     {"[9]", "[10]"},    {"[16]", "[19]"},
        {"[127]", "[139]"}, {"[128]", "[152]"}, {"[18446744073709551615]", "[18446744073709551615]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *ahead = ms_signature_ahead(known, 4, cases[i][0]);
        assert_string_equal(ahead, cases[i][1]);
        ms_free(ahead);
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
        cmocka_unit_test(numbers_are_dropped_by_name),
        cmocka_unit_test(numbers_that_differ_are_dropped),
        cmocka_unit_test(the_equal_signature_is_found_before_one_that_covers),
        cmocka_unit_test(inputs_that_keep_growing_are_traced_ahead),
        cmocka_unit_test(sizes_ahead_are_larger_and_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
