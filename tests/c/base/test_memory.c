/* Counted memory and arrays: counts return to where they were, sizes
 * that do not fit are refused, and a failing allocation harms nothing. */
#include <errno.h>

#include "base/array.h"
#include "test_common.h"

typedef struct baseline {
    uint64_t bytes;
    uint64_t blocks;
} baseline;

static baseline live_now(void)
{
    return (baseline){ms_memory_live_bytes(), ms_memory_live_blocks()};
}

static void assert_live_as(baseline before)
{
    assert_int_equal(ms_memory_live_blocks(), before.blocks);
    assert_int_equal(ms_memory_live_bytes(), before.bytes);
}

static int disarm(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return 0;
}

static void every_block_is_counted_until_freed(void **state)
{
    (void)state;
    baseline before = live_now();
    char *a = ms_malloc(1000);
    char *b = ms_calloc(10, 100);
    char *c = ms_strdup("twelve bytes");
    assert_int_equal(ms_memory_live_blocks(), before.blocks + 3);
    assert_true(ms_memory_live_bytes() >= before.bytes + 2013);
    assert_string_equal(c, "twelve bytes");
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(b[i], 0);
    }
    a[999] = 1;
    a = ms_realloc_array(a, 3000, 2);
    assert_int_equal(a[999], 1);
    assert_int_equal(ms_memory_live_blocks(), before.blocks + 3);
    assert_true(ms_memory_live_bytes() >= before.bytes + 7013);
    a = ms_realloc_array(a, 1, 8);
    ms_free(a);
    ms_free(b);
    ms_free(c);
    ms_free(NULL);
    assert_live_as(before);
}

static void size_zero_gives_a_block_of_its_own(void **state)
{
    (void)state;
    baseline before = live_now();
    void *a = ms_malloc(0);
    void *b = ms_calloc(0, 8);
    void *c = ms_realloc_array(NULL, 0, 0);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_ptr_not_equal(a, b);
    c = ms_realloc_array(c, 0, 0);
    assert_non_null(c);
    ms_free(a);
    ms_free(b);
    ms_free(c);
    assert_live_as(before);
}

static void products_that_overflow_give_null(void **state)
{
    (void)state;
    baseline before = live_now();
    volatile size_t huge = SIZE_MAX / 2 + 2;
    assert_null(ms_calloc(huge, 2));
    assert_null(ms_realloc_array(NULL, huge, 2));
    char *block = ms_malloc(8);
    assert_null(ms_realloc_array(block, huge, 2));
    block[7] = 1; /* still there */
    ms_free(block);
    assert_live_as(before);
}

static void the_nth_allocation_fails_once(void **state)
{
    (void)state;
    baseline before = live_now();
    ms_fault_arm(MS_FAULT_ALLOC, 3, ENOMEM);
    void *a = ms_malloc(1);
    void *b = ms_calloc(1, 1);
    errno = 0;
    assert_null(ms_strdup("third"));
    assert_int_equal(errno, ENOMEM);
    void *c = ms_malloc(1);
    assert_non_null(c);
    assert_int_equal(ms_fault_passed(MS_FAULT_ALLOC), 4);
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_null(ms_realloc_array(c, 100, 1));
    ms_free(a);
    ms_free(b);
    ms_free(c);
    assert_live_as(before);
}

static void arrays_grow_and_keep_their_items(void **state)
{
    (void)state;
    baseline before = live_now();
    MS__ARRAY(uint32_t) numbers = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t *item = MS__ARRAY_PUSH(&numbers);
        assert_non_null(item);
        assert_int_equal(*item, 0);
        *item = i * 3;
    }
    assert_int_equal(numbers.count, 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(numbers.items[i], i * 3);
    }
    MS__ARRAY_FREE(&numbers);
    assert_int_equal(numbers.count, 0);
    assert_live_as(before);
}

static void arrays_survive_a_failing_growth(void **state)
{
    (void)state;
    MS__ARRAY(uint64_t) numbers = {0};
    assert_int_equal(MS__ARRAY_RESERVE(&numbers, 8), MS_OK);
    for (int i = 0; i < 8; i++) {
        *MS__ARRAY_PUSH(&numbers) = 7;
    }
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_null(MS__ARRAY_PUSH(&numbers));
    assert_int_equal(numbers.count, 8);
    assert_int_equal(numbers.items[7], 7);
    assert_int_equal(MS__ARRAY_RESERVE(&numbers, SIZE_MAX / 4), MS_EOVERFLOW);
    assert_int_equal(numbers.items[0], 7);
    MS__ARRAY_FREE(&numbers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_counted_until_freed),
        cmocka_unit_test(size_zero_gives_a_block_of_its_own),
        cmocka_unit_test(products_that_overflow_give_null),
        cmocka_unit_test_teardown(the_nth_allocation_fails_once, disarm),
        cmocka_unit_test(arrays_grow_and_keep_their_items),
        cmocka_unit_test_teardown(arrays_survive_a_failing_growth, disarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
