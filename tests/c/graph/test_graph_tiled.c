/* ms_graph_add_tiled() adds layers' programs in tiles from a graph traced in tiles, and nothing from another step's. */
#include "graph_fixture.h"
#include "memscale/trace.h"

/* A root node, two calls of one layer, a root node. The parameters: the bytes of the layer's inner storage, the order
 * in which each call binds the gradients of output and input, the layer's programs, and a storage's bytes. */
#define GRAPH(inner, first, second, layer, bytes) \
    "{\"version\":1,\"model\":\"Toy\",\"signature\":\"x\",\"source\":\"static\"," \
    "\"residents\":{\"parameter_bytes\":100,\"trainable_bytes\":60,\"buffer_bytes\":12," \
    "\"batch_bytes\":16,\"largest_parameter_bytes\":40}," \
    "\"loop\":{\"outputs_held\":true,\"gradients_live_in_forward\":false,\"observed\":true," \
    "\"optimizer_state_bytes\":120,\"optimizer_transient_bytes\":80,\"external_loss_bytes\":7}," \
    "\"storages\":[" \
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":0,\"last_node\":1}," \
    "{\"bytes\":64,\"role\":\"activation\",\"first_node\":1,\"last_node\":2}," \
    "{\"bytes\":" bytes ",\"role\":\"output\",\"first_node\":2,\"last_node\":3}," \
    "{\"bytes\":32,\"role\":\"activation\",\"first_node\":3,\"last_node\":2}," \
    "{\"bytes\":32,\"role\":\"activation\",\"first_node\":2,\"last_node\":1}," \
    "{\"bytes\":32,\"role\":\"activation\",\"first_node\":1,\"last_node\":0}]," \
    "\"profiles\":[" \
    "{\"storage_bytes\":[64,32],\"external_count\":2,\"inputs\":[]," \
    "\"forward\":[[\"alloc\",0]],\"backward\":[[\"free\",1]]}," \
    "{\"storage_bytes\":[64,64,32,32," inner "],\"external_count\":4,\"inputs\":[0]," layer "}," \
    "{\"storage_bytes\":[64,32],\"external_count\":2,\"inputs\":[]," \
    "\"forward\":[[\"work\",0,64],[\"free\",0]],\"backward\":[[\"alloc\",1]]}]," \
    "\"nodes\":[" \
    "{\"name\":\"\",\"kind\":\"root\",\"call\":0,\"flags\":[],\"profile\":0,\"externals\":[0,5]}," \
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":0,\"flags\":[],\"profile\":1,\"externals\":[0,1," first "]}," \
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":1,\"flags\":[],\"profile\":1,\"externals\":[1,2," second "]}," \
    "{\"name\":\"\",\"kind\":\"root\",\"call\":1,\"flags\":[],\"profile\":2,\"externals\":[2,3]}]}"

/* Local storage 2 is the gradient of the output, 3 that of the input. */
#define WHOLE \
    "\"forward\":[[\"alloc\",4],[\"save\",4],[\"free\",4],[\"alloc\",1],[\"free\",0]]," \
    "\"backward\":[[\"need\",4],[\"alloc\",3],[\"drop\",4],[\"free\",2]]"
/* As above with 2 and 3 exchanged; the inner storage is freed at once. */
#define TILED \
    "\"forward\":[[\"save\",0],[\"alloc\",4],[\"free\",4],[\"alloc\",1],[\"free\",0]]," \
    "\"backward\":[[\"need\",0],[\"alloc\",2],[\"drop\",0],[\"free\",3]]"

static const char whole[] = GRAPH("48", "4,5", "3,4", WHOLE, "64");
static const char tiled[] = GRAPH("6", "5,4", "4,3", TILED, "64");

static ms_graph *parsed(const char *text)
{
    ms_graph *graph;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    return graph;
}

static ms_graph *added(const char *text, const char *other)
{
    ms_graph *graph = parsed(text), *in_tiles = parsed(other);
    assert_ms_ok(ms_graph_add_tiled(graph, in_tiles, &err), err);
    ms_graph_free(in_tiles);
    return graph;
}

static void layers_get_their_programs_in_tiles(void **state)
{
    (void)state;
    ms_graph *graph = added(whole, tiled);
    assert_int_equal(graph->profile_count, 4);
    assert_int_equal(graph->nodes[1].tiled, 4);
    assert_int_equal(graph->nodes[2].tiled, 4); /* equal ones are shared */
    assert_int_equal(graph->nodes[0].tiled + graph->nodes[3].tiled, 0);
    const ms_profile *profile = &graph->profiles[3];
    assert_int_equal(profile->storage_bytes[4], 6);
    /* Externals keep the order of the layer's own program. */
    assert_int_equal(profile->backward[1].kind, MS_EVENT_ALLOC);
    assert_int_equal(profile->backward[1].storage, 3);
    assert_int_equal(profile->backward[3].storage, 2);
    ms_graph_free(graph);
}

static void added_programs_are_written_read_and_copied(void **state)
{
    (void)state;
    ms_graph *graph = added(whole, tiled);
    char *text = ms_graph_to_json(graph);
    assert_non_null(strstr(text, "\"tiled\":3"));
    ms_graph *read = parsed(text), *copy = ms_graph_copy(read, &err);
    char *again = ms_graph_to_json(copy);
    assert_string_equal(text, again);
    ms_free(text);
    ms_free(again);
    ms_graph_free(read);
    ms_graph_free(copy);
    ms_graph_free(graph);
}

