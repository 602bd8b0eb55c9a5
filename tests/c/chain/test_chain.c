/*
 * The chain solver against judges of its own kind: zero gap to the recurrence and to an
 * exhaustive search where it claims exactness, never worse than Rotor's table, monotone in
 * the budget, the same for any number of threads, and every schedule replayed.
 */
#include <errno.h>

#include "chain_fixture.h"

/* ---- exactness ------------------------------------------------------------------------ */

typedef uint64_t (*judge)(const ms_chain *chain, uint64_t budget_bytes);

/* The smallest budget, some between, and more than enough. */
static void compare(const ms_chain *chain, uint64_t seed, judge optimum)
{
    ms_chain_answer answer;
    uint64_t state = seed;
    chain_solve(chain, 0, 1, &answer);
    uint64_t least = answer.smallest_budget_bytes;
    ms_chain_answer_clear(&answer);
    const uint64_t budgets[] = {least, least + chain_between(&state, 0, least),
                                least + chain_between(&state, 0, least / 4), 8 * least};
    for (size_t i = 0; i < sizeof budgets / sizeof budgets[0]; i++) {
        chain_solve(chain, budgets[i], 1, &answer);
        assert_true(answer.feasible && answer.exact);
        assert_int_equal(answer.makespan_ns, optimum(chain, budgets[i]));
        ms_chain_answer_clear(&answer);
    }
    if (least > 0) {
        chain_solve(chain, least - 1, 1, &answer);
        assert_false(answer.feasible);
        assert_int_equal(answer.smallest_budget_bytes, least);
        assert_true(optimum(chain, least - 1) == UINT64_MAX);
        ms_chain_answer_clear(&answer);
    }
}

static void answers_equal_the_recurrence(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        chain_recipe recipe = {.layers = 1 + seed % 6,
                               .options = 3,
                               .size_most = 1 + seed % 20,
                               .unit = 1 + seed % 3 * 999,
                               .time_most = 30,
                               .any_transients = seed % 2,
                               .types = seed % 5 == 0 ? 2 : 0};
        ms_chain *chain = chain_make(&recipe, seed);
        compare(chain, seed, chain_recurrence);
        ms_chain_free(chain);
    }
}

static void answers_equal_an_exhaustive_search(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        chain_recipe recipe = {.layers = 1 + seed % 7,
                               .options = 3,
                               .size_most = 12,
                               .unit = 1,
                               .time_most = 20,
                               .types = seed % 4 == 0 ? 1 : 0};
        ms_chain *chain = chain_make(&recipe, seed);
        compare(chain, seed, chain_exhaustive);
        ms_chain_free(chain);
    }
}

/* Where a forward that saves may take less than one that doesn't, the recurrence asks for
 * room for forwards that are never run; a search over operations can then be better. */
static void no_search_is_worse_than_the_answer(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        chain_recipe recipe = {
            .layers = 2 + seed % 5, .options = 2, .size_most = 12, .unit = 1, .time_most = 20, .any_transients = true};
        ms_chain *chain = chain_make(&recipe, seed);
        ms_chain_answer answer;
        chain_solve(chain, 0, 1, &answer);
        uint64_t budget = answer.smallest_budget_bytes + seed;
        ms_chain_answer_clear(&answer);
        chain_solve(chain, budget, 1, &answer);
        assert_true(chain_exhaustive(chain, budget) <= answer.makespan_ns);
        ms_chain_answer_clear(&answer);
        ms_chain_free(chain);
    }
}

/* x = [0,4,3,5], saved = [8,4,9]: 22 at 21 bytes; 18 if x_1 could be dropped and made
 * again, which memory-persistent schedules don't do. */
