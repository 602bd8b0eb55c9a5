/*
 * A portion of a list has enough bytes, hardly more than enough, and some of every stretch of the list.
 */
#include "base/portion.h"
#include "base/units.h"
#include "test_common.h"

enum { MOST = 64, ROUNDS = 2000 };

/* xorshift64 */
static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static uint64_t bytes_of(const void *items, size_t index)
{
    return ((const uint64_t *)items)[index];
}

static uint64_t sum(const uint64_t *bytes, size_t count, const uint8_t *taken)
{
    uint64_t all = 0;
    for (size_t i = 0; i < count; i++) {
        all += taken == NULL || taken[i] ? bytes[i] : 0;
    }
    return all;
}

static void a_portion_has_enough_and_nothing_that_could_stay(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t bytes[MOST];
        uint8_t taken[MOST];
        size_t count = 1 + next_random(&seed) % MOST;
        for (size_t i = 0; i < count; i++) {
            bytes[i] = next_random(&seed) % ((uint64_t)1 << (next_random(&seed) % 40));
        }
        uint64_t all = sum(bytes, count, NULL), wanted = next_random(&seed) % (all + 1);
        uint64_t portion = ms__take_portion(bytes, count, bytes_of, wanted, taken);
        assert_int_equal(portion, sum(bytes, count, taken));
        for (size_t i = 0; i < count; i++) {
            assert_true(taken[i] <= 1);
            assert_true(!taken[i] || bytes[i] == 0 || portion - bytes[i] < wanted);
        }
        assert_in_range(portion, wanted, all);
    }
}

static void all_are_taken_if_all_are_wanted(void **state)
{
    (void)state;
    const uint64_t bytes[] = {5, 1000000, 7, 0, 7}, wanted[] = {1000019, 1000020, UINT64_MAX};
    for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++) {
        uint8_t taken[5];
        assert_int_equal(ms__take_portion(bytes, 5, bytes_of, wanted[k], taken), 1000019);
        assert_true(taken[0] && taken[1] && taken[2] && taken[4]);
    }
    assert_int_equal(ms__take_portion(NULL, 0, bytes_of, 5, NULL), 0);
}

/* Layers of two parameters each: every run of eight layers has its part, to two layers. */
static void each_stretch_has_its_part(void **state)
{
    (void)state;
    uint64_t bytes[MOST];
    uint8_t taken[MOST];
    for (size_t i = 0; i < MOST; i++) {
        bytes[i] = i % 2 == 0 ? 100000 : 30000;
    }
    uint64_t all = sum(bytes, MOST, NULL), layer = all / (MOST / 2);
    for (uint64_t part = 1; part < 16; part++) {
        (void)ms__take_portion(bytes, MOST, bytes_of, all * part / 16, taken);
        for (size_t first = 0; first + 16 <= MOST; first += 16) {
            uint64_t fair = 8 * layer * part / 16;
            assert_in_range(sum(&bytes[first], 16, &taken[first]), ms__sub_sat(fair, 2 * layer), fair + 2 * layer);
        }
    }
}

/* An embedding that exceeds what is wanted stays, if anything else suffices. */
static void an_item_larger_than_wanted_is_taken_only_if_it_must(void **state)
{
    (void)state;
    const uint64_t bytes[] = {1000000, 20000, 20000};
    uint8_t taken[3];
    assert_int_equal(ms__take_portion(bytes, 3, bytes_of, 30000, taken), 40000);
    assert_true(!taken[0] && taken[1] && taken[2]);
    assert_int_equal(ms__take_portion(bytes, 3, bytes_of, 50000, taken), 1000000); /* and then alone */
    assert_true(taken[0] && !taken[1] && !taken[2]);
}

/* So a corrected plan moves few states. */
static void a_larger_portion_keeps_what_a_smaller_one_has(void **state)
{
    (void)state;
    for (size_t count = 1; count <= MOST; count++) {
        uint64_t bytes[MOST];
        uint8_t before[MOST] = {0}, taken[MOST];
        for (size_t i = 0; i < count; i++) {
            bytes[i] = 1000;
        }
        for (uint64_t wanted = 0; wanted <= 1000 * count; wanted += 250) {
            (void)ms__take_portion(bytes, count, bytes_of, wanted, taken);
            for (size_t i = 0; i < count; i++) {
                assert_true(taken[i] >= before[i]);
            }
            memcpy(before, taken, sizeof taken);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_portion_has_enough_and_nothing_that_could_stay),
        cmocka_unit_test(a_larger_portion_keeps_what_a_smaller_one_has),
        cmocka_unit_test(all_are_taken_if_all_are_wanted),
        cmocka_unit_test(each_stretch_has_its_part),
        cmocka_unit_test(an_item_larger_than_wanted_is_taken_only_if_it_must),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
