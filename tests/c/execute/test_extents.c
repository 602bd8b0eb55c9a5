/*
 * Storages on the lower tier: the life of extents, as execute.h promises it. test_extents_failing.c has failures and
 * transfers that end early.
 */
#include "execute/execute_internal.h"
#include "extents_fixture.h"
#include "test_common.h"

static void stored_bytes_leave_memory_and_come_back(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 3);
    ms_extent *extent = store(f, item, 0);
    storage_let_go(&f->host, item);
    settle(f);
    assert_int_equal(f->host.live_storages, 0);
    assert_false(memory_is_strong(ms_extent_source(extent)));
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 3));
    assert_int_equal(f->host.obtained, 1);
    assert_int_equal(counter(f, MS_COUNTER_OFFLOADED_BYTES), BYTES);
    assert_int_equal(counter(f, MS_COUNTER_FETCHED_BYTES), BYTES);
    assert_int_equal(counter(f, MS_COUNTER_DISK_BYTES), 0); /* the host tier */
    ms_extent_drop(f->execute, extent, mark);
}

static void bytes_that_still_live_are_not_fetched(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 4);
    ms_extent *extent = store(f, item, 0);
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 4)); /* its store may still run */
    settle(f);
    assert_true(take(f, extent, &mark, 4));
    assert_int_equal(item->holders, 1);
    assert_int_equal(f->host.obtained, 0);
    storage_let_go(&f->host, item);
    assert_true(take(f, extent, &mark, 4));
    assert_int_equal(f->host.obtained, 1);
    ms_extent_drop(f->execute, extent, mark);
}

static void one_extent_serves_every_handle_of_a_version(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 5);
    ms_extent *extent = store(f, item, 7);
    assert_null(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 6));
    assert_null(ms_extent_find(f->execute, f->frame, (uintptr_t)item + 1, 7));
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 7), extent);
    ms_extent *changed = store(f, item, 8);
    assert_ptr_not_equal(changed, extent);
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 8), changed);
    assert_null(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 7));
    storage_let_go(&f->host, item);
    settle(f);
    uint64_t first = 0, second = 0;
    assert_true(take(f, extent, &first, 5));
    ms_extent_drop(f->execute, extent, first);
    assert_int_equal(f->host.live_storages, 1); /* the other handle still needs the bytes */
    assert_true(take(f, extent, &second, 5));
    assert_int_equal(f->host.obtained, 1);
    ms_extent_drop(f->execute, extent, second);
    assert_int_equal(f->host.live_storages, 0);
    ms_extent_drop(f->execute, changed, 0);
    ms_extent_drop(f->execute, changed, 0);
}

static void a_retained_graph_fetches_again(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 6), *other = storage_new(&f->host, BYTES, 7);
    ms_extent *extent = store(f, item, 0);
    ms_execute_leave(f->execute, 1);
    open_frame(f);
    ms_extent *later = store(f, other, 0);
    storage_let_go(&f->host, item);
    storage_let_go(&f->host, other);
    settle(f);
    uint64_t mark = 0, later_mark = 0;
    assert_true(take(f, later, &later_mark, 7));
    assert_int_equal(f->host.live_storages, 1);
    assert_true(take(f, extent, &mark, 6)); /* backward has moved on */
    assert_int_equal(f->host.live_storages, 1);
    ms_execute_backward_ended(f->execute);
    assert_int_equal(f->host.live_storages, 0);
    assert_true(take(f, later, &later_mark, 7));
    assert_int_equal(f->host.obtained, 3);
    ms_extent_drop(f->execute, extent, mark);
    ms_extent_drop(f->execute, later, later_mark);
}

static void bytes_saved_again_after_their_fetch_stay_until_every_handle_has_them(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 6), *other = storage_new(&f->host, BYTES, 7);
    uintptr_t identity = (uintptr_t)other;
    ms_extent *extent = store(f, item, 0);
    ms_execute_leave(f->execute, 1);
    open_frame(f);
    ms_extent *later = store(f, other, 0);
    storage_let_go(&f->host, item);
    storage_let_go(&f->host, other);
    settle(f);
    uint64_t mark = 0, first = 0, second = 0;
    assert_true(take(f, later, &first, 7));
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, identity, 0), later);
    assert_true(take(f, extent, &mark, 6)); /* backward has moved on, and one handle has not taken its bytes */
    assert_int_equal(f->host.live_storages, 2);
    assert_true(take(f, later, &second, 7));
    assert_int_equal(f->host.obtained, 2);
    assert_int_equal(f->host.live_storages, 1);
    assert_true(take(f, extent, &mark, 6)); /* now both have them */
    assert_int_equal(f->host.live_storages, 1);
    ms_extent_drop(f->execute, extent, mark);
    ms_extent_drop(f->execute, later, first);
    ms_extent_drop(f->execute, later, second);
}