static void the_restriction_is_what_it_is_said_to_be(void **state)
{
    (void)state;
    ms_chain_option options[] = {{.saved_bytes = 8, .fwd_ns = 4, .bwd_ns = 1, .bwd_tmp_bytes = 0},
                                 {.saved_bytes = 4, .fwd_ns = 4, .bwd_ns = 1, .bwd_tmp_bytes = 4},
                                 {.saved_bytes = 9, .fwd_ns = 3, .bwd_ns = 1, .bwd_tmp_bytes = 3}};
    ms_chain_layer layers[] = {{.output_bytes = 4, .fwd_ns = 4, .option_count = 1, .options = &options[0]},
                               {.output_bytes = 3, .fwd_ns = 4, .option_count = 1, .options = &options[1]},
                               {.output_bytes = 5, .fwd_ns = 3, .option_count = 1, .options = &options[2]}};
    ms_chain chain = {.layer_count = 3, .layers = layers};
    ms_chain_answer answer;
    chain_solve(&chain, 21, 1, &answer);
    assert_int_equal(answer.makespan_ns, 22);
    assert_int_equal(answer.lower_bound_ns, 14);
    ms_chain_answer_clear(&answer);
}

static void another_option_never_hurts(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        chain_recipe recipe = {.layers = 5 + seed % 15, .options = 2, .size_most = 8, .unit = 1, .time_most = 20};
        ms_chain *chain = chain_make(&recipe, seed);
        uint64_t random = seed;
        uint32_t i = (uint32_t)chain_between(&random, 0, recipe.layers - 1);
        ms_chain_option option = chain->layers[i].options[0];
        option.saved_bytes = chain->layers[i].output_bytes + chain_between(&random, 0, 20);
        option.bwd_ns = chain_between(&random, 0, 40);
        ms_chain *more = chain_with_option(chain, i, &option);
        ms_chain_answer few, many;
        chain_solve(chain, 0, 1, &few);
        uint64_t least = few.smallest_budget_bytes;
        ms_chain_answer_clear(&few);
        for (uint64_t budget = least; budget < least + 60; budget += 7) {
            chain_solve(chain, budget, 1, &few);
            chain_solve(more, budget, 1, &many);
            assert_true(few.exact && many.exact && many.feasible);
            assert_true(many.makespan_ns <= few.makespan_ns);
            ms_chain_answer_clear(&few);
            ms_chain_answer_clear(&many);
        }
        ms_chain_free(chain);
        ms_chain_free(more);
    }
}

/* ---- larger chains ----------------------------------------------------------------------- */

static void never_worse_than_rotor(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        chain_recipe recipe = {.layers = 10 + 3 * (uint32_t)seed,
                               .options = 1,
                               .size_most = 100000000,
                               .unit = 1,
                               .time_most = 9000000,
                               .types = seed % 3 == 0 ? 3 : 0};
        ms_chain *chain = chain_make(&recipe, seed);
        ms_chain_answer answer, all;
        chain_solve(chain, 0, 0, &answer);
        chain_solve(chain, INT64_MAX, 0, &all);
        uint64_t least = answer.smallest_budget_bytes, most = all.peak_bytes;
        ms_chain_answer_clear(&answer);
        ms_chain_answer_clear(&all);
        for (uint32_t percent = 3; percent < 100; percent += 19) {
            uint64_t budget = least + (most - least) / 100 * percent;
            chain_solve(chain, budget, 0, &answer);
            assert_true(answer.makespan_ns <= chain_rotor(chain, budget, 500));
            ms_chain_answer_clear(&answer);
        }
        ms_chain_free(chain);
    }
}

static void assert_same(const ms_chain_answer *a, const ms_chain_answer *b)
{
    assert_int_equal(a->op_count, b->op_count);
    assert_int_equal(a->makespan_ns, b->makespan_ns);
    assert_int_equal(a->peak_bytes, b->peak_bytes);
    assert_memory_equal(a->ops, b->ops, a->op_count * sizeof *a->ops);
}

static const chain_recipe large[] = {
    {.layers = 3, .options = 2, .size_most = 1000000007, .unit = 1, .time_most = 100000},
    {.layers = 20, .options = 3, .size_most = 1000000007, .unit = 1, .time_most = 100000},
    {.layers = 60, .options = 2, .size_most = 50000, .unit = 512, .time_most = 100000000, .any_transients = true},
    {.layers = 110, .options = 2, .size_most = 1000000007, .unit = 1, .time_most = 10000000000},
    {.layers = 150, .options = 2, .size_most = 1000000007, .unit = 1, .time_most = 100000, .types = 4},
    {.layers = 420, .options = 1, .size_most = 1000, .unit = 1, .time_most = 1000, .types = 2},
    {.layers = 30, .options = 2, .size_most = 9, .unit = 1, .time_most = 10000000000000},
};

