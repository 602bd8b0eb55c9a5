/*
 * The promises of frames in execute.h: a plan's effect on calls, and the life of slots.
 */
#include <errno.h>

#include "test_common.h"

#include "double_host.h"

typedef struct fixture {
    host host;
    ms_execute *execute;
    ms_error err;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ms_execute_host table;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, NULL, &f->execute, &f->err), f->err);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    ms_execute_stats stats;
    ms_execute_get_stats(f->execute, &stats);
    assert_int_equal(stats.live_frames, 0);
    assert_int_equal(stats.live_slots, 0);
    assert_int_equal(f->host.live_memories, 0);
    ms_execute_close(f->execute);
    assert_int_equal(ms_memory_live_blocks(), 0);
    free(f);
    return 0;
}

static void plan_of(fixture *f, ms_plan_entry *entries, uint32_t count, ms_technique fallback)
{
    ms_plan plan = {.entries = entries, .entry_count = count, .fallback = (uint32_t)fallback};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
}

static uint32_t layer_of(fixture *f, const char *name)
{
    uint32_t layer;
    assert_ms_ok(ms_execute_add_layer(f->execute, name, &layer, &f->err), f->err);
    return layer;
}

static ms_frame *enter(fixture *f, uint32_t layer, bool replayable)
{
    ms_call_facts facts = {.replayable = replayable};
    ms_frame *frame;
    assert_ms_ok(ms_execute_enter(f->execute, 1, layer, &facts, &frame, &f->err), f->err);
    return frame;
}

static void enter_root(fixture *f, bool expect_stale)
{
    bool stale;
    assert_ms_ok(ms_execute_enter_root(f->execute, 1, &stale, &f->err), f->err);
    assert_int_equal(stale, expect_stale);
}

static ms_record record_2x3(void)
{
    static const int64_t size[] = {2, 3};
    return (ms_record){.rank = 2, .size = size, .dtype = "torch.float32", .device = "cpu"};
}

static uint32_t save(fixture *f, ms_frame *frame, bool kept)
{
    ms_record record = record_2x3();
    uint32_t slot;
    assert_ms_ok(ms_frame_save(f->execute, frame, &record, kept, &slot, &f->err), f->err);
    return slot;
}

#define RECOMPUTE MS_TECHNIQUE_RECOMPUTE

static void calls_follow_the_plan(void **state)
{
    fixture *f = *state;
    char a[] = "a", b[] = "b", root[] = "";
    ms_plan_entry entries[] = {
        {.name = root, .technique = MS_TECHNIQUE_KEEP},
        {.name = a, .call = 0, .technique = RECOMPUTE},
        {.name = b, .call = 0, .technique = MS_TECHNIQUE_KEEP},
        {.name = a, .call = 1, .technique = MS_TECHNIQUE_KEEP},
    };
    uint32_t layer_a = layer_of(f, "a"), layer_b = layer_of(f, "b"), other = layer_of(f, "other");
    assert_false(ms_execute_is_active(f->execute));
    plan_of(f, entries, 4, MS_TECHNIQUE_KEEP);
    assert_true(ms_execute_is_active(f->execute));
    for (int forward = 0; forward < 2; forward++) {
        enter_root(f, false);
        assert_int_equal(ms_execute_peek(f->execute, 1, layer_a), RECOMPUTE);
        ms_frame *first = enter(f, layer_a, true);
        assert_non_null(first);
        assert_int_equal(ms_frame_call(first), 0);
        assert_int_equal(ms_execute_peek(f->execute, 1, layer_a), MS_TECHNIQUE_KEEP);
        ms_execute_leave(f->execute, 1);
        assert_null(enter(f, layer_b, true));
        ms_execute_leave(f->execute, 1);
        assert_null(enter(f, layer_a, true));
        ms_execute_leave(f->execute, 1);
        ms_frame *unknown_call = enter(f, layer_a, true);
        assert_non_null(unknown_call);
        assert_int_equal(ms_frame_call(unknown_call), 2);
        ms_execute_leave(f->execute, 1);
        assert_null(enter(f, other, true));
        ms_execute_leave(f->execute, 1);
        ms_execute_leave_root(f->execute, 1, false);
    }
}

