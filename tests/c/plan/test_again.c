/*
 * Once a step has corrected the documents, a plan that a search could not better keeps its choices and gets new
 * figures; any other is due for a search.
 */
#include <string.h>

#include "base/fault.h"
#include "plan_fixture.h"

static ms_plan *again(const fixture_planning *f, uint64_t budget_bytes, const ms_plan *old)
{
    ms_config config = f->config;
    ms_plan *plan;
    ms_error err;
    config.memory_budget_bytes = budget_bytes;
    assert_ms_ok(ms_plan_again(f->graph, f->hardware, &config, old, &plan, &err), err);
    return plan;
}

/* A chain whose loop has been observed. */
static fixture_planning observed_chain(void)
{
    fixture_planning f = fixture_open(fixture_graph(0));
    f.graph->loop.observed = true;
    return f;
}

static void assert_same_choices(const ms_plan *left, const ms_plan *right)
{
    assert_int_equal(left->entry_count, right->entry_count);
    for (uint32_t i = 0; i < left->entry_count; i++) {
        assert_int_equal(left->entries[i].technique, right->entries[i].technique);
        assert_int_equal(left->entries[i].packing.packed, right->entries[i].packing.packed);
    }
    assert_int_equal(ms_plan_step_options(left), ms_plan_step_options(right));
}

/* GAN as one module: two shapes had five plans, all of which kept everything. */
static void a_plan_that_keeps_everything_gets_the_figures_of_a_search(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    uint64_t need = fixture_need(&f);
    for (uint64_t budget = need + need / 20; budget <= 2 * need; budget += need / 2) {
        ms_plan *old = fixture_plan_at(&f, budget);
        f.graph->loop.optimizer_state_bytes -= MIB;
        ms_plan *found = fixture_plan_at(&f, budget), *plan = again(&f, budget, old);
        f.graph->loop.optimizer_state_bytes += MIB;
        assert_non_null(plan);
        assert_same_choices(plan, old);
        assert_int_equal(plan->skipped, found->skipped);
        assert_int_equal(plan->pressure.need_bytes, found->pressure.need_bytes);
        assert_int_equal(plan->replay.peak_bytes, found->replay.peak_bytes);
        assert_int_equal(plan->reserve_bytes, found->reserve_bytes);
        assert_int_equal(plan->ceiling_bytes, found->ceiling_bytes);
        ms_plan_free(found);
        ms_plan_free(plan);
        ms_plan_free(old);
    }
    fixture_close(&f);
}

static void other_plans_stay_while_they_fit_a_step_that_needs_more(void **state)
{
    (void)state;
    int stayed = 0;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        f.graph->loop.observed = true;
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        uint64_t budget = (smallest + need) / 2;
        ms_plan *old = fixture_plan_at(&f, budget);
        f.hardware->process.scratch_bytes += 4096;
        ms_plan *plan = again(&f, budget, old);
        if (plan != NULL) {
            assert_same_choices(plan, old);
            assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget);
            assert_true(plan->replay.step_ns > 0);
            ms_plan_free(plan);
            stayed++;
        }
        f.hardware->process.scratch_bytes += budget - smallest;
        assert_null(again(&f, budget, old)); /* nothing fits */
        ms_plan_free(old);
        fixture_close(&f);
    }
    assert_true(stayed > FIXTURE_GRAPHS / 2);
}

static void a_search_is_due_if_it_could_find_a_faster_plan(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    uint64_t budget = (fixture_smallest_budget(&f) + fixture_need(&f)) / 2;
    ms_plan *old = fixture_plan_at(&f, budget);
    assert_null(again(&f, budget, old)); /* the same documents: other figures than bytes have changed */
    f.graph->loop.optimizer_state_bytes -= MIB;
    assert_null(again(&f, budget, old));
    f.graph->loop.optimizer_state_bytes += MIB;
    assert_null(again(&f, budget + MIB, old));
    ms_plan_free(old);
    fixture_close(&f);
}

