/*
 * Segments: layers that are run again from what the layer before them gives. What a replay
 * takes, worked out on paper (layers as in test_simulate.c); where the rules offer them; that
 * they cost the solver nothing where they don't help; the shorter programs give the same.
 */
#include "core/graph_internal.h"
#include "memscale/engine.h"
#include "plan/sim.h"
#include "plan_fixture.h"

enum { LAYERS = 3, NODES = LAYERS + 2, LAYER_NS = 1000000 + MS__OP_NS };

static const fixture_layer layer = {8 * MIB, 4 * MIB, 1000000, MIB, 0, 0};

/* Each layer but the last gives the next one its argument. */
static void chain_up(ms_graph *graph)
{
    for (uint32_t i = 0; i + 1 < graph->node_count; i++) {
        if (graph->nodes[i].kind == MS_NODE_LAYER && graph->nodes[i + 1].kind == MS_NODE_LAYER) {
            graph->nodes[i].flags |= MS_NODE_CHAINED;
        }
    }
}

static ms_graph *three_layers(void)
{
    fixture_chain chain = {.layer_count = LAYERS, .layers = &layer, .uniform = true, .activation_bytes = 2 * MIB,
                           .logits_bytes = 16 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    chain_up(graph);
    return graph;
}

static ms__outcome replay_layers(ms_technique first, ms_technique second, ms_technique third)
{
    ms_graph *graph = three_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, (uint8_t)first, (uint8_t)second, (uint8_t)third, 0};
    ms_choices choices = {.technique = techniques, .offload_min_bytes = MIB, .write_window_bytes = 8 * MIB,
                          .read_window_bytes = 16 * MIB};
    ms__sim *sim;
    ms__outcome brief, full;
    ms_error err;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    ms__sim_run(sim, &choices, &brief, NULL);
    sim->in_full = true;
    ms__sim_run(sim, &choices, &full, NULL);
    brief.peak_tick = full.peak_tick = 0;
    assert_memory_equal(&brief, &full, sizeof full);
    ms__sim_free(sim);
    ms_graph_free(graph);
    ms_free(hardware);
    return full;
}

/* Each layer is replayed up to its first half; layers 1 and 2 run whole before that. */
static void arguments_inside_a_segment_are_made_again(void **state)
{
    (void)state;
    const ms_technique again = MS_TECHNIQUE_RECOMPUTE, joined = MS_TECHNIQUE_RECOMPUTE_SEGMENT;
    ms__outcome plain = replay_layers(again, again, again), segment = replay_layers(again, joined, joined);
    assert_int_equal(plain.replay.recompute_ns, LAYERS * LAYER_NS);
    assert_int_equal(segment.replay.recompute_ns, (LAYERS + 2 * 2) * LAYER_NS);
    assert_int_equal(plain.boundary_bytes - segment.boundary_bytes, 2 * 2 * MIB);
    ms__outcome two = replay_layers(again, joined, again);
    assert_int_equal(two.replay.recompute_ns, (LAYERS + 2) * LAYER_NS);
    assert_int_equal(plain.boundary_bytes - two.boundary_bytes, 2 * MIB);
    assert_int_equal(segment.replay.moved_bytes, 0);
}

static void a_layer_after_one_that_is_not_replayed_keeps_its_argument(void **state)
{
    (void)state;
    const ms_technique keep = MS_TECHNIQUE_KEEP, joined = MS_TECHNIQUE_RECOMPUTE_SEGMENT;
    ms__outcome alone = replay_layers(keep, joined, keep), plain = replay_layers(keep, MS_TECHNIQUE_RECOMPUTE, keep);
    plain.peak_tick = alone.peak_tick = 0;
    assert_memory_equal(&alone, &plain, sizeof plain);
    ms__outcome first = replay_layers(joined, keep, keep);
    assert_int_equal(first.replay.recompute_ns, LAYER_NS);
}

/* ---- the rules ------------------------------------------------------------------------ */

