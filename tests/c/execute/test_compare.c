/*
 * The promises of ms_frame_mark() and ms_frame_compare(): they detect a replay with different values, whatever the
 * tensor's layout, and its layer is held.
 */
#include <math.h>

#include "test_common.h"

#include "double_host.h"

typedef struct fixture {
    host host;
    ms_execute *execute;
    ms_frame *frame;
    uint32_t layer;
    ms_error err;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ms_execute_host table;
    host_table(&f->host, &table);
    assert_ms_ok(ms_execute_open(&table, NULL, &f->execute, &f->err), f->err);
    ms_plan plan = {.fallback = MS_TECHNIQUE_RECOMPUTE};
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    assert_ms_ok(ms_execute_add_layer(f->execute, "block", &f->layer, &f->err), f->err);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    ms_execute_close(f->execute);
    assert_int_equal(f->host.live_memories, 0);
    assert_int_equal(ms_memory_live_blocks(), 0);
    free(f);
    return 0;
}

/* ---- one tensor, saved and saved again ------------------------------------------- */

typedef struct tensor {
    const char *dtype;
    uint32_t rank;
    int64_t size[3], stride[3];
} tensor;

static void forward(fixture *f, const tensor *kind, const void *values)
{
    ms_call_facts facts = {.replayable = true};
    ms_record record = {.rank = kind->rank, .size = kind->size, .dtype = kind->dtype, .device = "cpu"};
    ms_contents contents = {.address = values, .stride = kind->stride};
    uint32_t slot;
    assert_ms_ok(ms_execute_enter(f->execute, 1, f->layer, &facts, &f->frame, &f->err), f->err);
    ms_frame_hold(f->frame);
    assert_ms_ok(ms_frame_save(f->execute, f->frame, &record, false, &slot, &f->err), f->err);
    ms_frame_mark(f->execute, f->frame, slot, &contents);
    ms_execute_leave(f->execute, 1);
}

static int replay(fixture *f, const tensor *kind, const void *values)
{
    ms_record record = {.rank = kind->rank, .size = kind->size, .dtype = kind->dtype, .device = "cpu"};
    ms_contents contents = {.address = values, .stride = kind->stride};
    uint32_t slot;
    ms_capture capture;
    assert_ms_ok(ms_frame_replay_begin(f->execute, f->frame, false, &f->err), f->err);
    assert_ms_ok(ms_frame_replay_save(f->execute, f->frame, &record, &slot, &capture, &f->err), f->err);
    int rc = ms_frame_compare(f->execute, f->frame, slot, &contents, &f->err);
    ms_error ignored;
    assert_ms_ok(ms_frame_replay_end(f->execute, f->frame, rc != MS_OK, &ignored), ignored);
    ms_frame_drop(f->execute, f->frame, slot);
    ms_frame_unhold(f->execute, f->frame);
    return rc;
}

static size_t held(const fixture *f)
{
    uint32_t layers[2] = {7, 7};
    size_t count = ms_execute_held_layers(f->execute, layers, 2);
    assert_true(count == 0 || layers[0] == f->layer);
    return count;
}

static void expect_same(fixture *f, const tensor *kind, const void *before, const void *now)
{
    forward(f, kind, before);
    assert_ms_ok(replay(f, kind, now), f->err);
    assert_int_equal(held(f), 0);
}

static void expect_others(fixture *f, const tensor *kind, const void *before, const void *now)
{
    forward(f, kind, before);
    assert_ms_fails(replay(f, kind, now), MS_EREPLAY, f->err, "): saved tensor 0 (torch.");
    assert_int_equal(held(f), 1);
}

/* ---- tests --------------------------------------------------------------- */

enum { COUNT = 4096 };

static const tensor floats = {.dtype = "torch.float32", .rank = 1, .size = {COUNT}, .stride = {1}};

static void fill(float *values, float offset)
{
    for (int i = 0; i < COUNT; i++) {
        values[i] = offset + (float)i;
    }
}

