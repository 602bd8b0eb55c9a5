/*
 * Storages that certainly have at most two values, as the trace finds them and as a graph holds them: truth values,
 * constants, constants with one more value, functions of one number of these, dropout masks; none after any other
 * write.
 */
#include "trace_stream.h"

enum { ELEMENTS = 16 };

static void ran(const char *name, uint64_t key, uint64_t elements, uint64_t item_bytes, bool by_tensor)
{
    ms_operand operands[] = {{.rank = 1, .size = {elements}, .bytes = elements * item_bytes},
                             {.rank = by_tensor, .size = {elements}, .bytes = by_tensor ? elements * item_bytes : 4}};
    assert_ms_ok(ms_trace_op(trace, name, operands, 2, operands, 1, &err), err);
    assert_ms_ok(ms_trace_wrote(trace, key, &err), err);
}

/* An operator with up to three operands. `first` is the key of the first operand; 0: none. An operand without elements
 * is a number or a tensor of one number. */
typedef struct operator_call {
    const char *name;
    size_t input_count;
    uint64_t first, elements[3];
    uint64_t item_bytes, read_bytes; /* bytes of an element of the result and of the first operand */
    bool are_truths;
} operator_call;

static void tell(const operator_call *call, uint64_t elements)
{
    ms_operand inputs[3] = {{0}};
    for (size_t i = 0; i < call->input_count; i++) {
        uint64_t item_bytes = i == 0 ? call->read_bytes : 4;
        bool one = call->elements[i] == 0;
        inputs[i] = (ms_operand){
            .rank = !one, .size = {call->elements[i]}, .bytes = (one ? 1 : call->elements[i]) * item_bytes};
    }
    ms_operand output = {
        .rank = 1, .size = {elements}, .bytes = elements * call->item_bytes, .are_truths = call->are_truths};
    assert_ms_ok(ms_trace_op(trace, call->name, inputs, call->input_count, &output, 1, &err), err);
}

/* It makes the storage `key`. */
static void gives(uint64_t key, operator_call call)
{
    born(key, ELEMENTS * call.item_bytes);
    tell(&call, ELEMENTS);
    assert_ms_ok(ms_trace_made(trace, &call.first, call.input_count > 0, &key, 1, false, &err), err);
}

/* It writes to `elements` of the storage `key`. */
static void writes(uint64_t key, uint64_t elements, operator_call call)
{
    tell(&call, elements);
    assert_ms_ok(ms_trace_wrote(trace, key, &err), err);
}

#define COMPARES {"aten.gt.Scalar", 1, 1, {ELEMENTS}, 1, 4, true}

/* Begins a layer with the input x; the test then describes how the storage 2 is made. */
static void begin_layer(void)
{
    born(1, 64);
    enter("h.0", 0);
    input(1);
}

static void begin_drawing(void)
{
    begin_layer();
    born(2, ELEMENTS * 4);
}

static char *end_layer(bool saves)
{
    token saved_token = {0};
    if (saves) {
        saved_token = saved(2);
    }
    died(2);
    leave();
    phase(MS_TRACE_BACKWARD);
    if (saves) {
        unpacked(saved_token, 0);
        dropped(saved_token);
    }
    phase(MS_TRACE_DONE);
    return finish();
}

static void is_found(char *text, const char *expected)
{
    const char *found = strstr(text, "two_valued");
    if (expected == NULL) {
        assert_null(found);
    } else {
        assert_non_null(found);
        assert_int_equal(strncmp(found, expected, strlen(expected)), 0);
    }
    ms_free(text);
}

static void a_mask_is_found(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS, 4, false);
    is_found(end_layer(true), "two_valued\":[[1,4]]");
}

/* Dropout on a GPU: the mask is the second result. Results of one size are not told apart. */
static void a_mask_among_several_results_is_found(void **state)
{
    (void)state;
    const uint64_t item_bytes[] = {4, 1}, keys[] = {3, 2}, input = 1;
    for (int same = 0; same < 2; same++) {
        ms_operand operand = {.rank = 1, .size = {ELEMENTS}, .bytes = ELEMENTS * 4};
        ms_operand results[] = {operand, operand};
        results[0].bytes = ELEMENTS * item_bytes[same];
        results[1].bytes = ELEMENTS;
        results[1].are_truths = true;
        begin_layer();
        born(3, results[0].bytes);
        born(2, results[1].bytes);
        assert_ms_ok(ms_trace_op(trace, "aten.native_dropout.default", &operand, 1, results, 2, &err), err);
        assert_ms_ok(ms_trace_made(trace, &input, 1, keys, 2, false, &err), err);
        died(3);
        is_found(end_layer(true), same ? NULL : "two_valued\":[[2,1]]");
        teardown(state);
        setup(state);
    }
}