/* The root's own work follows the entry before it; a thread that has called nothing is at the step's start. */
static void the_roots_work_follows_the_last_call(void **state)
{
    fixture *f = *state;
    char a[] = "a", root[] = "";
    ms_plan_entry entries[] = {
        {.name = root, .technique = MS_TECHNIQUE_OFFLOAD_DISK},
        {.name = a, .technique = RECOMPUTE},
        {.name = root, .technique = MS_TECHNIQUE_KEEP},
    };
    plan_of(f, entries, 3, MS_TECHNIQUE_KEEP);
    assert_int_equal(ms_execute_peek(f->execute, 1, MS_ROOT_LAYER), MS_TECHNIQUE_OFFLOAD_DISK);
    enter_root(f, false);
    assert_int_equal(ms_execute_peek(f->execute, 1, MS_ROOT_LAYER), MS_TECHNIQUE_OFFLOAD_DISK);
    (void)enter(f, layer_of(f, "a"), true);
    ms_execute_leave(f->execute, 1);
    assert_int_equal(ms_execute_peek(f->execute, 1, MS_ROOT_LAYER), MS_TECHNIQUE_KEEP);
    assert_int_equal(ms_execute_peek(f->execute, 2, MS_ROOT_LAYER), MS_TECHNIQUE_OFFLOAD_DISK);
    ms_execute_leave_root(f->execute, 1, false);
}

static bool chosen(fixture *f, ms_frame *frame, uintptr_t identity, uint64_t bytes)
{
    bool is_dropped;
    assert_ms_ok(ms_frame_choose(f->execute, frame, identity, bytes, &is_dropped, &f->err), f->err);
    return is_dropped;
}

/* Slots are recognised by order and bytes, even if the call saves one fewer or one more. */
static void selective_calls_drop_the_planned_slots(void **state)
{
    fixture *f = *state;
    char a[] = "a", b[] = "b";
    uint64_t bytes[] = {100, 200, 300, 200};
    uint8_t dropped[] = {0, 1, 0, 0};
    ms_selection selection = {.slot_count = 4, .slot_bytes = bytes, .dropped = dropped};
    ms_plan_entry entries[] = {
        {.name = a, .technique = MS_TECHNIQUE_SELECTIVE_2_DISK, .selection = 1},
        {.name = b, .technique = MS_TECHNIQUE_SELECTIVE_1},
    };
    ms_plan plan = {.entries = entries, .entry_count = 2, .selections = &selection, .selection_count = 1};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    ms_frame *frame = enter(f, layer_of(f, "a"), false);
    /* Without a tier, the technique has the same set and the rest stays. */
    assert_int_equal(ms_frame_technique(frame), MS_TECHNIQUE_SELECTIVE_2);
    assert_ms_ok(ms_execute_set_plan(f->execute, NULL, &f->err), f->err); /* an open frame keeps its plan */
    assert_false(chosen(f, frame, 0x10, 100));
    assert_true(chosen(f, frame, 0x20, 200));
    assert_false(chosen(f, frame, 0x30, 7)); /* not in the plan */
    assert_false(chosen(f, frame, 0x40, 200));
    assert_true(chosen(f, frame, 0x20, 200));
    assert_false(chosen(f, frame, 0x50, 200));
    ms_execute_leave(f->execute, 1);
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    frame = enter(f, layer_of(f, "b"), false); /* without a selection, all are dropped */
    assert_true(chosen(f, frame, 0x10, 1));
    ms_execute_leave(f->execute, 1);
}

