/*
 * Explanations are true: the parts of a peak sum to it and agree with the graph, a runner-up's time is that
 * of its replay, no plan that fits beats the lower bound, and the neighbouring budgets give the stated plans.
 */
#include "plan_fixture.h"

enum { BUDGETS = 12 };

static const uint64_t runtime_bytes = 430000000;

/* The k-th of BUDGETS from the smallest to 20% above the need. */
static uint64_t budget_number(uint64_t smallest, uint64_t need, uint64_t k)
{
    return fixture_budget(smallest, need, k, BUDGETS);
}

static ms_graph *small_chain(bool marks_loss)
{
    static const fixture_layer layers[] = {{60 * MIB, 4 * MIB, 2000000000, 3 * MIB, 0},
                                           {20 * MIB, 4 * MIB, 1000000000, 2 * MIB, 0},
                                           {90 * MIB, 8 * MIB, 9000000000, 2 * MIB, 0}};
    fixture_chain chain = {.layer_count = 3,
                           .layers = layers,
                           .activation_bytes = 8 * MIB,
                           .logits_bytes = 30 * MIB,
                           .parameter_bytes = 50 * MIB,
                           .state_bytes = 100 * MIB,
                           .marks_loss = marks_loss};
    return fixture_chain_graph(&chain);
}

/* ---- the peak ----------------------------------------------------------------------------- */

static void check_parts(const ms_plan *plan)
{
    uint64_t sum = 0;
    assert_true(plan->why.known);
    for (uint32_t i = 0; i < plan->why.part_count; i++) {
        const ms_peak_part *part = &plan->why.parts[i];
        assert_true(part->kind < MS_PEAK_KIND_COUNT && part->bytes > 0);
        assert_true(part->node == MS_NO_NODE || part->node < plan->entry_count);
        assert_true(i == 0 || part->bytes <= plan->why.parts[i - 1].bytes);
        sum += part->bytes;
    }
    assert_int_equal(sum, plan->replay.peak_bytes);
    assert_true(plan->why.lower_bound_ns > 0 && plan->why.lower_bound_ns <= plan->replay.step_ns);
    assert_int_equal(plan->why.peak_phase == MS_PHASE_BACKWARD, plan->replay.peak_in_backward);
    assert_int_equal(plan->why.peak_phase == MS_PHASE_OPTIMIZER, plan->replay.peak_node == plan->entry_count);
}

static void parts_sum_to_the_peak_at_every_budget(void **state)
{
    (void)state;
    for (int which = 0; which <= FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(which < FIXTURE_GRAPHS ? fixture_graph(which) : small_chain(true));
        f.hardware->process = (ms_process){
            .baseline_bytes = 900 * MIB, .scratch_bytes = 70 * MIB, .reserve_bytes = which % 2 == 0 ? 0 : 45 * MIB};
        if (which == 1 || which == 4) {
            fixture_mark_masks(f.graph);
        }
        f.graph->loop.external_loss_bytes = which == 2 ? 33 * MIB : 0;
        f.graph->loop.outputs_held = f.graph->loop.gradients_live_in_forward = which == 3;
        ms_graph_pend(f.graph, which % 3 == 2 ? 2 : 0);
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < BUDGETS; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
            check_parts(plan);
            ms_plan_free(plan);
        }
        f.config.memory_budget_bytes = MS_UNSET;
        f.config.force_optimize = true;
        ms_plan *forced = fixture_plan_at(&f, MS_UNSET);
        check_parts(forced);
        ms_plan_free(forced);
        fixture_close(&f);
    }
}

static void uniform_plans_and_gpus_are_explained_too(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(fixture_graph(3));
    for (int technique = MS_TECHNIQUE_KEEP; technique < MS_TECHNIQUE_COUNT; technique++) {
        ms_plan *plan;
        ms_error err;
        assert_ms_ok(ms_plan_uniform(f.graph, f.hardware, &f.config, (ms_technique)technique, &plan, &err), err);
        check_parts(plan);
        ms_plan_free(plan);
    }
    fixture_use_card(f.hardware, 12000000000);
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    for (uint64_t k = 0; k < BUDGETS; k++) {
        ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
        check_parts(plan);
        ms_plan_free(plan);
    }
    fixture_close(&f);
}

