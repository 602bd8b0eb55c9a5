/* Documents are read strictly, with the place in every error, and written the
 * same byte for byte; memory running out anywhere leaves nothing behind. */
#include <errno.h>
#include <math.h>
#include <unistd.h>

#include "base/json.h"
#include "test_common.h"

static int disarm(void **state)
{
    (void)state;
    ms_fault_disarm_all();
    return 0;
}

static ms_error err;
static json_t *tree;
static ms__json_at root;

static int parse(const char *text)
{
    return ms__json_parse(text, strlen(text), "graph", &tree, &root, &err);
}

static void parse_well(const char *text)
{
    assert_ms_ok(parse(text), err);
}

/* ---- reading ------------------------------------------------------------ */

/* Only objects of the member's own list count, not those in strings and in other lists. */
static void long_documents_are_refused_before_they_are_read(void **state)
{
    (void)state;
    static const char text[] = "{\"x\": [{}, {}, {}], \"s\": \"nodes\",\n \"t\": \"[{\\\"nodes\\\": [{},{},{}\",\n"
                               " \"nodes\": [{\"nodes\": [{}, {}, {}]},\n {}]}";
    const ms__json_extent fits = {"nodes", 2, 13}, few = {"nodes", 1, 13}, few_values = {"nodes", 2, 7};
    assert_ms_ok(ms__json_check_extent(text, "graph", &fits, &err), err);
    assert_ms_fails(ms__json_check_extent(text, "graph", &few, &err), MS_EFORMAT, err,
                    "graph: line 4: more than 1 nodes");
    assert_ms_fails(ms__json_check_extent(text, "graph", &few_values, &err), MS_EFORMAT, err,
                    "graph: line 3: more than 7 values");
    for (size_t i = 0; i < sizeof text; i++) { /* cut off anywhere */
        char *cut = strndup(text, i);
        assert_ms_ok(ms__json_check_extent(cut, "graph", &fits, &err), err);
        free(cut);
    }
    static const char *const odd[] = {"", "\"", "\"\\", "]]]]", "[[[[", "{\"nodes\"", "\"nodes\": [{}, {}, {}]"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        assert_ms_ok(ms__json_check_extent(odd[i], "graph", &fits, &err), err);
    }
}

static void values_of_every_type_are_read(void **state)
{
    (void)state;
    parse_well("{\"version\": 2, \"u\": 9223372036854775807, \"f\": 0.25, \"i\": 3, \"b\": true,"
               " \"s\": \"text\", \"e\": \"two\", \"a\": [4, 5], \"o\": {\"x\": 1}, \"n\": null}");
    uint64_t u, version;
    uint32_t u32;
    double f;
    bool b;
    const char *s;
    size_t e;
    ms__json_at a, o;
    static const char *const names[] = {"one", "two"};
    assert_ms_ok(ms__json_version(&root, 1, 2, &version), err);
    assert_int_equal(version, 2);
    assert_ms_ok(ms__json_u64(&root, "u", 0, UINT64_MAX, &u), err);
    assert_int_equal(u, INT64_MAX);
    assert_ms_ok(ms__json_u32(&root, "i", 0, UINT32_MAX, &u32), err);
    assert_int_equal(u32, 3);
    assert_ms_ok(ms__json_f64(&root, "f", 0, 1, &f), err);
    assert_true(f == 0.25);
    assert_ms_ok(ms__json_f64(&root, "i", 0, 9, &f), err);
    assert_true(f == 3);
    assert_ms_ok(ms__json_bool(&root, "b", &b), err);
    assert_true(b);
    assert_ms_ok(ms__json_string(&root, "s", &s), err);
    assert_string_equal(s, "text");
    assert_ms_ok(ms__json_enum(&root, "e", names, 2, &e), err);
    assert_int_equal(e, 1);
    assert_ms_ok(ms__json_array(&root, "a", &a), err);
    assert_int_equal(ms__json_count(&a), 2);
    assert_ms_ok(ms__json_item_u64(&a, 1, 0, 9, &u), err);
    assert_int_equal(u, 5);
    assert_ms_ok(ms__json_object(&root, "o", &o), err);
    assert_int_equal(ms__json_count(&o), 1);
    assert_true(ms__json_has(&o, "x"));
    assert_false(ms__json_has(&root, "n"));
    json_decref(tree);
}

