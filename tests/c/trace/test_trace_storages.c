/* The storages of a stream of events, and autograd's saves of them. */
#include "trace_stream.h"

/* ---- storages --------------------------------------------------------------- */

static void an_address_that_is_used_again_is_another_storage(void **state)
{
    (void)state;
    born(10, 8);
    died(10);
    born(10, 32);
    died(10);
    assert_finishes_with("{\"storage_bytes\":[8,32],\"external_count\":0,\"inputs\":[],\"forward\":"
                         "[[\"alloc\",0],[\"free\",0],[\"alloc\",1],[\"free\",1]]");
}

static void residents_are_part_of_no_event(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    resident(1, 40, MS_RESIDENT_PARAMETER, true); /* tied */
    resident(2, 8, MS_RESIDENT_PARAMETER, false);
    resident(3, 12, MS_RESIDENT_BUFFER, false);
    resident(4, 16, MS_RESIDENT_BATCH, false);
    enter("l", 0);
    input(4);
    input(1);
    input(4);
    born(1, 40);
    born(4, 16);
    dropped(saved(1));
    dropped(saved(4));
    born(5, 24);
    leave();
    died(1);
    died(4);
    char *text = finish();
    assert_contains(text, "\"residents\":{\"parameter_bytes\":48,\"trainable_bytes\":40,"
                          "\"buffer_bytes\":12,\"batch_bytes\":16,\"largest_parameter_bytes\":40}");
    assert_contains(text, "\"storages\":[{\"bytes\":16,\"role\":\"batch\",\"first_node\":0,\"last_node\":0}]");
    assert_contains(text, "{\"storage_bytes\":[16,24],\"external_count\":1,\"inputs\":[0],"
                          "\"forward\":[[\"alloc\",1]],\"backward\":[]}");
    ms_free(text);
}

static void a_key_freed_by_a_resident_serves_a_storage(void **state)
{
    (void)state;
    resident(3, 12, MS_RESIDENT_BUFFER, false);
    died(3);
    born(3, 20);
    assert_finishes_with("\"forward\":[[\"alloc\",0]]");
}

static void trainable_is_what_one_use_says(void **state)
{
    (void)state;
    resident(1, 40, MS_RESIDENT_PARAMETER, false);
    resident(1, 40, MS_RESIDENT_PARAMETER, true);
    /* Adam's two moments are fp32 for parameters of every type. */
    assert_ms_ok(ms_trace_resident(trace, 2, 20, 2, MS_RESIDENT_PARAMETER, true, &err), err);
    assert_finishes_with("\"trainable_bytes\":60,\"buffer_bytes\":0,\"batch_bytes\":0,"
                         "\"largest_parameter_bytes\":40},\"loop\":{\"outputs_held\":true,"
                         "\"gradients_live_in_forward\":true,\"observed\":false,"
                         "\"optimizer_state_bytes\":160,\"optimizer_transient_bytes\":80,");
}

static void an_optimizer_makes_copies_of_trainable_parameters_only(void **state)
{
    (void)state;
    resident(1, 4000, MS_RESIDENT_PARAMETER, false);
    resident(2, 40, MS_RESIDENT_PARAMETER, true);
    assert_finishes_with("\"largest_parameter_bytes\":4000},\"loop\":{\"outputs_held\":true,"
                         "\"gradients_live_in_forward\":true,\"observed\":false,"
                         "\"optimizer_state_bytes\":80,\"optimizer_transient_bytes\":80,");
}

static void storages_of_no_bytes_and_foreign_ones_are_ignored(void **state)
{
    (void)state;
    born(10, 0);
    dropped(saved(10));
    died(10);
    died(11);
    dropped(saved(12));
    role(13, 8, MS_STORAGE_OUTPUT);
    assert_finishes_with("\"storages\":[],\"profiles\":[{\"storage_bytes\":[]");
}

static void a_gradient_from_before_the_step_counts_from_the_start_of_backward(void **state)
{
    (void)state;
    born(10, 8);
    token made = saved(10);
    died(10);
    phase(MS_TRACE_BACKWARD);
    unpacked(made, 0);
    dropped(made);
    role(30, 40, MS_STORAGE_GRADIENT);
    role(30, 40, MS_STORAGE_GRADIENT);
    phase(MS_TRACE_DONE);
    died(30);
    char *text = finish();
    assert_contains(text, "\"backward\":[[\"alloc\",0],[\"need\",1],[\"drop\",1]]");
    assert_contains(text, "{\"bytes\":40,\"role\":\"gradient\",\"first_node\":0,\"last_node\":0}");
    ms_free(text);
}

static void an_unknown_gradient_before_backward_is_ignored(void **state)
{
    (void)state;
    role(30, 40, MS_STORAGE_GRADIENT);
    assert_finishes_with("\"storages\":[]");
}

/* ---- saves ------------------------------------------------------------------ */

