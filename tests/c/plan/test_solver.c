/*
 * The solver's promises: its plan fits, is never worse than a uniform plan, is monotone in the budget, exists
 * exactly from the smallest budget on, is deterministic to the byte; it is quick and fails cleanly.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "plan_fixture.h"

enum { BUDGETS = 40 };

/* The k-th of BUDGETS from the smallest to 20% above the need. */
static uint64_t budget_number(uint64_t smallest, uint64_t need, uint64_t k)
{
    return fixture_budget(smallest, need, k, BUDGETS);
}

/* ---- the promises ---------------------------------------------------------------------- */

static ms_replay replay_of(const fixture_planning *f, const ms_plan *plan, uint64_t ceiling_bytes)
{
    uint8_t techniques[128];
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        techniques[i] = (uint8_t)plan->entries[i].technique;
    }
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = plan->offload_min_bytes,
                          .write_window_bytes = plan->write_window_bytes,
                          .read_window_bytes = plan->read_window_bytes,
                          .ceiling_bytes = ceiling_bytes};
    ms_replay replay;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
    return replay;
}

static void the_replay_of_every_plan_fits(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < BUDGETS; k += 3) {
            uint64_t budget = budget_number(smallest, need, k);
            ms_plan *plan = fixture_plan_at(&f, budget);
            assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget);
            assert_true(replay_of(&f, plan, 0).peak_bytes <= plan->replay.peak_bytes + plan->reserve_bytes);
            uint64_t ceiling = plan->ceiling_bytes + plan->replay.small_peak_bytes;
            assert_true(replay_of(&f, plan, ceiling).peak_bytes <= budget);
            /* Hostmem counts maps only, not libc's part. */
            assert_true(replay_of(&f, plan, plan->ceiling_bytes).peak_bytes <= budget);
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

static void a_larger_budget_is_never_slower_nor_smaller(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        uint64_t step_ns = UINT64_MAX, peak_bytes = 0;
        for (uint64_t k = 0; k < BUDGETS; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
            uint64_t taken_bytes = plan->replay.peak_bytes + plan->reserve_bytes;
            if (plan->replay.step_ns > step_ns || taken_bytes < peak_bytes) {
                fail_msg("graph %d, budget %d: %llu ns after %llu, peak %llu after %llu", which, (int)k,
                         (unsigned long long)plan->replay.step_ns, (unsigned long long)step_ns,
                         (unsigned long long)taken_bytes, (unsigned long long)peak_bytes);
            }
            step_ns = plan->replay.step_ns;
            peak_bytes = taken_bytes;
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

static void no_uniform_plan_that_fits_is_faster(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < BUDGETS; k += 4) {
            f.config.memory_budget_bytes = budget_number(smallest, need, k);
            ms_plan *plan = fixture_plan_at(&f, f.config.memory_budget_bytes);
            for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
                ms_plan *uniform;
                ms_error err;
                assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, (ms_technique)technique, &uniform, &err),
                             err);
                bool fits = uniform->replay.peak_bytes + uniform->reserve_bytes <= f.config.memory_budget_bytes;
                assert_true(!fits || plan->replay.step_ns <= uniform->replay.step_ns);
                ms_plan_free(uniform);
            }
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

static void a_plan_exists_from_the_smallest_budget_on(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        uint64_t smallest = fixture_smallest_budget(&f);
        ms_plan *plan = fixture_plan_at(&f, smallest);
        assert_int_equal(plan->smallest_budget_bytes, smallest);
        assert_int_equal(plan->replay.peak_bytes + plan->reserve_bytes, smallest);
        ms_plan_free(plan);
        ms_error err = {0};
        assert_ms_fails(fixture_try_plan(&f, smallest - 1, &plan, &err), MS_EINFEASIBLE, err,
                        "the smallest budget that would fit is");
        assert_int_equal(err.hint_bytes, smallest);
        fixture_close(&f);
    }
}

/* The named budget is for another run, which may begin a little larger; so is the need beside it. A loop in which nothing
 * frees memory was refused with a smallest budget above its need. */