/* A plan serves smaller inputs too. Their storages differ in bytes from all slots: slots are taken in order. */
static void smaller_inputs_drop_the_planned_slots(void **state)
{
    fixture *f = *state;
    char a[] = "a";
    uint64_t bytes[] = {1000, 64, 2000, 4000, 2000, 500};
    uint8_t dropped[] = {0, 0, 1, 0, 1, 0};
    ms_selection selection = {.slot_count = 6, .slot_bytes = bytes, .dropped = dropped};
    ms_plan_entry entry = {.name = a, .technique = MS_TECHNIQUE_SELECTIVE_2, .selection = 1};
    ms_plan plan = {.entries = &entry, .entry_count = 1, .selections = &selection, .selection_count = 1};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    ms_frame *frame = enter(f, layer_of(f, "a"), false);
    assert_false(chosen(f, frame, 0x10, 700));
    assert_false(chosen(f, frame, 0x20, 64)); /* of weights: they do not shrink */
    assert_true(chosen(f, frame, 0x30, 1400));
    assert_false(chosen(f, frame, 0x40, 2800));
    assert_true(chosen(f, frame, 0x50, 1400));
    assert_true(chosen(f, frame, 0x30, 1400));
    assert_false(chosen(f, frame, 0x60, 350));
    assert_false(chosen(f, frame, 0x70, 350)); /* not in the plan */
    ms_execute_leave(f->execute, 1);
    frame = enter(f, layer_of(f, "a"), false);
    assert_false(chosen(f, frame, 0x10, 5000)); /* larger than every slot: an unknown storage, as before */
    assert_false(chosen(f, frame, 0x20, 1000));
    assert_true(chosen(f, frame, 0x30, 2000));
    ms_execute_leave(f->execute, 1);
}

static void layers_without_an_entry_get_the_fallback(void **state)
{
    fixture *f = *state;
    plan_of(f, NULL, 0, RECOMPUTE);
    assert_true(ms_execute_is_active(f->execute));
    uint32_t layer = layer_of(f, "x");
    assert_non_null(enter(f, layer, true));
    ms_execute_leave(f->execute, 1);
    assert_ms_ok(ms_execute_set_plan(f->execute, NULL, &f->err), f->err);
    assert_null(enter(f, layer, true));
    ms_execute_leave(f->execute, 1);
}

static void an_impossible_technique_is_replaced(void **state)
{
    fixture *f = *state;
    char a[] = "a", b[] = "b", root[] = "";
    ms_plan_entry entries[] = {
        {.name = root, .technique = RECOMPUTE},
        {.name = a, .technique = MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT},
        {.name = b, .technique = MS_TECHNIQUE_OFFLOAD_DISK},
    };
    plan_of(f, entries, 3, MS_TECHNIQUE_KEEP);
    ms_execute_set_packing(f->execute, false); /* packing gives kept layers frames too */
    assert_null(enter(f, MS_ROOT_LAYER, false));
    assert_int_equal(ms_frame_technique(enter(f, layer_of(f, "a"), true)), RECOMPUTE);
    assert_null(enter(f, layer_of(f, "a"), false));
    assert_null(enter(f, layer_of(f, "b"), true));
    ms_offload_options tier = memory_tier();
    assert_string_equal(ms_execute_tier_description(f->execute), "");
    assert_ms_ok(ms_execute_open_tier(f->execute, &tier, &f->err), f->err);
    assert_true(strlen(ms_execute_tier_description(f->execute)) > 0);
    assert_ms_fails(ms_execute_open_tier(f->execute, &tier, &f->err), MS_ESTATE, f->err, "already");
    assert_int_equal(ms_frame_technique(enter(f, layer_of(f, "a"), true)), MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT);
    assert_int_equal(ms_frame_technique(enter(f, layer_of(f, "a"), false)), MS_TECHNIQUE_OFFLOAD_DISK);
    assert_int_equal(ms_frame_technique(enter(f, layer_of(f, "b"), true)), MS_TECHNIQUE_OFFLOAD_DISK);
    ms_execute_leave(f->execute, 1);
}