static void many_saves_and_unpacks_of_a_storage_are_one_each(void **state)
{
    (void)state;
    born(10, 8);
    token a = saved(10);
    token b = saved(10);
    assert_int_equal(a.serial, b.serial);
    died(10);
    phase(MS_TRACE_BACKWARD);
    unpacked(a, 50);
    unpacked(b, 50);
    dropped(a);
    unpacked(b, 50);
    died(50);
    work(4);
    unpacked(b, 51);
    died(51);
    dropped(b);
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"save\",0],[\"free\",0]],"
                         "\"backward\":[[\"need\",0],[\"work\",0,4],[\"drop\",0]]");
}

static void a_copy_that_outlives_its_tokens_puts_the_drop_off(void **state)
{
    (void)state;
    born(10, 8);
    token a = saved(10);
    died(10);
    phase(MS_TRACE_BACKWARD);
    unpacked(a, 50);
    dropped(a);
    work(4);
    died(50);
    work(8);
    assert_finishes_with("\"backward\":[[\"need\",0],[\"work\",0,4],[\"drop\",0],[\"work\",0,8]]");
}

static void a_storage_saved_again_is_not_dropped(void **state)
{
    (void)state;
    born(10, 8);
    dropped(saved(10));
    work(4);
    token again = saved(10);
    died(10);
    phase(MS_TRACE_BACKWARD);
    unpacked(again, 0);
    dropped(again);
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"save\",0],[\"work\",0,4],[\"free\",0]],"
                         "\"backward\":[[\"need\",0],[\"drop\",0]]");
}

/* A function computes the gradient in its forward, saves it, and returns the saved tensor in backward. */
static void a_saved_storage_that_becomes_a_gradient_lives_on(void **state)
{
    (void)state;
    born(10, 8);
    token made = saved(10);
    died(10);
    phase(MS_TRACE_BACKWARD);
    unpacked(made, 50);
    dropped(made);
    role(50, 8, MS_STORAGE_GRADIENT);
    phase(MS_TRACE_DONE);
    died(50);
    assert_finishes_with("\"forward\":[[\"alloc\",0],[\"save\",0],[\"free\",0]],\"backward\":[[\"need\",0]]");
}

static void each_node_saves_for_itself(void **state)
{
    (void)state;
    born(10, 8);
    enter("a", 0);
    input(10);
    token first = saved(10);
    leave();
    enter("b", 0);
    input(10);
    token second = saved(10);
    leave();
    died(10);
    assert_int_not_equal(first.node, second.node);
    assert_int_not_equal(first.serial, second.serial);
    phase(MS_TRACE_BACKWARD);
    unpacked(second, 50);
    died(50);
    dropped(second);
    unpacked(first, 50);
    died(50);
    dropped(first);
    ms_graph *graph;
    assert_ms_ok(ms_trace_finish(trace, &graph, &err), err);
    for (uint32_t i = 1; i <= 2; i++) {
        const ms_profile *profile = &graph->profiles[graph->nodes[i].profile];
        assert_int_equal(profile->forward[0].kind, MS_EVENT_SAVE);
        assert_int_equal(profile->backward[0].kind, MS_EVENT_NEED);
        assert_int_equal(profile->backward[1].kind, MS_EVENT_DROP);
    }
    ms_graph_free(graph);
}

static void a_save_released_late_is_dropped_in_its_own_backward(void **state)
{
    (void)state;
    born(10, 8);
    enter("a", 0);
    input(10);
    token made = saved(10);
    leave();
    born(11, 8);
    dropped(made); /* during the root's work after the layer */
    died(10);
    char *text = finish();
    assert_contains(text, "\"forward\":[[\"save\",0]],\"backward\":[[\"drop\",0]]");
    ms_free(text);
}

static void saved_tensors_count_as_live(void **state)
{
    (void)state;
    born(10, 8);
    token made = saved(10);
    born(11, 4);
    assert_int_equal(ms_trace_live_bytes(trace), 12);
    died(10);
    died(11);
    assert_int_equal(ms_trace_live_bytes(trace), 8);
    assert_int_equal(ms_trace_peak_bytes(trace), 12);
    phase(MS_TRACE_BACKWARD);
    assert_int_equal(ms_trace_peak_bytes(trace), 8);
    unpacked(made, 0);
    dropped(made);
    assert_int_equal(ms_trace_live_bytes(trace), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_address_that_is_used_again_is_another_storage),
        TEST(residents_are_part_of_no_event),
        TEST(a_key_freed_by_a_resident_serves_a_storage),
        TEST(trainable_is_what_one_use_says),
        TEST(an_optimizer_makes_copies_of_trainable_parameters_only),
        TEST(storages_of_no_bytes_and_foreign_ones_are_ignored),
        TEST(a_gradient_from_before_the_step_counts_from_the_start_of_backward),
        TEST(an_unknown_gradient_before_backward_is_ignored),
        TEST(many_saves_and_unpacks_of_a_storage_are_one_each),
        TEST(a_copy_that_outlives_its_tokens_puts_the_drop_off),
        TEST(a_storage_saved_again_is_not_dropped),
        TEST(a_saved_storage_that_becomes_a_gradient_lives_on),
        TEST(each_node_saves_for_itself),
        TEST(a_save_released_late_is_dropped_in_its_own_backward),
        TEST(saved_tensors_count_as_live),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