static void absent_and_null_members_take_the_fallback(void **state)
{
    (void)state;
    parse_well("{\"n\": null, \"u\": 5}");
    uint64_t u;
    assert_ms_ok(ms__json_u64_or(&root, "n", 0, 9, 77, &u), err);
    assert_int_equal(u, 77);
    assert_ms_ok(ms__json_u64_or(&root, "u", 0, 9, 77, &u), err);
    assert_int_equal(u, 5);
    assert_ms_fails(ms__json_u64_or(&root, "u", 0, 4, 77, &u), MS_EFORMAT, err, "graph: $.u: ");
    json_decref(tree);
}

static void errors_name_the_place(void **state)
{
    (void)state;
    parse_well("{\"layers\": [{}, {}, {}, {\"bytes\": -1, \"name\": 5, \"in\": [[1, \"x\"]]}]}");
    ms__json_at layers, layer, in, inner;
    uint64_t u;
    const char *s;
    assert_ms_ok(ms__json_array(&root, "layers", &layers), err);
    assert_ms_ok(ms__json_item_object(&layers, 3, &layer), err);
    assert_ms_fails(ms__json_u64(&layer, "bytes", 0, UINT64_MAX, &u), MS_EFORMAT, err,
                    "graph: $.layers[3].bytes: expected a non-negative integer");
    assert_ms_fails(ms__json_string(&layer, "name", &s), MS_EFORMAT, err, "graph: $.layers[3].name: expected a string");
    assert_ms_fails(ms__json_string(&layer, "gone", &s), MS_EFORMAT, err,
                    "graph: $.layers[3].gone: missing, expected a string");
    assert_ms_ok(ms__json_array(&layer, "in", &in), err);
    assert_ms_ok(ms__json_item_array(&in, 0, &inner), err);
    assert_ms_fails(ms__json_item_u64(&inner, 1, 0, 9, &u), MS_EFORMAT, err,
                    "graph: $.layers[3].in[0][1]: expected a non-negative integer");
    assert_ms_fails(ms__json_item_object(&layers, 9, &layer), MS_EFORMAT, err, "$.layers[9]: missing");
    json_decref(tree);
}

static void a_list_gets_room_for_its_items(void **state)
{
    (void)state;
    parse_well("{\"three\": [1, 2, 3], \"none\": [], \"number\": 3}");
    ms__json_at array;
    uint32_t count = 9;
    int rc;
    uint64_t *items = ms__json_items(&root, "three", 3, sizeof *items, &array, &count, &rc);
    assert_ms_ok(rc, err);
    assert_int_equal(count, 3);
    assert_int_equal(items[0] | items[1] | items[2], 0);
    assert_int_equal(ms__json_count(&array), 3);
    ms_free(items);
    items = ms__json_items(&root, "none", 0, sizeof *items, &array, &count, &rc);
    assert_ms_ok(rc, err);
    assert_int_equal(count, 0);
    assert_non_null(items);
    ms_free(items);
    assert_null(ms__json_items(&root, "three", 2, sizeof *items, &array, &count, &rc));
    assert_ms_fails(rc, MS_EFORMAT, err, "$.three: has 3 items, more than 2");
    assert_int_equal(count, 0);
    assert_null(ms__json_items(&root, "number", 9, sizeof *items, &array, &count, &rc));
    assert_ms_fails(rc, MS_EFORMAT, err, "$.number: expected an array");
    ms_fault_arm(MS_FAULT_ALLOC, 1, ENOMEM);
    assert_null(ms__json_items(&root, "three", 3, sizeof *items, &array, &count, &rc));
    ms_fault_disarm_all();
    assert_ms_fails(rc, MS_ENOMEM, err, "$.three: out of memory");
    assert_int_equal(count, 0);
    json_decref(tree);
}