static void an_aborted_forward_is_closed_by_the_next(void **state)
{
    fixture *f = *state;
    plan_of(f, NULL, 0, RECOMPUTE);
    uint32_t layer = layer_of(f, "x");
    enter_root(f, false);
    ms_frame *frame = enter(f, layer, true);
    ms_frame_hold(frame);
    uint32_t slot = save(f, frame, false);
    enter_root(f, true);
    assert_false(ms_frame_is_open(frame));
    ms_frame_drop(f->execute, frame, slot);
    ms_frame_unhold(f->execute, frame);
    ms_execute_leave_root(f->execute, 1, false);
    assert_false(ms_execute_in_root(f->execute, 1));
}

static void a_forward_that_has_not_ended_is_told_to_the_next(void **state)
{
    fixture *f = *state;
    plan_of(f, NULL, 0, RECOMPUTE);
    enter_root(f, false);
    enter_root(f, true); /* in no layer */
    ms_execute_leave_root(f->execute, 1, true);
    assert_non_null(enter(f, layer_of(f, "x"), true)); /* outside of the root */
    enter_root(f, true);
    ms_execute_leave_root(f->execute, 1, false);
    enter_root(f, false);
    ms_execute_leave_root(f->execute, 1, false);
}

static void watched_calls_have_frames_although_they_are_kept(void **state)
{
    fixture *f = *state;
    uint32_t layer = layer_of(f, "x");
    ms_execute_set_watched(f->execute, true);
    assert_int_equal(ms_frame_technique(enter(f, layer, true)), MS_TECHNIQUE_KEEP);
    ms_execute_leave(f->execute, 1);
    ms_execute_set_watched(f->execute, false);
    assert_null(enter(f, layer, true));
}

/* ---- slots and replays ------------------------------------------------------------ */

/* A closed frame with `count` slots, of which slot 1 is kept. */
static ms_frame *saved_frame(fixture *f, uint32_t count)
{
    plan_of(f, NULL, 0, RECOMPUTE);
    ms_frame *frame = enter(f, layer_of(f, "block"), true);
    ms_frame_hold(frame);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(save(f, frame, i == 1), i);
    }
    ms_execute_leave(f->execute, 1);
    return frame;
}

static void drop_all(fixture *f, ms_frame *frame, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ms_frame_drop(f->execute, frame, i);
    }
    ms_frame_unhold(f->execute, frame);
}

static void put(fixture *f, ms_frame *frame, uint32_t slot)
{
    storage *item = storage_new(&f->host, 24, slot);
    void *memory = memory_of(&f->host, item);
    storage_let_go(&f->host, item);
    ms_frame_put(f->execute, frame, slot, memory);
}

/* Runs a replay to its early end; returns the number of saves. */
static uint32_t replay(fixture *f, ms_frame *frame)
{
    ms_record record = record_2x3();
    uint32_t slot, saves = 0;
    ms_capture capture = MS_CAPTURE_IGNORE;
    assert_ms_ok(ms_frame_replay_begin(f->execute, frame, false, &f->err), f->err);
    while (capture != MS_CAPTURE_LAST) {
        assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
        assert_int_equal(slot, saves++);
        if (capture != MS_CAPTURE_IGNORE) {
            put(f, frame, slot);
        }
    }
    assert_ms_ok(ms_frame_replay_end(f->execute, frame, false, &f->err), f->err);
    return saves;
}

