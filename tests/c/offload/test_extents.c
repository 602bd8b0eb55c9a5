/* extents.h: space is reused before the file grows, and no two extents overlap. */
#include "test_common.h"

#include "offload/extents.h"

static uint64_t take(ms__extents *extents, uint64_t bytes)
{
    uint64_t position = UINT64_MAX;
    assert_int_equal(ms__extents_reserve(extents, bytes, &position), MS_OK);
    return position;
}

static void space_is_taken_from_the_lowest_gap(void **state)
{
    (void)state;
    ms__extents extents;
    ms__extents_init(&extents, UINT64_MAX);
    assert_int_equal(take(&extents, 100), 0);
    assert_int_equal(take(&extents, 50), 100);
    assert_int_equal(take(&extents, 100), 150);
    ms__extents_release(&extents, 0, 100);
    assert_int_equal(take(&extents, 200), 250);
    assert_int_equal(take(&extents, 60), 0);
    assert_int_equal(take(&extents, 40), 60);
    assert_int_equal(extents.end_bytes, 450);
    ms__extents_destroy(&extents);
}

static void neighbours_join(void **state)
{
    (void)state;
    ms__extents extents;
    ms__extents_init(&extents, UINT64_MAX);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(take(&extents, 10), i * 10);
    }
    ms__extents_release(&extents, 10, 10);
    ms__extents_release(&extents, 30, 10);
    assert_int_equal(extents.run_count, 2);
    ms__extents_release(&extents, 20, 10); /* joins both sides */
    assert_int_equal(extents.run_count, 1);
    assert_int_equal(take(&extents, 30), 10);
    ms__extents_release(&extents, 10, 30);
    ms__extents_release(&extents, 40, 10); /* the end falls below the gap too */
    assert_int_equal(extents.end_bytes, 10);
    assert_int_equal(extents.run_count, 0);
    ms__extents_destroy(&extents);
}

static void the_limit_holds(void **state)
{
    (void)state;
    ms__extents extents;
    uint64_t position = 7;
    ms__extents_init(&extents, 100);
    assert_int_equal(take(&extents, 60), 0);
    assert_int_equal(ms__extents_reserve(&extents, 41, &position), MS_ENOSPC);
    assert_int_equal(position, 7);
    assert_int_equal(take(&extents, 40), 60);
    ms__extents_release(&extents, 0, 60);
    assert_int_equal(ms__extents_reserve(&extents, 61, &position), MS_ENOSPC);
    assert_int_equal(take(&extents, 60), 0);
    ms__extents_destroy(&extents);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    ms__extents extents;
    uint64_t position = 0;
    ms__extents_init(&extents, UINT64_MAX);
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    assert_int_equal(ms__extents_reserve(&extents, 10, &position), MS_ENOMEM);
    assert_int_equal(extents.end_bytes, 0);
    assert_int_equal(take(&extents, 10), 0);
    /* Releasing any number of live extents in the worst order needs no memory. */
    for (int i = 1; i < 100; i++) {
        take(&extents, 10);
    }
    ms_fault_arm(MS_FAULT_ALLOC, 1, 0);
    for (uint64_t i = 0; i < 100; i += 2) {
        ms__extents_release(&extents, i * 10, 10);
    }
    assert_int_equal(extents.run_count, 50);
    assert_int_equal(ms_fault_passed(MS_FAULT_ALLOC), 0);
    ms_fault_disarm_all();
    ms__extents_destroy(&extents);
}

enum { CELLS = 4096, LIVE_MAX = 60 };

typedef struct oracle {
    unsigned char used[CELLS];
    uint64_t position[LIVE_MAX];
    uint64_t bytes[LIVE_MAX];
    size_t live;
} oracle;

/* First fit, the slow way. */
static uint64_t oracle_place(const oracle *o, uint64_t bytes)
{
    uint64_t length = 0;
    for (uint64_t at = 0; at < CELLS; at++) {
        length = o->used[at] ? 0 : length + 1;
        if (length == bytes) {
            return at + 1 - bytes;
        }
    }
    return UINT64_MAX;
}

static void oracle_release(oracle *o, ms__extents *extents, size_t index)
{
    ms__extents_release(extents, o->position[index], o->bytes[index]);
    memset(o->used + o->position[index], 0, o->bytes[index]);
    o->live--;
    o->position[index] = o->position[o->live];
    o->bytes[index] = o->bytes[o->live];
}

static void random_use_equals_a_bitmap(void **state)
{
    (void)state;
    static oracle o;
    ms__extents extents;
    uint64_t random = 88172645463325252u;
    memset(&o, 0, sizeof o);
    ms__extents_init(&extents, CELLS);
    for (int step = 0; step < 20000; step++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if (o.live > 0 && (random % 2 == 0 || o.live == LIVE_MAX)) {
            oracle_release(&o, &extents, (random >> 8) % o.live);
            continue;
        }
        uint64_t bytes = 1 + (random >> 20) % 200;
        uint64_t expected = oracle_place(&o, bytes);
        uint64_t position = UINT64_MAX;
        int rc = ms__extents_reserve(&extents, bytes, &position);
        assert_int_equal(rc, expected == UINT64_MAX ? MS_ENOSPC : MS_OK);
        assert_int_equal(position, expected);
        if (rc == MS_OK) {
            memset(o.used + position, 1, bytes);
            o.position[o.live] = position;
            o.bytes[o.live++] = bytes;
        }
    }
    while (o.live > 0) {
        oracle_release(&o, &extents, o.live - 1);
    }
    assert_int_equal(extents.end_bytes, 0);
    assert_int_equal(extents.run_count, 0);
    ms__extents_destroy(&extents);
    assert_int_equal(ms_memory_live_blocks(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(space_is_taken_from_the_lowest_gap),
        cmocka_unit_test(neighbours_join),
        cmocka_unit_test(the_limit_holds),
        cmocka_unit_test(without_memory_nothing_changes),
        cmocka_unit_test(random_use_equals_a_bitmap),
    };
    return cmocka_run_group_tests_name("extents", tests, NULL, NULL);
}
