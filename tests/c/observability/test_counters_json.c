/*
 * Every counter of the table is exported once, under its name, with its value.
 */
#include "base/json.h"
#include "memscale/observability.h"
#include "test_common.h"

static void every_counter_is_exported_with_its_value(void **state)
{
    (void)state;
    ms_counters counters = {0};
    for (int id = 0; id < MS_COUNTER_COUNT; id++) {
        ms_counter_add(&counters, (ms_counter)id, 100 + (uint64_t)id);
    }
    char *text = ms_counters_to_json(&counters);
    assert_non_null(text);
    json_t *tree = json_loads(text, 0, NULL);
    assert_non_null(tree);
    assert_int_equal(json_object_size(tree), MS_COUNTER_COUNT);
    for (int id = 0; id < MS_COUNTER_COUNT; id++) {
        json_t *value = json_object_get(tree, ms_counter_name((ms_counter)id));
        assert_int_equal(json_integer_value(value), 100 + id);
    }
    json_decref(tree);
    ms_free(text);
}

static void without_memory_there_is_no_text_and_no_leak(void **state)
{
    (void)state;
    ms_counters counters = {0};
    for (uint64_t nth = 1;; nth++) {
        uint64_t blocks = ms_memory_live_blocks();
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        char *text = ms_counters_to_json(&counters);
        ms_fault_disarm_all();
        if (text != NULL) {
            ms_free(text);
            break;
        }
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_counter_is_exported_with_its_value),
        cmocka_unit_test(without_memory_there_is_no_text_and_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
