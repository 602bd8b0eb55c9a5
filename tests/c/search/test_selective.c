/*
 * Selective sets: their members, the replay with one, the solver's use of them, and their form in a plan. A
 * layer's numbers are those of test_simulate.c, with an inner result that its input can recompute.
 */
#include "plan_fixture.h"
#include "sim/sim.h"

enum { LAYERS = 2, NODES = LAYERS + 2, MAKER_FLOPS = 500000, LOSS_BYTES = 4 };

static const fixture_layer layer = {8 * MIB, 4 * MIB, 1000000, MIB, 0, MAKER_FLOPS};

static ms_graph *two_layers(void)
{
    fixture_chain chain = {.layer_count = LAYERS,
                           .layers = &layer,
                           .uniform = true,
                           .activation_bytes = 2 * MIB,
                           .logits_bytes = 16 * MIB};
    return fixture_chain_graph(&chain);
}

static ms_replay replay_layers(ms_technique technique)
{
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, (uint8_t)technique, (uint8_t)technique, 0};
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = MIB,
                          .write_window_bytes = 8 * MIB,
                          .read_window_bytes = 16 * MIB};
    ms_replay result;
    ms_error err;
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
    ms_graph_free(graph);
    ms_free(hardware);
    return result;
}

/* x_0, x_1, x_2, twice the logits and the loss; the inner results are recomputed in half a millisecond, 2
 * us and the overhead of one operator. */
