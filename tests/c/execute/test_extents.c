/*
 * Storages on the lower tier: the promises of extents in execute.h, over the memory tier and a
 * tier that fails.
 */
#include <errno.h>

#include "test_common.h"

#include "double_host.h"
#include "execute/execute_internal.h"
#include "offload/offload_hold.h"

enum { BYTES = 8192 };

typedef struct fixture {
    host host;
    ms_execute *execute;
    ms_frame *frame;
    ms_error err;
} fixture;

static void set_windows(fixture *f, uint64_t write_bytes, uint64_t read_bytes)
{
    char name[] = "layer";
    ms_plan_entry entry = {.name = name, .technique = MS_TECHNIQUE_OFFLOAD_DISK};
    ms_plan plan = {.entries = &entry,
                    .entry_count = 1,
                    .fallback = MS_TECHNIQUE_OFFLOAD_DISK,
                    .offload_min_bytes = 1,
                    .write_window_bytes = write_bytes,
                    .read_window_bytes = read_bytes};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
}

static void open_frame(fixture *f)
{
    ms_call_facts facts = {.replayable = false};
    uint32_t layer;
    assert_ms_ok(ms_execute_add_layer(f->execute, "layer", &layer, &f->err), f->err);
    assert_ms_ok(ms_execute_enter(f->execute, 1, layer, &facts, &f->frame, &f->err), f->err);
    assert_non_null(f->frame);
}

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
    *state = f;
    return 0;
}

static void assert_nothing_lives(fixture *f)
{
    uint64_t step, step_ns;
    ms_execute_stats stats;
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.live_extents, 0);
    assert_int_equal(stats.storing_bytes, 0);
    assert_int_equal(stats.fetched_bytes, 0);
    assert_int_equal(stats.tier_bytes, 0);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(f->host.locks, f->host.unlocks);
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    ms_fault_disarm_all();
    ms_execute_leave(f->execute, 1);
    assert_nothing_lives(f);
    assert_int_equal(f->host.live_storages, 0);
    ms_execute_close(f->execute);
    assert_int_equal(ms_memory_live_blocks(), 0);
    free(f);
    return 0;
}

static ms_extent *store(fixture *f, storage *item, uint64_t version)
{
    ms_extent *extent;
    void *memory = memory_of(&f->host, item);
    assert_ms_ok(ms_extent_store(f->execute, f->frame, (uintptr_t)item, version, item->data, item->bytes, item->bytes,
                                 memory, &extent, &f->err),
                 f->err);
    if (extent == NULL) { /* the reference is still the test's */
        ms_execute_host table;
        host kept = f->host;
        host_table(&f->host, &table);
        f->host = kept;
        table.release(&f->host, memory);
    }
    return extent;
}

/* Storages that only their extents hold; number i has the bytes of the number i. */
static void store_apart(fixture *f, ms_extent **extents, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
    }
}

/* Waits for the end of its store. */
static void settle(fixture *f)
{
    ms_execute_stats stats;
    do {
        ms_execute_poll(f->execute);
        ms_execute_get_stats(f->execute, &stats);
    } while (stats.storing_bytes > 0);
}

/* Takes the bytes; returns whether they are those of `seed`. */
static bool take(fixture *f, ms_extent *extent, uint64_t *mark, unsigned seed)
{
    void *memory;
    assert_ms_ok(ms_extent_take(f->execute, extent, &memory, &f->err), f->err);
    assert_true(memory_is_strong(memory));
    bool same = storage_holds(memory_storage(memory), extent->bytes, seed);
    ms_extent_taken(f->execute, extent, mark);
    return same;
}

static uint64_t counter(fixture *f, ms_counter id)
{
    return ms_counter_get(ms_execute_counters(f->execute), id);
}

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
    ms_extent_drop(f->execute, later, 0);     /* the third handle has not taken them */
    ms_extent_drop(f->execute, later, again); /* the second has */
    assert_true(take(f, extent, &mark, 6));   /* backward has moved on: the first handle fetches again if need be */
    assert_int_equal(f->host.live_storages, 1);
    assert_true(take(f, later, &taken, 7));
    assert_int_equal(f->host.obtained, 3);
    ms_extent_drop(f->execute, extent, mark);
    ms_extent_drop(f->execute, later, taken);
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