static void wrong_types_and_ranges_are_refused(void **state)
{
    (void)state;
    parse_well("{\"r\": 1.0, \"t\": \"1\", \"big\": 300, \"b\": 1, \"o\": [], \"a\": {}, \"e\": \"x\"}");
    static const char *const names[] = {"keep", "recompute"};
    uint64_t u = 1;
    uint32_t u32;
    double f;
    bool b;
    size_t e;
    ms__json_at at;
    assert_ms_fails(ms__json_u64(&root, "r", 0, 9, &u), MS_EFORMAT, err, "$.r: ");
    assert_ms_fails(ms__json_u64(&root, "t", 0, 9, &u), MS_EFORMAT, err, "$.t: ");
    assert_ms_fails(ms__json_u64(&root, "big", 1, 255, &u), MS_EFORMAT, err,
                    "$.big: expected an integer from 1 to 255, found 300");
    assert_int_equal(u, 1);
    assert_ms_fails(ms__json_u64(&root, "big", 301, 400, &u), MS_EFORMAT, err, "from 301 to 400");
    assert_ms_fails(ms__json_u32(&root, "big", 0, 255, &u32), MS_EFORMAT, err, "found 300");
    assert_ms_fails(ms__json_f64(&root, "big", 0, 1, &f), MS_EFORMAT, err, "from 0 to 1, found 300");
    assert_ms_fails(ms__json_f64(&root, "t", 0, 1, &f), MS_EFORMAT, err, "expected a number");
    assert_ms_fails(ms__json_bool(&root, "b", &b), MS_EFORMAT, err, "expected true or false");
    assert_ms_fails(ms__json_object(&root, "o", &at), MS_EFORMAT, err, "expected an object");
    assert_ms_fails(ms__json_array(&root, "a", &at), MS_EFORMAT, err, "expected an array");
    assert_ms_fails(ms__json_enum(&root, "e", names, 2, &e), MS_EFORMAT, err,
                    "\"x\" is not one of \"keep\", \"recompute\"");
    json_decref(tree);
}

static void versions_outside_the_range_are_refused(void **state)
{
    (void)state;
    parse_well("{\"version\": 3}");
    assert_ms_fails(ms__json_version(&root, 1, 2, NULL), MS_EVERSION, err,
                    "$.version: 3 is not known here (known: 1 to 2)");
    json_decref(tree);
    parse_well("{}");
    assert_ms_fails(ms__json_version(&root, 1, 2, NULL), MS_EFORMAT, err, "$.version: missing");
    json_decref(tree);
    parse_well("{\"version\": \"1\"}");
    assert_ms_fails(ms__json_version(&root, 1, 2, NULL), MS_EFORMAT, err, "$.version: expected");
    json_decref(tree);
}

static void unknown_members_are_refused_where_asked(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b"};
    parse_well("{\"a\": 1, \"b\": 2}");
    assert_ms_ok(ms__json_only(&root, names, 2), err);
    assert_ms_fails(ms__json_only(&root, names, 1), MS_EFORMAT, err, "graph: $: unknown member \"b\"");
    json_decref(tree);
}

static int parse_as(const char *name, const char *text)
{
    int rc = ms__json_parse(text, strlen(text), name, &tree, &root, &err);
    if (rc == MS_OK) {
        json_decref(tree);
    }
    return rc;
}

static void a_document_of_another_kind_is_refused_by_its_name(void **state)
{
    (void)state;
    const char *plan = "{\"version\": 1, \"predicted\": {}, \"entries\": []}";
    const char *config = "{\"version\": 1, \"memory_budget_gb\": 4}";
    assert_int_equal(parse_as("graph", plan), MS_EFORMAT);
    assert_string_equal(err.text, "graph: $: expected a graph, found an execution plan");
    assert_int_equal(parse_as("hardware", config), MS_EFORMAT);
    assert_string_equal(err.text, "hardware: $: expected a hardware description, found a configuration");
    assert_ms_ok(parse_as("plan", plan), err);
    assert_ms_ok(parse_as("config", config), err);
    assert_ms_ok(parse_as("graph", "{\"version\": 1}"), err); /* of no evident kind, so left to its reader */
    assert_ms_ok(parse_as("anything", plan), err);
}

static void malformed_texts_are_refused_with_line_and_column(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "{\"a\": }",
        "{\"a\": 1,}",
        "{\"a\": 1} x",
        "{\"a\": 1, \"a\": 2}",
        "{\"a\": 9223372036854775808}",
        "{\"a\": 1e999}",
        "{\"a\": \"\\u0000\"}",
        "{\"a\": \"\xff\"}",
        "{\"a\": \"\\ud800\"}",
        "{\"a\": nan}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_ms_fails(parse(texts[i]), MS_EFORMAT, err, "graph: line ");
    }
    assert_ms_fails(parse("[1]"), MS_EFORMAT, err, "graph: $: expected an object");
    assert_ms_fails(ms__json_parse("{}\0", 3, "graph", &tree, &root, &err), MS_EFORMAT, err, "line");
}

