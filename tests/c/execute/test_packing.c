/*
 * Bit packing of two-valued storages instead of transfers: the executor's promises, over the
 * double host.
 */
#include "test_common.h"

#include "double_host.h"

enum { BYTES = 65536 };

typedef struct fixture {
    host host;
    ms_execute *execute;
    ms_frame *frame;
    ms_error err;
    uint64_t mark;
} fixture;

static void open_frame(fixture *f, const char *name)
{
    ms_call_facts facts = {.replayable = false};
    uint32_t layer;
    assert_ms_ok(ms_execute_add_layer(f->execute, name, &layer, &f->err), f->err);
    assert_ms_ok(ms_execute_enter(f->execute, 1, layer, &facts, &f->frame, &f->err), f->err);
}

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    char sent[] = "sent", kept[] = "kept";
    ms_plan_entry entries[] = {{.name = sent, .technique = MS_TECHNIQUE_OFFLOAD_DISK},
                               {.name = kept, .technique = MS_TECHNIQUE_KEEP}};
    ms_plan plan = {.entries = entries,
                    .entry_count = 2,
                    .fallback = MS_TECHNIQUE_KEEP,
                    .offload_min_bytes = 1,
                    .write_window_bytes = 1 << 20,
                    .read_window_bytes = 1 << 20};
    ms_execute_host table;
    ms_offload_options tier = memory_tier();
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, &tier, &f->execute, &f->err), f->err);
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    open_frame(f, "sent");
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    ms_execute_stats stats;
    uint64_t step, step_ns;
    ms_fault_disarm_all();
    ms_execute_leave(f->execute, 1);
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.live_extents, 0);
    assert_int_equal(stats.packed_bytes, 0);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(f->host.live_storages, 0);
    assert_int_equal(f->host.locks, f->host.unlocks);
    ms_execute_close(f->execute);
    assert_int_equal(ms_memory_live_blocks(), 0);
    free(f);
    return 0;
}

/* 0.0 or 1.25, depending on the index. */
static float mask_value(uint64_t index)
{
    return index * UINT64_C(0x9E3779B97F4A7C15) >> 60 < 3 ? 0.0f : 1.25f;
}

static storage *mask_new(fixture *f)
{
    storage *item = storage_new(&f->host, BYTES, 0);
    for (uint64_t i = 0; i < BYTES / 4; i++) {
        float value = mask_value(i);
        memcpy(item->data + 4 * i, &value, 4);
    }
    return item;
}

static bool is_mask(const storage *item)
{
    for (uint64_t i = 0; i < BYTES / 4; i++) {
        float value = mask_value(i);
        if (memcmp(item->data + 4 * i, &value, 4) != 0) {
            return false;
        }
    }
    return true;
}

/* Releases the test's own reference. NULL: the storage was not packed. */
static ms_extent *send_away(fixture *f, storage *item)
{
    ms_extent *extent;
    void *memory = memory_of(&f->host, item);
    assert_ms_ok(
        ms_extent_store(f->execute, f->frame, (uintptr_t)item, 0, item->data, BYTES, BYTES, memory, &extent, &f->err),
        f->err);
    if (extent == NULL) {
        ms_execute_host table;
        host counts = f->host;
        host_table(&f->host, &table);
        f->host = counts;
        table.release(&f->host, memory);
    }
    storage_let_go(&f->host, item);
    return extent;
}

static void assert_comes_back(fixture *f, ms_extent *extent)
{
    void *memory;
    assert_ms_ok(ms_extent_take(f->execute, extent, &memory, &f->err), f->err);
    assert_true(memory_is_strong(memory));
    assert_true(is_mask(memory_storage(memory)));
    ms_extent_taken(f->execute, extent, &f->mark);
}

static uint64_t counter(fixture *f, ms_counter id)
{
    return ms_counter_get(ms_execute_counters(f->execute), id);
}

static ms_execute_stats stats_of(fixture *f)
{
    ms_execute_stats stats;
    ms_execute_get_stats(f->execute, &stats);
    return stats;
}

static uint32_t lines_of_bits;

static void count_lines(void *context, ms_log_level level, const char *line)
{
    (void)context;
    lines_of_bits += level == MS_LOG_INFO && strstr(line, "are kept as bits") != NULL;
}

static void the_first_step_with_bits_is_told_once(void **state)
{
    fixture *f = *state;
    uint64_t step, step_ns;
    lines_of_bits = 0;
    ms_log_set_sink(count_lines, NULL);
    ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
    assert_int_equal(lines_of_bits, 0);
    for (uint32_t i = 0; i < 2; i++) {
        ms_extent *extent = send_away(f, mask_new(f));
        assert_true(ms_extent_is_packed(extent));
        ms_extent_drop(f->execute, extent, 0);
        ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns);
        assert_int_equal(lines_of_bits, 1);
    }
    ms_log_set_sink(NULL, NULL);
}

