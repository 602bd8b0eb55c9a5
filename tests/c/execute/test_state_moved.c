/*
 * The states that leave the device under a plan that moves a part of them: a state counts with the bytes of all its arrays.
 */
#include "memscale/optimizer_stream.h"
#include "test_common.h"

enum { ELEMENTS = 20000, FORMS = 4 };

static const ms_optimizer_form forms[FORMS] = {
    {.count = ELEMENTS},
    {.count = ELEMENTS, .has_max_exp_avg_sq = true},
    {.count = ELEMENTS, .moments = MS_ADAMW_MOMENTS_8BIT},
    {.count = ELEMENTS, .weights = MS_ADAMW_BF16_MASTER},
};
static const uint64_t bytes[FORMS] = {
    8 * ELEMENTS,
    12 * ELEMENTS,
    2 * (ELEMENTS + 4 * ((ELEMENTS + MS_ADAMW_BLOCK - 1) / MS_ADAMW_BLOCK)),
    12 * ELEMENTS,
};

/* Exactly this state's bytes are wanted: it alone is moved, or another of as many bytes. */
static void each_state_counts_with_all_its_arrays(void **state)
{
    (void)state;
    for (size_t i = 0; i < FORMS; i++) {
        uint8_t moved[1] = {0};
        ms_optimizer_form pair[2] = {forms[i], forms[i]};
        uint8_t both[2];
        ms_optimizer_choose_moved(&forms[i], 1, bytes[i], moved);
        assert_true(moved[0]);
        ms_optimizer_choose_moved(pair, 2, bytes[i], both);
        assert_int_equal(both[0] + both[1], 1);
        ms_optimizer_choose_moved(pair, 2, bytes[i] + 1, both);
        assert_int_equal(both[0] + both[1], 2);
    }
}

static void zero_stands_for_all(void **state)
{
    (void)state;
    uint8_t moved[FORMS] = {0};
    ms_optimizer_choose_moved(forms, FORMS, 0, moved);
    for (size_t i = 0; i < FORMS; i++) {
        assert_int_equal(moved[i], 1);
    }
    ms_optimizer_choose_moved(NULL, 0, 5, NULL); /* an optimizer without large parameters */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_counts_with_all_its_arrays),
        cmocka_unit_test(zero_stands_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