/* A handle that ends without taking the fetched bytes no longer waits for them. */
static void a_handle_dropped_untaken_does_not_keep_fetched_bytes(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 6), *other = storage_new(&f->host, BYTES, 7);
    ms_extent *extent = store(f, item, 0);
    storage_let_go(&f->host, item);
    ms_execute_leave(f->execute, 1);
    open_frame(f);
    ms_extent *later = store(f, other, 0);
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)other, 0), later);
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)other, 0), later);
    storage_let_go(&f->host, other);
    settle(f);
    uint64_t mark = 0, taken = 0, again = 0;
    assert_true(take(f, later, &taken, 7));
    assert_true(take(f, later, &again, 7));
    ms_extent_drop(f->execute, later, 0); /* the third handle has not taken them */
    assert_true(take(f, extent, &mark, 6)); /* backward has moved on: another take would fetch again */
    assert_int_equal(f->host.live_storages, 1);
    assert_true(take(f, later, &taken, 7));
    assert_int_equal(f->host.obtained, 3);
    ms_extent_drop(f->execute, extent, mark);
    ms_extent_drop(f->execute, later, taken);
    ms_extent_drop(f->execute, later, again);
}

/* Extents whose bytes others keep in memory need no fetch; after 256 of them the search for the next one ends. */
static void a_search_for_the_next_fetch_ends_after_256_extents(void **state)
{
    fixture *f = *state;
    enum { LOOKED_AT = 256, ALL = LOOKED_AT + 2 };
    static ms_extent *extents[ALL];
    static storage *kept[ALL];
    set_windows(f, (uint64_t)1 << 30, 0);
    for (unsigned i = 0; i < ALL; i++) {
        kept[i] = storage_new(&f->host, 64, i);
        extents[i] = store(f, kept[i], 0);
    }
    storage_let_go(&f->host, kept[0]);
    storage_let_go(&f->host, kept[1]);
    settle(f);
    set_windows(f, (uint64_t)1 << 30, 1 << 20);
    uint64_t mark = 0;
    assert_true(take(f, extents[ALL - 1], &mark, ALL - 1));
    assert_int_equal(f->host.obtained, 0); /* number 1 is behind 256 others */
    ms_extent_drop(f->execute, extents[ALL - 1], mark);
    mark = 0;
    assert_true(take(f, extents[ALL - 2], &mark, ALL - 2));
    assert_int_equal(f->host.obtained, 1);
    ms_extent_drop(f->execute, extents[ALL - 2], mark);
    for (unsigned i = 0; i < ALL; i++) {
        if (i > 1) {
            storage_let_go(&f->host, kept[i]);
        }
        if (i < ALL - 2) {
            ms_extent_drop(f->execute, extents[i], 0);
        }
    }
}

static void the_write_window_bounds_held_bytes(void **state)
{
    fixture *f = *state;
    ms_extent *extents[16];
    set_windows(f, 2 * BYTES, 0);
    for (unsigned i = 0; i < 16; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
        assert_true(f->host.live_storages <= 2);
    }
    for (unsigned i = 0; i < 16; i++) {
        ms_extent_drop(f->execute, extents[i], 0);
    }
}

static void fetches_run_ahead_in_reverse_within_their_window(void **state)
{
    fixture *f = *state;
    ms_extent *extents[8];
    store_apart(f, extents, 8);
    settle(f);
    set_windows(f, 1 << 20, 2 * BYTES);
    for (unsigned i = 8; i-- > 0;) {
        uint64_t mark = 0;
        assert_true(take(f, extents[i], &mark, i));
        /* A fetched extent counts as ahead until it is taken. */
        uint64_t ahead = i == 7 ? 2 : i > 0;
        assert_int_equal(f->host.live_storages, 1 + ahead);
        ms_extent_drop(f->execute, extents[i], mark);
    }
    assert_int_equal(f->host.obtained, 8);
}

/* Autograd unpacks an operator's tensors in the order of saving, its input first. The input is the output
 * of the layer before, which may have saved it too. */
static void a_layers_own_extents_are_fetched_before_other_layers(void **state)
{
    fixture *f = *state;
    enum { OTHER, BEFORE, SHARED, OWN, OWN_TOO, COUNT };
    ms_extent *extents[COUNT];
    storage *shared = NULL;
    for (unsigned i = 0; i < COUNT; i++) {
        if (i == OWN) {
            ms_execute_leave(f->execute, 1);
            open_frame(f);
            assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)shared, 0), extents[SHARED]);
            storage_let_go(&f->host, shared);
        }
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        if (i == SHARED) {
            shared = item;
        } else {
            storage_let_go(&f->host, item);
        }
    }
    settle(f);
    set_windows(f, 1 << 20, 2 * BYTES);
    uint64_t marks[COUNT + 1] = {0};
    assert_true(take(f, extents[SHARED], &marks[SHARED], SHARED));
    assert_int_not_equal(extents[OWN]->state, MS__EXTENT_STORED);
    assert_int_not_equal(extents[OWN_TOO]->state, MS__EXTENT_STORED);
    assert_int_equal(extents[BEFORE]->state, MS__EXTENT_STORED);
    assert_true(take(f, extents[OWN], &marks[OWN], OWN));
    assert_true(take(f, extents[OWN_TOO], &marks[OWN_TOO], OWN_TOO));
    assert_int_not_equal(extents[BEFORE]->state, MS__EXTENT_STORED);
    assert_int_equal(extents[OTHER]->state, MS__EXTENT_STORED);
    ms_extent_drop(f->execute, extents[SHARED], marks[SHARED]);
    for (unsigned i = 0; i < COUNT; i++) {
        ms_extent_drop(f->execute, extents[i], i == SHARED ? marks[COUNT] : marks[i]);
    }
}

