/* A stream of events becomes exactly the graph that it describes; wrong streams are refused; memory running out
 * anywhere leaks nothing. */
#include <errno.h>

#include "trace_stream.h"

/* A layer of the toy model: out = f(in), with a temporary; saves its output; takes
 * the input's gradient from the output's. Keys: input, output; gradients at +1000. */
static token toy_forward(const char *name, uint32_t call, uint64_t in, uint64_t out)
{
    enter(name, call);
    input(in);
    born(900, 8);
    work(16);
    born(out, 64);
    work(72);
    died(900);
    token made = saved(out);
    leave();
    return made;
}

static void toy_backward(token made, uint64_t in, uint64_t out)
{
    unpacked(made, 2000);
    born(in + 1000, 64);
    work(128);
    died(out + 1000);
    died(2000);
    dropped(made);
}

static void a_whole_step_becomes_this_graph_exactly(void **state)
{
    (void)state;
    resident(1, 100, MS_RESIDENT_PARAMETER, true);
    resident(2, 12, MS_RESIDENT_BUFFER, false);
    resident(3, 16, MS_RESIDENT_BATCH, false);
    born(10, 64); /* the embedding */
    token first = toy_forward("h.0", 0, 10, 11);
    assert_ms_ok(ms_trace_flag(trace, first.node, MS_NODE_CHAINED, &err), err);
    died(10); /* between the layers: belongs to h.0 */
    token second = toy_forward("h.1", 0, 11, 12);
    died(11);
    born(20, 4); /* the loss */
    work(68);
    role(20, 4, MS_STORAGE_OUTPUT);
    phase(MS_TRACE_LOSS);
    died(12);
    phase(MS_TRACE_BACKWARD);
    born(1012, 64);
    toy_backward(second, 11, 12);
    toy_backward(first, 10, 11);
    born(30, 100);
    died(1010);
    role(30, 100, MS_STORAGE_GRADIENT);
    phase(MS_TRACE_DONE);
    died(20);
    char *text = finish();
    assert_string_equal(text,
                        "{\"version\":1,\"model\":\"Toy\",\"signature\":\"float32[2]\",\"source\":\"static\","
                        "\"residents\":{\"parameter_bytes\":100,\"trainable_bytes\":100,\"buffer_bytes\":12,"
                        "\"batch_bytes\":16,\"largest_parameter_bytes\":100},"
                        "\"loop\":{\"outputs_held\":true,\"gradients_live_in_forward\":true,\"observed\":false,"
                        "\"optimizer_state_bytes\":200,\"optimizer_transient_bytes\":200,\"external_loss_bytes\":0},"
                        "\"small_products\":true,"
                        "\"storages\":["
                        "{\"bytes\":64,\"role\":\"activation\",\"first_node\":0,\"last_node\":1},"
                        "{\"bytes\":64,\"role\":\"activation\",\"first_node\":1,\"last_node\":2},"
                        "{\"bytes\":64,\"role\":\"activation\",\"first_node\":2,\"last_node\":3},"
                        "{\"bytes\":4,\"role\":\"output\",\"first_node\":3,\"last_node\":3},"
                        "{\"bytes\":64,\"role\":\"activation\",\"first_node\":3,\"last_node\":2},"
                        "{\"bytes\":64,\"role\":\"activation\",\"first_node\":2,\"last_node\":1},"
                        "{\"bytes\":100,\"role\":\"gradient\",\"first_node\":1,\"last_node\":1}],"
                        "\"profiles\":["
                        "{\"storage_bytes\":[64],\"external_count\":1,\"inputs\":[],\"forward\":[[\"alloc\",0]],"
                        "\"backward\":[]},"
                        "{\"storage_bytes\":[64,64,64,100,8,64],\"external_count\":4,\"inputs\":[0],"
                        "\"forward\":[[\"alloc\",4],[\"work\",0,16],[\"alloc\",1],[\"work\",0,72],[\"free\",4],"
                        "[\"save\",1],[\"free\",0]],"
                        "\"backward\":[[\"need\",1],[\"alloc\",5],[\"work\",0,128],[\"free\",2],[\"drop\",1],"
                        "[\"alloc\",3],[\"free\",5]]},"
                        "{\"storage_bytes\":[64,64,64,64,8],\"external_count\":4,\"inputs\":[0],"
                        "\"forward\":[[\"alloc\",4],[\"work\",0,16],[\"alloc\",1],[\"work\",0,72],[\"free\",4],"
                        "[\"save\",1],[\"free\",0]],"
                        "\"backward\":[[\"need\",1],[\"alloc\",2],[\"work\",0,128],[\"free\",3],[\"drop\",1]]},"
                        "{\"storage_bytes\":[4,64,64],\"external_count\":3,\"inputs\":[],"
                        "\"forward\":[[\"alloc\",0],[\"work\",0,68],[\"free\",1]],\"backward\":[[\"alloc\",2]]}],"
                        "\"nodes\":["
                        "{\"name\":\"\",\"kind\":\"root\",\"call\":0,\"flags\":[],\"profile\":0,\"externals\":[0]},"
                        "{\"name\":\"h.0\",\"kind\":\"layer\",\"call\":0,\"flags\":[\"chained\"],\"profile\":1,"
                        "\"externals\":[0,1,5,6]},"
                        "{\"name\":\"h.1\",\"kind\":\"layer\",\"call\":0,\"flags\":[],\"profile\":2,"
                        "\"externals\":[1,2,5,4]},"
                        "{\"name\":\"\",\"kind\":\"root\",\"call\":1,\"flags\":[],\"profile\":3,"
                        "\"externals\":[3,2,4]}]}");
    ms_free(text);
}