static void the_smallest_budget_is_at_most_what_everything_kept_needs(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    f.config.enable_checkpointing = f.config.enable_offloading = f.config.enable_tiling = false;
    f.graph->loop.observed = true;
    f.hardware->process.baseline_bytes = 100 * MIB;
    ms_plan *plan;
    ms_error err = {0};
    assert_ms_fails(fixture_try_plan(&f, 1, &plan, &err), MS_EINFEASIBLE, err, "no technique");
    char kept[80];
    snprintf(kept, sizeof kept, "everything kept needs %s;", ms__text_bytes_up(err.hint_bytes).text);
    assert_non_null(strstr(err.text, kept));
    fixture_close(&f);
}

static void the_same_documents_give_the_same_bytes(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which)), g = fixture_open(fixture_graph(which));
        uint64_t budget = (fixture_smallest_budget(&f) + fixture_need(&f)) / 2;
        ms_plan *first = fixture_plan_at(&f, budget), *second = fixture_plan_at(&g, budget);
        char *a = ms_plan_to_json(first), *b = ms_plan_to_json(second);
        assert_string_equal(a, b);
        ms_free(a);
        ms_free(b);
        ms_plan_free(first);
        ms_plan_free(second);
        fixture_close(&f);
        fixture_close(&g);
    }
}

/* ---- decisions ------------------------------------------------------------------------- */

static void count_techniques(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT])
{
    memset(counts, 0, MS_TECHNIQUE_COUNT * sizeof *counts);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        counts[plan->entries[i].technique]++;
    }
}

static void cheap_layers_run_again_and_dear_ones_move(void **state)
{
    (void)state;
    uint32_t counts[MS_TECHNIQUE_COUNT];
    fixture_planning cheap = fixture_open(fixture_graph(1));
    cheap.hardware->disk.write_bytes_per_s = cheap.hardware->disk.read_bytes_per_s = 50000000;
    ms_plan *plan = fixture_plan_at(&cheap, fixture_smallest_budget(&cheap) * 11 / 10);
    count_techniques(plan, counts);
    assert_true(counts[MS_TECHNIQUE_RECOMPUTE] > counts[MS_TECHNIQUE_OFFLOAD_DISK]);
    ms_plan_free(plan);
    fixture_close(&cheap);

    fixture_planning dear = fixture_open(fixture_graph(2));
    plan = fixture_plan_at(&dear, fixture_smallest_budget(&dear) * 11 / 10);
    count_techniques(plan, counts);
    assert_int_equal(counts[MS_TECHNIQUE_RECOMPUTE], 0);
    assert_true(counts[MS_TECHNIQUE_OFFLOAD_DISK] > 0);
    ms_plan_free(plan);
    fixture_close(&dear);
}

static void a_comfortable_run_is_left_alone(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    ms_plan *plan = fixture_plan_at(&f, fixture_need(&f) * 2);
    uint32_t counts[MS_TECHNIQUE_COUNT];
    assert_true(plan->skipped && plan->pressure.comfortable);
    count_techniques(plan, counts);
    assert_int_equal(counts[MS_TECHNIQUE_KEEP], plan->entry_count);
    assert_int_equal(plan->entries[1].rule, MS_RULE_COMFORTABLE);
    assert_int_equal(plan->slab_bytes, 0);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void a_comfortable_run_leaves_room_in_the_cache(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    uint64_t budget = fixture_need(&f) * 2;
    ms_plan *plan = fixture_plan_at(&f, budget), *ample = fixture_plan_at(&f, budget * 100);
    assert_true(replay_of(&f, plan, plan->ceiling_bytes).peak_bytes <= budget);
    /* The ceiling leaves room for another model of the same size, and doesn't take all free memory. */
    uint64_t need = replay_of(&f, ample, UINT64_MAX).peak_bytes - f.hardware->process.baseline_bytes;
    assert_true(ample->ceiling_bytes >= need * 3 / 2 && ample->ceiling_bytes <= need * 2);
    ms_plan_free(ample);
    ms_plan_free(plan);
    fixture_close(&f);
}

/* No candidate has a lower peak; the test compares with uniform plans. */
static void a_forced_run_is_planned_for_the_smallest_peak(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        f.config.force_optimize = true;
        ms_plan *plan = fixture_plan_at(&f, MS_UNSET);
        assert_true(plan->pressure.forced && !plan->skipped);
        assert_int_equal(plan->offload_min_bytes, 1);
        for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
            ms_plan *uniform;
            ms_error err;
            assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, (ms_technique)technique, &uniform, &err), err);
            assert_true(plan->replay.peak_bytes <= uniform->replay.peak_bytes);
            ms_plan_free(uniform);
        }
        uint32_t counts[MS_TECHNIQUE_COUNT];
        count_techniques(plan, counts);
        assert_true(counts[MS_TECHNIQUE_KEEP] < plan->entry_count);
        ms_plan_free(plan);
        fixture_close(&f);
    }
}