/* Bytes of one kind, of one node or, with MS_NO_NODE, of all. */
static uint64_t bytes_of(const ms_plan *plan, ms_peak_kind kind, uint32_t node)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->why.part_count; i++) {
        const ms_peak_part *part = &plan->why.parts[i];
        bytes += part->kind == kind && (node == MS_NO_NODE || part->node == node) ? part->bytes : 0;
    }
    return bytes;
}

static void parts_agree_with_the_graph(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(small_chain(true));
    f.hardware->process = (ms_process){.baseline_bytes = 300 * MIB, .scratch_bytes = 7 * MIB};
    ms_plan *plan = fixture_plan_at(&f, 100000 * MIB);
    /* Everything is kept. The peak is in the loss's backward: log-softmax, the scattered
     * gradient and the final one. The head saved the last activation. */
    assert_int_equal(plan->why.peak_phase, MS_PHASE_BACKWARD);
    assert_int_equal(plan->replay.peak_node, 4);
    assert_int_equal(plan->why.peak_event, 4); /* ALLOC of the final gradient */
    assert_false(plan->why.peak_again);
    assert_int_equal(bytes_of(plan, MS_PEAK_LOGITS, MS_NO_NODE), 3 * 30 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_SAVED, 1), (60 + 8) * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_SAVED, 2), (20 + 8) * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_SAVED, 3), (90 + 8) * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_SAVED, 4), 8 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_PARAMETERS, MS_NO_NODE), 50 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_RUNTIME, MS_NO_NODE), 250 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_WORKSPACE, MS_NO_NODE), 7 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_OPTIMIZER_STATE, MS_NO_NODE), 100 * MIB);
    assert_int_equal(bytes_of(plan, MS_PEAK_GRADIENTS, MS_NO_NODE), 0);
    ms_plan_free(plan);
    fixture_close(&f);
}

/* A forced plan with recomputation only, while layer 2 runs again: its arguments and those before it are
 * held, and no gradient yet. */
static void recomputed_tensors_have_their_own_part(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(small_chain(false));
    f.config.mode = MS_MODE_CONSERVATIVE;
    f.config.force_optimize = true;
    ms_plan *plan = fixture_plan_at(&f, MS_UNSET);
    assert_int_equal(plan->replay.peak_node, 3);
    assert_int_equal(plan->entries[3].technique, MS_TECHNIQUE_RECOMPUTE);
    assert_int_equal(bytes_of(plan, MS_PEAK_REBUILT, 3), 90 * MIB);
    for (uint32_t node = 1; node <= 3; node++) {
        assert_int_equal(bytes_of(plan, MS_PEAK_ARGUMENTS, node), 8 * MIB);
    }
    assert_int_equal(bytes_of(plan, MS_PEAK_SAVED, MS_NO_NODE), 0);
    ms_plan_free(plan);
    fixture_close(&f);
}

/* Offloaded layers: transfers in flight, fetched tensors and the slab. */
static void moving_tensors_have_their_own_parts(void **state)
{
    (void)state;
    uint64_t fetched = 0, storing = 0, moving = 0;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(fixture_graph(which));
        f.config.enable_checkpointing = false;
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < BUDGETS; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
            /* Maps move without the slab. */
            assert_int_equal(bytes_of(plan, MS_PEAK_SLAB, MS_NO_NODE),
                             plan->offload_min_bytes < MIB ? plan->slab_bytes : 0);
            assert_true(plan->slab_bytes == 0 || plan->reserve_bytes >= plan->slab_bytes);
            fetched += bytes_of(plan, MS_PEAK_FETCHED, MS_NO_NODE);
            storing += bytes_of(plan, MS_PEAK_STORING, MS_NO_NODE);
            moving += plan->replay.moved_bytes > 0;
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
    assert_true(moving > 0 && fetched > 0 && storing > 0);
}

