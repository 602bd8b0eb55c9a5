/*
 * The front of ms__search_front(): the candidates that no other dominates, the fastest first, against a search of all
 * pairs; for either time, for light candidates only, and thinned. And the one that a forced plan takes.
 */
#include "search/select.h"
#include "test_common.h"

enum { MOST = 40, ROUNDS = 200 };

static ms__candidate items[MOST];
static uint8_t rows[MOST];

/* Candidates whose times and peaks are few enough to be equal at times. */
static void draw(uint64_t *seed, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t drawn[4];
        for (int k = 0; k < 4; k++) {
            *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
            drawn[k] = (*seed >> 33) % 24;
        }
        items[i] = (ms__candidate){.step_ns = drawn[0],
                                   .work_ns = drawn[1],
                                   .fixed_bytes = drawn[2] / 2,
                                   .live_peak_bytes = drawn[2] - drawn[2] / 2,
                                   .held_most_bytes = drawn[3],
                                   .light = drawn[3] % 2 == 0};
        rows[i] = (uint8_t)i;
    }
}

static uint64_t time_of(size_t i, ms__front_kind kind)
{
    return kind == MS__FRONT_CACHED ? items[i].work_ns : items[i].step_ns;
}

/* Whether `a` is as good as `b` in both, and better in one or, if they are equal, before it in the total order. */
static bool dominates(size_t a, size_t b, ms__front_kind kind)
{
    uint64_t time_a = time_of(a, kind), time_b = time_of(b, kind);
    uint64_t peak_a = ms__candidate_peak(&items[a]), peak_b = ms__candidate_peak(&items[b]);
    if (time_a > time_b || peak_a > peak_b) {
        return false;
    }
    if (time_a < time_b || peak_a < peak_b) {
        return true;
    }
    uint64_t held_a = items[a].held_most_bytes, held_b = items[b].held_most_bytes;
    return held_a != held_b ? held_a < held_b : rows[a] < rows[b];
}

static bool is_on_front(size_t i, size_t among, ms__front_kind kind, bool light)
{
    for (size_t other = 0; other < among; other++) {
        if (other != i && (!light || items[other].light) && dominates(other, i, kind)) {
            return false;
        }
    }
    return !light || items[i].light;
}

static void check(ms__search *search, ms__front_kind kind, bool light, size_t among)
{
    size_t found[MOST], expected = 0;
    size_t count = ms__search_front(search, kind, light, among, found, MOST);
    for (size_t i = 0; i < among; i++) {
        expected += is_on_front(i, among, kind, light);
    }
    assert_int_equal(count, expected);
    for (size_t i = 0; i < count; i++) {
        assert_true(is_on_front(found[i], among, kind, light));
        assert_true(i == 0 || time_of(found[i - 1], kind) < time_of(found[i], kind));
    }
    size_t thinned[MOST];
    size_t few = ms__search_front(search, kind, light, among, thinned, 3);
    assert_int_equal(few, count < 3 ? count : 3);
    if (count >= 3) {
        assert_int_equal(thinned[0], found[0]);
        assert_int_equal(thinned[1], found[(count - 1) / 2]);
        assert_int_equal(thinned[2], found[count - 1]);
    }
}

static void the_front_has_what_no_other_dominates_the_fastest_first(void **state)
{
    (void)state;
    ms__search *search = calloc(1, sizeof *search);
    assert_non_null(search);
    search->items = items;
    search->rows = rows;
    search->row_bytes = 1;
    uint64_t seed = 5;
    for (int round = 0; round < ROUNDS; round++) {
        size_t count = 1 + (size_t)round % MOST;
        draw(&seed, count);
        check(search, MS__FRONT_UNCACHED, false, count);
        check(search, MS__FRONT_CACHED, false, count);
        check(search, MS__FRONT_CACHED, true, count);
        check(search, MS__FRONT_UNCACHED, true, count - 1);
    }
    free(search);
}

/* The first candidate keeps everything; the others are as fast. */
static void a_forced_plan_keeps_everything_only_if_nothing_shrinks_the_tensors(void **state)
{
    (void)state;
    ms__search *search = calloc(1, sizeof *search);
    assert_non_null(search);
    search->items = items;
    search->rows = rows;
    search->row_bytes = 1;
    search->count = 3;
    for (size_t i = 0; i < 3; i++) {
        items[i] = (ms__candidate){.fixed_bytes = 30, .live_peak_bytes = 20, .boundary_bytes = 9};
        rows[i] = (uint8_t)i;
    }
    items[1].fixed_bytes = items[2].fixed_bytes = 10; /* not of tensors */
    assert_int_equal(ms__select_forced(search), 0);
    items[2].boundary_bytes = 8;
    items[2].fixed_bytes = 50; /* its slab */
    assert_int_equal(ms__select_forced(search), 2);
    items[1].boundary_bytes = 8;
    assert_int_equal(ms__select_forced(search), 1);
    free(search);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_front_has_what_no_other_dominates_the_fastest_first),
        cmocka_unit_test(a_forced_plan_keeps_everything_only_if_nothing_shrinks_the_tensors),
    };
    return cmocka_run_group_tests_name("front", tests, NULL, NULL);
}