static uint32_t rule_of_second(uint32_t flags_of_first, bool chained)
{
    ms_graph *graph = three_layers();
    ms_hardware *hardware = fixture_hardware();
    ms_config config;
    ms_admission admissions[NODES];
    ms_pressure pressure;
    ms_error err;
    ms_config_default(&config);
    graph->nodes[1].flags = (chained ? MS_NODE_CHAINED : 0) | flags_of_first;
    config.force_optimize = true;
    ms_pressure_of(100 * MIB, hardware, &config, &pressure);
    assert_ms_ok(ms_engine_admit(graph, hardware, &config, &pressure, admissions, &err), err);
    assert_false(admissions[1].under_pressure & 1u << MS_TECHNIQUE_RECOMPUTE_SEGMENT);
    uint32_t rule = admissions[2].rule[MS_TECHNIQUE_RECOMPUTE_SEGMENT];
    ms_graph_free(graph);
    ms_free(hardware);
    return rule;
}

static void segments_are_offered_along_a_chain_only(void **state)
{
    (void)state;
    assert_int_equal(rule_of_second(0, true), MS_RULE_FORCED);
    assert_int_equal(rule_of_second(0, false), MS_RULE_NOT_CHAINED);
    assert_int_equal(rule_of_second(MS_NODE_OPAQUE_ARGUMENT, true), MS_RULE_NOT_CHAINED);
    assert_int_equal(rule_of_second(MS_NODE_UNHOOKABLE, true), MS_RULE_NOT_CHAINED);
}

/* ---- the solver ----------------------------------------------------------------------- */

static ms_plan *plan_of(const ms_graph *graph, uint64_t budget_bytes)
{
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan = NULL;
    ms_error err;
    ms_config_default(&config);
    config.memory_budget_bytes = budget_bytes;
    config.enable_offloading = false;
    int rc = ms_pipeline_plan(graph, hardware, &config, &plan, &err);
    assert_true(rc == MS_OK || rc == MS_EINFEASIBLE);
    ms_free(hardware);
    return plan;
}

/* Forty layers whose activations weigh as much as what is saved inside them. */
static ms_graph *long_chain(bool chained)
{
    static const fixture_layer thin = {24 * MIB, 4 * MIB, 200000000, MIB, 0, 0};
    fixture_chain chain = {.layer_count = 40, .layers = &thin, .uniform = true, .activation_bytes = 24 * MIB,
                           .logits_bytes = 10 * MIB, .parameter_bytes = 50 * MIB, .state_bytes = 100 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    if (chained) {
        chain_up(graph);
    }
    return graph;
}

static void segments_reach_budgets_that_nothing_else_does(void **state)
{
    (void)state;
    ms_graph *plain = long_chain(false), *chained = long_chain(true);
    ms_plan *full = plan_of(plain, 1600 * MIB);
    assert_non_null(full);
    uint64_t smallest = full->smallest_budget_bytes;
    ms_plan *same = plan_of(chained, smallest), *less = plan_of(chained, smallest - 300 * MIB);
    assert_null(plan_of(plain, smallest - 300 * MIB));
    assert_non_null(same);
    assert_non_null(less);
    assert_true(less->replay.peak_bytes + less->reserve_bytes <= smallest - 300 * MIB);
    uint32_t joined = 0;
    for (uint32_t i = 0; i < less->entry_count; i++) {
        joined += less->entries[i].technique == MS_TECHNIQUE_RECOMPUTE_SEGMENT;
    }
    assert_true(joined > 0);
    ms_plan_free(full);
    ms_plan_free(same);
    ms_plan_free(less);
    ms_graph_free(plain);
    ms_graph_free(chained);
}

static void segments_on_offer_never_hurt(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        ms_graph *plain = fixture_graph(which), *chained = fixture_graph(which);
        chain_up(chained);
        for (uint64_t budget = 1000 * MIB; budget <= 6000 * MIB; budget += 1250 * MIB) {
            ms_plan *without = plan_of(plain, budget), *with = plan_of(chained, budget);
            if (without != NULL) {
                assert_non_null(with);
                assert_true(with->replay.step_ns <= without->replay.step_ns);
            }
            ms_plan_free(without);
            ms_plan_free(with);
        }
        ms_graph_free(plain);
        ms_graph_free(chained);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_inside_a_segment_are_made_again),
        cmocka_unit_test(a_layer_after_one_that_is_not_replayed_keeps_its_argument),
        cmocka_unit_test(segments_are_offered_along_a_chain_only),
        cmocka_unit_test(segments_reach_budgets_that_nothing_else_does),
        cmocka_unit_test(segments_on_offer_never_hurt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
