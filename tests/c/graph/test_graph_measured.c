/* ms_graph_measure() gives compiled layers the profiles of measured calls, and no other layer. */
#include "graph_fixture.h"
#include "memscale/trace.h"

/* A root node, two calls of one layer, a root node. As written, the layer saves a storage of 4800 bytes of its own.
 * Externals: input 0, output 1, gradients of output 2 and of input 3. */
#define GRAPH(flags) \
    "{\"version\":1,\"model\":\"Toy\",\"signature\":\"x\",\"source\":\"static\"," \
    "\"residents\":{\"parameter_bytes\":100,\"trainable_bytes\":60,\"buffer_bytes\":12," \
    "\"batch_bytes\":16,\"largest_parameter_bytes\":40}," \
    "\"loop\":{\"outputs_held\":true,\"gradients_live_in_forward\":false,\"observed\":true," \
    "\"optimizer_state_bytes\":120,\"optimizer_transient_bytes\":80,\"external_loss_bytes\":7}," \
    "\"storages\":[" \
    "{\"bytes\":6400,\"role\":\"activation\",\"first_node\":0,\"last_node\":1}," \
    "{\"bytes\":6400,\"role\":\"activation\",\"first_node\":1,\"last_node\":2}," \
    "{\"bytes\":6400,\"role\":\"output\",\"first_node\":2,\"last_node\":3}," \
    "{\"bytes\":3200,\"role\":\"activation\",\"first_node\":3,\"last_node\":2}," \
    "{\"bytes\":3200,\"role\":\"activation\",\"first_node\":2,\"last_node\":1}," \
    "{\"bytes\":3200,\"role\":\"activation\",\"first_node\":1,\"last_node\":0}]," \
    "\"profiles\":[" \
    "{\"storage_bytes\":[6400,3200],\"external_count\":2,\"inputs\":[]," \
    "\"forward\":[[\"alloc\",0]],\"backward\":[[\"free\",1]]}," \
    "{\"storage_bytes\":[6400,6400,3200,3200,4800],\"external_count\":4,\"inputs\":[0]," \
    "\"forward\":[[\"alloc\",4],[\"work\",2,4],[\"save\",4],[\"free\",4],[\"alloc\",1],[\"work\",3,5],[\"free\",0]]," \
    "\"backward\":[[\"need\",4],[\"work\",7,9],[\"alloc\",3],[\"drop\",4],[\"free\",2]]}," \
    "{\"storage_bytes\":[6400,3200],\"external_count\":2,\"inputs\":[]," \
    "\"forward\":[[\"work\",0,64],[\"free\",0]],\"backward\":[[\"alloc\",1]]}]," \
    "\"nodes\":[" \
    "{\"name\":\"\",\"kind\":\"root\",\"call\":0,\"flags\":[],\"profile\":0,\"externals\":[0,5]}," \
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":0,\"flags\":[" flags "],\"profile\":1,\"externals\":[0,1,4,5]}," \
    "{\"name\":\"h\",\"kind\":\"layer\",\"call\":1,\"flags\":[" flags "],\"profile\":1,\"externals\":[1,2,3,4]}," \
    "{\"name\":\"\",\"kind\":\"root\",\"call\":1,\"flags\":[],\"profile\":2,\"externals\":[2,3]}]}"

static const char compiled[] = GRAPH("\"compiled\""), as_written[] = GRAPH("");

static const uint32_t first_input[] = {0};
static const uint64_t output[] = {6400}, made[] = {1000, 50};

/* Saves its input, its output, and two storages of its own; 300 bytes live on without being saved; 700 more in
 * forward, 900 in backward. */
static ms_measured_call seen(uint32_t call)
{
    return (ms_measured_call){.layer = "h",
                              .call = call,
                              .input_count = 1,
                              .inputs = first_input,
                              .output_count = 1,
                              .output_bytes = output,
                              .made_count = 2,
                              .made_bytes = made,
                              .live_bytes = 6400 + 1000 + 300,
                              .forward_peak_bytes = 6400 + 1000 + 300 + 700,
                              .backward_peak_bytes = 900,
                              .forward_ns = 10,
                              .backward_ns = 20};
}