/* ---- runner-ups ------------------------------------------------------------------------------ */

static bool moves(const uint8_t *techniques, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ms_technique_moves((ms_technique)techniques[i])) {
            return true;
        }
    }
    return false;
}

/* The plan with other techniques, without a cache; step time with the cache that the plan's time assumes. */
static ms_replay replay_with(const fixture_planning *f, const ms_plan *plan, const uint8_t *techniques)
{
    ms_choices choices = {.technique = techniques,
                          .step_options = ms_plan_step_options(plan),
                          .offload_min_bytes = plan->offload_min_bytes,
                          .write_window_bytes = plan->write_window_bytes,
                          .read_window_bytes = plan->read_window_bytes};
    ms_replay replay, cached;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
    uint64_t slab_bytes = (plan->offload_min_bytes < MIB ? 32 : 16) * MIB;
    uint64_t fixed =
        f->graph->residents.parameter_bytes + runtime_bytes + (moves(techniques, plan->entry_count) ? slab_bytes : 0);
    uint64_t left = plan->why.timed_bytes > fixed ? plan->why.timed_bytes - fixed : 0;
    uint64_t live = replay.peak_bytes - fixed;
    choices.ceiling_bytes = left > live ? left : live;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &cached, NULL, &err), err);
    replay.step_ns = cached.step_ns;
    return replay;
}

enum { NODES_MOST = 256 };

typedef struct rated {
    fixture_planning *f;
    const ms_plan *plan;
    uint8_t techniques[NODES_MOST];
    ms_admission admissions[NODES_MOST];
} rated;

static rated rate(fixture_planning *f, const ms_plan *plan)
{
    rated r = {.f = f, .plan = plan};
    ms_error err;
    assert_true(plan->entry_count <= NODES_MOST);
    assert_ms_ok(ms_rules_admit(f->graph, f->hardware, &f->config, &plan->pressure, r.admissions, &err), err);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        r.techniques[i] = (uint8_t)plan->entries[i].technique;
    }
    return r;
}

/* The runner-up is the fastest that fits, of the other admitted techniques. */
static void check_runner_up(rated *r, uint32_t i)
{
    const ms_plan *plan = r->plan;
    const ms_plan_entry *entry = &plan->entries[i];
    bool fits = entry->runner_up_peak_bytes <= plan->pressure.allowed_bytes;
    for (uint32_t other = 0; other < MS_TECHNIQUE_COUNT; other++) {
        if (other == entry->technique || (r->admissions[i].under_pressure & 1u << other) == 0) {
            continue;
        }
        r->techniques[i] = (uint8_t)other;
        ms_replay replay = replay_with(r->f, plan, r->techniques);
        assert_true(entry->runner_up != entry->technique);
        if (other == entry->runner_up) {
            assert_int_equal(replay.step_ns, entry->runner_up_ns);
            assert_int_equal(replay.peak_bytes, entry->runner_up_peak_bytes);
        }
        bool other_fits = replay.peak_bytes <= plan->pressure.allowed_bytes;
        assert_true(fits ? !other_fits || replay.step_ns >= entry->runner_up_ns : !other_fits);
        if (other == MS_TECHNIQUE_KEEP) {
            uint64_t cost = plan->replay.step_ns > replay.step_ns ? plan->replay.step_ns - replay.step_ns : 0;
            assert_int_equal(cost, entry->cost_ns);
        }
    }
    r->techniques[i] = (uint8_t)entry->technique;
}

static void check_runner_ups(fixture_planning *f, const ms_plan *plan)
{
    rated r = rate(f, plan);
    assert_int_equal(replay_with(f, plan, r.techniques).step_ns, plan->replay.step_ns);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        check_runner_up(&r, i);
    }
}