/* Stores of exactly the window's bytes may be in flight: nothing waits until one more comes. */
static void a_full_write_window_stalls_only_the_next_store(void **state)
{
    fixture *f = *state;
    enum { LARGE = 4 << 20 };
    ms_extent *extents[2];
    set_windows(f, 2 * LARGE, 0);
    for (unsigned i = 0; i < 2; i++) {
        storage *item = storage_new(&f->host, LARGE, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
    }
    assert_int_equal(counter(f, MS_COUNTER_FORWARD_STALL_NS), 0);
    ms_extent_drop(f->execute, extents[0], 0);
    ms_extent_drop(f->execute, extents[1], 0);
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

/* ---- failures -------------------------------------------------------------------- */

static void a_full_tier_keeps_tensors_until_the_next_step(void **state)
{
    fixture *f = *state;
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    tier.cap_bytes = BYTES;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
    storage *one = storage_new(&f->host, BYTES, 1), *two = storage_new(&f->host, BYTES, 2);
    ms_extent *extent = store(f, one, 0);
    assert_non_null(extent);
    assert_null(store(f, two, 0));
    assert_null(store(f, two, 0));
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 2);
    assert_int_equal(ms_execute_peek(f->execute, 1, 0), MS_TECHNIQUE_OFFLOAD_DISK);
    ms_extent_drop(f->execute, extent, 0);
    ms_execute_leave(f->execute, 1);
    uint64_t step, step_ns;
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    open_frame(f);
    extent = store(f, two, 0);
    assert_non_null(extent);
    ms_extent_drop(f->execute, extent, 0);
    storage_let_go(&f->host, one);
    storage_let_go(&f->host, two);
}

static void no_memory_to_fetch_into_is_an_error_and_can_be_tried_again(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 9);
    ms_extent *extent = store(f, item, 0);
    storage_let_go(&f->host, item);
    settle(f);
    void *memory;
    f->host.refuse = true;
    assert_ms_fails(ms_extent_take(f->execute, extent, &memory, &f->err), MS_ENOMEM, f->err, "no memory");
    f->host.refuse = false;
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 9));
    ms_extent_drop(f->execute, extent, mark);
}

static void running_out_of_memory_keeps_the_tensor(void **state)
{
    fixture *f = *state;
    for (uint64_t nth = 1; nth < 8; nth++) {
        storage *item = storage_new(&f->host, BYTES, 1);
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        ms_extent *extent = store(f, item, 0);
        ms_fault_disarm_all();
        if (extent != NULL) {
            ms_extent_drop(f->execute, extent, 0);
        }
        storage_let_go(&f->host, item);
        uint64_t step, step_ns;
        ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    }
}

/* Opening and closing a tier may take long: the host's other threads run meanwhile. */
static void a_tier_is_opened_once_and_without_the_hosts_lock(void **state)
{
    fixture *f = *state;
    ms_execute_host table;
    ms_execute *execute;
    ms_offload_options tier = memory_tier();
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, NULL, &execute, &f->err), f->err);
    uint64_t unlocks = f->host.unlocks;
    assert_ms_ok(ms_execute_open_tier(execute, &tier, &f->err), f->err);
    assert_int_equal(f->host.unlocks, unlocks + 1);
    assert_int_equal(f->host.locks, f->host.unlocks);
    assert_ms_fails(ms_execute_open_tier(execute, &tier, &f->err), MS_ESTATE, f->err, "already");
    ms_execute_close(execute);
    assert_int_equal(f->host.locks, f->host.unlocks);
}