static void equal_layers_share_a_profile_and_different_ones_do_not(void **state)
{
    (void)state;
    token tokens[5];
    born(10, 64);
    for (uint32_t i = 0; i < 5; i++) {
        tokens[i] = toy_forward("h", i, 10 + i, 11 + i);
        died(10 + i);
    }
    enter("other", 0);
    input(15);
    born(16, 64);
    work(80);
    leave();
    died(15);
    died(16);
    phase(MS_TRACE_BACKWARD);
    born(1015, 64);
    for (uint32_t i = 5; i-- > 0;) {
        toy_backward(tokens[i], 10 + i, 11 + i);
    }
    phase(MS_TRACE_DONE);
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    assert_int_equal(graph->node_count, 7);
    /* h.0 passes its gradient to no layer, so it differs from h.1 to h.4. */
    uint32_t shared = graph->nodes[2].profile;
    for (uint32_t i = 2; i <= 5; i++) {
        assert_int_equal(graph->nodes[i].profile, shared);
        assert_int_equal(graph->nodes[i].call, i - 1);
    }
    assert_int_equal(graph->profile_count, 4);
    ms_graph_free(graph);
}

static void nodes_without_events_are_left_out(void **state)
{
    (void)state;
    enter("identity", 0);
    input(77);
    leave();
    born(10, 8);
    enter("real", 0);
    input(10);
    born(11, 8);
    died(11);
    leave();
    died(10);
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    assert_int_equal(graph->node_count, 2);
    assert_string_equal(graph->nodes[1].name, "real");
    assert_int_equal(graph->nodes[1].flags, 0);
    assert_int_equal(graph->storages[0].first_node, 0);
    assert_int_equal(graph->storages[0].last_node, 1);
    ms_graph_free(graph);
}

static void a_layer_without_a_tensor_argument_is_marked(void **state)
{
    (void)state;
    enter("source", 0);
    born(11, 8);
    leave();
    assert_finishes_with("\"flags\":[\"no_tensor_input\"]");
}

static void an_empty_step_has_one_node_that_does_nothing(void **state)
{
    (void)state;
    phase(MS_TRACE_BACKWARD);
    phase(MS_TRACE_DONE);
    char *text = finish();
    assert_contains(text, NO_RESIDENTS);
    assert_contains(text, NO_LOOP);
    assert_contains(text, "\"forward\":[],\"backward\":[]}],\"nodes\":[{\"name\":\"\",\"kind\":\"root\"");
    ms_free(text);
}

/* ---- roles, loss, optimizer -------------------------------------------------- */

static void a_loss_outside_reserves_twice_the_outputs(void **state)
{
    (void)state;
    born(10, 50);
    born(11, 8);
    role(10, 50, MS_STORAGE_OUTPUT);
    assert_ms_ok(ms_trace_loss_outside(trace, &err), err);
    assert_finishes_with("\"external_loss_bytes\":100");
}