static void an_unsaved_mask_is_not_listed(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    is_found(end_layer(false), NULL);
}

static void a_partly_drawn_mask_does_not_count(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS / 2, 4, false);
    is_found(end_layer(true), NULL);
}

static void a_product_with_a_tensor_ends_it(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.mul_.Tensor", 2, ELEMENTS, 4, true);
    is_found(end_layer(true), NULL);
}

static void any_other_write_ends_it(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.normal_.default", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS, 4, false);
    is_found(end_layer(true), NULL);
}

static void a_scaled_part_ends_it(void **state)
{
    (void)state;
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS / 2, 4, false);
    is_found(end_layer(true), NULL);
}

/* The result of one operator, and of a second operator on that result. */
typedef struct result_row {
    operator_call first, second; /* the second reads the first's storage, 3, and makes 2, if it has a name */
    const char *expected;
} result_row;

static void results_have_two_values_by_what_made_them(void **state)
{
    static const result_row rows[] = {
        {COMPARES, {0}, "two_valued\":[[1,1]]"},
        {{"mine.compare.default", 1, 1, {ELEMENTS}, 1, 4, true}, {0}, "two_valued\":[[1,1]]"},
        {{"aten.ones.default", 0, 0, {0}, 4, 0, false}, {0}, "two_valued\":[[1,4]]"},
        {{"aten.empty.memory_format", 0, 0, {0}, 1, 0, true}, {0}, NULL},
        {{"aten.sub.Scalar", 1, 1, {ELEMENTS}, 1, 1, false}, {0}, NULL},
        /* of a comparison */
        {COMPARES, {"aten._to_copy.default", 1, 3, {ELEMENTS}, 4, 1, false}, "two_valued\":[[2,4]]"},
        {COMPARES, {"aten.mul.Tensor", 1, 3, {ELEMENTS}, 8, 1, false}, "two_valued\":[[2,8]]"},
        {COMPARES, {"aten.rsub.Scalar", 1, 3, {ELEMENTS}, 2, 1, false}, "two_valued\":[[2,2]]"},
        {COMPARES, {"aten.mul.Tensor", 2, 3, {ELEMENTS, 0}, 4, 1, false}, "two_valued\":[[2,4]]"},
        {COMPARES, {"aten.mul.Tensor", 2, 3, {ELEMENTS, ELEMENTS}, 4, 1, false}, NULL},
        {COMPARES, {"aten.cumsum.default", 1, 3, {ELEMENTS}, 4, 1, false}, NULL},
        {COMPARES, {"mine.mul.Tensor", 1, 3, {ELEMENTS}, 4, 1, false}, NULL},
        {COMPARES, {"aten.where.self", 3, 3, {ELEMENTS, 0, 0}, 4, 1, false}, "two_valued\":[[2,4]]"},
        {COMPARES, {"aten.where.self", 3, 3, {ELEMENTS, ELEMENTS, 0}, 4, 1, false}, NULL},
        {COMPARES, {"aten.masked_fill.Scalar", 2, 3, {ELEMENTS, ELEMENTS}, 4, 1, false}, NULL},
        /* Elements that are read as another type have other values. */
        {COMPARES, {"aten._to_copy.default", 1, 3, {ELEMENTS / 4}, 4, 4, false}, NULL},
        /* of a constant */
        {{"aten.full.default", 0, 0, {0}, 4, 0, false},
         {"aten.triu.default", 1, 3, {ELEMENTS}, 4, 4, false},
         "two_valued\":[[2,4]]"},
        {{"aten.zeros_like.default", 1, 1, {ELEMENTS}, 4, 4, false},
         {"aten.masked_fill.Scalar", 2, 3, {ELEMENTS, ELEMENTS}, 4, 4, false},
         "two_valued\":[[2,4]]"},
        {{"aten.zeros_like.default", 1, 1, {ELEMENTS}, 4, 4, false},
         {"aten.masked_fill.Tensor", 3, 3, {ELEMENTS, ELEMENTS, ELEMENTS}, 4, 4, false},
         NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(teardown(state) + setup(state), 0);
        begin_layer();
        bool again = rows[i].second.name != NULL;
        gives(again ? 3 : 2, rows[i].first);
        if (again) {
            gives(2, rows[i].second);
            died(3);
        }
        is_found(end_layer(true), rows[i].expected);
    }
}

static void what_is_written_to_truth_values_decides(void **state)
{
    static const struct {
        operator_call call;
        uint64_t elements;
        const char *expected;
    } rows[] = {
        {{"aten.fill_.Scalar", 1, 2, {ELEMENTS / 2}, 1, 1, true}, ELEMENTS / 2, "two_valued\":[[1,1]]"},
        {{"aten.logical_or_.default", 2, 2, {ELEMENTS, ELEMENTS}, 1, 1, true}, ELEMENTS, "two_valued\":[[1,1]]"},
        {{"aten.copy_.default", 2, 2, {ELEMENTS / 2, ELEMENTS / 2}, 1, 1, true}, ELEMENTS / 2, "two_valued\":[[1,1]]"},
        {{"aten.copy_.default", 2, 2, {ELEMENTS / 2, ELEMENTS / 2}, 1, 1, false}, ELEMENTS / 2, NULL},
        {{"aten.random_.default", 1, 2, {ELEMENTS}, 1, 1, false}, ELEMENTS, NULL},
        {{"aten.lt.Scalar_out", 1, 2, {ELEMENTS}, 1, 1, true}, ELEMENTS, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(teardown(state) + setup(state), 0);
        begin_layer();
        gives(2, (operator_call)COMPARES);
        writes(2, rows[i].elements, rows[i].call);
        is_found(end_layer(true), rows[i].expected);
    }
}

static void values_are_counted_through_writes(void **state)
{
    static const operator_call zero = {"aten.zero_.default", 1, 2, {ELEMENTS}, 4, 4, false};
    static const operator_call fill = {"aten.masked_fill_.Scalar", 2, 2, {ELEMENTS, ELEMENTS}, 4, 4, false};
    static const operator_call part = {"aten.fill_.Scalar", 1, 2, {ELEMENTS / 2}, 4, 4, false};
    for (int third = 0; third < 2; third++) {
        assert_int_equal(teardown(state) + setup(state), 0);
        begin_drawing();
        writes(2, ELEMENTS, zero);
        writes(2, ELEMENTS / 2, part);
        if (third) {
            writes(2, ELEMENTS, fill);
        }
        is_found(end_layer(true), third ? NULL : "two_valued\":[[1,4]]");
    }
}

static void graphs_hold_them_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *text;
    } rows[] = {
        {"[[1,4]]", "[[0,4]]", "$.profiles[1].two_valued[0]: storage 0 is not local to the node"},
        {"[[1,4]]", "[[9,4]]", "storage 9 is not local to the node"},
        {"[[1,4]]", "[[1,3]]", "has no whole number of elements"},
        {"[[1,4]]", "[[1,4],[1,4]]", "is out of order"},
        {"[[1,4]]", "[[1,9]]", "two_valued[0][1]"},
        {"[[1,4]]", "[[1]]", "expected [storage, bytes of an element]"},
        {"[\"save\",1]", "[\"work\",0,1]", ""},
    };
    begin_drawing();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    char *text = end_layer(true);
    ms_graph *graph = NULL;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    char *again = ms_graph_to_json(graph);
    assert_string_equal(text, again);
    ms_free(again);
    ms_graph *copy = ms_graph_copy(graph, &err);
    again = ms_graph_to_json(copy);
    assert_string_equal(text, again);
    ms_free(again);
    ms_graph_free(copy);
    ms_graph_free(graph);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *at = strstr(text, rows[i].from);
        assert_non_null(at);
        char edited[4096];
        snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, rows[i].to, at + strlen(rows[i].from));
        assert_ms_fails(ms_graph_parse(edited, &graph, &err), MS_EFORMAT, err, rows[i].text);
    }
    ms_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_mask_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_mask_among_several_results_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(an_unsaved_mask_is_not_listed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_partly_drawn_mask_does_not_count, setup, teardown),
        cmocka_unit_test_setup_teardown(a_product_with_a_tensor_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(any_other_write_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scaled_part_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(results_have_two_values_by_what_made_them, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_written_to_truth_values_decides, setup, teardown),
        cmocka_unit_test_setup_teardown(values_are_counted_through_writes, setup, teardown),
        cmocka_unit_test_setup_teardown(graphs_hold_them_strictly, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