/* A forced run also optimizes a model so small that no technique lowers its peak: tests and trials rely on
 * it. */
static void a_forced_run_optimizes_tiny_layers_too(void **state)
{
    (void)state;
    static const fixture_layer tiny = {2000, 100, 1000, 500, 0};
    fixture_chain chain = {.layer_count = 3,
                           .layers = &tiny,
                           .uniform = true,
                           .activation_bytes = 640,
                           .logits_bytes = 1000,
                           .parameter_bytes = 100 * MIB,
                           .state_bytes = 200 * MIB};
    fixture_planning f = {.graph = fixture_chain_graph(&chain), .hardware = fixture_real_hardware()};
    f.graph->loop.optimizer_transient_bytes = 100 * MIB;
    enum { RECOMPUTE, OFFLOAD, BOTH };
    for (int admitted = RECOMPUTE; admitted <= BOTH; admitted++) {
        ms_config_default(&f.config);
        f.config.force_optimize = true;
        f.config.enable_offloading = admitted != RECOMPUTE;
        f.config.enable_checkpointing = admitted != OFFLOAD;
        ms_plan *plan = fixture_plan_at(&f, MS_UNSET);
        for (uint32_t i = 1; i <= 3; i++) {
            assert_int_equal(plan->entries[i].technique,
                             admitted == OFFLOAD ? MS_TECHNIQUE_OFFLOAD_DISK : MS_TECHNIQUE_RECOMPUTE);
            assert_int_equal(plan->entries[i].rule, MS_RULE_FORCED);
        }
        /* The slab alone is larger than these tensors: chosen only if nothing else is admitted. */
        assert_int_equal(plan->slab_bytes > 0, admitted == OFFLOAD);
        assert_int_equal(plan->replay.peak_bytes > plan->unoptimized.peak_bytes, admitted == OFFLOAD);
        /* Each store waits for the one before only if its bytes are worth it. */
        if (admitted == OFFLOAD) {
            assert_int_equal(plan->write_window_bytes, MIB);
        }
        char *table = ms_plan_table(plan, f.hardware);
        assert_int_equal(strstr(table, "above everything kept") != NULL, admitted == OFFLOAD);
        ms_free(table);
        ms_plan_free(plan);
    }
    fixture_close(&f);
}

static void a_missed_target_gives_the_smallest_plan(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    uint64_t smallest = fixture_smallest_budget(&f);
    f.hardware->ram.total_bytes = smallest;
    ms_plan *plan = fixture_plan_at(&f, MS_UNSET);
    assert_true(plan->over_target);
    assert_false(plan->pressure.budget_given);
    assert_int_equal(plan->replay.peak_bytes + plan->reserve_bytes, smallest);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void tiers_are_not_filled_beyond_their_caps(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    uint64_t roomy = fixture_smallest_budget(&f);
    f.config.max_disk_offload_bytes = 1000 * MIB;
    f.config.enable_checkpointing = false;
    uint64_t capped = fixture_smallest_budget(&f);
    assert_true(capped > roomy);
    ms_plan *plan = fixture_plan_at(&f, capped);
    assert_true(plan->replay.tier_peak_bytes[2] <= 1000 * MIB);
    assert_int_equal(plan->disk_cap_bytes, 1000 * MIB);
    ms_plan_free(plan);
    fixture_close(&f);
}

/* ---- entries --------------------------------------------------------------------------- */

static void entries_state_their_bytes_and_time(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        ms_plan *plan = fixture_plan_at(&f, fixture_smallest_budget(&f) * 12 / 10);
        for (uint32_t i = 0; i < plan->entry_count; i++) {
            const ms_plan_entry *entry = &plan->entries[i];
            assert_int_equal(entry->node, i);
            assert_string_equal(entry->name, f.graph->nodes[i].name);
            if (entry->technique == MS_TECHNIQUE_KEEP) {
                assert_int_equal(entry->saved_bytes, 0);
                assert_int_equal(entry->cost_ns, 0);
            } else {
                assert_true(entry->saved_bytes > 0);
                assert_int_equal(entry->rule, MS_RULE_PRESSURE);
                assert_int_not_equal(entry->runner_up, entry->technique);
                assert_true(entry->runner_up_peak_bytes > 0 && entry->runner_up_ns > 0);
            }
        }
        ms_plan_free(plan);
        fixture_close(&f);
    }
}