static void unused_prefetches_are_released(void **state)
{
    fixture *f = *state;
    ms_extent *extents[3];
    store_apart(f, extents, 3);
    settle(f);
    set_windows(f, 1 << 20, 4 * BYTES);
    uint64_t mark = 0;
    assert_true(take(f, extents[2], &mark, 2));
    assert_int_equal(f->host.live_storages, 3);
    ms_extent_drop(f->execute, extents[2], mark);
    ms_execute_backward_ended(f->execute);
    while (f->host.live_storages > 0) { /* once their transfers have ended */
        ms_execute_poll(f->execute);
    }
    ms_extent_drop(f->execute, extents[1], 0);
    mark = 0;
    assert_true(take(f, extents[0], &mark, 0));
    ms_extent_drop(f->execute, extents[0], mark);
}

/* One tensor is being handed out when backward ends; the prefetches behind it are released all the same. */
static void a_tensor_being_handed_out_keeps_no_other_in_memory(void **state)
{
    fixture *f = *state;
    ms_extent *extents[3];
    store_apart(f, extents, 3);
    settle(f);
    set_windows(f, 1 << 20, 4 * BYTES);
    void *memory;
    assert_ms_ok(ms_extent_take(f->execute, extents[2], &memory, &f->err), f->err);
    assert_int_equal(f->host.live_storages, 3);
    ms_execute_backward_ended(f->execute);
    uint64_t until_ns = ms_now_ns() + PATIENCE_NS;
    while (f->host.live_storages > 1 && ms_now_ns() < until_ns) {
        ms_execute_poll(f->execute);
    }
    assert_int_equal(f->host.live_storages, 1);
    assert_true(storage_holds(memory_storage(memory), BYTES, 2));
    uint64_t mark = 0;
    ms_extent_taken(f->execute, extents[2], &mark);
    ms_extent_drop(f->execute, extents[2], mark);
    ms_extent_drop(f->execute, extents[1], 0);
    ms_extent_drop(f->execute, extents[0], 0);
}

/* Another thread's unpack of the same tensor, while this one's allocation lets it run. */
typedef struct taking {
    fixture *f;
    ms_extent *extent;
    uint64_t mark;
    bool right;
} taking;

static void take_meanwhile(void *context)
{
    taking *other = context;
    other->right = take(other->f, other->extent, &other->mark, 2);
}

static void two_threads_that_want_one_tensor_share_its_fetch(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 2);
    ms_extent *extent = store(f, item, 0);
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 0), extent);
    storage_let_go(&f->host, item);
    settle(f);
    taking other = {.f = f, .extent = extent};
    f->host.meanwhile = take_meanwhile;
    f->host.meanwhile_context = &other;
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 2));
    assert_true(other.right);
    assert_int_equal(f->host.obtained, 2);
    assert_int_equal(f->host.live_storages, 1); /* the second one's memory was returned */
    assert_int_equal(counter(f, MS_COUNTER_FETCHED_BYTES), BYTES);
    ms_extent_drop(f->execute, extent, mark);
    ms_extent_drop(f->execute, extent, other.mark);
}

static void handles_may_be_dropped_at_any_time(void **state)
{
    fixture *f = *state;
    for (unsigned i = 0; i < 50; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        ms_extent *extent = store(f, item, 0);
        storage_let_go(&f->host, item);
        if (i % 3 == 0) {
            settle(f);
        }
        if (i % 2 == 0) {
            uint64_t mark = 0;
            assert_true(take(f, extent, &mark, i));
            ms_extent_drop(f->execute, extent, mark);
        } else {
            ms_extent_drop(f->execute, extent, 0); /* its store may still run */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        TEST(stored_bytes_leave_memory_and_come_back),
        TEST(bytes_that_still_live_are_not_fetched),
        TEST(one_extent_serves_every_handle_of_a_version),
        TEST(a_retained_graph_fetches_again),
        TEST(bytes_saved_again_after_their_fetch_stay_until_every_handle_has_them),
        TEST(a_handle_dropped_untaken_does_not_keep_fetched_bytes),
        TEST(a_search_for_the_next_fetch_ends_after_256_extents),
        TEST(the_write_window_bounds_held_bytes),
        TEST(fetches_run_ahead_in_reverse_within_their_window),
        TEST(a_layers_own_extents_are_fetched_before_other_layers),
        TEST(unused_prefetches_are_released),
        TEST(a_tensor_being_handed_out_keeps_no_other_in_memory),
        TEST(two_threads_that_want_one_tensor_share_its_fetch),
        TEST(handles_may_be_dropped_at_any_time),
    };
    return cmocka_run_group_tests_name("execute: extents", tests, NULL, NULL);
}