static void assert_nothing_added(const char *text, const char *other)
{
    ms_graph *graph = added(text, other);
    char *now = ms_graph_to_json(graph);
    ms_graph *before = parsed(text);
    char *then = ms_graph_to_json(before);
    assert_string_equal(now, then);
    ms_free(now);
    ms_free(then);
    ms_graph_free(before);
    ms_graph_free(graph);
}

static void graphs_of_different_steps_add_nothing(void **state)
{
    (void)state;
    assert_nothing_added(whole, whole);
    static const char other_output[] = GRAPH("6", "5,4", "4,3", TILED, "64");
    char *text = strdup(other_output);
    strstr(text, "\"bytes\":32")[8] = '4'; /* 42: nothing like it crosses there */
    ms_graph *graph = parsed(whole), *odd = NULL;
    assert_ms_fails(ms_graph_parse(text, &odd, &err), MS_EFORMAT, err, "bytes");
    memset(&err, 0, sizeof err);
    free(text);
    odd = parsed(tiled);
    odd->storages[3].first_node = 2;
    assert_ms_ok(ms_graph_add_tiled(graph, odd, &err), err);
    assert_int_equal(graph->profile_count, 3);
    odd->storages[3].first_node = 3;
    odd->nodes[1].call = 7;
    assert_ms_ok(ms_graph_add_tiled(graph, odd, &err), err);
    assert_int_equal(graph->profile_count, 3);
    odd->nodes[1].call = 0;
    odd->profiles[1].forward[4].kind = MS_EVENT_ALLOC; /* a step that ms_graph_check() refuses */
    assert_ms_ok(ms_graph_add_tiled(graph, odd, &err), err);
    assert_int_equal(graph->profile_count, 3);
    assert_int_equal(graph->nodes[1].tiled, 0);
    ms_graph_free(odd);
    ms_graph_free(graph);
}

static void assert_refused(ms_graph *graph, uint32_t node, uint32_t number, const char *problem)
{
    uint32_t kept = graph->nodes[node].tiled;
    graph->nodes[node].tiled = number;
    assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, problem);
    memset(&err, 0, sizeof err);
    graph->nodes[node].tiled = kept;
}

static void an_impossible_call_in_tiles_is_refused(void **state)
{
    (void)state;
    ms_graph *graph = added(whole, tiled);
    assert_refused(graph, 0, 4, "$.nodes[0].tiled");
    assert_refused(graph, 1, 5, "$.nodes[1].tiled");
    assert_refused(graph, 1, 1, "$.nodes[1].tiled"); /* other externals */
    graph->profiles[3].storage_bytes[2] = 33;
    assert_refused(graph, 1, 4, "the profile 33");
    graph->profiles[3].storage_bytes[2] = 32;
    graph->profiles[3].backward[3].kind = MS_EVENT_ALLOC; /* sound alone, but not in this step */
    assert_refused(graph, 1, 4, "alloc");
    ms_graph_free(graph);
}

static void memory_may_run_out(void **state)
{
    (void)state;
    bool fired = true;
    unsigned failures = 0;
    uint64_t blocks = ms_memory_live_blocks();
    for (uint64_t nth = 1; fired; nth++) {
        ms_graph *graph = parsed(whole), *other = parsed(tiled);
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = ms_graph_add_tiled(graph, other, &err);
        fired = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(rc, fired ? MS_ENOMEM : MS_OK);
        assert_int_equal(graph->nodes[1].tiled, fired ? 0 : 4);
        failures += fired;
        memset(&err, 0, sizeof err);
        assert_ms_ok(ms_graph_check(graph, &err), err);
        ms_graph_free(graph);
        ms_graph_free(other);
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    assert_true(failures > 10);
}

static void operators_are_known_by_what_they_do_to_rows(void **state)
{
    (void)state;
    assert_int_equal(ms_operator_row_kind("aten.mul.Tensor", true), MS_ROWS_EACH);
    assert_int_equal(ms_operator_row_kind("aten.addmm.default", false), MS_ROWS_PRODUCT);
    assert_int_equal(ms_operator_row_kind("aten.linear.default", false), MS_ROWS_PRODUCT);
    assert_int_equal(ms_operator_row_kind("aten.view.default", false), MS_ROWS_SEEN);
    assert_int_equal(ms_operator_row_kind("aten._to_copy.default", false), MS_ROWS_SEEN);
    assert_int_equal(ms_operator_row_kind("aten.bmm.default", false), MS_ROWS_MIX);
    assert_int_equal(ms_operator_row_kind("aten._softmax.default", false), MS_ROWS_MIX);
    assert_int_equal(ms_operator_row_kind("mine.mul.Tensor", true), MS_ROWS_MIX);
}

int main(void)
{
#define TEST(body) cmocka_unit_test_setup_teardown(body, setup, disarm)
    const struct CMUnitTest tests[] = {
        TEST(layers_get_their_programs_in_tiles),
        TEST(added_programs_are_written_read_and_copied),
        TEST(graphs_of_different_steps_add_nothing),
        TEST(an_impossible_call_in_tiles_is_refused),
        TEST(memory_may_run_out),
        TEST(operators_are_known_by_what_they_do_to_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