/* ---- speed and faults ------------------------------------------------------------------ */

/* Counted, not timed: the work is bounded for any graph. */
static void long_chains_are_solved_too(void **state)
{
    (void)state;
    static const fixture_layer layer = {30 * MIB, 4 * MIB, 200000000, 6 * MIB, 0};
    fixture_chain chain = {.layer_count = 100,
                           .layers = &layer,
                           .uniform = true,
                           .activation_bytes = 6 * MIB,
                           .logits_bytes = 10 * MIB,
                           .parameter_bytes = 500 * MIB,
                           .state_bytes = 1000 * MIB};
    fixture_planning f = {.graph = fixture_chain_graph(&chain), .hardware = fixture_real_hardware()};
    ms_config_default(&f.config);
    uint64_t smallest = fixture_smallest_budget(&f);
    uint64_t begun_ns = ms_now_ns();
    ms_plan *plan = fixture_plan_at(&f, smallest * 3 / 2);
    print_message("100 layers: %llu ms\n", (unsigned long long)((ms_now_ns() - begun_ns) / 1000000));
    assert_true(plan->replay.step_ns < plan->unoptimized.step_ns * 3 / 2);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void it_fails_cleanly_out_of_memory(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(3));
    uint64_t budget = (fixture_smallest_budget(&f) + fixture_need(&f)) / 2;
    uint64_t before = ms_memory_live_blocks(), nth = 0;
    ms_plan *plan = NULL;
    ms_error err;
    int rc;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        rc = fixture_try_plan(&f, budget, &plan, &err);
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        assert_true(rc == MS_OK || ms_memory_live_blocks() == before);
    } while (rc != MS_OK);
    ms_fault_disarm_all();
    assert_true(nth > 20);
    ms_plan_free(plan);
    assert_int_equal(ms_memory_live_blocks(), before);
    fixture_close(&f);
}

/* ---- uniform plans --------------------------------------------------------------------- */

static void a_uniform_plan_needs_no_graph(void **state)
{
    (void)state;
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan;
    ms_error err;
    ms_config_default(&config);
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->entry_count, 0);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_OFFLOAD_DISK);
    assert_int_equal(plan->ceiling_bytes, 0);
    assert_true(plan->slab_bytes > 0 && plan->write_window_bytes > 0);
    ms_plan_free(plan);
    config.mode = MS_MODE_CONSERVATIVE;
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_RECOMPUTE);
    ms_plan_free(plan);
    config.enable_checkpointing = false;
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_KEEP);
    ms_plan_free(plan);
    ms_config_default(&config);
    hardware->disk.free_bytes = 0;
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_RECOMPUTE);
    assert_int_equal(plan->slab_bytes, 0);
    ms_plan_free(plan);
    fixture_use_card(hardware, 12000000000);
    assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_OFFLOAD_HOST);
    ms_plan_free(plan);
    ms_free(hardware);
}

/* The first steps of a model that can't be traced keep a small budget too. */
static void windows_of_a_blind_plan_are_a_small_part_of_the_budget(void **state)
{
    (void)state;
    ms_hardware *hardware = fixture_real_hardware();
    ms_config config;
    ms_plan *plan;
    ms_error err;
    ms_config_default(&config);
    hardware->process.baseline_bytes = 300000000;
    const struct {
        uint64_t budget_bytes, window_bytes;
    } cases[] = {{380000000, 10000000}, {301000000, 4 << 20}, {200000000, 4 << 20}, {9000000000, 256 << 20}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.memory_budget_bytes = cases[i].budget_bytes;
        assert_ms_ok(ms_plan_uniform(NULL, hardware, &config, MS_TECHNIQUE_COUNT, &plan, &err), err);
        assert_int_equal(plan->write_window_bytes, cases[i].window_bytes);
        assert_int_equal(plan->read_window_bytes, cases[i].window_bytes);
        ms_plan_free(plan);
    }
    ms_free(hardware);
}