static void dropped_tensors_are_recomputed(void **state)
{
    (void)state;
    ms_replay kept = replay_layers(MS_TECHNIQUE_KEEP), made = replay_layers(MS_TECHNIQUE_SELECTIVE_1);
    assert_int_equal(kept.peak_live_bytes, (2 + 8 + 2 + 8 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(made.peak_live_bytes, (2 + 2 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(made.recompute_ns, LAYERS * (MAKER_FLOPS + MS__OP_NS + MS__MAKER_NS));
    assert_int_equal(made.step_ns, kept.step_ns + made.recompute_ns + LAYERS * 2 * MS__NOTE_NS);
    assert_int_equal(made.moved_bytes, 0);
}

/* Only the inputs are offloaded, and fetched before they are read. */
static void undropped_tensors_move(void **state)
{
    (void)state;
    ms_replay moved = replay_layers(MS_TECHNIQUE_SELECTIVE_1_DISK);
    assert_int_equal(moved.tier_peak_bytes[2], 2 * 2 * MIB);
    assert_int_equal(moved.recompute_ns, LAYERS * (MAKER_FLOPS + MS__OP_NS + MS__MAKER_NS));
    assert_true(moved.peak_live_bytes <= (2 + 2 + 2 + 32) * MIB + LOSS_BYTES);
}

/* ---- sets --------------------------------------------------------------------------- */

/* Saved storages: 0 is the input, 1 is made of 0, 2 of 1, 3 of 0 through the temporary 4; 5 has no maker. */
static ms_graph *three_made(const uint64_t flops[4])
{
    ms_graph *graph = two_layers();
    ms_profile *profile = &graph->profiles[0];
    static const uint32_t operands[] = {0, 5, 5, 6, 0, 7, 7, 8};
    const uint64_t bytes[] = {2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, MIB, 8 * MIB, 8 * MIB, 4 * MIB, 8 * MIB, 8 * MIB};
    const ms_event forward[] = {
        {.kind = MS_EVENT_SAVE, .storage = 0},  {.kind = MS_EVENT_ALLOC, .storage = 5},
        {.kind = MS_EVENT_SAVE, .storage = 5},  {.kind = MS_EVENT_ALLOC, .storage = 6},
        {.kind = MS_EVENT_SAVE, .storage = 6},  {.kind = MS_EVENT_ALLOC, .storage = 7},
        {.kind = MS_EVENT_ALLOC, .storage = 8}, {.kind = MS_EVENT_SAVE, .storage = 8},
        {.kind = MS_EVENT_FREE, .storage = 7},  {.kind = MS_EVENT_ALLOC, .storage = 9},
        {.kind = MS_EVENT_SAVE, .storage = 9},  {.kind = MS_EVENT_ALLOC, .storage = 1},
    };
    ms_free(profile->forward);
    ms_free(profile->backward);
    ms_free(profile->storage_bytes);
    ms_free(profile->makers);
    ms_free(profile->operands);
    profile->storage_count = 10;
    profile->storage_bytes = ms_calloc(10, sizeof *profile->storage_bytes);
    profile->forward_count = sizeof forward / sizeof forward[0];
    profile->forward = ms_calloc(profile->forward_count, sizeof *forward);
    profile->backward_count = 0;
    profile->backward = ms_calloc(0, sizeof *forward);
    profile->maker_count = 4;
    profile->makers = ms_calloc(4, sizeof *profile->makers);
    profile->operand_count = 8;
    profile->operands = ms_calloc(8, sizeof *profile->operands);
    memcpy(profile->storage_bytes, bytes, sizeof bytes);
    memcpy(profile->forward, forward, sizeof forward);
    memcpy(profile->operands, operands, sizeof operands);
    for (uint32_t i = 0; i < 4; i++) {
        profile->makers[i] = (ms_maker){.flops = flops[i], .first = 2 * i, .input_count = 1, .output_count = 1};
    }
    return graph;
}

static void check_set(const ms__sim_profile *profile, ms_technique technique, const char *wanted)
{
    const uint8_t *set = ms__selective_set(profile, technique);
    assert_int_equal(set != NULL, wanted != NULL);
    for (uint32_t slot = 0; set != NULL && slot < profile->save_count; slot++) {
        assert_int_equal(set[slot], wanted[slot] == '1');
    }
}

/* The second result is the cheapest, then the one through a temporary, then the first. */
static void sets_end_where_the_price_jumps(void **state)
{
    (void)state;
    const uint64_t flops[4] = {900000000, 1000000, 5000000, 5000000};
    ms_graph *graph = three_made(flops);
    ms_hardware *hardware = fixture_hardware();
    ms__sim *sim;
    ms_error err;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    const ms__sim_profile *profile = sim->nodes[1].profile;
    assert_int_equal(profile->set_count, 3);
    check_set(profile, MS_TECHNIQUE_SELECTIVE_1, "00100");
    check_set(profile, MS_TECHNIQUE_SELECTIVE_2_DISK, "00110");
    check_set(profile, MS_TECHNIQUE_SELECTIVE_3, "01110"); /* the last has no maker */
    check_set(profile, MS_TECHNIQUE_SELECTIVE_4, NULL);
    check_set(profile, MS_TECHNIQUE_RECOMPUTE, NULL);
    ms__sim_free(sim);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Saved results, each larger than the one before and made of the input alone. */
static ms_graph *many_made(uint32_t count)
{
    ms_graph *graph = two_layers();
    ms_profile *profile = &graph->profiles[0];
    uint32_t events = 0, first = profile->external_count;
    uint64_t *bytes = ms_calloc(first + count, sizeof *bytes);
    ms_event *forward = ms_calloc(2 * (size_t)count + 2, sizeof *forward);
    ms_maker *makers = ms_calloc(count, sizeof *makers);
    uint32_t *operands = ms_calloc(2 * (size_t)count, sizeof *operands);
    assert_true(bytes != NULL && forward != NULL && makers != NULL && operands != NULL);
    memcpy(bytes, profile->storage_bytes, first * sizeof *bytes);
    forward[events++] = (ms_event){.kind = MS_EVENT_SAVE, .storage = 0};
    for (uint32_t i = 0; i < count; i++) {
        bytes[first + i] = MIB + 4096 * i;
        forward[events++] = (ms_event){.kind = MS_EVENT_ALLOC, .storage = first + i};
        forward[events++] = (ms_event){.kind = MS_EVENT_SAVE, .storage = first + i};
        makers[i] = (ms_maker){.flops = MAKER_FLOPS, .first = 2 * i, .input_count = 1, .output_count = 1};
        operands[2 * i + 1] = first + i;
    }
    forward[events++] = (ms_event){.kind = MS_EVENT_ALLOC, .storage = 1};
    ms_free(profile->forward);
    ms_free(profile->backward);
    ms_free(profile->storage_bytes);
    ms_free(profile->makers);
    ms_free(profile->operands);
    profile->storage_count = first + count;
    profile->storage_bytes = bytes;
    profile->forward_count = events;
    profile->forward = forward;
    profile->backward_count = 0;
    profile->backward = ms_calloc(0, sizeof *forward);
    profile->maker_count = count;
    profile->makers = makers;
    profile->operand_count = 2 * count;
    profile->operands = operands;
    return graph;
}

/* The `most` largest of `count` results can be in sets. */
static void check_candidates(uint32_t count, uint32_t most)
{
    ms_graph *graph = many_made(count);
    ms_hardware *hardware = fixture_hardware();
    ms__sim *sim;
    ms_error err;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    const ms__sim_profile *profile = sim->nodes[1].profile;
    assert_int_equal(profile->save_count, count + 1);
    assert_int_equal(profile->set_count, 1); /* the price of a byte hardly rises */
    const uint8_t *set = ms__selective_set(profile, MS_TECHNIQUE_SELECTIVE_1);
    for (uint32_t slot = 0; slot <= count; slot++) {
        assert_int_equal(set[slot], slot > count - most); /* slot 0 is the input */
    }
    ms__sim_free(sim);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* The more operators, the fewer: each candidate's cost is a pass over them. */
static void sets_consist_of_the_largest_results(void **state)
{
    (void)state;
    check_candidates(60, 60);
    check_candidates(66, 64);
    check_candidates(500, 63);
}

/* Five results of 1 MiB, each twice as dear as the one before: of equal jumps the earlier ones count. */
static void sets_end_at_the_first_of_equal_jumps(void **state)
{
    (void)state;
    ms_graph *graph = many_made(5);
    ms_hardware *hardware = fixture_hardware();
    ms__sim *sim;
    ms_error err;
    for (uint32_t i = 0; i < 5; i++) {
        graph->profiles[0].storage_bytes[5 + i] = MIB;
        graph->profiles[0].makers[i].flops = ((uint64_t)1000000 << i) - MS__OP_NS - MS__MAKER_NS;
    }
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    const ms__sim_profile *profile = sim->nodes[1].profile;
    assert_int_equal(profile->set_count, 4);
    check_set(profile, MS_TECHNIQUE_SELECTIVE_1, "010000");
    check_set(profile, MS_TECHNIQUE_SELECTIVE_2, "011000");
    check_set(profile, MS_TECHNIQUE_SELECTIVE_3, "011100");
    check_set(profile, MS_TECHNIQUE_SELECTIVE_4, "011111");
    ms__sim_free(sim);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* ---- plans -------------------------------------------------------------------------- */

static ms_plan *plan_at(const ms_graph *graph, const ms_hardware *hardware, uint64_t budget)
{
    ms_config config;
    ms_plan *plan;
    ms_error err;
    ms_config_default(&config);
    config.memory_budget_bytes = budget;
    assert_ms_ok(ms_pipeline_plan(graph, hardware, &config, &plan, &err), err);
    return plan;
}

static void drop_makers(ms_graph *graph)
{
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        graph->profiles[i].maker_count = 0;
        graph->profiles[i].operand_count = 0;
    }
}

/* Offering sets makes no plan slower and some faster. */
static void offering_sets_never_makes_a_plan_worse(void **state)
{
    (void)state;
    ms_graph *with = fixture_graph(5), *without = fixture_graph(5);
    ms_hardware *hardware = fixture_real_hardware();
    bool faster = false;
    drop_makers(without);
    ms_plan *least = plan_at(without, hardware, 4000 * MIB);
    uint64_t smallest = least->smallest_budget_bytes, need = least->pressure.need_bytes;
    ms_plan_free(least);
    for (uint64_t k = 0; k <= 12; k++) {
        uint64_t budget = smallest + (need - smallest) / 12 * k;
        ms_plan *a = plan_at(with, hardware, budget), *b = plan_at(without, hardware, budget);
        assert_true(a->replay.step_ns <= b->replay.step_ns);
        assert_true(a->smallest_budget_bytes <= b->smallest_budget_bytes);
        faster = faster || a->replay.step_ns < b->replay.step_ns;
        ms_plan_free(a);
        ms_plan_free(b);
    }
    assert_true(faster);
    ms_graph_free(with);
    ms_graph_free(without);
    ms_free(hardware);
}

/* The plan lists dropped tensors, once for all equal layers, and is read back as written. */
static void a_plan_carries_its_selections(void **state)
{
    (void)state;
    ms_graph *graph = fixture_graph(5);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan, *read;
    ms_error err;
    ms_config_default(&config);
    assert_ms_ok(ms_plan_uniform(graph, hardware, &config, MS_TECHNIQUE_SELECTIVE_1, &plan, &err), err);
    assert_int_equal(plan->selection_count, 1);
    assert_int_equal(plan->selections[0].slot_count, 2);
    assert_int_equal(plan->selections[0].slot_bytes[1], 200 * MIB);
    assert_false(plan->selections[0].dropped[0]);
    assert_true(plan->selections[0].dropped[1]);
    assert_int_equal(plan->entries[0].selection, 0);
    assert_int_equal(plan->entries[1].selection, 1);
    char *text = ms_plan_to_json(plan);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    char *again = ms_plan_to_json(read);
    assert_string_equal(text, again);
    ms_free(text);
    ms_free(again);
    ms_plan_free(plan);
    ms_plan_free(read);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Each allocation in turn fails, while a plan with selections is made and while it is read. */
static void selections_fail_cleanly_out_of_memory(void **state)
{
    (void)state;
    ms_graph *graph = fixture_graph(5);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan = NULL, *read = NULL;
    ms_error err;
    ms_config_default(&config);
    uint64_t before = ms_memory_live_blocks(), nth = 0;
    int rc;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        rc = ms_plan_uniform(graph, hardware, &config, MS_TECHNIQUE_SELECTIVE_1, &plan, &err);
        assert_true(rc == MS_OK || (rc == MS_ENOMEM && ms_memory_live_blocks() == before));
    } while (rc != MS_OK);
    ms_fault_disarm_all();
    assert_int_equal(plan->selection_count, 1);
    char *text = ms_plan_to_json(plan);
    before = ms_memory_live_blocks();
    nth = 0;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        rc = ms_plan_parse(text, &read, &err);
        assert_true(rc == MS_OK || (rc == MS_ENOMEM && ms_memory_live_blocks() == before));
    } while (rc != MS_OK);
    ms_fault_disarm_all();
    assert_int_equal(read->selection_count, 1);
    ms_free(text);
    ms_plan_free(plan);
    ms_plan_free(read);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void bad_makers_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t operands[2];
        uint32_t inputs, outputs, count;
        const char *part;
    } cases[] = {
        {{0, 99}, 1, 1, 1, "there is no such storage"},
        {{0, 2}, 1, 1, 1, "not allocated in forward"},
        {{5, 5}, 1, 1, 1, "read before it is made"},
        {{5, 5}, 0, 2, 1, "made a second time"},
        {{0, 5}, 2, 0, 1, "no output"},
        {{0, 5}, 2, 1, 1, "no output"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_graph *graph = two_layers();
        ms_profile *profile = &graph->profiles[0];
        ms_error err = {0};
        memcpy(profile->operands, cases[i].operands, sizeof cases[i].operands);
        profile->makers[0].input_count = cases[i].inputs;
        profile->makers[0].output_count = cases[i].outputs;
        assert_ms_fails(ms_graph_check(graph, &err), MS_EFORMAT, err, cases[i].part);
        ms_graph_free(graph);
    }
}

static void makers_are_written_and_read(void **state)
{
    (void)state;
    ms_graph *graph = two_layers(), *read;
    ms_error err;
    char *text = ms_graph_to_json(graph);
    assert_non_null(strstr(text, "\"makers\":[[500000,0,[0],[5]]]"));
    assert_ms_ok(ms_graph_parse(text, &read, &err), err);
    ms_graph *copy = ms_graph_copy(read, &err);
    char *again = ms_graph_to_json(copy);
    assert_string_equal(text, again);
    ms_free(text);
    ms_free(again);
    ms_graph_free(copy);
    ms_graph_free(read);
    ms_graph_free(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_tensors_are_recomputed),
        cmocka_unit_test(undropped_tensors_move),
        cmocka_unit_test(sets_end_where_the_price_jumps),
        cmocka_unit_test(sets_consist_of_the_largest_results),
        cmocka_unit_test(sets_end_at_the_first_of_equal_jumps),
        cmocka_unit_test(offering_sets_never_makes_a_plan_worse),
        cmocka_unit_test(a_plan_carries_its_selections),
        cmocka_unit_test(bad_makers_are_refused),
        cmocka_unit_test(selections_fail_cleanly_out_of_memory),
        cmocka_unit_test(makers_are_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