static void equal_values_are_equal(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    fill(now, 1.0f);
    before[3] = now[3] = NAN;
    expect_same(f, &floats, before, now);
    expect_same(f, &floats, before, now); /* the second time by elements */
}

static void other_values_hold_the_layer(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    fill(now, 20.0f);
    assert_int_equal(ms_execute_peek(f->execute, 1, f->layer), MS_TECHNIQUE_RECOMPUTE);
    expect_others(f, &floats, before, now);
    assert_int_equal(ms_execute_peek(f->execute, 1, f->layer), MS_TECHNIQUE_KEEP);
    ms_call_facts facts = {.replayable = true};
    ms_execute_set_packing(f->execute, false);
    assert_ms_ok(ms_execute_enter(f->execute, 1, f->layer, &facts, &f->frame, &f->err), f->err);
    assert_null(f->frame);
    ms_execute_leave(f->execute, 1);
}

static void other_values_are_found_in_later_steps_too(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    fill(now, 20.0f);
    expect_same(f, &floats, before, before);
    expect_others(f, &floats, before, now);
}

/* The first replay is compared whole. Later ones are compared by samples, which can miss an element. */
static void one_other_element_holds_the_layer(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    fill(now, 1.0f);
    now[7] = 0.0f;
    forward(f, &floats, before);
    assert_ms_ok(replay(f, &floats, now), f->err);
    assert_int_equal(held(f), 1);
}

static void rounding_holds_the_layer_without_an_error(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    for (int i = 0; i < COUNT; i++) {
        now[i] = nextafterf(before[i], 0.0f);
    }
    forward(f, &floats, before);
    assert_ms_ok(replay(f, &floats, now), f->err);
    assert_int_equal(held(f), 1);
}

/* The tensor is a view of rows 0, 2, 4 ... of a table, column by column; the rows between don't belong to it. */
static void only_the_elements_of_a_view_count(void **state)
{
    fixture *f = *state;
    static const tensor view = {.dtype = "torch.int64", .rank = 3, .size = {4, 8, 1}, .stride = {1, 8, 3}};
    int64_t before[64], now[64];
    for (int i = 0; i < 64; i++) {
        before[i] = i;
        now[i] = i % 8 < 4 ? i : -1;
    }
    expect_same(f, &view, before, now);
    for (int i = 0; i < 4; i++) {
        now[8 * i] = now[8 * i + 1] = now[8 * i + 2] = now[8 * i + 3] = 9;
    }
    expect_others(f, &view, before, now);
}

/* Whether the first replay of a new layer is found to differ. */
static bool notices(fixture *f, const tensor *kind, const void *before, const void *now)
{
    char name[32];
    size_t held_before = ms_execute_held_layers(f->execute, NULL, 0);
    snprintf(name, sizeof name, "layer %u", f->layer + 1);
    assert_ms_ok(ms_execute_add_layer(f->execute, name, &f->layer, &f->err), f->err);
    forward(f, kind, before);
    (void)replay(f, kind, now);
    return ms_execute_held_layers(f->execute, NULL, 0) > held_before;
}

/* Three dimensions in any order, with or without bytes between rows and tables that don't belong to the tensor. */
static void each_byte_of_a_view_counts_in_any_order_of_dimensions(void **state)
{
    enum { TABLES = 2, ROWS = 3, COLUMNS = 4, TABLE_MOST = 20, BYTES = TABLES * TABLE_MOST };
    static const int64_t size[3] = {TABLES, ROWS, COLUMNS};
    static const int64_t strides[4][3] = {{20, 6, 1}, {20, 4, 1}, {18, 6, 1}, {12, 4, 1}};
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    fixture *f = *state;
    uint8_t before[BYTES] = {0}, now[BYTES] = {0};
    for (int i = 0; i < 4 * 6; i++) {
        const int64_t *stride = strides[i / 6];
        tensor view = {.dtype = "torch.uint8", .rank = 3};
        for (int k = 0; k < 3; k++) {
            view.size[k] = size[orders[i % 6][k]];
            view.stride[k] = stride[orders[i % 6][k]];
        }
        for (int at = 0; at < TABLES * stride[0]; at++) {
            int64_t in_table = at % stride[0];
            now[at] = 1;
            assert_int_equal(notices(f, &view, before, now),
                             in_table / stride[1] < ROWS && in_table % stride[1] < COLUMNS);
            now[at] = 0;
        }
    }
}