static void monotone_and_the_same_for_any_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        ms_chain *chain = chain_make(&large[i], 77 + i);
        ms_chain_answer one, many;
        chain_solve(chain, 0, 1, &one);
        uint64_t least = one.smallest_budget_bytes, time = UINT64_MAX;
        for (uint32_t step = 0; step < 9; step++) {
            uint64_t budget = least + least * step / 3;
            ms_chain_answer_clear(&one);
            chain_solve(chain, budget, 1, &one);
            chain_solve(chain, budget, 2 + step % 5, &many);
            assert_true(one.feasible);
            assert_same(&one, &many);
            assert_true(one.makespan_ns <= time);
            time = one.makespan_ns;
            ms_chain_answer_clear(&many);
        }
        ms_chain_answer_clear(&one);
        ms_chain_free(chain);
    }
}

/* Between budgets that lie close together, and on both sides of the levels. */
static void monotone_in_small_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        chain_recipe recipe = {.layers = 25, .options = 2, .size_most = 100, .unit = 1, .time_most = 1000};
        ms_chain *chain = chain_make(&recipe, seed);
        ms_chain_answer answer;
        chain_solve(chain, 0, 1, &answer);
        uint64_t least = answer.smallest_budget_bytes, time = UINT64_MAX;
        ms_chain_answer_clear(&answer);
        for (uint64_t budget = least; budget < 3 * least; budget += 1 + least / 60) {
            chain_solve(chain, budget, 1, &answer);
            assert_true(answer.feasible && answer.makespan_ns <= time);
            time = answer.makespan_ns;
            ms_chain_answer_clear(&answer);
        }
        ms_chain_free(chain);
    }
}

/* Times from nanoseconds to hours in one chain: tables round them, and schedules that differ by
 * a few nanoseconds look the same there. */
static void mix_magnitudes(ms_chain *chain, uint64_t *state)
{
    static const uint64_t scales[] = {1, 1000, 100000000, UINT64_C(10000000000), UINT64_C(100000000000)};
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        ms_chain_layer *layer = &chain->layers[i];
        layer->fwd_ns *= scales[chain_between(state, 0, 4)];
        for (uint32_t k = 0; k < layer->option_count; k++) {
            layer->options[k].fwd_ns = layer->fwd_ns;
            layer->options[k].bwd_ns *= scales[chain_between(state, 0, 4)];
        }
    }
}

static void monotone_where_times_are_rounded(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        uint64_t dice = seed;
        chain_recipe recipe = {.layers = 3 + seed % 4, .options = 3, .size_most = 10, .unit = 1, .time_most = 9};
        ms_chain *chain = chain_make(&recipe, seed);
        ms_chain_answer answer;
        mix_magnitudes(chain, &dice);
        chain_solve(chain, 0, 1, &answer);
        uint64_t least = answer.smallest_budget_bytes, time = UINT64_MAX;
        ms_chain_answer_clear(&answer);
        for (uint64_t budget = least; budget < 4 * least; budget++) {
            chain_solve(chain, budget, 1, &answer);
            assert_true(answer.feasible && answer.makespan_ns <= time);
            time = answer.makespan_ns;
            ms_chain_answer_clear(&answer);
        }
        ms_chain_free(chain);
    }
}

/* ---- ends of the range ------------------------------------------------------------------- */

static void one_layer(void **state)
{
    (void)state;
    ms_chain_option options[] = {{.saved_bytes = 10, .fwd_ns = 1, .bwd_ns = 1, .fwd_tmp_bytes = 7, .bwd_tmp_bytes = 3},
                                 {.saved_bytes = 6, .fwd_ns = 1, .bwd_ns = 5, .bwd_tmp_bytes = 3}};
    ms_chain_layer layer = {.output_bytes = 5, .option_count = 2, .options = options};
    ms_chain chain = {.input_bytes = 3, .layer_count = 1, .layers = &layer};
    ms_chain_answer answer;
    chain_solve(&chain, 16, 1, &answer);
    assert_false(answer.feasible);
    assert_int_equal(answer.smallest_budget_bytes, 3 + 5 + 6 + 3);
    chain_solve(&chain, 17, 1, &answer);
    assert_int_equal(answer.makespan_ns, 6);
    ms_chain_answer_clear(&answer);
    chain_solve(&chain, 25, 1, &answer);
    assert_int_equal(answer.makespan_ns, 2);
    assert_int_equal(answer.peak_bytes, 25);
    ms_chain_answer_clear(&answer);
}