static void the_first_tier_follows_the_caps(void **state)
{
    (void)state;
    ms_offload_options cpu = {0}, gpu = {.from_device = true};
    assert_false(ms_execute_first_tier(0, 0, &cpu));
    assert_true(ms_execute_first_tier(5, 7, &cpu));
    assert_true(cpu.tier == MS_TIER_DISK && cpu.cap_bytes == 7 && cpu.disk_cap_bytes == 0);
    assert_true(ms_execute_first_tier(5, 0, &cpu));
    assert_true(cpu.tier == MS_TIER_HOST && cpu.cap_bytes == 5);
    assert_false(ms_execute_first_tier(0, 0, &gpu));
    assert_true(ms_execute_first_tier(5, 7, &gpu));
    assert_true(gpu.tier == MS_TIER_HOST && gpu.cap_bytes == 5 && gpu.disk_cap_bytes == 7);
    assert_true(ms_execute_first_tier(0, 7, &gpu));
    assert_true(gpu.tier == MS_TIER_DISK && gpu.cap_bytes == 7 && gpu.disk_cap_bytes == 7);
}

/* On a file: the behaviour of a failing device. */
static void reopen_on_disk(fixture *f, const char *dir)
{
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = {.tier = MS_TIER_DISK, .dir = dir, .cap_bytes = UINT64_MAX};
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, 1 << 20, 0);
    open_frame(f);
}

static void a_write_that_fails_leaves_the_bytes_in_memory(void **state)
{
    fixture *f = *state;
    reopen_on_disk(f, "/var/tmp");
    storage *item = storage_new(&f->host, BYTES, 11);
    ms_fault_arm(MS_FAULT_WRITE, 1, EIO);
    ms_extent *extent = store(f, item, 0);
    assert_non_null(extent);
    settle(f);
    ms_fault_disarm_all();
    storage_let_go(&f->host, item);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 1);
    uint64_t mark = 0;
    assert_true(take(f, extent, &mark, 11));
    assert_int_equal(f->host.obtained, 0);
    storage *next = storage_new(&f->host, BYTES, 12);
    assert_null(store(f, next, 0)); /* the tier is not used any more */
    storage_let_go(&f->host, next);
    ms_extent_drop(f->execute, extent, mark);
}

static void a_read_that_fails_is_an_error_and_hands_nothing_out(void **state)
{
    static const struct {
        ms_fault fault;
        int code;
    } cases[] = {{MS_FAULT_READ, MS_EIO}, {MS_FAULT_FLIP, MS_ECHECKSUM}};
    fixture *f = *state;
    reopen_on_disk(f, "/var/tmp");
    for (size_t i = 0; i < 2; i++) {
        storage *item = storage_new(&f->host, BYTES, 13);
        ms_extent *extent = store(f, item, 0);
        storage_let_go(&f->host, item);
        settle(f);
        ms_fault_arm(cases[i].fault, 1, EIO);
        void *memory;
        assert_int_equal(ms_extent_take(f->execute, extent, &memory, &f->err), cases[i].code);
        ms_fault_disarm_all();
        assert_int_equal(f->host.live_storages, 0);
        ms_extent_drop(f->execute, extent, 0);
    }
}

/* Pauses or resumes the tier's lanes; while they are paused, every transfer stays in flight. */
static void hold(fixture *f, bool is_held)
{
    if (is_held) {
        hold_lanes(f->execute->tier);
    } else {
        release_lanes(f->execute->tier);
    }
}

static uint64_t written_bytes(fixture *f)
{
    ms_offload_stats stats;
    ms_offload_get_stats(f->execute->tier, &stats);
    return stats.written_bytes;
}

/* A tier that hangs can't keep its window; the bytes of its stores stay where they are until the stores have ended. */
static void a_tier_that_hangs_keeps_the_bytes_of_its_stores(void **state)
{
    fixture *f = *state;
    ms_execute_leave(f->execute, 1);
    ms_execute_close(f->execute);
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    tier.timeout_ns = 20000000;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    set_windows(f, BYTES, 0);
    open_frame(f);
    ms_extent *extents[2];
    ms_execute_stats stats;
    hold(f, true);
    store_apart(f, extents, 2);
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.storing_bytes, 2 * BYTES);
    assert_int_equal(f->host.live_storages, 2);
    assert_true(counter(f, MS_COUNTER_FORWARD_STALL_NS) >= 20000000);
    hold(f, false);
    settle(f);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t mark = 0;
        assert_true(take(f, extents[i], &mark, i));
        ms_extent_drop(f->execute, extents[i], mark);
    }
}