static void a_mask_becomes_bits_and_is_not_moved(void **state)
{
    fixture *f = *state;
    ms_extent *extent = send_away(f, mask_new(f));
    assert_true(ms_extent_is_packed(extent));
    assert_int_equal(f->host.live_storages, 0); /* at once */
    assert_int_equal(stats_of(f).storing_bytes, 0);
    assert_int_equal(stats_of(f).tier_bytes, 0);
    assert_in_range(stats_of(f).packed_bytes, BYTES / 32, BYTES / 32 + 128);
    assert_comes_back(f, extent);
    assert_int_equal(counter(f, MS_COUNTER_PACKED_BYTES), BYTES);
    assert_int_equal(counter(f, MS_COUNTER_PACKED_INTO_BYTES), stats_of(f).packed_bytes);
    assert_int_equal(counter(f, MS_COUNTER_OFFLOADED_BYTES), 0);
    ms_extent_drop(f->execute, extent, f->mark);
}

static void a_live_mask_is_shared(void **state)
{
    fixture *f = *state;
    storage *item = mask_new(f);
    void *other = memory_of(&f->host, item);
    ms_extent *extent = send_away(f, item);
    assert_comes_back(f, extent);
    assert_int_equal(f->host.obtained, 0);
    ms_execute_host table;
    host counts = f->host;
    host_table(&f->host, &table);
    f->host = counts;
    table.release(&f->host, other);
    assert_comes_back(f, extent);
    assert_int_equal(f->host.obtained, 1);
    ms_extent_drop(f->execute, extent, f->mark);
}

static void a_retained_graph_unpacks_again(void **state)
{
    fixture *f = *state;
    ms_extent *extent = send_away(f, mask_new(f));
    for (int backward = 0; backward < 3; backward++) {
        assert_comes_back(f, extent);
        assert_int_equal(f->host.live_storages, 1);
        ms_execute_backward_ended(f->execute);
        assert_int_equal(f->host.live_storages, 0);
    }
    ms_extent_drop(f->execute, extent, f->mark);
}

static void handles_share_the_bits(void **state)
{
    fixture *f = *state;
    storage *item = mask_new(f);
    ms_extent *extent = send_away(f, item);
    assert_ptr_equal(ms_extent_find(f->execute, f->frame, (uintptr_t)item, 0), extent);
    assert_comes_back(f, extent);
    ms_extent_drop(f->execute, extent, f->mark);
    f->mark = 0;
    assert_comes_back(f, extent);
    ms_extent_drop(f->execute, extent, f->mark);
    assert_int_equal(counter(f, MS_COUNTER_PACKED_BYTES), BYTES);
}

static void layers_that_are_kept_pack_masks_and_keep_the_rest(void **state)
{
    fixture *f = *state;
    ms_execute_leave(f->execute, 1);
    open_frame(f, "kept");
    assert_non_null(f->frame);
    assert_int_equal(ms_frame_technique(f->frame), MS_TECHNIQUE_KEEP);
    ms_extent *extent = send_away(f, mask_new(f));
    assert_true(ms_extent_is_packed(extent));
    assert_null(send_away(f, storage_new(&f->host, BYTES, 5)));
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
    assert_comes_back(f, extent);
    ms_extent_drop(f->execute, extent, f->mark);
}

static void a_plan_that_moves_nothing_packs_nothing(void **state)
{
    fixture *f = *state;
    char name[] = "layer";
    ms_plan_entry entry = {.name = name, .technique = MS_TECHNIQUE_RECOMPUTE};
    ms_plan plan = {.entries = &entry, .entry_count = 1, .fallback = MS_TECHNIQUE_KEEP};
    ms_execute_leave(f->execute, 1);
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    open_frame(f, "kept");
    assert_null(f->frame);
}

/* ---- a plan's decisions on storages that it knows ---------------------------------------- */

enum { KNOWN_SLOTS = 3 };

/* The layer "layer" saves three storages of BYTES: slot 1 is two-valued, and the plan may pack it;
 * slot 2 is two-valued, and the plan does not pack it. */