/* Logits 10, log-softmax 11, loss 12; in backward the gradient 21 after a scattered one. */
static void a_cross_entropy_is_marked_in_both_passes(void **state)
{
    (void)state;
    uint64_t head, none;
    born(10, 64);
    assert_ms_ok(ms_trace_loss(trace, 10, &head, &err), err);
    assert_ms_ok(ms_trace_loss(trace, 999, &none, &err), err); /* no storage of the step */
    assert_true(head > 0 && none == 0);
    born(11, 64);
    token saved_rows = saved(11);
    died(11);
    born(12, 4);
    assert_ms_ok(ms_trace_loss_end(trace, head, &err), err);
    assert_ms_ok(ms_trace_loss_end(trace, none, &err), err);
    enter("later", 0);
    assert_ms_ok(ms_trace_loss(trace, 10, &none, &err), err); /* in a layer it is not marked */
    assert_int_equal(none, 0);
    born(13, 8);
    leave();
    died(10);
    phase(MS_TRACE_BACKWARD);
    assert_ms_ok(ms_trace_loss_backward(trace, head, &err), err);
    born(20, 64); /* belongs to the cross entropy's node, not to the last layer's */
    unpacked(saved_rows, 0);
    born(21, 64);
    died(20);
    dropped(saved_rows);
    assert_ms_ok(ms_trace_loss_backward_end(trace, head, 21, &err), err);
    died(21);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"backward\":[[\"loss\",0],[\"alloc\",3],[\"need\",1],[\"alloc\",4],[\"free\",3],"
                         "[\"drop\",1],[\"loss_end\",4],[\"free\",4]]");
}

static void a_mark_that_was_never_given_is_refused(void **state)
{
    (void)state;
    uint64_t head;
    born(10, 64);
    assert_ms_fails(ms_trace_loss_end(trace, 1, &err), MS_EINVAL, err, "cross entropy 1");
    assert_ms_ok(ms_trace_loss(trace, 10, &head, &err), err);
    assert_ms_ok(ms_trace_loss_end(trace, head, &err), err);
    phase(MS_TRACE_BACKWARD);
    assert_ms_fails(ms_trace_loss_backward(trace, head + 1, &err), MS_EINVAL, err, "cross entropy 2");
    assert_ms_ok(ms_trace_loss_backward(trace, head, &err), err);
    assert_ms_ok(ms_trace_loss_backward_end(trace, head, 77, &err), err); /* not a storage of the step */
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"backward\":[[\"loss\",0]]");
    assert_ms_fails(ms_trace_loss(trace, 10, &head, &err), MS_ESTATE, err, "finished");
}

/* 30 is a parameter's gradient, of two parameters; 31 turns out to be none, 32 is foreign. */
static void gradients_are_marked_when_they_are_final(void **state)
{
    (void)state;
    born(10, 64);
    assert_ms_ok(ms_trace_final(trace, 10, &err), err); /* not in backward */
    phase(MS_TRACE_BACKWARD);
    born(30, 40);
    assert_ms_ok(ms_trace_final(trace, 30, &err), err);
    born(31, 8);
    assert_ms_ok(ms_trace_final(trace, 31, &err), err);
    assert_ms_ok(ms_trace_final(trace, 30, &err), err);
    assert_ms_ok(ms_trace_final(trace, 32, &err), err);
    died(31);
    role(30, 40, MS_STORAGE_GRADIENT);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"backward\":[[\"alloc\",0],[\"alloc\",2],[\"final\",0],[\"free\",2]]");
    assert_ms_fails(ms_trace_final(trace, 30, &err), MS_ESTATE, err, "finished");
}

static void the_optimizers_state_is_told_from_its_temporaries(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    born(30, 40);
    role(30, 40, MS_STORAGE_GRADIENT);
    phase(MS_TRACE_OPTIMIZER);
    born(50, 10); /* a temporary before any state exists */
    born(60, 40);
    born(61, 40);
    died(30); /* the optimizer frees the gradient, which isn't its own storage */
    born(51, 7);
    died(50);
    born(52, 6);
    died(51);
    died(52);
    phase(MS_TRACE_DONE);
    died(60);
    assert_finishes_with("\"optimizer_state_bytes\":80,\"optimizer_transient_bytes\":17,");
}

static void a_step_that_fails_is_estimated(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    phase(MS_TRACE_OPTIMIZER);
    born(50, 10);
    assert_ms_ok(ms_trace_optimizer_unknown(trace, &err), err);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"optimizer_state_bytes\":80,\"optimizer_transient_bytes\":80,");
}

