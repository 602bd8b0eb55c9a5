/* Every kind of fault point fires at the Nth call, once, with its number, and
 * counts the calls since it was armed. */
#include "base/fault.h"
#include "test_common.h"

static void every_kind_fires_once_at_its_call(void **state)
{
    (void)state;
    for (int kind = 0; kind < MS_FAULT_COUNT; kind++) {
        ms_fault_arm((ms_fault)kind, 5, 100 + kind);
        for (int call = 1; call <= 10; call++) {
            int number = -1;
            assert_int_equal(ms__fault((ms_fault)kind, &number), call == 5);
            assert_int_equal(number, call == 5 ? 100 + kind : -1);
        }
        assert_int_equal(ms_fault_passed((ms_fault)kind), 10);
        for (int other = 0; other < MS_FAULT_COUNT; other++) {
            if (other != kind) {
                assert_false(ms__fault((ms_fault)other, NULL));
            }
        }
        ms_fault_arm((ms_fault)kind, 0, 0);
    }
}

static void unarmed_points_count_nothing(void **state)
{
    (void)state;
    ms_fault_arm(MS_FAULT_READ, 100, 5);
    assert_false(ms__fault(MS_FAULT_READ, NULL));
    ms_fault_arm(MS_FAULT_READ, 0, 0);
    assert_false(ms__fault(MS_FAULT_READ, NULL));
    assert_int_equal(ms_fault_passed(MS_FAULT_READ), 1);
    ms_fault_arm(MS_FAULT_READ, 1, 5);
    assert_int_equal(ms_fault_passed(MS_FAULT_READ), 0);
    ms_fault_disarm_all();
    assert_false(ms__fault(MS_FAULT_READ, NULL));
}

static void kinds_are_armed_side_by_side(void **state)
{
    (void)state;
    int number = 0;
    ms_fault_arm(MS_FAULT_OPEN, 1, 11);
    ms_fault_arm(MS_FAULT_MAP, 2, 12);
    assert_true(ms__fault(MS_FAULT_OPEN, &number));
    assert_int_equal(number, 11);
    assert_false(ms__fault(MS_FAULT_MAP, &number));
    assert_true(ms__fault(MS_FAULT_MAP, &number));
    assert_int_equal(number, 12);
    ms_fault_disarm_all();
}

static void numbers_that_are_no_kind_are_ignored(void **state)
{
    (void)state;
    ms_fault_arm(MS_FAULT_COUNT, 1, 5);
    ms_fault_arm((ms_fault)-1, 1, 5);
    assert_int_equal(ms_fault_passed(MS_FAULT_COUNT), 0);
    for (int kind = 0; kind < MS_FAULT_COUNT; kind++) {
        assert_false(ms__fault((ms_fault)kind, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_fires_once_at_its_call),
        cmocka_unit_test(unarmed_points_count_nothing),
        cmocka_unit_test(kinds_are_armed_side_by_side),
        cmocka_unit_test(numbers_that_are_no_kind_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