static void say_of_known(fixture *f, ms_technique technique, bool packed)
{
    char name[] = "layer";
    uint64_t bytes[KNOWN_SLOTS] = {BYTES, BYTES, BYTES};
    uint8_t dropped[KNOWN_SLOTS] = {0};
    ms_two_valued known[] = {{.slot = 1, .packed = packed}, {.slot = 2}};
    ms_selection selection = {
        .slot_count = KNOWN_SLOTS, .slot_bytes = bytes, .dropped = dropped, .two_valued_count = 2, .two_valued = known};
    ms_plan_entry entry = {.name = name, .technique = technique, .selection = 1};
    ms_plan plan = {.entries = &entry,
                    .entry_count = 1,
                    .fallback = MS_TECHNIQUE_KEEP,
                    .selections = &selection,
                    .selection_count = 1,
                    .offload_min_bytes = 1,
                    .write_window_bytes = 1 << 20,
                    .read_window_bytes = 1 << 20};
    ms_execute_leave(f->execute, 1);
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    open_frame(f, "layer");
}

/* Reports storages to the frame in the order in which autograd saves them. All are live, so identities differ. */
static void save_all(fixture *f, ms_extent *extents[KNOWN_SLOTS])
{
    storage *items[KNOWN_SLOTS];
    for (int i = 0; i < KNOWN_SLOTS; i++) {
        items[i] = mask_new(f);
    }
    for (int i = 0; i < KNOWN_SLOTS; i++) {
        bool is_dropped;
        assert_ms_ok(ms_frame_choose(f->execute, f->frame, (uintptr_t)items[i], BYTES, &is_dropped, &f->err), f->err);
        assert_false(is_dropped);
    }
    for (int i = KNOWN_SLOTS; i-- > 0;) { /* storing may come later, in any order */
        extents[i] = send_away(f, items[i]);
    }
}

static void a_plan_that_moves_nothing_packs_what_it_names(void **state)
{
    fixture *f = *state;
    ms_extent *saved[KNOWN_SLOTS];
    say_of_known(f, MS_TECHNIQUE_KEEP, true);
    assert_true(ms_execute_is_active(f->execute));
    assert_non_null(f->frame);
    assert_true(ms_frame_packs(f->frame));
    save_all(f, saved);
    /* The plan doesn't mention the first storage and moves none; the last must stay. */
    assert_null(saved[0]);
    assert_null(saved[2]);
    assert_true(ms_extent_is_packed(saved[1]));
    assert_int_equal(counter(f, MS_COUNTER_PACKED_BYTES), BYTES);
    assert_comes_back(f, saved[1]);
    ms_extent_drop(f->execute, saved[1], f->mark);
}

static void a_plan_that_moves_packs_what_it_names_and_what_it_does_not_know(void **state)
{
    fixture *f = *state;
    for (int packed = 0; packed < 2; packed++) {
        ms_extent *saved[KNOWN_SLOTS];
        say_of_known(f, MS_TECHNIQUE_OFFLOAD_DISK, packed);
        save_all(f, saved);
        assert_true(ms_extent_is_packed(saved[0]));
        assert_int_equal(ms_extent_is_packed(saved[1]), packed);
        assert_false(ms_extent_is_packed(saved[2]));
        f->mark = 0;
        assert_comes_back(f, saved[2]);
        ms_extent_drop(f->execute, saved[2], f->mark);
        ms_extent_drop(f->execute, saved[1], 0);
        ms_extent_drop(f->execute, saved[0], 0);
    }
}

static void a_planned_mask_with_a_third_value_is_not_packed(void **state)
{
    fixture *f = *state;
    static const ms_technique techniques[] = {MS_TECHNIQUE_KEEP, MS_TECHNIQUE_OFFLOAD_DISK};
    for (int i = 0; i < 2; i++) {
        bool is_dropped;
        say_of_known(f, techniques[i], true);
        storage *items[] = {mask_new(f), storage_new(&f->host, BYTES, 5)};
        for (int k = 0; k < 2; k++) {
            assert_ms_ok(ms_frame_choose(f->execute, f->frame, (uintptr_t)items[k], BYTES, &is_dropped, &f->err),
                         f->err);
        }
        ms_extent *extent = send_away(f, items[1]);
        assert_int_equal(extent != NULL, techniques[i] == MS_TECHNIQUE_OFFLOAD_DISK);
        assert_int_equal(counter(f, MS_COUNTER_PACKED_BYTES), 0);
        if (extent != NULL) {
            ms_extent_drop(f->execute, extent, 0);
        }
        storage_let_go(&f->host, items[0]);
    }
}

static void a_plan_without_bits_leaves_a_kept_layer_alone(void **state)
{
    fixture *f = *state;
    say_of_known(f, MS_TECHNIQUE_KEEP, false);
    assert_false(ms_execute_is_active(f->execute));
    assert_null(f->frame);
}

