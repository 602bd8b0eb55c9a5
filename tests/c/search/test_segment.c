/*
 * Segments: layers whose arguments the layers before recompute. Their replays, worked out on paper (layers as
 * in test_simulate.c); the rules that offer them; that offering them never makes a plan worse; and that the
 * shorter programs give the same.
 */
#include "graph/graph_internal.h"
#include "memscale/rules.h"
#include "plan_fixture.h"
#include "sim/sim.h"

enum { LAYERS = 3, NODES = LAYERS + 2, LAYERS_MOST = 9, LAYER_NS = 1000000 + MS__OP_NS };

static const fixture_layer layer = {8 * MIB, 4 * MIB, 1000000, MIB, 0, 0};

/* Each layer's output is the next one's argument. */
static void chain_up(ms_graph *graph)
{
    for (uint32_t i = 0; i + 1 < graph->node_count; i++) {
        if (graph->nodes[i].kind == MS_NODE_LAYER && graph->nodes[i + 1].kind == MS_NODE_LAYER) {
            graph->nodes[i].flags |= MS_NODE_CHAINED;
        }
    }
}

static ms_graph *layers_in_a_row(uint32_t count)
{
    fixture_chain chain = {
        .layer_count = count, .layers = &layer, .uniform = true, .activation_bytes = 2 * MIB, .logits_bytes = 16 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    chain_up(graph);
    return graph;
}

/* The layers' techniques as letters: keep, recompute, joined, and digits of nesting. */
static ms__outcome replay_row(const char *row)
{
    uint8_t techniques[LAYERS_MOST + 2] = {0};
    uint32_t count = (uint32_t)strlen(row);
    for (uint32_t i = 0; i < count; i++) {
        techniques[i + 1] = row[i] == 'k'   ? (uint8_t)MS_TECHNIQUE_KEEP
                            : row[i] == 'r' ? (uint8_t)MS_TECHNIQUE_RECOMPUTE
                            : row[i] == 'j' ? (uint8_t)MS_TECHNIQUE_RECOMPUTE_JOINED
                                            : (uint8_t)(MS_TECHNIQUE_RECOMPUTE_SEGMENT + (row[i] - '1'));
    }
    ms_graph *graph = layers_in_a_row(count);
    ms_hardware *hardware = fixture_hardware();
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = MIB,
                          .write_window_bytes = 8 * MIB,
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
static void arguments_inside_a_segment_are_recomputed(void **state)
{
    (void)state;
    ms__outcome plain = replay_row("rrr"), segment = replay_row("r11"), two = replay_row("r1r");
    assert_int_equal(plain.replay.recompute_ns, LAYERS * LAYER_NS);
    assert_int_equal(segment.replay.recompute_ns, (LAYERS + 2 * 2) * LAYER_NS);
    assert_int_equal(plain.boundary_bytes - segment.boundary_bytes, 2 * 2 * MIB);
    assert_int_equal(two.replay.recompute_ns, (LAYERS + 2) * LAYER_NS);
    assert_int_equal(plain.boundary_bytes - two.boundary_bytes, 2 * MIB);
    assert_int_equal(segment.replay.moved_bytes, 0);
}

/* Runs of whole layers besides each one's own replay, counted by hand. */
static void nested_runs_cost_the_counted_runs(void **state)
{
    (void)state;
    static const struct {
        const char *row;
        uint32_t runs;
    } rows[] = {
        {"r22122", 2 + 2 + 1 + 1 + 1},                    /* 0-4, then 0 and 1 */
        {"r22222", 5},                                    /* all have the same depth */
        {"r32313231", 3 + 2 + 2 + 1 + 3 + 2 + 2 + 1},     /* 0-7; 4 and 5, 6, 4; 0 and 1, 2, 0 */
        {"r2r2r", 2},
        {"r31", 3},                                       /* 0 and 1, then 0 */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t layers = strlen(rows[i].row);
        ms__outcome outcome = replay_row(rows[i].row);
        assert_int_equal(outcome.replay.recompute_ns, (layers + 2 * (size_t)rows[i].runs) * LAYER_NS);
    }
    /* The same number of arguments is missing between forward and backward, whatever the nesting. */
    ms__outcome plain = replay_row("rrrrrr"), nested = replay_row("r22122"), flat = replay_row("r11111");
    assert_int_equal(plain.boundary_bytes - nested.boundary_bytes, 5 * 2 * MIB);
    assert_int_equal(flat.boundary_bytes, nested.boundary_bytes);
}

/* In the last layer's backward "r11111" holds five recomputed arguments, "r22122" one. */
static void nested_runs_hold_fewer_arguments(void **state)
{
    (void)state;
    ms__outcome plain = replay_row("r11111111"), nested = replay_row("r22122122");
    assert_int_equal(plain.boundary_bytes, nested.boundary_bytes);
    assert_true(plain.activation_peak_bytes >= nested.activation_peak_bytes);
}

/* The layer before runs to its end; each layer runs as often as alone. */
static void joined_layers_run_again_once(void **state)
{
    (void)state;
    ms__outcome plain = replay_row("rrr"), joined = replay_row("rjr"), all = replay_row("rjj");
    assert_int_equal(joined.replay.recompute_ns, (LAYERS + 1) * LAYER_NS);
    assert_int_equal(all.replay.recompute_ns, (LAYERS + 2) * LAYER_NS);
    assert_int_equal(plain.boundary_bytes - joined.boundary_bytes, 2 * MIB);
    assert_int_equal(plain.boundary_bytes - all.boundary_bytes, 2 * 2 * MIB);
    ms__outcome beside = replay_row("rj1jk"); /* 0 twice, 1 once for the run; 0 and 2 as heads */
    assert_int_equal(beside.replay.recompute_ns, (4 + 2 + 2 * 2) * LAYER_NS);
}

static void a_layer_after_a_kept_one_keeps_its_argument(void **state)
{
    (void)state;
    ms__outcome plain = replay_row("krk");
    for (const char *row = "1\0002\0003\0j\0"; *row != '\0'; row += 2) {
        const char alone[] = {'k', *row, 'k', '\0'}, first[] = {*row, 'k', 'k', '\0'};
        ms__outcome outcome = replay_row(alone);
        assert_memory_equal(&outcome, &plain, sizeof plain);
        assert_int_equal(replay_row(first).replay.recompute_ns, LAYER_NS);
    }
}

/* ---- the rules ------------------------------------------------------------------------ */

static uint32_t rule_of_second(uint32_t flags_of_first, bool chained)
{
    ms_graph *graph = layers_in_a_row(LAYERS);
    ms_hardware *hardware = fixture_hardware();
    ms_config config;
    ms_admission admissions[NODES];
    ms_pressure pressure;
    ms_error err;
    ms_config_default(&config);
    graph->nodes[1].flags = (chained ? MS_NODE_CHAINED : 0) | flags_of_first;
    config.force_optimize = true;
    ms_pressure_of(100 * MIB, hardware, &config, &pressure);
    assert_ms_ok(ms_rules_admit(graph, hardware, &config, &pressure, admissions, &err), err);
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

/* Forty layers whose activations are as large as the tensors saved inside them. */
static ms_graph *long_chain(bool chained)
{
    static const fixture_layer thin = {24 * MIB, 4 * MIB, 200000000, MIB, 0, 0};
    fixture_chain chain = {.layer_count = 40,
                           .layers = &thin,
                           .uniform = true,
                           .activation_bytes = 24 * MIB,
                           .logits_bytes = 10 * MIB,
                           .parameter_bytes = 50 * MIB,
                           .state_bytes = 100 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    if (chained) {
        chain_up(graph);
    }
    return graph;
}

static void segments_fit_budgets_that_nothing_else_fits(void **state)
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
        ms_technique technique = (ms_technique)less->entries[i].technique;
        joined += ms_technique_is_chained(technique);
    }
    assert_true(joined > 0);
    ms_plan_free(full);
    ms_plan_free(same);
    ms_plan_free(less);
    ms_graph_free(plain);
    ms_graph_free(chained);
}

static uint32_t deepest_of(const ms_plan *plan)
{
    uint32_t deepest = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        uint32_t nesting = ms_technique_of((ms_technique)plan->entries[i].technique)->nesting;
        deepest = nesting > deepest ? nesting : deepest;
    }
    return deepest;
}

/* Every plan names it; a plan with nested runs meets it; no smaller budget is met. */
static void the_named_smallest_budget_is_the_smallest_accepted(void **state)
{
    (void)state;
    ms_graph *graph = long_chain(true);
    for (int observed = 0; observed < 2; observed++) {
        graph->loop.observed = observed != 0;
        ms_plan *full = plan_of(graph, 1600 * MIB);
        assert_non_null(full);
        uint64_t smallest = full->smallest_budget_bytes, slower_ns = UINT64_MAX;
        ms_plan *least = plan_of(graph, smallest);
        assert_non_null(least);
        assert_int_equal(least->smallest_budget_bytes, smallest);
        assert_true(deepest_of(least) >= 2);
        assert_null(plan_of(graph, smallest - 1));
        for (uint64_t budget = smallest; budget < 1600 * MIB; budget += 111 * MIB) {
            ms_plan *plan = plan_of(graph, budget);
            assert_non_null(plan);
            assert_int_equal(plan->smallest_budget_bytes, smallest);
            assert_true(plan->replay.step_ns <= slower_ns);
            slower_ns = plan->replay.step_ns;
            ms_plan_free(plan);
        }
        ms_plan_free(full);
        ms_plan_free(least);
    }
    ms_graph_free(graph);
}

static void offering_segments_never_makes_a_plan_worse(void **state)
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
        cmocka_unit_test(arguments_inside_a_segment_are_recomputed),
        cmocka_unit_test(nested_runs_cost_the_counted_runs),
        cmocka_unit_test(nested_runs_hold_fewer_arguments),
        cmocka_unit_test(joined_layers_run_again_once),
        cmocka_unit_test(a_layer_after_a_kept_one_keeps_its_argument),
        cmocka_unit_test(segments_are_offered_along_a_chain_only),
        cmocka_unit_test(segments_fit_budgets_that_nothing_else_fits),
        cmocka_unit_test(the_named_smallest_budget_is_the_smallest_accepted),
        cmocka_unit_test(offering_segments_never_makes_a_plan_worse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