static void zero_bytes_fit_into_nothing(void **state)
{
    (void)state;
    ms_chain_option options[3] = {{.fwd_ns = 1, .bwd_ns = 1}, {.fwd_ns = 1, .bwd_ns = 1}, {.fwd_ns = 1, .bwd_ns = 1}};
    ms_chain_layer layers[3] = {{.option_count = 1, .options = &options[0]},
                                {.option_count = 1, .options = &options[1]},
                                {.option_count = 1, .options = &options[2]}};
    ms_chain chain = {.layer_count = 3, .layers = layers};
    ms_chain_answer answer;
    chain_solve(&chain, 0, 1, &answer);
    assert_true(answer.feasible);
    assert_int_equal(answer.makespan_ns, 6);
    ms_chain_answer_clear(&answer);
}

/* Sums pass 63 and 64 bits; nothing wraps and nothing that doesn't fit is said to. */
static void huge_sizes_and_times_saturate(void **state)
{
    (void)state;
    const uint64_t huge = INT64_MAX;
    ms_chain_option options[4];
    ms_chain_layer layers[4];
    ms_chain chain = {.input_bytes = 5, .layer_count = 4, .layers = layers};
    ms_chain_answer answer;
    ms_error err;
    for (int i = 0; i < 4; i++) {
        options[i] = (ms_chain_option){.saved_bytes = i == 2 ? huge : 4, .fwd_ns = huge, .bwd_ns = huge};
        layers[i] = (ms_chain_layer){.output_bytes = 4, .fwd_ns = huge, .option_count = 1, .options = &options[i]};
    }
    assert_ms_ok(ms_chain_solve(&chain, 1000, 1, &answer, &err), err);
    assert_false(answer.feasible);
    assert_int_equal(answer.smallest_budget_bytes, 5 + 4 + 4 + huge);
    assert_ms_ok(ms_chain_solve(&chain, 5 + 4 + 4 + huge, 1, &answer, &err), err);
    assert_true(answer.feasible);
    assert_int_equal(answer.peak_bytes, 5 + 4 + 4 + huge);
    assert_true(answer.makespan_ns == UINT64_MAX && answer.lower_bound_ns == UINT64_MAX);
    ms_chain_answer_clear(&answer);
    layers[1].output_bytes = options[1].saved_bytes = huge;
    assert_ms_ok(ms_chain_solve(&chain, UINT64_MAX, 1, &answer, &err), err);
    assert_false(answer.feasible);
    assert_true(answer.smallest_budget_bytes == UINT64_MAX);
}

/* Sizes near 2^62 with a budget that allows some of them: the tables' arithmetic. */
static void tables_of_huge_sizes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        chain_recipe recipe = {
            .layers = 6, .options = 2, .size_most = UINT64_C(1) << 57, .unit = 1, .time_most = UINT64_C(1) << 50};
        ms_chain *chain = chain_make(&recipe, seed);
        ms_chain_answer answer;
        uint64_t time = UINT64_MAX;
        chain_solve(chain, 0, 1, &answer);
        uint64_t least = answer.smallest_budget_bytes;
        for (uint32_t step = 0; step < 10; step++) {
            chain_solve(chain, least + least / 8 * step, 2, &answer);
            assert_true(answer.feasible && answer.makespan_ns <= time);
            time = answer.makespan_ns;
            ms_chain_answer_clear(&answer);
        }
        ms_chain_free(chain);
    }
}