static void deep_nesting_is_refused_not_followed(void **state)
{
    (void)state;
    enum { DEPTH = 1 << 20 };
    char *text = ms_malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '\0';
    assert_ms_fails(parse(text), MS_EFORMAT, err, "graph: line 1");
    ms_free(text);
}

static void errors_may_be_ignored(void **state)
{
    (void)state;
    assert_int_equal(ms__json_parse("{", 1, "graph", &tree, &root, NULL), MS_EFORMAT);
    assert_int_equal(ms__json_parse("{}", 2, "graph", &tree, &root, NULL), MS_OK);
    uint64_t u;
    assert_int_equal(ms__json_u64(&root, "u", 0, 9, &u), MS_EFORMAT);
    json_decref(tree);
}

/* ---- writing ------------------------------------------------------------ */

static int write_sample(char **text)
{
    ms__json_writer writer = {0};
    json_t *top = ms__json_new(&writer);
    ms__json_put_u64(&writer, top, "version", 1);
    ms__json_put_u64_or_null(&writer, top, "limit_bytes", UINT64_MAX, UINT64_MAX);
    ms__json_put_u64_or_null(&writer, top, "total_bytes", 5, UINT64_MAX);
    ms__json_put_f64(&writer, top, "share", 0.85);
    ms__json_put_bool(&writer, top, "on", true);
    ms__json_put_string(&writer, top, "name", "a \"quoted\" \xff n\xc3\xa4me");
    ms__json_put_string(&writer, top, "nothing", NULL);
    json_t *layers = ms__json_put_array(&writer, top, "layers");
    json_t *layer = ms__json_add_object(&writer, layers);
    ms__json_put_u64(&writer, layer, "bytes", INT64_MAX);
    json_t *inner = ms__json_add_array(&writer, layers);
    ms__json_add_u64(&writer, inner, 7);
    ms__json_add_string(&writer, inner, "x");
    ms__json_put_object(&writer, top, "empty");
    return ms__json_finish(&writer, top, "sample", text, &err);
}

static void documents_are_written_in_the_order_of_the_calls(void **state)
{
    (void)state;
    char *text;
    assert_ms_ok(write_sample(&text), err);
    assert_string_equal(text, "{\n"
                              "  \"version\": 1,\n"
                              "  \"limit_bytes\": null,\n"
                              "  \"total_bytes\": 5,\n"
                              "  \"share\": 0.85,\n"
                              "  \"on\": true,\n"
                              "  \"name\": \"a \\\"quoted\\\" ? n\xc3\xa4me\",\n"
                              "  \"nothing\": null,\n"
                              "  \"layers\": [\n"
                              "    {\n"
                              "      \"bytes\": 9223372036854775807\n"
                              "    },\n"
                              "    [\n"
                              "      7,\n"
                              "      \"x\"\n"
                              "    ]\n"
                              "  ],\n"
                              "  \"empty\": {}\n"
                              "}\n");
    ms_free(text);
}

static void numbers_read_back_as_the_same_value(void **state)
{
    (void)state;
    static const double values[] = {0.1, 1.0 / 3, 2e9, 1e-300, 0.30000000000000004, 123456789.123};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        ms__json_writer writer = {0};
        json_t *top = ms__json_new(&writer);
        ms__json_put_f64(&writer, top, "x", values[i]);
        char *text;
        assert_ms_ok(ms__json_finish(&writer, top, "sample", &text, &err), err);
        parse_well(text);
        double back;
        assert_ms_ok(ms__json_f64(&root, "x", 0, 1e10, &back), err);
        assert_true(back == values[i]);
        json_decref(tree);
        ms_free(text);
    }
}