static void a_replay_fills_the_live_slots_and_stops(void **state)
{
    fixture *f = *state;
    ms_frame *frame = saved_frame(f, 5);
    assert_int_equal(ms_frame_missing(frame), 4);
    assert_null(ms_frame_take(f->execute, frame, 0));
    ms_frame_drop(f->execute, frame, 4);
    assert_int_equal(replay(f, frame), 4);
    assert_int_equal(f->host.live_memories, 3);
    assert_non_null(ms_frame_take(f->execute, frame, 3));
    assert_non_null(ms_frame_take(f->execute, frame, 3));
    assert_null(ms_frame_take(f->execute, frame, 1));
    ms_frame_drop(f->execute, frame, 3);
    assert_int_equal(f->host.live_memories, 2);
    assert_int_equal(ms_counter_get(ms_execute_counters(f->execute), MS_COUNTER_RECOMPUTED_LAYERS), 1);
    drop_all(f, frame, 3);
}

static void a_call_may_save_thousands_of_tensors(void **state)
{
    fixture *f = *state;
    enum { MANY = 5000 };
    ms_frame *frame = saved_frame(f, MANY);
    assert_int_equal(ms_frame_missing(frame), MANY - 1);
    assert_int_equal(replay(f, frame), MANY);
    drop_all(f, frame, MANY);
}

/* A loss of several forwards: the next one is told how many wait for their backward. */
static void forwards_without_a_backward_are_counted(void **state)
{
    fixture *f = *state;
    uint32_t waiting = 9;
    (void)ms_execute_forward_begins(f->execute, 0, 0, &waiting);
    assert_int_equal(waiting, 0);
    for (uint32_t forward = 1; forward <= 3; forward++) {
        enter_root(f, false);
        ms_execute_leave_root(f->execute, 1, false);
        (void)ms_execute_forward_begins(f->execute, 0, 0, &waiting);
        assert_int_equal(waiting, forward);
    }
}

static void a_retained_graph_releases_when_backward_moves_on(void **state)
{
    fixture *f = *state;
    ms_frame *one = saved_frame(f, 3), *two = saved_frame(f, 3);
    replay(f, two);
    assert_non_null(ms_frame_take(f->execute, two, 2));
    replay(f, one);
    assert_int_equal(f->host.live_memories, 4);
    assert_non_null(ms_frame_take(f->execute, one, 2));
    assert_int_equal(f->host.live_memories, 3); /* only the tensors taken from `two` */
    assert_int_equal(ms_frame_missing(two), 1);
    ms_frame_pin(one);
    ms_execute_backward_ended(f->execute);
    assert_int_equal(f->host.live_memories, 2);
    ms_frame_unpin(f->execute, one);
    ms_execute_backward_ended(f->execute);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(replay(f, two), 3);
    drop_all(f, one, 3);
    drop_all(f, two, 3);
}

static void a_replay_that_differs_is_refused(void **state)
{
    fixture *f = *state;
    ms_frame *frame = saved_frame(f, 3);
    ms_record record = record_2x3();
    const int64_t other_size[] = {2, 4};
    ms_record others[] = {
        {.rank = 2, .size = other_size, .dtype = record.dtype, .device = record.device},
        {.rank = 1, .size = record.size, .dtype = record.dtype, .device = record.device},
        {.rank = 0, .dtype = record.dtype, .device = record.device},
        {.rank = 2, .size = record.size, .dtype = "torch.bfloat16", .device = record.device},
        {.rank = 2, .size = record.size, .dtype = record.dtype, .device = "cuda:0"},
    };
    static const char *const said[] = {"torch.float32[2, 4] on cpu", "torch.float32[2] on cpu",
                                       "torch.float32[] on cpu", "torch.bfloat16[2, 3] on cpu",
                                       "torch.float32[2, 3] on cuda:0"};
    uint32_t slot;
    ms_capture capture;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_ms_ok(ms_frame_replay_begin(f->execute, frame, false, &f->err), f->err);
        assert_ms_fails(ms_frame_replay_begin(f->execute, frame, false, &f->err), MS_ESTATE, f->err,
                        "already being replayed");
        assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
        assert_int_equal(capture, MS_CAPTURE_PUT);
        put(f, frame, slot);
        assert_ms_fails(ms_frame_replay_save(f->execute, frame, &others[i], &slot, &capture, &f->err), MS_EREPLAY,
                        f->err, "layer block (call 0): saved tensor 1 is torch.");
        assert_non_null(strstr(f->err.text, said[i]));
        assert_non_null(strstr(f->err.text, " and was torch.float32[2, 3] on cpu in forward"));
        assert_ms_ok(ms_frame_replay_end(f->execute, frame, true, &f->err), f->err);
        assert_int_equal(f->host.live_memories, 0);
    }
    assert_ms_ok(ms_frame_replay_begin(f->execute, frame, false, &f->err), f->err);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    put(f, frame, slot);
    assert_ms_fails(ms_frame_replay_end(f->execute, frame, false, &f->err), MS_EREPLAY, f->err,
                    "it saved 1 tensors when it was recomputed and 3 in forward");
    assert_int_equal(f->host.live_memories, 0);
    drop_all(f, frame, 3);
}