/* After a first replay was compared, sixteen elements are: one in each sixteenth of the tensor. */
static void other_values_in_a_sixteenth_are_found_in_later_steps(void **state)
{
    enum { PARTS = 16, PART = COUNT / PARTS };
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    for (int part = 0; part < PARTS; part++) {
        char name[32];
        snprintf(name, sizeof name, "part %d", part);
        assert_ms_ok(ms_execute_add_layer(f->execute, name, &f->layer, &f->err), f->err);
        forward(f, &floats, before);
        assert_ms_ok(replay(f, &floats, before), f->err);
        fill(now, 1.0f);
        for (int i = 0; i < PART; i++) {
            now[part * PART + i] = -9999.0f;
        }
        forward(f, &floats, before);
        assert_int_equal(replay(f, &floats, now), MS_EREPLAY);
    }
}

/* The call has saved one tensor, which was remembered. */
static void a_slot_that_the_call_does_not_have_is_not_compared(void **state)
{
    fixture *f = *state;
    float before[COUNT], now[COUNT];
    fill(before, 1.0f);
    fill(now, 20.0f);
    forward(f, &floats, before);
    ms_contents contents = {.address = before, .stride = floats.stride};
    bool is_late = true;
    for (uint32_t slot = 1; slot < 3; slot++) {
        ms_frame_mark(f->execute, f->frame, slot, &contents);
        assert_false(ms_frame_is_marked(f->frame, slot, &is_late));
        assert_false(is_late);
        contents.address = now;
        assert_ms_ok(ms_frame_compare(f->execute, f->frame, slot, &contents, &f->err), f->err);
    }
    assert_true(ms_frame_is_marked(f->frame, 0, &is_late));
    assert_ms_ok(replay(f, &floats, before), f->err);
}

static void expanded_and_empty_tensors_are_read_within_their_bytes(void **state)
{
    fixture *f = *state;
    static const tensor expanded = {.dtype = "torch.float64", .rank = 2, .size = {1 << 20, 2}, .stride = {0, 1}};
    static const tensor empty = {.dtype = "torch.float64", .rank = 2, .size = {0, 2}, .stride = {2, 1}};
    static const tensor scalar = {.dtype = "torch.complex64"};
    double values[2] = {1.0, 2.0}, others[2] = {1.0, 3.0};
    float complexes[2] = {1.0f, 2.0f};
    expect_same(f, &empty, values, others);
    expect_same(f, &scalar, complexes, complexes);
    expect_others(f, &expanded, values, others);
}

static void halves_are_compared_as_numbers(void **state)
{
    fixture *f = *state;
    static const tensor half = {.dtype = "torch.float16", .rank = 1, .size = {2}, .stride = {1}};
    static const tensor brain = {.dtype = "torch.bfloat16", .rank = 1, .size = {2}, .stride = {1}};
    const uint16_t one_two[2] = {0x3c00, 0x4000}, next[2] = {0x3c01, 0x4000}, one_three[2] = {0x3c00, 0x4200};
    const uint16_t brains[2] = {0x3f80, 0x4000}, brain_next[2] = {0x3f81, 0x4000}, brain_other[2] = {0x3f80, 0x4080};
    forward(f, &half, one_two);
    assert_ms_ok(replay(f, &half, next), f->err);
    assert_int_equal(held(f), 1);
    ms_plan plan = {.fallback = MS_TECHNIQUE_RECOMPUTE};
    assert_ms_ok(ms_execute_add_layer(f->execute, "other", &f->layer, &f->err), f->err);
    assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
    forward(f, &half, one_two);
    assert_int_equal(replay(f, &half, one_three), MS_EREPLAY);
    assert_ms_ok(ms_execute_add_layer(f->execute, "brain", &f->layer, &f->err), f->err);
    forward(f, &brain, brains);
    assert_ms_ok(replay(f, &brain, brain_next), f->err);
    assert_ms_ok(ms_execute_add_layer(f->execute, "brains", &f->layer, &f->err), f->err);
    forward(f, &brain, brains);
    assert_int_equal(replay(f, &brain, brain_other), MS_EREPLAY);
    assert_int_equal(ms_execute_held_layers(f->execute, NULL, 0), 4);
}