static void long_chains_are_monotone_and_say_how_coarse_they_were_solved(void **state)
{
    (void)state;
    chain_recipe recipe = {.layers = 4000, .options = 2, .size_most = 1000, .unit = 1, .time_most = 1000, .types = 3};
    ms_chain *chain = chain_make(&recipe, 9);
    ms_chain_answer answer, all;
    ms_error err;
    assert_ms_ok(ms_chain_solve(chain, 0, 0, &answer, &err), err);
    uint64_t least = answer.smallest_budget_bytes;
    assert_false(answer.feasible);
    assert_ms_ok(ms_chain_solve(chain, UINT64_MAX - 1, 0, &all, &err), err);
    assert_int_equal(all.makespan_ns, all.lower_bound_ns);
    chain_solve(chain, least, 0, &answer);
    assert_true(answer.feasible);
    ms_chain_answer_clear(&answer);
    uint64_t time = UINT64_MAX;
    for (uint32_t step = 1; step < 6; step++) {
        chain_solve(chain, all.peak_bytes / 6 * step, 2, &answer);
        assert_true(answer.feasible && !answer.exact && answer.group_layers == 4);
        assert_true(answer.makespan_ns <= time);
        time = answer.makespan_ns;
        char *json = ms_chain_answer_to_json(&answer);
        assert_non_null(strstr(json, "\"group_layers\": 4"));
        ms_free(json);
        ms_chain_answer_clear(&answer);
    }
    ms_chain_answer_clear(&all);
    ms_chain_free(chain);
}

/* ---- failures ------------------------------------------------------------------------------ */

static void memory_and_threads_may_run_out(void **state)
{
    (void)state;
    chain_recipe recipe = {.layers = 60, .options = 2, .size_most = 1000000007, .unit = 1, .time_most = 1000};
    ms_chain *chain = chain_make(&recipe, 4);
    ms_chain_answer whole, answer = {0};
    ms_error err;
    chain_solve(chain, 0, 1, &whole);
    uint64_t budget = 2 * whole.smallest_budget_bytes, before = ms_memory_live_blocks();
    chain_solve(chain, budget, 3, &whole);
    ms_fault_arm(MS_FAULT_THREAD, 2, EAGAIN);
    chain_solve(chain, budget, 3, &answer);
    ms_fault_disarm_all();
    assert_same(&whole, &answer);
    ms_chain_answer_clear(&answer);
    ms_chain_answer_clear(&whole);
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = ms_chain_solve(chain, budget, 2, &answer, &err);
        failed = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || (failed && rc == MS_ENOMEM));
        if (rc == MS_OK) {
            chain_check(chain, &answer, budget);
            ms_chain_answer_clear(&answer);
        }
        assert_int_equal(ms_memory_live_blocks(), before);
        nth += nth / 20;
    }
    ms_chain_free(chain);
}

static void what_is_no_chain_is_refused(void **state)
{
    (void)state;
    ms_chain_option option = {.saved_bytes = 3};
    ms_chain_layer layer = {.output_bytes = 4, .option_count = 1, .options = &option};
    ms_chain chain = {.layer_count = 0, .layers = &layer};
    ms_chain_answer answer;
    ms_error err;
    assert_ms_fails(ms_chain_solve(&chain, 9, 1, &answer, &err), MS_EINVAL, err, "0 layers");
    chain.layer_count = 1;
    assert_ms_fails(ms_chain_solve(&chain, 9, 1, &answer, &err), MS_EINVAL, err, "saves less than its output");
    layer.option_count = 0;
    assert_ms_fails(ms_chain_solve(&chain, 9, 1, &answer, &err), MS_EINVAL, err, "0 options");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_equal_the_recurrence),
        cmocka_unit_test(answers_equal_an_exhaustive_search),
        cmocka_unit_test(no_search_is_worse_than_the_answer),
        cmocka_unit_test(the_restriction_is_what_it_is_said_to_be),
        cmocka_unit_test(another_option_never_hurts),
        cmocka_unit_test(never_worse_than_rotor),
        cmocka_unit_test(monotone_and_the_same_for_any_threads),
        cmocka_unit_test(monotone_in_small_steps),
        cmocka_unit_test(monotone_where_times_are_rounded),
        cmocka_unit_test(one_layer),
        cmocka_unit_test(zero_bytes_fit_into_nothing),
        cmocka_unit_test(huge_sizes_and_times_saturate),
        cmocka_unit_test(tables_of_huge_sizes),
        cmocka_unit_test(long_chains_are_monotone_and_say_how_coarse_they_were_solved),
        cmocka_unit_test(memory_and_threads_may_run_out),
        cmocka_unit_test(what_is_no_chain_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
