/*
 * Storages that surely have two values: dropout masks, and nothing that was written to
 * otherwise; as the trace finds them, and as a graph holds them.
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

/* x, saved, and the storage 2, whose account follows. */
static void begin_layer(void)
{
    born(1, 64);
    enter("h.0", 0);
    input(1);
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
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS, 4, false);
    is_found(end_layer(true), "two_valued\":[[1,4]]");
}

static void a_mask_that_nobody_saves_is_not_named(void **state)
{
    (void)state;
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    is_found(end_layer(false), NULL);
}

static void what_was_only_drawn_in_part_is_none(void **state)
{
    (void)state;
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS / 2, 4, false);
    is_found(end_layer(true), NULL);
}

static void a_product_with_a_tensor_ends_it(void **state)
{
    (void)state;
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.mul_.Tensor", 2, ELEMENTS, 4, true);
    is_found(end_layer(true), NULL);
}

static void any_other_write_ends_it(void **state)
{
    (void)state;
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.normal_.default", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS, 4, false);
    is_found(end_layer(true), NULL);
}

static void a_scaled_part_ends_it(void **state)
{
    (void)state;
    begin_layer();
    ran("aten.bernoulli_.float", 2, ELEMENTS, 4, false);
    ran("aten.div_.Scalar", 2, ELEMENTS / 2, 4, false);
    is_found(end_layer(true), NULL);
}

static void graphs_hold_them_strictly(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *text;
    } rows[] = {
        {"[[1,4]]", "[[0,4]]", "$.profiles[1].two_valued[0]: storage 0 is none of the node's own"},
        {"[[1,4]]", "[[9,4]]", "storage 9 is none of the node's own"},
        {"[[1,4]]", "[[1,3]]", "has no whole number of elements"},
        {"[[1,4]]", "[[1,4],[1,4]]", "is out of order"},
        {"[[1,4]]", "[[1,9]]", "two_valued[0][1]"},
        {"[[1,4]]", "[[1]]", "expected [storage, bytes of an element]"},
        {"[\"save\",1]", "[\"work\",0,1]", ""},
    };
    begin_layer();
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
        cmocka_unit_test_setup_teardown(a_mask_that_nobody_saves_is_not_named, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_only_drawn_in_part_is_none, setup, teardown),
        cmocka_unit_test_setup_teardown(a_product_with_a_tensor_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(any_other_write_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scaled_part_ends_it, setup, teardown),
        cmocka_unit_test_setup_teardown(graphs_hold_them_strictly, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