static void slots_dropped_during_a_replay_are_not_waited_for(void **state)
{
    fixture *f = *state;
    ms_frame *frame = saved_frame(f, 4);
    ms_record record = record_2x3();
    uint32_t slot;
    ms_capture capture;
    assert_ms_ok(ms_frame_replay_begin(f->execute, frame, false, &f->err), f->err);
    ms_frame_drop(f->execute, frame, 3);
    ms_frame_drop(f->execute, frame, 0);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    assert_int_equal(capture, MS_CAPTURE_IGNORE);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    assert_int_equal(capture, MS_CAPTURE_LAST);
    ms_frame_drop(f->execute, frame, 2);
    put(f, frame, 2); /* its last handle was dropped */
    assert_int_equal(f->host.live_memories, 0);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    assert_ms_ok(ms_frame_replay_save(f->execute, frame, &record, &slot, &capture, &f->err), f->err);
    assert_int_equal(capture, MS_CAPTURE_IGNORE); /* one more than the forward saved */
    assert_ms_ok(ms_frame_replay_end(f->execute, frame, false, &f->err), f->err);
    ms_frame_unhold(f->execute, frame);
}

/* A replay may save more than the forward; what it puts behind the last slot is released, and compared with nothing. */
static void bytes_put_behind_the_last_slot_are_released(void **state)
{
    fixture *f = *state;
    enum { MANY = 32 }; /* the array of slots may be full */
    static const float values[6] = {0};
    static const int64_t stride[] = {3, 1};
    ms_contents contents = {.address = values, .stride = stride};
    for (uint32_t count = 2; count <= MANY; count++) {
        ms_frame *frame = saved_frame(f, count);
        put(f, frame, count);
        assert_int_equal(f->host.live_memories, 0);
        assert_ms_ok(ms_frame_compare(f->execute, frame, count, &contents, &f->err), f->err);
        put(f, frame, 1); /* kept by its layer */
        assert_int_equal(f->host.live_memories, 0);
        drop_all(f, frame, count);
    }
}

static void inner_backward(fixture *f, ms_frame *frame)
{
    replay(f, frame);
    ms_execute_backward_ended(f->execute);
    ms_execute_backward_reached(f->execute, false);
}

static void a_forward_after_inner_backwards_ends_no_step(void **state)
{
    fixture *f = *state;
    uint64_t step = 0, step_ns;
    ms_frame *frame = saved_frame(f, 3);
    for (int i = 0; i < 16; i++) {
        inner_backward(f, frame);
        assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns));
    }
    inner_backward(f, frame);
    ms_execute_backward_reached(f->execute, true); /* the outer one */
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns));
    /* A loop whose backwards all seem to be inner updates its parameters unseen. */
    for (int i = 0; i < 20; i++) {
        inner_backward(f, frame);
        assert_int_equal(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns), i >= 16);
    }
    drop_all(f, frame, 3);
}