static void a_uniform_plan_uses_its_technique_where_admitted(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(4)); /* every fifth layer changes its input in place */
    ms_plan *plan;
    ms_error err;
    assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, MS_TECHNIQUE_RECOMPUTE, &plan, &err), err);
    for (uint32_t i = 1; i + 1 < plan->entry_count; i++) {
        bool refused = (f.graph->nodes[i].flags & MS_NODE_MUTATES_INPUT) != 0;
        assert_int_equal(plan->entries[i].technique, refused ? MS_TECHNIQUE_KEEP : MS_TECHNIQUE_RECOMPUTE);
    }
    ms_plan_free(plan);
    fixture_close(&f);
}

/* MS_TECHNIQUE_COUNT stands for the technique that frees most; the plan names it. */
static void a_uniform_plan_of_no_technique_names_the_one_that_frees_most(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(0));
    ms_plan *plan, *smallest;
    ms_error err;
    assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, MS_TECHNIQUE_COUNT, &plan, &err), err);
    assert_int_equal(plan->fallback, MS_TECHNIQUE_OFFLOAD_DISK);
    for (int technique = MS_TECHNIQUE_KEEP; technique <= MS_TECHNIQUE_OFFLOAD_DISK; technique++) {
        assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, (ms_technique)technique, &smallest, &err), err);
        assert_int_equal(smallest->fallback, technique);
        assert_true(plan->replay.peak_bytes <= smallest->replay.peak_bytes);
        ms_plan_free(smallest);
    }
    ms_plan_free(plan);
    fixture_close(&f);
}

static void a_uniform_plan_fails_cleanly_out_of_memory(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(5));
    fixture_mark_masks(f.graph);
    uint64_t blocks = ms_memory_live_blocks();
    bool reached = true;
    for (uint64_t nth = 1; reached; nth++) {
        ms_plan *plan = NULL;
        ms_error err;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 12);
        int rc = ms_plan_uniform(f.graph, f.hardware, &f.config, MS_TECHNIQUE_SELECTIVE_1, &plan, &err);
        reached = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(rc, reached ? MS_ENOMEM : MS_OK);
        if (rc == MS_OK) {
            ms_plan_free(plan);
        }
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uniform_plan_needs_no_graph),
        cmocka_unit_test(windows_of_a_blind_plan_are_a_small_part_of_the_budget),
        cmocka_unit_test(a_uniform_plan_of_no_technique_names_the_one_that_frees_most),
        cmocka_unit_test(a_uniform_plan_fails_cleanly_out_of_memory),
        cmocka_unit_test(a_uniform_plan_uses_its_technique_where_admitted),
        cmocka_unit_test(the_replay_of_every_plan_fits),
        cmocka_unit_test(a_larger_budget_is_never_slower_nor_smaller),
        cmocka_unit_test(no_uniform_plan_that_fits_is_faster),
        cmocka_unit_test(a_plan_exists_from_the_smallest_budget_on),
        cmocka_unit_test(the_smallest_budget_is_at_most_what_everything_kept_needs),
        cmocka_unit_test(the_same_documents_give_the_same_bytes),
        cmocka_unit_test(cheap_layers_run_again_and_dear_ones_move),
        cmocka_unit_test(a_comfortable_run_is_left_alone),
        cmocka_unit_test(a_comfortable_run_leaves_room_in_the_cache),
        cmocka_unit_test(a_forced_run_is_planned_for_the_smallest_peak),
        cmocka_unit_test(a_forced_run_optimizes_tiny_layers_too),
        cmocka_unit_test(a_missed_target_gives_the_smallest_plan),
        cmocka_unit_test(tiers_are_not_filled_beyond_their_caps),
        cmocka_unit_test(entries_state_their_bytes_and_time),
        cmocka_unit_test(long_chains_are_solved_too),
        cmocka_unit_test(it_fails_cleanly_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