static ms_graph *parsed(const char *text)
{
    ms_graph *graph;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    return graph;
}

static ms_graph *measured(const char *text, const ms_measured_call *calls, size_t count, uint64_t least_bytes)
{
    ms_graph *graph = parsed(text);
    assert_ms_ok(ms_graph_measure(graph, calls, count, least_bytes, &err), err);
    assert_ms_ok(ms_graph_check(graph, &err), err);
    return graph;
}

/* The bytes that a program has allocated when it frees the first ones. */
static uint64_t peak_of(const ms_profile *profile, const ms_event *events, uint32_t count)
{
    uint64_t live = 0;
    for (uint32_t i = 0; i < count && events[i].kind != MS_EVENT_FREE; i++) {
        live += events[i].kind == MS_EVENT_ALLOC ? profile->storage_bytes[events[i].storage] : 0;
    }
    return live;
}

static uint32_t count_of(const ms_event *events, uint32_t count, uint32_t kind)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        found += events[i].kind == kind;
    }
    return found;
}

static void a_measured_layer_saves_what_was_seen(void **state)
{
    (void)state;
    ms_measured_call calls[] = {seen(0), seen(1)};
    ms_graph *graph = measured(compiled, calls, 2, 100);
    assert_int_equal(graph->profile_count, 3); /* the calls share one profile; that of the code as written is gone */
    assert_int_equal(graph->nodes[1].profile, graph->nodes[2].profile);
    assert_true(graph->nodes[1].flags & MS_NODE_MEASURED);
    const ms_profile *profile = &graph->profiles[graph->nodes[1].profile];
    assert_int_equal(profile->external_count, 4);
    assert_int_equal(count_of(profile->forward, profile->forward_count, MS_EVENT_SAVE), 4);
    assert_int_equal(count_of(profile->backward, profile->backward_count, MS_EVENT_NEED), 4);
    assert_int_equal(count_of(profile->backward, profile->backward_count, MS_EVENT_DROP), 4);
    assert_int_equal(count_of(profile->forward, profile->forward_count, MS_EVENT_WORK), 2);
    /* 50 bytes are too small to be counted in the measurement, and come on top of it. */
    assert_int_equal(peak_of(profile, profile->forward, profile->forward_count), 6400 + 1000 + 50 + 300 + 700);
    for (uint32_t i = 0; i < 4; i++) { /* all are asked for before the work begins */
        assert_int_equal(profile->backward[i].kind, MS_EVENT_NEED);
    }
    assert_int_equal(profile->backward[4].kind, MS_EVENT_ALLOC);
    assert_int_equal(profile->storage_bytes[profile->backward[4].storage], 900);
    assert_int_equal(profile->forward_ns, 10);
    assert_int_equal(profile->backward_ns, 20);
    ms_graph_free(graph);
}

static void bytes_that_no_hook_saw_stay_until_backward(void **state)
{
    (void)state;
    ms_measured_call call = seen(0);
    ms_graph *graph = measured(compiled, &call, 1, 100);
    const ms_profile *profile = &graph->profiles[graph->nodes[1].profile];
    uint32_t found = 0;
    for (uint32_t i = 0; i < profile->backward_count; i++) {
        const ms_event *event = &profile->backward[i];
        bool own = event->kind == MS_EVENT_FREE && event->storage >= profile->external_count;
        found += own && profile->storage_bytes[event->storage] == 300;
    }
    assert_int_equal(found, 1);
    assert_false(graph->nodes[2].flags & MS_NODE_MEASURED); /* its call was not measured */
    assert_int_equal(graph->profile_count, 4);
    ms_graph_free(graph);
}

