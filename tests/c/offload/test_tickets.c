/* tickets.h: a dropped number stays unknown. */
#include "test_common.h"

#include "offload/tickets.h"

static void a_dropped_number_stays_unknown(void **state)
{
    (void)state;
    ms__tickets tickets;
    ms__tickets_init(&tickets);
    ms__ticket *first = ms__tickets_new(&tickets, 1);
    assert_non_null(first);
    ms_ticket old = first->id;
    assert_ptr_equal(ms__tickets_find(&tickets, old), first);
    ms__tickets_release(&tickets, first);
    assert_null(ms__tickets_find(&tickets, old));
    for (int i = 0; i < 1000; i++) {
        ms__ticket *again = ms__tickets_new(&tickets, 1);
        assert_ptr_equal(again, first); /* the struct is reused, the number is not */
        assert_true(again->id != old);
        assert_null(ms__tickets_find(&tickets, old));
        ms__tickets_release(&tickets, again);
    }
    ms__tickets_destroy(&tickets);
}

static void numbers_never_issued_are_unknown(void **state)
{
    (void)state;
    ms__tickets tickets;
    ms__tickets_init(&tickets);
    assert_null(ms__tickets_find(&tickets, 0));
    assert_null(ms__tickets_find(&tickets, 1));
    ms__ticket *ticket = ms__tickets_new(&tickets, 1);
    assert_null(ms__tickets_find(&tickets, 0));
    assert_null(ms__tickets_find(&tickets, UINT64_MAX));
    assert_null(ms__tickets_find(&tickets, ticket->id + 1));
    assert_null(ms__tickets_find(&tickets, ticket->id + ((uint64_t)1 << 32)));
    ms__tickets_destroy(&tickets);
}

static void structs_stay_while_the_table_grows(void **state)
{
    (void)state;
    ms__tickets tickets;
    ms__ticket *all[500];
    ms__tickets_init(&tickets);
    for (size_t i = 0; i < 500; i++) {
        all[i] = ms__tickets_new(&tickets, (uint32_t)i + 1);
        all[i]->bytes = i;
    }
    for (size_t i = 0; i < 500; i++) {
        assert_ptr_equal(ms__tickets_find(&tickets, all[i]->id), all[i]);
        assert_int_equal(all[i]->bytes, i);
        assert_int_equal(all[i]->piece_count, i + 1);
    }
    ms__tickets_destroy(&tickets);
}

static void a_million_tickets_take_the_memory_of_the_live_ones(void **state)
{
    (void)state;
    enum { LIVE = 64, ALL = 1000000 };
    ms__tickets tickets;
    ms__ticket *held[LIVE] = {NULL};
    uint64_t settled_bytes = 0;
    ms__tickets_init(&tickets);
    for (int i = 0; i < ALL; i++) {
        ms__ticket **slot = &held[i % LIVE];
        if (*slot != NULL) {
            ms__tickets_release(&tickets, *slot);
        }
        *slot = ms__tickets_new(&tickets, 1 + (uint32_t)(i % LIVE));
        assert_non_null(*slot);
        settled_bytes = i == 10 * LIVE ? ms_memory_live_bytes() : settled_bytes;
    }
    assert_int_equal(ms_memory_live_bytes(), settled_bytes);
    ms__tickets_destroy(&tickets);
}

static void without_memory_the_table_stays_usable(void **state)
{
    (void)state;
    for (uint64_t nth = 1;; nth++) {
        ms__tickets tickets;
        ms__tickets_init(&tickets);
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        ms__ticket *ticket = ms__tickets_new(&tickets, 3);
        bool fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(ticket == NULL, fired);
        assert_non_null(ms__tickets_new(&tickets, 3));
        ms__tickets_destroy(&tickets);
        assert_int_equal(ms_memory_live_blocks(), 0);
        if (!fired) {
            assert_true(nth > 3);
            return;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dropped_number_stays_unknown),
        cmocka_unit_test(numbers_never_issued_are_unknown),
        cmocka_unit_test(structs_stay_while_the_table_grows),
        cmocka_unit_test(a_million_tickets_take_the_memory_of_the_live_ones),
        cmocka_unit_test(without_memory_the_table_stays_usable),
    };
    return cmocka_run_group_tests_name("tickets", tests, NULL, NULL);
}