static void expected_state_replaces_the_assumed(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    assert_ms_ok(ms_trace_expect_state(trace, 13, &err), err);
    assert_ms_ok(ms_trace_expect_state(trace, 8, &err), err);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"optimizer_state_bytes\":21,");
}

static void state_from_before_the_step_is_a_part_of_all(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    assert_ms_ok(ms_trace_made_state(trace, 60, &err), err);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"optimizer_state_bytes\":80,\"optimizer_made_bytes\":60,");
}

/* An optimizer that nobody could trace holds more than is assumed. */
static void state_from_before_the_step_may_be_more_than_assumed(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    assert_ms_ok(ms_trace_made_state(trace, 90, &err), err);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"optimizer_state_bytes\":90,\"optimizer_made_bytes\":90,");
}

static void a_real_optimizer_that_made_its_state_before_is_reserved_for(void **state)
{
    (void)state;
    ms_trace_free(trace);
    assert_ms_ok(ms_trace_new("Toy", "", "empirical", &trace, &err), err);
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    phase(MS_TRACE_OPTIMIZER);
    born(50, 10);
    died(50);
    phase(MS_TRACE_DONE);
    assert_finishes_with("\"optimizer_state_bytes\":80,\"optimizer_transient_bytes\":10,");
}

/* ---- wrong streams ----------------------------------------------------------- */

static void wrong_calls_are_refused_and_change_nothing(void **state)
{
    (void)state;
    uint32_t node;
    assert_ms_fails(ms_trace_leave(trace, &err), MS_ESTATE, err, "no layer");
    assert_ms_fails(ms_trace_input(trace, 1, NULL, &err), MS_ESTATE, err, "no layer");
    assert_ms_fails(ms_trace_flag(trace, 0, 1, &err), MS_EINVAL, err, "node 0 of 0");
    assert_ms_fails(ms_trace_enter(trace, "", 0, &node, &err), MS_EINVAL, err, "name");
    assert_ms_fails(ms_trace_optimizer_unknown(trace, &err), MS_ESTATE, err, "optimizer");
    assert_ms_fails(ms_trace_resident(trace, 1, 8, 0, MS_RESIDENT_BUFFER, false, &err), MS_EINVAL, err, "no bytes");
    assert_ms_fails(ms_trace_role(trace, 1, 8, MS_STORAGE_BATCH, &err), MS_EINVAL, err, "role");
    born(10, 8);
    assert_ms_fails(ms_trace_born(trace, 10, 8, &err), MS_EINVAL, err, "twice");
    token made = saved(10);
    assert_ms_fails(ms_trace_dropped(trace, made.node + 1, made.serial, &err), MS_EINVAL, err, "serial");
    assert_ms_fails(ms_trace_dropped(trace, made.node, made.serial + 1, &err), MS_EINVAL, err, "serial");
    dropped(made);
    assert_ms_fails(ms_trace_unpacked(trace, made.node, made.serial, 0, &err), MS_EINVAL, err, "serial");
    enter("a", 0);
    assert_ms_fails(ms_trace_enter(trace, "b", 0, &node, &err), MS_ESTATE, err, "inside");
    assert_ms_fails(ms_trace_set_phase(trace, MS_TRACE_LOSS, &err), MS_ESTATE, err, "inside a layer");
    leave();
    phase(MS_TRACE_BACKWARD);
    assert_ms_fails(ms_trace_enter(trace, "a", 1, &node, &err), MS_ESTATE, err, "outside of forward");
    assert_ms_fails(ms_trace_set_phase(trace, MS_TRACE_LOSS, &err), MS_ESTATE, err, "after phase");
    assert_ms_fails(ms_trace_set_phase(trace, MS_TRACE_BACKWARD, &err), MS_ESTATE, err, "after phase");
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"save\",0],[\"drop\",0]],\"backward\":[]");
}

