/* Slots: small extents share a slot, which is free again after all its takes were given back. */
#include "offload/slots.h"
#include "test_common.h"

#define PAGE ((uint64_t)4096)
enum { SLOTS = 5, PRIVATE = 1, PAGES_PER_SLOT = 4, TAKERS_MAX = SLOTS - PRIVATE };

static ms__slab slab;
static ms__slots slots;

static int setup(void **state)
{
    (void)state;
    ms_error err = {0};
    assert_ms_ok(ms__slab_open(&slab, SLOTS * PAGES_PER_SLOT * PAGE, &err), err);
    assert_ms_ok(ms__slots_open(&slots, &slab, PAGES_PER_SLOT * PAGE, PRIVATE, &err), err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ms__slots_close(&slots);
    ms__slab_close(&slab);
    return 0;
}

static void small_extents_share_a_slot(void **state)
{
    (void)state;
    unsigned char *first = ms__slots_take(&slots, PAGE);
    assert_ptr_equal(first, ms__slot_address(&slots, PRIVATE));
    assert_ptr_equal(ms__slots_take(&slots, 2 * PAGE), first + PAGE);
    assert_ptr_equal(ms__slots_take(&slots, PAGE), first + 3 * PAGE);
    assert_int_equal(slots.free_count, TAKERS_MAX - 1);
    assert_ptr_equal(ms__slots_take(&slots, PAGE), ms__slot_address(&slots, PRIVATE + 1));
    assert_int_equal(slots.free_count, TAKERS_MAX - 2);
}

static void a_large_extent_has_its_own_slot(void **state)
{
    (void)state;
    unsigned char *small = ms__slots_take(&slots, PAGE);
    unsigned char *large = ms__slots_take(&slots, 3 * PAGE);
    assert_ptr_equal(large, ms__slot_address(&slots, PRIVATE + 1));
    assert_ptr_equal(ms__slots_take(&slots, PAGE), small + PAGE); /* not behind the large one */
    ms__slots_give(&slots, large);
    assert_ptr_equal(ms__slots_take(&slots, 4 * PAGE), large);
}

static void a_slot_is_free_when_all_its_takes_were_given_back(void **state)
{
    (void)state;
    unsigned char *parts[PAGES_PER_SLOT];
    for (int i = 0; i < PAGES_PER_SLOT; i++) {
        parts[i] = ms__slots_take(&slots, PAGE);
    }
    for (int i = 0; i < PAGES_PER_SLOT; i++) {
        assert_int_equal(slots.free_count, TAKERS_MAX - 1);
        ms__slots_give(&slots, parts[(i + 2) % PAGES_PER_SLOT]);
    }
    assert_int_equal(slots.free_count, TAKERS_MAX);
    assert_ptr_equal(ms__slots_take(&slots, PAGE), parts[0]); /* and is filled from its start */
}

/* There may be only as many takers as without sharing, so each that needs a whole slot finds one. */
static void there_are_no_more_takers_than_slots(void **state)
{
    (void)state;
    unsigned char *last = NULL;
    for (int i = 0; i < TAKERS_MAX; i++) {
        last = ms__slots_take(&slots, PAGE);
        assert_non_null(last);
    }
    assert_null(ms__slots_take(&slots, PAGE));
    assert_null(ms__slots_take(&slots, 4 * PAGE));
    ms__slots_give(&slots, last);
    last = ms__slots_take(&slots, 4 * PAGE);
    assert_non_null(last);
    ms__slots_give(&slots, last);
    assert_int_equal(slots.taker_count, TAKERS_MAX - 1);
}

static void without_memory_there_are_no_slots(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        ms_error err = {0};
        ms__slots none;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        assert_ms_fails(ms__slots_open(&none, &slab, PAGE, PRIVATE, &err), MS_ENOMEM, err, "slots");
        ms_fault_disarm_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(small_extents_share_a_slot, setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_extent_has_its_own_slot, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slot_is_free_when_all_its_takes_were_given_back, setup, teardown),
        cmocka_unit_test_setup_teardown(there_are_no_more_takers_than_slots, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_there_are_no_slots, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