static void runner_ups_take_the_time_of_their_replay(void **state)
{
    (void)state;
    static const int graphs[] = {0, 2, 3};
    for (size_t g = 0; g < sizeof graphs / sizeof graphs[0]; g++) {
        fixture_planning f = fixture_open(fixture_graph(graphs[g]));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < 8; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need * 9 / 10, k));
            if (!plan->skipped) {
                check_runner_ups(&f, plan);
            }
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

/* Pairs of neighbours share a program; every fifth can't be recomputed. */
static fixture_planning long_chain(void)
{
    enum { LAYERS = 150 };
    fixture_layer layers[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        layers[i] = (fixture_layer){.saved_bytes = (10 + (i + 1) / 2 % 3 * 7) * MIB,
                                    .temp_bytes = 2 * MIB,
                                    .flops = 100000000 * (1 + (i + 1) / 2 % 4),
                                    .gradient_bytes = MIB,
                                    .flags = i % 5 == 4 ? MS_NODE_MUTATES_INPUT : 0};
    }
    fixture_chain chain = {.layer_count = LAYERS, .layers = layers, .activation_bytes = 2 * MIB, .logits_bytes = MIB};
    fixture_planning f = fixture_open(fixture_chain_graph(&chain));
    for (uint32_t i = 2; i < LAYERS; i += 2) {
        f.graph->nodes[i + 1].profile = f.graph->nodes[i].profile;
    }
    f.config.search_permille = 30;
    return f;
}

/* Of more than 128 nodes, one that is like the node before shares its figures; any other has its own. */
static void entries_of_long_chains_share_figures_with_equal_neighbours_only(void **state)
{
    (void)state;
    fixture_planning f = long_chain();
    uint32_t shared = 0, own = 0;
    ms_plan *plan = fixture_plan_at(&f, (fixture_smallest_budget(&f) + fixture_need(&f)) / 2);
    rated r = rate(&f, plan);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i], *before = i > 0 ? entry - 1 : NULL;
        bool alike = i % 2 == 1 && entry->technique == before->technique &&
                     f.graph->nodes[i].profile == f.graph->nodes[i - 1].profile &&
                     r.admissions[i].under_pressure == r.admissions[i - 1].under_pressure;
        if (alike) {
            assert_int_equal(entry->runner_up, before->runner_up);
            assert_int_equal(entry->runner_up_ns, before->runner_up_ns);
            assert_int_equal(entry->saved_bytes, before->saved_bytes);
            assert_int_equal(entry->cost_ns, before->cost_ns);
            shared++;
        } else {
            check_runner_up(&r, i);
            own += i % 2;
        }
    }
    assert_true(shared > 10 && own > 10);
    ms_plan_free(plan);
    fixture_close(&f);
}

/* ---- neighbours ------------------------------------------------------------------------------- */

static bool same_choices(const ms_plan *a, const ms_plan *b)
{
    bool same = ms_plan_step_options(a) == ms_plan_step_options(b) && a->write_window_bytes == b->write_window_bytes &&
                a->read_window_bytes == b->read_window_bytes;
    for (uint32_t i = 0; i < a->entry_count; i++) {
        same = same && a->entries[i].technique == b->entries[i].technique;
    }
    return same;
}

static void check_neighbour(fixture_planning *f, const ms_plan *plan, const ms_neighbour *said, bool larger)
{
    ms_plan *there = fixture_plan_at(f, said->budget_bytes);
    ms_plan *near = fixture_plan_at(f, larger ? said->budget_bytes - 1 : said->budget_bytes + 1);
    assert_int_equal(there->replay.peak_bytes, said->peak_bytes);
    assert_int_equal(there->replay.step_ns, said->step_ns);
    assert_true(there->skipped || !same_choices(there, plan));
    assert_true(same_choices(near, plan));
    assert_true(larger ? said->budget_bytes > plan->pressure.allowed_bytes
                       : said->budget_bytes < plan->pressure.allowed_bytes);
    assert_true(larger ? said->step_ns <= plan->replay.step_ns : said->step_ns >= plan->replay.step_ns);
    ms_plan_free(there);
    ms_plan_free(near);
}