static void a_finished_trace_takes_nothing_more(void **state)
{
    (void)state;
    ms_graph *graph;
    uint32_t node;
    uint64_t serial;
    ms_free(finish());
    assert_ms_fails(ms_trace_finish(trace, &graph, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_born(trace, 1, 1, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_died(trace, 1, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_enter(trace, "a", 0, &node, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_saved(trace, 1, &node, &serial, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_op(trace, "mm", NULL, 0, NULL, 0, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_set_phase(trace, MS_TRACE_DONE, &err), MS_ESTATE, err, "finished");
    assert_ms_fails(ms_trace_loss_outside(trace, &err), MS_ESTATE, err, "finished");
}

static void an_open_layer_or_optimizer_cannot_be_finished(void **state)
{
    (void)state;
    ms_graph *graph;
    enter("a", 0);
    assert_ms_fails(ms_trace_finish(trace, &graph, &err), MS_ESTATE, err, "a was not left");
    ms_trace_free(trace);
    setup(NULL);
    phase(MS_TRACE_OPTIMIZER);
    assert_ms_fails(ms_trace_finish(trace, &graph, &err), MS_ESTATE, err, "optimizer");
}

static void sizes_that_fit_no_graph_are_a_profile_error(void **state)
{
    (void)state;
    ms_graph *graph;
    born(1, UINT64_MAX);
    assert_ms_fails(ms_trace_finish(trace, &graph, &err), MS_EPROFILE, err, "63 bits");
}

/* ---- operators --------------------------------------------------------------- */

static ms_operand shape(uint32_t rank, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t bytes = 4;
    ms_operand operand = {.rank = rank, .size = {a, b, c, d}};
    for (uint32_t i = 0; i < rank; i++) {
        bytes *= operand.size[i];
    }
    operand.bytes = bytes;
    return operand;
}

static void work_is_what_was_read_and_written(void **state)
{
    (void)state;
    ms_operand inputs[] = {shape(2, 4, 8, 0, 0), shape(2, 8, 3, 0, 0)};
    ms_operand output = shape(2, 4, 3, 0, 0);
    born(10, output.bytes);
    assert_ms_ok(ms_trace_op(trace, "aten.mm.default", inputs, 2, &output, 1, &err), err);
    assert_ms_ok(ms_trace_op(trace, "aten.empty.memory_format", NULL, 0, NULL, 0, &err), err);
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"work\",192,272]],\"backward\":[]");
}

/* Of the results' elements; operators without products have none. */
static void products_note_their_precision(void **state)
{
    (void)state;
    ms_operand inputs[] = {shape(2, 4, 8, 0, 0), shape(2, 8, 3, 0, 0)};
    ms_operand output = shape(2, 4, 3, 0, 0);
    output.precision = MS_PRECISION_BF16;
    born(10, output.bytes);
    assert_ms_ok(ms_trace_op(trace, "aten.mm.default", inputs, 2, &output, 1, &err), err);
    assert_ms_ok(ms_trace_op(trace, "aten.relu.default", &output, 1, &output, 1, &err), err);
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"work\",192,272,0,0,1],[\"work\",0,96]],\"backward\":[]");
}

static void multiply(const char *name, uint64_t rows, uint32_t precision)
{
    ms_operand inputs[] = {shape(2, rows, 8, 0, 0), shape(2, 8, 3, 0, 0)};
    ms_operand output = shape(2, rows, 3, 0, 0);
    output.precision = precision;
    assert_ms_ok(ms_trace_op(trace, name, inputs, 2, &output, 1, &err), err);
}

/* Each operator and shape once: code is generated for it once. */
static void products_of_16_bits_are_counted_by_shape(void **state)
{
    (void)state;
    multiply("aten.mm.default", 4, MS_PRECISION_AS_IS);
    multiply("aten.mm.default", 4, MS_PRECISION_BF16);
    multiply("aten.mm.default", 4, MS_PRECISION_BF16);
    multiply("aten.mm.default", 5, MS_PRECISION_BF16);
    multiply("aten._int_mm.default", 5, MS_PRECISION_FP16);
    multiply("aten.relu.default", 6, MS_PRECISION_BF16);
    assert_finishes_with("\"half_products\":3,");
}

/* The graph has the figure of the operator that takes most. It grows with the threads. */
static void buffers_of_unfolded_images_reach_the_graph(void **state)
{
    (void)state;
    ms_operand small = {4, {4, 8, 8, 8}, 4096}, large = {4, {4, 8, 16, 16}, 16384}, filter = {4, {8, 8, 3, 3}, 1152};
    ms_operand first[] = {small, small, filter}, second[] = {large, large, filter};
    ms_trace_set_threads(trace, 3);
    assert_ms_ok(ms_trace_workspace(trace, "convolution_backward", second, 3, &large, 1, MS_WORKSPACE_UNFOLDS, &err),
                 err);
    assert_ms_ok(ms_trace_workspace(trace, "convolution_backward", first, 3, &small, 1, MS_WORKSPACE_UNFOLDS, &err),
                 err);
    work(1);
    assert_finishes_with("\"libc_buffer_bytes\":331776,"); /* 3 threads x 3 images x 72 x 256 x 2 */
}

/* Products of 2 * 1024 * 512 * 512 operations are large; with one row less, they aren't. Convolutions don't count. */
static void large_products_are_noticed(void **state)
{
    (void)state;
    ms_operand image[] = {shape(4, 64, 64, 56, 56), shape(4, 64, 64, 3, 3)};
    ms_operand products[][2] = {{shape(2, 1023, 512, 0, 0), shape(2, 512, 512, 0, 0)},
                                {shape(2, 1024, 512, 0, 0), shape(2, 512, 512, 0, 0)}};
    ms_operand outputs[] = {shape(2, 1023, 512, 0, 0), shape(2, 1024, 512, 0, 0)};
    assert_ms_ok(ms_trace_op(trace, "aten.convolution.default", image, 2, image, 1, &err), err);
    assert_ms_ok(ms_trace_op(trace, "aten.convolution.default", image, 2, image, 1, &err), err);
    assert_ms_ok(ms_trace_op(trace, "aten.mm.default", products[0], 2, &outputs[0], 1, &err), err);
    assert_finishes_with("\"small_products\":true,\"convolutions\":1");
    teardown(NULL);
    assert_int_equal(setup(NULL), 0);
    assert_ms_ok(ms_trace_op(trace, "aten.mm.default", products[1], 2, &outputs[1], 1, &err), err);
    char *text = finish();
    assert_null(strstr(text, "small_products"));
    assert_null(strstr(text, "convolutions"));
    ms_free(text);
}

/* Layers are flagged by the caller, who knows where they compute. */
static void the_roots_work_on_several_devices_is_elsewhere(void **state)
{
    (void)state;
    ms_trace_on_several_devices(trace);
    born(10, 64);
    token made = toy_forward("h.0", 0, 10, 11);
    born(20, 4);
    phase(MS_TRACE_BACKWARD);
    toy_backward(made, 10, 11);
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    assert_int_equal(graph->node_count, 3);
    assert_int_equal(graph->nodes[0].flags, MS_NODE_ELSEWHERE);
    assert_int_equal(graph->nodes[1].flags, 0);
    assert_int_equal(graph->nodes[2].flags, MS_NODE_ELSEWHERE);
    ms_graph_free(graph);
}

static void what_comes_from_another_device_is_noted_for_one_operator(void **state)
{
    (void)state;
    ms_operand image = shape(2, 4, 4, 0, 0);
    assert_ms_ok(ms_trace_moves(trace, 64, &err), err);
    for (int i = 0; i < 2; i++) {
        assert_ms_ok(ms_trace_op(trace, "aten._to_copy.default", &image, 1, &image, 1, &err), err);
    }
    char *text = finish();
    assert_non_null(strstr(text, ",0,0,0,64],[\"work\","));
    ms_free(text);
}

/* ---- memory ------------------------------------------------------------------ */

/* A step with everything in it, for faults: stops at the first failure. */
static int whole_step(ms_graph **graph)
{
    uint32_t node;
    uint32_t saver;
    uint64_t serial;
    ms_operand operand = {.rank = 1, .size = {4}, .bytes = 16};
    int rc = ms_trace_resident(trace, 1, 8, 4, MS_RESIDENT_PARAMETER, true, &err);
    rc = rc ? rc : ms_trace_resident(trace, 2, 8, 4, MS_RESIDENT_BATCH, false, &err);
    rc = rc ? rc : ms_trace_born(trace, 10, 8, &err);
    rc = rc ? rc : ms_trace_enter(trace, "a", 0, &node, &err);
    rc = rc ? rc : ms_trace_input(trace, 10, NULL, &err);
    rc = rc ? rc : ms_trace_born(trace, 11, 8, &err);
    rc = rc ? rc : ms_trace_op(trace, "mm", &operand, 1, &operand, 1, &err);
    rc = rc ? rc : ms_trace_saved(trace, 11, &saver, &serial, &err);
    rc = rc ? rc : ms_trace_leave(trace, &err);
    rc = rc ? rc : ms_trace_died(trace, 10, &err);
    rc = rc ? rc : ms_trace_set_phase(trace, MS_TRACE_BACKWARD, &err);
    rc = rc ? rc : ms_trace_unpacked(trace, saver, serial, 50, &err);
    rc = rc ? rc : ms_trace_died(trace, 50, &err);
    rc = rc ? rc : ms_trace_dropped(trace, saver, serial, &err);
    rc = rc ? rc : ms_trace_role(trace, 30, 8, MS_STORAGE_GRADIENT, &err);
    rc = rc ? rc : ms_trace_set_phase(trace, MS_TRACE_OPTIMIZER, &err);
    rc = rc ? rc : ms_trace_born(trace, 60, 8, &err);
    rc = rc ? rc : ms_trace_set_phase(trace, MS_TRACE_DONE, &err);
    return rc ? rc : ms_trace_finish(trace, graph, &err);
}

static void memory_running_out_anywhere_leaves_nothing_behind(void **state)
{
    (void)state;
    ms_trace_free(trace);
    trace = NULL;
    uint64_t blocks = ms_memory_live_blocks();
    int rc = MS_ENOMEM;
    uint64_t nth = 1;
    for (; rc != MS_OK; nth++) {
        ms_graph *graph = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        rc = ms_trace_new("Toy", "", "static", &trace, &err);
        if (rc == MS_OK) {
            rc = whole_step(&graph);
        }
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        assert_true(rc == MS_OK || graph == NULL);
        ms_graph_free(graph);
        ms_trace_free(trace);
        trace = NULL;
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    assert_true(nth > 20); /* the faults did fire */
}

/* ---- many of everything ------------------------------------------------------ */

static void a_long_step_keeps_its_storages_apart(void **state)
{
    (void)state;
    enum { COUNT = 20000 };
    static token tokens[COUNT];
    for (uint64_t i = 0; i < COUNT; i++) {
        born(0x7f0000000000 + 64 * i, 1 + i % 7);
        tokens[i] = saved(0x7f0000000000 + 64 * i);
    }
    for (uint64_t i = 0; i < COUNT; i += 2) {
        died(0x7f0000000000 + 64 * i);
    }
    phase(MS_TRACE_BACKWARD);
    for (uint64_t i = COUNT; i-- > 0;) {
        unpacked(tokens[i], 0);
        dropped(tokens[i]);
    }
    for (uint64_t i = 1; i < COUNT; i += 2) {
        died(0x7f0000000000 + 64 * i);
    }
    assert_int_equal(ms_trace_live_bytes(trace), 0);
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    assert_int_equal(graph->profiles[0].storage_count, COUNT);
    assert_int_equal(graph->profiles[0].forward_count, 2 * COUNT + COUNT / 2);
    ms_graph_free(graph);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_whole_step_becomes_this_graph_exactly),
        TEST(equal_layers_share_a_profile_and_different_ones_do_not),
        TEST(nodes_without_events_are_left_out),
        TEST(a_layer_without_a_tensor_argument_is_marked),
        TEST(an_empty_step_has_one_node_that_does_nothing),
        TEST(the_roots_work_on_several_devices_is_elsewhere),
        TEST(what_comes_from_another_device_is_noted_for_one_operator),
        TEST(a_loss_outside_reserves_twice_the_outputs),
        TEST(a_cross_entropy_is_marked_in_both_passes),
        TEST(a_mark_that_was_never_given_is_refused),
        TEST(gradients_are_marked_when_they_are_final),
        TEST(the_optimizers_state_is_told_from_its_temporaries),
        TEST(a_step_that_fails_is_estimated),
        TEST(expected_state_replaces_the_assumed),
        TEST(state_from_before_the_step_is_a_part_of_all),
        TEST(state_from_before_the_step_may_be_more_than_assumed),
        TEST(a_real_optimizer_that_made_its_state_before_is_reserved_for),
        TEST(wrong_calls_are_refused_and_change_nothing),
        TEST(a_finished_trace_takes_nothing_more),
        TEST(an_open_layer_or_optimizer_cannot_be_finished),
        TEST(sizes_that_fit_no_graph_are_a_profile_error),
        TEST(work_is_what_was_read_and_written),
        TEST(products_note_their_precision),
        TEST(buffers_of_unfolded_images_reach_the_graph),
        TEST(products_of_16_bits_are_counted_by_shape),
        TEST(large_products_are_noticed),
        TEST(memory_running_out_anywhere_leaves_nothing_behind),
        TEST(a_long_step_keeps_its_storages_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