static void an_unknown_output_counts_as_the_layers_own(void **state)
{
    (void)state;
    static const uint64_t other[] = {6400, 77777};
    ms_measured_call call = seen(0);
    call.output_count = 2;
    call.output_bytes = other;
    call.live_bytes = call.forward_peak_bytes = 0;
    ms_graph *graph = measured(compiled, &call, 1, 0);
    const ms_profile *profile = &graph->profiles[graph->nodes[1].profile];
    assert_int_equal(count_of(profile->forward, profile->forward_count, MS_EVENT_SAVE), 5);
    assert_int_equal(profile->storage_bytes[4], 77777);
    ms_graph_free(graph);
}

static void measured_graphs_are_written_and_read(void **state)
{
    (void)state;
    ms_measured_call calls[] = {seen(0), seen(1)};
    ms_graph *graph = measured(compiled, calls, 2, 100);
    char *text = ms_graph_to_json(graph);
    assert_non_null(strstr(text, "\"measured_ns\":[10,20]"));
    ms_graph *read = parsed(text), *copy = ms_graph_copy(read, &err);
    char *again = ms_graph_to_json(copy);
    assert_string_equal(text, again);
    ms_free(text);
    ms_free(again);
    ms_graph_free(read);
    ms_graph_free(copy);
    ms_graph_free(graph);
}

static void assert_unchanged(const ms_graph *graph, const char *text)
{
    char *now = ms_graph_to_json(graph);
    ms_graph *before = parsed(text);
    char *then = ms_graph_to_json(before);
    assert_string_equal(now, then);
    ms_free(now);
    ms_free(then);
    ms_graph_free(before);
}

static void calls_of_other_layers_change_nothing(void **state)
{
    (void)state;
    ms_measured_call call = seen(0), unknown = seen(7);
    ms_graph *graph = measured(as_written, &call, 1, 100);
    assert_unchanged(graph, as_written);
    ms_graph_free(graph);
    graph = measured(compiled, &unknown, 1, 100);
    assert_unchanged(graph, compiled);
    ms_graph_free(graph);
}

static void impossible_sizes_leave_the_graph_as_it_was(void **state)
{
    (void)state;
    static const uint64_t huge[] = {UINT64_MAX / 2};
    ms_measured_call call = seen(0);
    call.made_count = 1;
    call.made_bytes = huge;
    ms_graph *graph = parsed(compiled);
    assert_ms_fails(ms_graph_measure(graph, &call, 1, 100, &err), MS_EPROFILE, err, "measured layers");
    assert_unchanged(graph, compiled);
    ms_graph_free(graph);
}

static void every_lack_of_memory_leaves_the_graph_as_it_was(void **state)
{
    (void)state;
    ms_measured_call calls[] = {seen(0), seen(1)};
    int rc = MS_ENOMEM;
    for (uint32_t nth = 1; rc == MS_ENOMEM; nth++) {
        ms_graph *graph = parsed(compiled);
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        rc = ms_graph_measure(graph, calls, 2, 100, &err);
        ms_fault_disarm_all();
        if (rc == MS_ENOMEM) {
            assert_unchanged(graph, compiled);
        }
        ms_graph_free(graph);
        assert_true(nth < 1000);
    }
    assert_ms_ok(rc, err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_measured_layer_saves_what_was_seen, setup),
        cmocka_unit_test_setup(bytes_that_no_hook_saw_stay_until_backward, setup),
        cmocka_unit_test_setup(an_unknown_output_counts_as_the_layers_own, setup),
        cmocka_unit_test_setup(measured_graphs_are_written_and_read, setup),
        cmocka_unit_test_setup(calls_of_other_layers_change_nothing, setup),
        cmocka_unit_test_setup(impossible_sizes_leave_the_graph_as_it_was, setup),
        cmocka_unit_test_setup_teardown(every_lack_of_memory_leaves_the_graph_as_it_was, setup, disarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
