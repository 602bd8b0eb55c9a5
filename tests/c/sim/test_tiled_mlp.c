/*
 * Modules in tiles as an option of the step: layers run their second program, and the option is chosen only
 * if enabled and if nothing exact fits.
 */
#include "plan_fixture.h"
#include "sim/step_options.h"

enum { LAYERS = 6 };
#define SAVED (80 * MIB)
#define TILE (10 * MIB)
static const uint32_t tiled_bit = 1u << MS_STEP_TILED_MLP, release_bit = 1u << MS_STEP_GRADIENT_RELEASE;

/* Techniques: keep everywhere. */
static const uint8_t keep[LAYERS + 2];

typedef fixture_planning fixture;

static ms_graph *make_graph(uint64_t saved_bytes, uint64_t gradient_bytes)
{
    const fixture_layer layer = {
        .saved_bytes = saved_bytes, .temp_bytes = MIB, .flops = 5000000, .gradient_bytes = gradient_bytes};
    const fixture_chain chain = {.layer_count = LAYERS,
                                 .layers = &layer,
                                 .uniform = true,
                                 .activation_bytes = 2 * MIB,
                                 .logits_bytes = 4 * MIB,
                                 .parameter_bytes = 40 * MIB,
                                 .state_bytes = 80 * MIB};
    return fixture_chain_graph(&chain);
}

static ms_graph *make_both(uint64_t gradient_bytes)
{
    ms_graph *graph = make_graph(SAVED, gradient_bytes), *tiled = make_graph(TILE, gradient_bytes);
    ms_error err;
    assert_ms_ok(ms_graph_add_tiled(graph, tiled, &err), err);
    ms_graph_free(tiled);
    return graph;
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *f = fixture_open(make_both(4 * MIB));
    f->config.enable_tiling = true;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(*state);
    free(*state);
    return 0;
}

static uint64_t smallest_budget(const fixture *f, bool tiling)
{
    fixture other = *f;
    other.config.enable_tiling = tiling;
    return fixture_smallest_budget(&other);
}

static void layers_run_their_second_program(void **state)
{
    const fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, tiled_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, LAYERS * (SAVED - TILE));
}

/* Gradient release changes the programs in tiles, whichever option comes first in the list. */
static void it_is_applied_before_the_other_options(void **state)
{
    fixture *f = *state;
    ms_graph_free(f->graph);
    f->graph = make_both(40 * MIB);
    ms_replay without = fixture_simulate(f, keep, tiled_bit), with = fixture_simulate(f, keep, tiled_bit | release_bit);
    assert_true(with.peak_live_bytes + 2 * 40 * MIB < without.peak_live_bytes);
}

static void it_is_chosen_if_nothing_exact_fits(void **state)
{
    const fixture *f = *state;
    uint64_t exact = smallest_budget(f, false), tiled = smallest_budget(f, true);
    assert_true(tiled + SAVED / 2 < exact);
    ms_plan *plan = fixture_plan_at(f, tiled);
    assert_int_equal(ms_plan_step_options(plan), tiled_bit);
    assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= tiled);
    assert_true(plan->why.known && plan->why.lower_bound_ns <= plan->replay.step_ns);
    ms_plan_free(plan);
    plan = fixture_plan_at(f, exact);
    assert_int_equal(ms_plan_step_options(plan), 0);
    assert_int_equal(plan->step_options[MS_STEP_TILED_MLP].rule, MS_RULE_EXACT_FITS);
    ms_plan_free(plan);
}

static void assert_off(const fixture *f, uint64_t budget_bytes, ms_rule rule)
{
    ms_plan *plan = fixture_plan_at(f, budget_bytes);
    const ms_plan_option *option = &plan->step_options[MS_STEP_TILED_MLP];
    assert_false(option->chosen);
    assert_string_equal(ms_rule_name((ms_rule)option->rule), ms_rule_name(rule));
    ms_plan_free(plan);
}

static void flag_mode_and_graph_can_refuse_it(void **state)
{
    fixture *f = *state;
    uint64_t exact = smallest_budget(f, false);
    f->config.enable_tiling = false;
    assert_off(f, exact, MS_RULE_FLAG_OFF);
    f->config.enable_tiling = true;
    f->config.mode = MS_MODE_CONSERVATIVE;
    assert_off(f, smallest_budget(f, true), MS_RULE_MODE);
    f->config.mode = MS_MODE_BALANCED;
    assert_off(f, 100000 * MIB, MS_RULE_COMFORTABLE);
    ms_graph_free(f->graph);
    f->graph = make_graph(SAVED, 4 * MIB);
    assert_off(f, exact, MS_RULE_NO_TILES);
}

static void tiles_are_an_eighth_and_cover_all_rows(void **state)
{
    (void)state;
    assert_int_equal(ms_tile_rows(2048), 256);
    assert_int_equal(ms_tile_rows(2049), 257);
    assert_int_equal(ms_tile_rows(24), 16);
    assert_int_equal(ms_tile_rows(16), 16);
    assert_int_equal(ms_tile_rows(3), 3);
    assert_int_equal(ms_tile_rows(0), 0);
    assert_true(ms_tile_rows(UINT64_MAX) >= UINT64_MAX / 8);
}

static void its_name_and_class_are_stable(void **state)
{
    (void)state;
    assert_string_equal(ms_step_option_name(MS_STEP_TILED_MLP), "tiled_mlp");
    assert_int_equal(ms_step_option_exactness(MS_STEP_TILED_MLP), MS_ROUNDING);
}

static void failed_allocations_leave_no_leak(void **state)
{
    const fixture *f = *state;
    fixture_plan_without_memory(f, smallest_budget(f, true));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(layers_run_their_second_program),        TEST(it_is_applied_before_the_other_options),
        TEST(it_is_chosen_if_nothing_exact_fits),     TEST(flag_mode_and_graph_can_refuse_it),
        TEST(tiles_are_an_eighth_and_cover_all_rows), TEST(its_name_and_class_are_stable),
        TEST(failed_allocations_leave_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