/* A replay's values of 16 bits, and whether they differ by rounding alone: each value by at most 1% of the largest. */
static void halves_round_by_a_part_of_the_largest(void **state)
{
    static const tensor half = {.dtype = "torch.float16", .rank = 1, .size = {2}, .stride = {1}};
    static const struct {
        uint16_t before[2], now[2];
        bool rounds;
    } cases[] = {
        {{0x3fff, 0x3fff}, {0x3ffe, 0x3fff}, true},   /* 1.999, 1.998 */
        {{0x0400, 0x0200}, {0x0400, 0x0100}, false},  /* 2^-14 beside 2^-15, 2^-16 */
        {{0x7bff, 0x0001}, {0x7bff, 0x03ff}, true},   /* 65504 beside the smallest */
        {{0xbc00, 0x3c00}, {0xbc01, 0x3c00}, true},   /* -1, -1.001 */
        {{0xbc00, 0x3c00}, {0x3c00, 0x3c00}, false},  /* -1, 1 */
        {{0x7c00, 0x3c00}, {0x7c00, 0x3e00}, false}, /* 1, 1.5 beside an infinity, which is not the largest */
        {{0x7c01, 0x3c00}, {0x3c00, 0x3c00}, false},  /* not a number */
        {{0x7c01, 0x3c00}, {0x7c02, 0x3c00}, true},   /* two ways to write that */
        {{0x7c00, 0x3c00}, {0xfc00, 0x3c00}, false},  /* an infinity and its negative */
    };
    fixture *f = *state;
    ms_plan plan = {.fallback = MS_TECHNIQUE_RECOMPUTE};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer %zu", i);
        assert_ms_ok(ms_execute_add_layer(f->execute, name, &f->layer, &f->err), f->err);
        assert_ms_ok(ms_execute_set_plan(f->execute, &plan, &f->err), f->err);
        forward(f, &half, cases[i].before);
        int rc = replay(f, &half, cases[i].now);
        if ((rc == MS_OK) != cases[i].rounds) {
            fail_msg("case %zu: %s", i, rc == MS_OK ? "taken for rounding" : f->err.text);
        }
    }
}

static void unknown_dtypes_and_addresses_are_not_compared(void **state)
{
    fixture *f = *state;
    static const tensor unknown = {.dtype = "torch.bits4x2", .rank = 1, .size = {2}, .stride = {1}};
    const uint16_t values[2] = {1, 2}, others[2] = {3, 4};
    expect_same(f, &unknown, values, others);
    expect_same(f, &floats, NULL, NULL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)
    const struct CMUnitTest tests[] = {
        TEST(equal_values_are_equal),
        TEST(other_values_hold_the_layer),
        TEST(other_values_are_found_in_later_steps_too),
        TEST(one_other_element_holds_the_layer),
        TEST(rounding_holds_the_layer_without_an_error),
        TEST(only_the_elements_of_a_view_count),
        TEST(other_values_in_a_sixteenth_are_found_in_later_steps),
        TEST(a_slot_that_the_call_does_not_have_is_not_compared),
        TEST(each_byte_of_a_view_counts_in_any_order_of_dimensions),
        TEST(expanded_and_empty_tensors_are_read_within_their_bytes),
        TEST(halves_are_compared_as_numbers),
        TEST(halves_round_by_a_part_of_the_largest),
        TEST(unknown_dtypes_and_addresses_are_not_compared),
    };
    return cmocka_run_group_tests_name("execute: compare", tests, NULL, NULL);
}