static void neighbouring_budgets_give_the_stated_plans(void **state)
{
    (void)state;
    uint32_t larger = 0, smaller = 0;
    for (int which = 0; which <= FIXTURE_GRAPHS; which++) {
        fixture_planning f = fixture_open(which < FIXTURE_GRAPHS ? fixture_graph(which) : small_chain(true));
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
        for (uint64_t k = 0; k < 6; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, 2 * k));
            if (plan->why.larger.budget_bytes > 0) {
                check_neighbour(&f, plan, &plan->why.larger, true);
                larger++;
            }
            if (plan->why.smaller.budget_bytes > 0) {
                check_neighbour(&f, plan, &plan->why.smaller, false);
                smaller++;
            } else if (!plan->skipped) {
                ms_plan *least = fixture_plan_at(&f, smallest); /* no smaller budget has another plan */
                assert_true(same_choices(least, plan));
                ms_plan_free(least);
            }
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
    assert_true(larger > 6 && smaller > 6);
}

/* A card's plan tells its owners, whose bytes are the peak's, and the plan for 1 GB more. */
static void a_cards_plan_tells_what_a_gigabyte_would_buy(void **state)
{
    (void)state;
    uint32_t gains = 0;
    static const fixture_layer layer = {512 * MIB, 64 * MIB, 100000000, 64 * MIB, 0, 0};
    fixture_chain chain = {.layer_count = 8, .layers = &layer, .uniform = true, .activation_bytes = 64 * MIB};
    fixture_planning f = fixture_open(fixture_chain_graph(&chain));
    fixture_use_card(f.hardware, 1200000000);
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    for (uint64_t budget = smallest; budget < need; budget += (need - smallest) / 5 + 1) {
        ms_plan *plan = fixture_plan_at(&f, budget);
        const ms_neighbour *said = &plan->why.gigabyte;
        if (!plan->skipped) {
            assert_int_equal(said->budget_bytes, budget + 1000000000);
            ms_plan *there = fixture_plan_at(&f, said->budget_bytes);
            assert_true(there->skipped || there->replay.step_ns == said->step_ns);
            char *text = ms_plan_explain(plan, -1);
            assert_non_null(strstr(text, "  owners    "));
            assert_non_null(strstr(text, "1 GB more"));
            gains += said->step_ns < plan->replay.step_ns;
            ms_free(text);
            ms_plan_free(there);
        }
        ms_plan_free(plan);
    }
    assert_true(gains > 2);
    fixture_close(&f);
}

/* ---- the bound ---------------------------------------------------------------------------------- */

/* The best step time of all assignments that fit, without page faults; UINT64_MAX: none. */
static uint64_t exhaustive(fixture_planning *f, const ms_pressure *pressure, uint32_t step_options)
{
    ms_admission admissions[16];
    uint8_t techniques[16] = {0};
    uint32_t count = f->graph->node_count;
    uint64_t best = UINT64_MAX;
    ms_error err;
    assert_ms_ok(ms_rules_admit(f->graph, f->hardware, &f->config, pressure, admissions, &err), err);
    for (;;) {
        bool admitted = true;
        for (uint32_t i = 0; i < count; i++) {
            admitted = admitted && (admissions[i].under_pressure & 1u << techniques[i]) != 0;
        }
        ms_choices choices = {.technique = techniques,
                              .step_options = step_options,
                              .offload_min_bytes = MS_OFFLOAD_MIN_BYTES,
                              .write_window_bytes = 64 * MIB,
                              .read_window_bytes = 64 * MIB};
        ms_replay replay;
        if (admitted) {
            assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
            uint64_t ns = replay.step_ns - replay.fault_ns;
            best = replay.peak_bytes <= pressure->allowed_bytes && ns < best ? ns : best;
        }
        uint32_t at = 0;
        while (at < count && ++techniques[at] == MS_TECHNIQUE_COUNT) {
            techniques[at++] = 0;
        }
        if (at == count) {
            return best;
        }
    }
}

