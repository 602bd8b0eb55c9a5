/* The bytes of the loop around the step, in a replay: the optimizer's state, outputs and gradients that it holds, forwards
 * that wait for their backward (src/sim/sim_outcome.c, src/sim/sim_step.c). */
#include "two_layers.h"

/* In the first step, state is allocated last, when gradients alone are live. */
static void optimizer_state_appears_at_the_end_of_the_first_step(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    graph->loop.optimizer_state_bytes = 30 * MIB;
    const uint8_t techniques[NODES] = {0};
    ms_replay kept = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(kept.peak_bytes, kept.first_step_peak_bytes + 30 * MIB);
    graph->loop.optimizer_state_bytes = 100 * MIB;
    kept = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(kept.first_step_peak_bytes, RUNTIME_BYTES + (100 + LAYERS * 1) * MIB + LOSS_BYTES);
    /* A transient larger than the activations moves the peak into the optimizer. */
    graph->loop.optimizer_transient_bytes = 60 * MIB;
    kept = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(kept.peak_live_bytes, (100 + 60 + LAYERS * 1) * MIB + LOSS_BYTES);
    assert_int_equal(kept.peak_node, NODES);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* A run that was resumed has its state before the first step, in the baseline or beside it. */
static void state_from_before_the_first_step_counts_once(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    graph->loop.optimizer_state_bytes = 30 * MIB;
    const uint8_t techniques[NODES] = {0};
    hardware->process.baseline_bytes = 200 * MIB;
    ms_replay fresh = replay(graph, hardware, techniques, 0, 0, NULL);
    graph->loop.optimizer_made_bytes = 30 * MIB; /* loaded after the baseline was measured */
    ms_replay loaded = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(loaded.peak_bytes, fresh.peak_bytes);
    assert_int_equal(loaded.first_step_peak_bytes, fresh.first_step_peak_bytes + 30 * MIB);
    hardware->process = (ms_process){.baseline_bytes = 230 * MIB, .state_bytes = 30 * MIB}; /* before it */
    ms_replay resumed = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(resumed.peak_bytes, loaded.peak_bytes);
    assert_int_equal(resumed.first_step_peak_bytes, loaded.first_step_peak_bytes);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* A loss of two forwards: the first waits with all that it saved. Layers that keep nothing leave nothing to wait. */
static void forwards_that_wait_for_their_backward_keep_what_they_saved(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    uint8_t techniques[NODES] = {0};
    ms_sample samples[2 * NODES];
    uint64_t one = replay(graph, hardware, techniques, 0, 0, samples).peak_live_bytes;
    uint64_t saved = owned(samples, NODES - 1, MS_OWNER_LAYERS);
    ms_graph_pend(graph, 1);
    uint64_t two = replay(graph, hardware, techniques, 0, 0, samples).peak_live_bytes;
    assert_true(two >= one + saved);
    assert_int_equal(owned(samples, NODES - 1, MS_OWNER_LAYERS), two - one + saved);
    ms_graph_pend(graph, 3);
    ms_graph_pend(graph, 2); /* a later step with fewer */
    assert_int_equal(replay(graph, hardware, techniques, 0, 0, NULL).peak_live_bytes, one + 3 * (two - one));
    techniques[1] = techniques[2] = MS_TECHNIQUE_RECOMPUTE;
    uint64_t again = replay(graph, hardware, techniques, 0, 0, NULL).peak_live_bytes;
    assert_true(one + 3 * (two - one) - again > 2 * saved);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* The caller's loop holds gradients through the next forward, outputs until they are replaced, and both steps'
 * gradients while they are summed. */
static void the_loops_own_bytes_count(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    uint64_t peak = replay(graph, hardware, techniques, 0, 0, NULL).peak_live_bytes;
    graph->loop.observed = false;
    graph->loop.gradients_live_in_forward = true;
    ms_replay held = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(held.peak_live_bytes, peak + LAYERS * MIB);
    assert_false(held.peak_in_backward);
    graph->loop.observed = true;
    ms_replay added = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(added.peak_live_bytes, peak + LAYERS * MIB);
    graph->loop.external_loss_bytes = 20 * MIB;
    added = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(added.peak_live_bytes, peak + (20 + LAYERS) * MIB);
    graph->loop.gradients_cleared = true; /* by zero_grad() between forward and backward */
    held = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(held.peak_live_bytes, peak + 20 * MIB);
    graph->loop.gradients_cleared = false;
    graph->loop.external_loss_bytes = 0;
    graph->loop.gradients_live_in_forward = false;
    graph->loop.outputs_held = true;
    held = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(held.peak_live_bytes, peak + 4); /* the loss of the step before */
    graph->loop.outputs_held = false;
    graph->loop.external_loss_bytes = 20 * MIB;
    held = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(held.peak_live_bytes, peak + 20 * MIB);
    assert_true(held.peak_in_backward);
    ms_graph_free(graph);
    ms_free(hardware);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer_state_appears_at_the_end_of_the_first_step),
        cmocka_unit_test(state_from_before_the_first_step_counts_once),
        cmocka_unit_test(forwards_that_wait_for_their_backward_keep_what_they_saved),
        cmocka_unit_test(the_loops_own_bytes_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