static void without_memory_a_plan_with_bits_is_refused(void **state)
{
    fixture *f = *state;
    char name[] = "layer";
    uint64_t bytes = BYTES;
    uint8_t dropped = 0;
    ms_two_valued known = {.packed = true};
    ms_selection selection = {
        .slot_count = 1, .slot_bytes = &bytes, .dropped = &dropped, .two_valued_count = 1, .two_valued = &known};
    ms_plan_entry entry = {.name = name, .selection = 1};
    ms_plan plan = {.entries = &entry, .entry_count = 1, .selections = &selection, .selection_count = 1};
    bool reached = true;
    for (uint64_t nth = 1; reached; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, 1);
        int rc = ms_execute_set_plan(f->execute, &plan, &f->err);
        reached = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(rc, reached ? MS_ENOMEM : MS_OK);
        assert_int_equal(ms_execute_is_active(f->execute), !reached);
    }
}

static void other_storages_go_to_the_tier(void **state)
{
    fixture *f = *state;
    ms_extent *numbers = send_away(f, storage_new(&f->host, BYTES, 5));
    assert_false(ms_extent_is_packed(numbers));
    ms_execute_set_packing(f->execute, false);
    ms_extent *mask = send_away(f, mask_new(f));
    assert_false(ms_extent_is_packed(mask));
    assert_comes_back(f, mask);
    assert_int_equal(counter(f, MS_COUNTER_PACKED_BYTES), 0);
    ms_extent_drop(f->execute, mask, f->mark);
    ms_extent_drop(f->execute, numbers, 0);
}

static void a_failed_tier_does_not_affect_bits(void **state)
{
    fixture *f = *state;
    ms_fault_arm(MS_FAULT_WRITE, 1, 5);
    ms_extent *extent = send_away(f, mask_new(f));
    assert_comes_back(f, extent);
    ms_fault_disarm_all();
    assert_int_equal(counter(f, MS_COUNTER_TIER_FALLBACKS), 0);
    ms_extent_drop(f->execute, extent, f->mark);
}

static void without_memory_a_mask_goes_to_the_tier_or_stays(void **state)
{
    fixture *f = *state;
    int packed = 0;
    for (uint64_t nth = 1; nth <= 12; nth++) {
        storage *item = mask_new(f);
        void *keeper = memory_of(&f->host, item);
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        ms_extent *extent = send_away(f, item);
        ms_fault_disarm_all();
        f->mark = 0;
        if (extent != NULL) {
            packed += ms_extent_is_packed(extent);
            assert_comes_back(f, extent);
            ms_extent_drop(f->execute, extent, f->mark);
        }
        ms_execute_host table;
        host counts = f->host;
        host_table(&f->host, &table);
        f->host = counts;
        table.release(&f->host, keeper);
    }
    assert_in_range(packed, 1, 11);
}

static void refused_memory_for_the_bytes_is_reported(void **state)
{
    fixture *f = *state;
    void *memory;
    ms_extent *extent = send_away(f, mask_new(f));
    f->host.refuse = true;
    assert_int_not_equal(ms_extent_take(f->execute, extent, &memory, &f->err), MS_OK);
    f->host.refuse = false;
    assert_comes_back(f, extent);
    ms_extent_drop(f->execute, extent, f->mark);
}

#define PACKING_TEST(body) cmocka_unit_test_setup_teardown(body, open_fixture, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PACKING_TEST(the_first_step_with_bits_is_told_once),
        PACKING_TEST(a_mask_becomes_bits_and_is_not_moved),
        PACKING_TEST(a_live_mask_is_shared),
        PACKING_TEST(a_retained_graph_unpacks_again),
        PACKING_TEST(handles_share_the_bits),
        PACKING_TEST(layers_that_are_kept_pack_masks_and_keep_the_rest),
        PACKING_TEST(a_plan_that_moves_nothing_packs_nothing),
        PACKING_TEST(a_plan_that_moves_nothing_packs_what_it_names),
        PACKING_TEST(a_plan_that_moves_packs_what_it_names_and_what_it_does_not_know),
        PACKING_TEST(a_planned_mask_with_a_third_value_is_not_packed),
        PACKING_TEST(a_plan_without_bits_leaves_a_kept_layer_alone),
        PACKING_TEST(without_memory_a_plan_with_bits_is_refused),
        PACKING_TEST(other_storages_go_to_the_tier),
        PACKING_TEST(a_failed_tier_does_not_affect_bits),
        PACKING_TEST(without_memory_a_mask_goes_to_the_tier_or_stays),
        PACKING_TEST(refused_memory_for_the_bytes_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
