/* Similarity of two names. */
#include "base/names.h"

#include "test_common.h"

static void assert_alike(const char *a, const char *b, uint32_t permille)
{
    assert_int_equal(ms__names_similarity_permille(a, b), permille);
    assert_int_equal(ms__names_similarity_permille(b, a), permille);
}

static void similarity_is_the_common_subsequence_over_both_lengths(void **state)
{
    (void)state;
    assert_alike("mode", "mode", 1000);
    assert_alike("memory_budget", "memory_budget_gb", 2000 * 13 / 29);
    assert_alike("abcd", "acbd", 750); /* order counts */
    assert_alike("abc", "xyz", 0);
    assert_alike("aaaa", "a", 400);
}

static void nothing_and_long_names_are_like_nothing(void **state)
{
    (void)state;
    char at_most[65] = {0}, too_long[66] = {0};
    memset(at_most, 'a', 64);
    memset(too_long, 'a', 65);
    assert_alike("", "mode", 0);
    assert_alike("", "", 0);
    assert_alike(at_most, at_most, 1000);
    assert_alike(too_long, too_long, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(similarity_is_the_common_subsequence_over_both_lengths),
        cmocka_unit_test(nothing_and_long_names_are_like_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