static void values_that_json_cannot_hold_fail_at_the_end(void **state)
{
    (void)state;
    ms__json_writer writer = {0};
    char *text = NULL;
    json_t *top = ms__json_new(&writer);
    ms__json_put_u64(&writer, top, "huge", UINT64_MAX);
    ms__json_put_u64(&writer, top, "fine", 1);
    assert_null(ms__json_put_object(&writer, top, "later"));
    assert_ms_fails(ms__json_finish(&writer, top, "sample", &text, &err), MS_EOVERFLOW, err,
                    "sample: writing \"huge\"");
    writer = (ms__json_writer){0};
    top = ms__json_new(&writer);
    ms__json_put_f64(&writer, top, "x", (double)NAN);
    assert_ms_fails(ms__json_finish(&writer, top, "sample", &text, &err), MS_EINVAL, err, "\"x\"");
    assert_null(text);
}

static void bytes_that_are_no_utf8_are_replaced(void **state)
{
    (void)state;
    static const struct {
        const char *text, *written;
    } cases[] = {
        {"\xed\xa0\x80", "\"???\""},                     /* a surrogate */
        {"\xc0\x80", "\"??\""},                          /* too long a form */
        {"\xf5\x80\x80\x80", "\"????\""},                /* beyond the last code */
        {"\xe2\x82", "\"??\""},                          /* cut off */
        {"\xf0\x9f\x98\x80\xff", "\"\xf0\x9f\x98\x80?\""}, /* good, then bad */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms__json_writer writer = {0};
        json_t *top = ms__json_new(&writer);
        ms__json_put_string(&writer, top, "x", cases[i].text);
        assert_int_equal(writer.code, MS_OK);
        char *text = ms__json_text(json_object_get(top, "x"), true);
        assert_string_equal(text, cases[i].written);
        ms_free(text);
        json_decref(top);
    }
}

static void compact_text_is_one_line(void **state)
{
    (void)state;
    parse_well("{ \"b\": [1, 2],\n \"a\": {} }");
    char *text = ms__json_text(tree, true);
    assert_string_equal(text, "{\"b\":[1,2],\"a\":{}}");
    ms_free(text);
    json_decref(tree);
}

/* ---- memory ------------------------------------------------------------- */

static void running_out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    uint64_t blocks = ms_memory_live_blocks();
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        char *text = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = write_sample(&text);
        bool fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        if (!fired) {
            assert_ms_ok(rc, err);
            ms_free(text);
            break;
        }
        if (rc != MS_OK) {
            assert_int_equal(rc, MS_ENOMEM);
            failures++;
        } else {
            ms_free(text);
        }
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    assert_true(failures > 20);
    assert_int_equal(ms_memory_live_blocks(), blocks);
}

static void parsing_out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    static const char text[] = "{\"layers\": [{\"bytes\": 5, \"name\": \"x\"}, 2.5, null, [true]]}";
    uint64_t blocks = ms_memory_live_blocks();
    uint64_t nth = 1;
    for (;; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = parse(text);
        bool fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        if (rc == MS_OK) {
            json_decref(tree);
        } else {
            assert_int_equal(rc, MS_ENOMEM);
        }
        assert_int_equal(ms_memory_live_blocks(), blocks);
        if (!fired) {
            assert_int_equal(rc, MS_OK);
            break;
        }
    }
    assert_true(nth > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type_are_read),
        cmocka_unit_test(long_documents_are_refused_before_they_are_read),
        cmocka_unit_test(absent_and_null_members_take_the_fallback),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(a_list_gets_room_for_its_items),
        cmocka_unit_test(wrong_types_and_ranges_are_refused),
        cmocka_unit_test(versions_outside_the_range_are_refused),
        cmocka_unit_test(unknown_members_are_refused_where_asked),
        cmocka_unit_test(a_document_of_another_kind_is_refused_by_its_name),
        cmocka_unit_test(malformed_texts_are_refused_with_line_and_column),
        cmocka_unit_test(deep_nesting_is_refused_not_followed),
        cmocka_unit_test(errors_may_be_ignored),
        cmocka_unit_test(documents_are_written_in_the_order_of_the_calls),
        cmocka_unit_test(numbers_read_back_as_the_same_value),
        cmocka_unit_test(values_that_json_cannot_hold_fail_at_the_end),
        cmocka_unit_test(bytes_that_are_no_utf8_are_replaced),
        cmocka_unit_test(compact_text_is_one_line),
        cmocka_unit_test_teardown(running_out_of_memory_leaves_nothing, disarm),
        cmocka_unit_test_teardown(parsing_out_of_memory_leaves_nothing, disarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