/* The end of a step waits for transfers without handles only. */
static void a_step_ends_while_stores_with_handles_run(void **state)
{
    fixture *f = *state;
    uint64_t step, step_ns;
    ms_extent *extents[2];
    hold(f, true);
    store_apart(f, extents, 2);
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    assert_int_equal(counter(f, MS_COUNTER_BACKWARD_STALL_NS), 0);
    assert_int_equal(f->host.live_storages, 2);
    hold(f, false);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t mark = 0;
        assert_true(take(f, extents[i], &mark, i));
        ms_extent_drop(f->execute, extents[i], mark);
    }
}

/* An exception in forward frees the graph, and with it every handle. */
static void a_store_without_handles_is_cancelled(void **state)
{
    fixture *f = *state;
    storage *item = storage_new(&f->host, BYTES, 3);
    hold(f, true);
    ms_extent *extent = store(f, item, 0);
    ms_extent_drop(f->execute, extent, 0);
    ms_execute_poll(f->execute);
    assert_int_equal(f->host.live_memories, 0); /* without waiting for a transfer */
    /* The same storage may be saved again immediately. */
    assert_null(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 0));
    ms_extent *again = store(f, item, 0);
    storage_let_go(&f->host, item);
    hold(f, false);
    settle(f);
    uint64_t mark = 0;
    assert_true(take(f, again, &mark, 3));
    assert_int_equal(written_bytes(f), BYTES);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
    ms_extent_drop(f->execute, again, mark);
}

/* An exception in backward releases the extents that were fetched ahead. */
static void a_fetch_without_handles_is_cancelled(void **state)
{
    fixture *f = *state;
    ms_extent *extents[2];
    set_windows(f, 1 << 20, 1 << 20);
    for (unsigned i = 0; i < 2; i++) {
        storage *item = storage_new(&f->host, BYTES, i);
        extents[i] = store(f, item, 0);
        storage_let_go(&f->host, item);
    }
    settle(f);
    uint64_t mark = 0;
    assert_true(take(f, extents[1], &mark, 1));
    ms_extent_drop(f->execute, extents[1], mark);
    ms_extent_drop(f->execute, extents[0], 0); /* fetching or fetched */
    uint64_t step, step_ns;
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
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
        TEST(a_full_write_window_stalls_only_the_next_store),
        TEST(fetches_run_ahead_in_reverse_within_their_window),
        TEST(a_layers_own_extents_are_fetched_before_other_layers),
        TEST(unused_prefetches_are_released),
        TEST(a_tensor_being_handed_out_keeps_no_other_in_memory),
        TEST(two_threads_that_want_one_tensor_share_its_fetch),
        TEST(handles_may_be_dropped_at_any_time),
        TEST(a_full_tier_keeps_tensors_until_the_next_step),
        TEST(no_memory_to_fetch_into_is_an_error_and_can_be_tried_again),
        TEST(running_out_of_memory_keeps_the_tensor),
        TEST(a_tier_is_opened_once_and_without_the_hosts_lock),
        TEST(the_first_tier_follows_the_caps),
        TEST(a_write_that_fails_leaves_the_bytes_in_memory),
        TEST(a_read_that_fails_is_an_error_and_hands_nothing_out),
        TEST(a_tier_that_hangs_keeps_the_bytes_of_its_stores),
        TEST(a_step_ends_while_stores_with_handles_run),
        TEST(a_store_without_handles_is_cancelled),
        TEST(a_fetch_without_handles_is_cancelled),
    };
    return cmocka_run_group_tests_name("execute: extents", tests, NULL, NULL);
}