static void no_assignment_that_fits_beats_the_bound(void **state)
{
    (void)state;
    static const ms_mode modes[] = {MS_MODE_CONSERVATIVE, MS_MODE_BALANCED};
    for (size_t m = 0; m < 2; m++) {
        fixture_planning f = fixture_open(small_chain(false));
        f.config.mode = modes[m];
        uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f), last = UINT64_MAX;
        for (uint64_t k = 0; k < BUDGETS; k++) {
            ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
            uint64_t bound = plan->why.lower_bound_ns;
            if (!plan->skipped) {
                assert_true(bound <= exhaustive(&f, &plan->pressure, 0));
            }
            assert_true(bound > 0 && bound <= plan->replay.step_ns);
            assert_true(bound <= last); /* more room never raises the bound */
            last = bound;
            ms_plan_free(plan);
        }
        fixture_close(&f);
    }
}

/* With recomputation alone, a layer releases its inner result for the time of its forward, and its input
 * unless the layer before keeps it. */
static void the_bound_counts_the_cheapest_bytes(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(small_chain(false));
    ms_free(f.hardware);
    f.hardware = fixture_hardware();
    f.config.mode = MS_MODE_CONSERVATIVE;
    uint64_t need = fixture_need(&f);
    ms_plan *kept = fixture_plan_at(&f, 2 * need), *plan = fixture_plan_at(&f, need - 30 * MIB);
    uint64_t work = kept->replay.step_ns;
    /* The layers free 60 MiB for 2 x 2 s, 20 for 2 x 1 s and 90 for 2 x 9 s, so the first is the cheapest. 30 of its
     * 60 MiB cost half the time of its forward up to the last save. */
    uint64_t first_save_ns = 2000000000;
    uint64_t over = plan->why.lower_bound_ns - work, expected = first_save_ns / 2;
    assert_true(over + 10000 >= expected && over <= expected + 10000);
    assert_true(plan->replay.step_ns >= plan->why.lower_bound_ns);
    ms_plan_free(kept);
    ms_plan_free(plan);
    fixture_close(&f);
}

static void step_options_lower_the_bound(void **state)
{
    (void)state;
    fixture_planning f = fixture_open(small_chain(true));
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    for (uint64_t k = 0; k < BUDGETS; k++) {
        ms_plan *plan = fixture_plan_at(&f, budget_number(smallest, need, k));
        uint32_t head = 1u << MS_STEP_EXACT_LOSS_HEAD;
        if (!plan->skipped) {
            assert_true(plan->why.lower_bound_ns <= exhaustive(&f, &plan->pressure, 0));
            assert_true(plan->why.lower_bound_ns <= exhaustive(&f, &plan->pressure, head));
        }
        ms_plan_free(plan);
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_of_long_chains_share_figures_with_equal_neighbours_only),
        cmocka_unit_test(parts_sum_to_the_peak_at_every_budget),
        cmocka_unit_test(uniform_plans_and_gpus_are_explained_too),
        cmocka_unit_test(parts_agree_with_the_graph),
        cmocka_unit_test(recomputed_tensors_have_their_own_part),
        cmocka_unit_test(moving_tensors_have_their_own_parts),
        cmocka_unit_test(runner_ups_take_the_time_of_their_replay),
        cmocka_unit_test(neighbouring_budgets_give_the_stated_plans),
        cmocka_unit_test(a_cards_plan_tells_what_a_gigabyte_would_buy),
        cmocka_unit_test(no_assignment_that_fits_beats_the_bound),
        cmocka_unit_test(the_bound_counts_the_cheapest_bytes),
        cmocka_unit_test(step_options_lower_the_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