/* A forced plan has the smallest peak, another one the shortest time: neither is best for the other's run. */
static void forcing_or_not_needs_another_plan(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    uint64_t budget = fixture_need(&f);
    ms_plan *fastest = fixture_plan_at(&f, budget);
    f.config.force_optimize = true;
    ms_plan *forced = fixture_plan_at(&f, budget);
    f.hardware->process.scratch_bytes += 4096;
    assert_null(again(&f, budget, fastest));
    assert_null(again(&f, budget, forced));
    f.config.force_optimize = false;
    assert_null(again(&f, budget, forced));
    ms_plan_free(again(&f, budget, fastest));
    ms_plan_free(fastest);
    ms_plan_free(forced);
    fixture_close(&f);
}

/* The budget is part of what a plan was made for, whatever it keeps. */
static void another_budget_needs_another_plan(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    uint64_t need = fixture_need(&f), budget = need + need / 20;
    ms_plan *old = fixture_plan_at(&f, budget), *same = again(&f, budget, old);
    assert_non_null(same);
    assert_null(again(&f, budget + MIB, old));
    assert_null(again(&f, budget - MIB, old));
    assert_null(again(&f, 2 * need, old)); /* comfortable */
    assert_null(again(&f, MS_UNSET, old));
    ms_plan_free(same);
    ms_plan_free(old);
    fixture_close(&f);
}

static void packed_masks_stay_packed(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    fixture_mark_masks(f.graph);
    f.config.enable_checkpointing = false;
    f.hardware->disk.write_bytes_per_s = f.hardware->disk.read_bytes_per_s = 50000000;
    uint64_t need = fixture_need(&f), budget = need - need / 10;
    ms_plan *old = fixture_plan_at(&f, budget);
    uint32_t packed = 0;
    for (uint32_t i = 0; i < old->entry_count; i++) {
        packed += old->entries[i].packing.packed;
    }
    assert_true(packed > 0);
    f.hardware->process.scratch_bytes += 4096;
    ms_plan *plan = again(&f, budget, old);
    assert_non_null(plan);
    assert_same_choices(plan, old);
    ms_plan_free(plan);
    ms_plan_free(old);
    fixture_close(&f);
}

static void a_layer_that_may_no_longer_be_recomputed_needs_another_plan(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(3));
    f.graph->loop.observed = true;
    f.config.enable_offloading = false;
    uint64_t budget = (fixture_smallest_budget(&f) + fixture_need(&f)) / 2;
    ms_plan *old = fixture_plan_at(&f, budget);
    const ms_plan_entry *changed = NULL;
    for (uint32_t i = 0; i < old->entry_count; i++) {
        changed = old->entries[i].technique != MS_TECHNIQUE_KEEP ? &old->entries[i] : changed;
    }
    assert_non_null(changed);
    f.hardware->process.scratch_bytes += 4096;
    ms_plan *plan = again(&f, budget, old);
    assert_non_null(plan);
    ms_plan_free(plan);
    ms_graph_hold(f.graph, changed->name);
    assert_null(again(&f, budget, old));
    ms_plan_free(old);
    fixture_close(&f);
}

static void it_fails_cleanly_out_of_memory(void **state)
{
    (void)state;
    fixture_planning f = observed_chain();
    uint64_t budget = fixture_need(&f) + fixture_need(&f) / 20;
    ms_plan *old = fixture_plan_at(&f, budget);
    f.config.memory_budget_bytes = budget;
    uint64_t blocks = ms_memory_live_blocks();
    bool reached = true;
    for (uint64_t nth = 1; reached; nth += 1 + nth / 8) {
        ms_plan *plan;
        ms_error err;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 12);
        int rc = ms_plan_again(f.graph, f.hardware, &f.config, old, &plan, &err);
        reached = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        assert_true((rc == MS_OK) == (plan != NULL));
        ms_plan_free(plan);
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    ms_plan_free(old);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_keeps_everything_gets_the_figures_of_a_search),
        cmocka_unit_test(other_plans_stay_while_they_fit_a_step_that_needs_more),
        cmocka_unit_test(a_search_is_due_if_it_could_find_a_faster_plan),
        cmocka_unit_test(forcing_or_not_needs_another_plan),
        cmocka_unit_test(another_budget_needs_another_plan),
        cmocka_unit_test(packed_masks_stay_packed),
        cmocka_unit_test(a_layer_that_may_no_longer_be_recomputed_needs_another_plan),
        cmocka_unit_test(it_fails_cleanly_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