static void steps_end_where_they_should(void **state)
{
    fixture *f = *state;
    uint64_t step = 0, step_ns;
    assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns));
    ms_frame *first = saved_frame(f, 3);
    assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns)); /* a second forward */
    replay(f, first);
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns));
    assert_int_equal(step, 1);
    assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns));
    enter_root(f, false);
    ms_execute_leave_root(f->execute, 1, false);
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    assert_int_equal(step, 2);
    assert_true(step_ns > 0);
    assert_int_equal(ms_execute_plan_steps(f->execute), 2);
    /* A second optimizer after the same backward doesn't end another step; after another forward it does. */
    assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_ANOTHER_OPTIMIZER, &step, &step_ns));
    enter_root(f, false);
    ms_execute_leave_root(f->execute, 1, false);
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_ANOTHER_OPTIMIZER, &step, &step_ns));
    assert_int_equal(step, 3);
    /* A second call of the same optimizer ends a step: the forward before it may not have been reported. */
    assert_true(ms_execute_boundary(f->execute, MS_BOUNDARY_OPTIMIZER, &step, &step_ns));
    assert_int_equal(step, 4);
    replay(f, first);
    assert_false(ms_execute_boundary(f->execute, MS_BOUNDARY_FORWARD, &step, &step_ns)); /* accumulation */
    assert_int_equal(ms_counter_get(ms_execute_counters(f->execute), MS_COUNTER_STEPS), 4);
    ms_error err;
    assert_ms_ok(ms_execute_set_plan(f->execute, NULL, &err), err);
    assert_int_equal(ms_execute_plan_steps(f->execute), 0);
    drop_all(f, first, 3);
}

static void nothing_leaks_when_memory_is_out(void **state)
{
    fixture *f = *state;
    plan_of(f, NULL, 0, RECOMPUTE);
    uint32_t layer = layer_of(f, "x");
    ms_call_facts facts = {.replayable = true};
    for (uint64_t nth = 1; nth < 12; nth++) {
        ms_frame *frame = NULL;
        uint32_t slot;
        uint64_t saved = 0;
        ms_record record = record_2x3();
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        if (ms_execute_enter(f->execute, 7, layer, &facts, &frame, &f->err) == MS_OK) {
            ms_frame_hold(frame);
            while (saved < 20 && ms_frame_save(f->execute, frame, &record, false, &slot, &f->err) == MS_OK) {
                saved++;
            }
            for (uint32_t i = 0; i < saved; i++) {
                ms_frame_drop(f->execute, frame, i);
            }
            ms_execute_leave(f->execute, 7);
            ms_frame_unhold(f->execute, frame);
        }
        ms_fault_disarm_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
        TEST(calls_follow_the_plan),
        TEST(the_roots_work_follows_the_last_call),
        TEST(selective_calls_drop_the_planned_slots),
        TEST(smaller_inputs_drop_the_planned_slots),
        TEST(layers_without_an_entry_get_the_fallback),
        TEST(an_impossible_technique_is_replaced),
        TEST(an_aborted_forward_is_closed_by_the_next),
        TEST(a_forward_that_has_not_ended_is_told_to_the_next),
        TEST(watched_calls_have_frames_although_they_are_kept),
        TEST(a_replay_fills_the_live_slots_and_stops),
        TEST(a_call_may_save_thousands_of_tensors),
        TEST(forwards_without_a_backward_are_counted),
        TEST(a_retained_graph_releases_when_backward_moves_on),
        TEST(a_replay_that_differs_is_refused),
        TEST(slots_dropped_during_a_replay_are_not_waited_for),
        TEST(bytes_put_behind_the_last_slot_are_released),
        TEST(a_forward_after_inner_backwards_ends_no_step),
        TEST(steps_end_where_they_should),
        TEST(nothing_leaks_when_memory_is_out),
    };
    return cmocka_run_group_tests_name("execute: frames", tests, NULL, NULL);
}
