/*
 * The chunked loss head as an option of the step: tokens x vocabulary never exists, and the head is chosen
 * only if enabled and if nothing exact fits.
 */
#include <math.h>

#include "memscale/loss.h"
#include "memscale/pipeline.h"
#include "plan_fixture.h"
#include "sim/step_options.h"

enum { LAYERS = 6 };
#define LOGITS (400 * MIB)
#define ACTIVATION (8 * MIB)
#define WEIGHT (30 * MIB)
static const uint32_t chunked_bit = 1u << MS_STEP_CHUNKED_LOSS_HEAD;
static const uint32_t exact_bit = 1u << MS_STEP_EXACT_LOSS_HEAD;

/* Techniques: keep everywhere. */
static const uint8_t keep[LAYERS + 2];

typedef fixture_planning fixture;

static ms_graph *make_graph(bool marks_head, bool is_half)
{
    const fixture_layer layer = {
        .saved_bytes = 50 * MIB, .temp_bytes = 10 * MIB, .flops = 5000000, .gradient_bytes = 4 * MIB};
    const fixture_chain chain = {.layer_count = LAYERS,
                                 .layers = &layer,
                                 .uniform = true,
                                 .activation_bytes = ACTIVATION,
                                 .logits_bytes = LOGITS,
                                 .parameter_bytes = 40 * MIB,
                                 .state_bytes = 80 * MIB,
                                 .marks_loss = true,
                                 .marks_head = marks_head,
                                 .head_bytes = WEIGHT,
                                 .is_half = is_half};
    return fixture_chain_graph(&chain);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *f = fixture_open(make_graph(true, false));
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

static void use_graph(fixture *f, bool marks_head, bool is_half)
{
    ms_graph_free(f->graph);
    f->graph = make_graph(marks_head, is_half);
}

static uint64_t smallest_exact_budget(const fixture *f)
{
    fixture exact = *f;
    exact.config.enable_tiling = false;
    return fixture_smallest_budget(&exact);
}

/* ---- its effect -------------------------------------------------------------------------------- */

/* Without it: log-softmax, scattered gradient and gradient. With it: a chunk and its exponentials, and the
 * gradients of the layer's operands, which forward makes. */
static void tokens_by_vocabulary_never_exists(void **state)
{
    fixture *f = *state;
    uint64_t with_bytes = 2 * MS__LOSS_CHUNK_BYTES + ACTIVATION + WEIGHT;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, chunked_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, 3 * LOGITS - with_bytes);
    assert_int_equal(with.peak_node, LAYERS + 1);
    assert_false(with.peak_in_backward);
}

/* A 16-bit layer sums its weight gradient in 32 bits. The simulator doesn't distinguish the two products, so it
 * counts the input's gradient too. */
static void a_16_bit_layer_sums_in_32(void **state)
{
    fixture *f = *state;
    use_graph(f, true, true);
    uint64_t sums = 2 * (WEIGHT + ACTIVATION), chunk = MS__LOSS_CHUNK_BYTES;
    uint64_t with_bytes = chunk + chunk / 2 + sums + sums / 2 + ACTIVATION + sums;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, chunked_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, 3 * LOGITS - with_bytes);
}

static void swap_numbers(ms_event *events, uint32_t count, uint32_t one, uint32_t other)
{
    for (uint32_t i = 0; i < count; i++) {
        bool is_one = events[i].storage == one, is_other = events[i].storage == other;
        events[i].storage = is_one ? other : is_other ? one : events[i].storage;
    }
}

/* The weight's gradient, local 7, becomes a parameter's: local 3. It is final before its layer's backward ends. */
static void make_gradient_of_weight(ms_graph *graph)
{
    const uint32_t number = 3;
    ms_node *node = &graph->nodes[graph->node_count - 1];
    ms_profile *profile = &graph->profiles[node->profile];
    swap_numbers(profile->forward, profile->forward_count, number, 7);
    swap_numbers(profile->backward, profile->backward_count, number, 7);
    profile->storage_bytes[7] = profile->storage_bytes[number];
    profile->storage_bytes[number] = WEIGHT;
    assert_int_equal(profile->external_count++, number);
    node->externals = ms_realloc_array(node->externals, profile->external_count, sizeof *node->externals);
    node->externals[number] = graph->storage_count;
    graph->storages = ms_realloc_array(graph->storages, graph->storage_count + 1, sizeof *graph->storages);
    graph->storages[graph->storage_count++] = (ms_storage){.bytes = WEIGHT,
                                                           .role = MS_STORAGE_GRADIENT,
                                                           .first_node = graph->node_count - 1,
                                                           .last_node = graph->node_count - 1};
    profile->backward = ms_realloc_array(profile->backward, profile->backward_count + 1, sizeof *profile->backward);
    profile->backward[profile->backward_count] = profile->backward[profile->backward_count - 1];
    profile->backward[profile->backward_count++ - 1] = (ms_event){.kind = MS_EVENT_FINAL, .storage = number};
}

static void a_released_gradient_is_there_from_the_first_chunk_on(void **state)
{
    fixture *f = *state;
    ms_error err;
    const uint32_t release_bit = 1u << MS_STEP_GRADIENT_RELEASE;
    make_gradient_of_weight(f->graph);
    assert_ms_ok(ms_graph_check(f->graph, &err), err);
    f->graph->loop.gradients_live_in_forward = false;
    ms_replay kept = fixture_simulate(f, keep, chunked_bit);
    ms_replay released = fixture_simulate(f, keep, chunked_bit | release_bit);
    assert_int_equal(released.peak_live_bytes, kept.peak_live_bytes); /* at the chunks, before any release */
}

/* The chunks' work replaces the cross entropy's; the products stay. */
static void the_chunks_work_counts(void **state)
{
    fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, chunked_bit);
    uint64_t chunks = (LOGITS + MS__LOSS_CHUNK_BYTES - 1) / MS__LOSS_CHUNK_BYTES;
    uint64_t moved = 10 * LOGITS + 2 * chunks * WEIGHT;
    uint64_t moved_ns = moved * 1000 / 28;
    assert_in_range(with.compute_ns - with.fault_ns + 200000, without.compute_ns - without.fault_ns + moved_ns / 1000,
                    without.compute_ns - without.fault_ns + moved_ns / 1000 + 400000);
}

static void chunk_bytes_equal_the_loss_heads(void **state)
{
    (void)state;
    uint64_t rows = ms_loss_chunk_rows(1 << 20, 4096, 4, 2);
    assert_int_equal(rows * 4096 * 4, MS__LOSS_CHUNK_BYTES);
}

/* ---- a tied weight -------------------------------------------------------------------------------- */

/* The local number of a storage if 7, the weight's gradient, becomes the last external. */
static uint32_t moved(uint32_t local)
{
    return local == 7 ? 3 : local >= 3 && local < 7 ? local + 1 : local;
}

static void bind(ms_graph *graph, ms_node *node, uint32_t storage)
{
    uint32_t count = graph->profiles[node->profile].external_count++;
    node->externals = ms_realloc_array(node->externals, count + 1, sizeof *node->externals);
    node->externals[count] = storage;
}

/* The gradient of the head's weight passes to the first node, which adds the embedding's. */
static void tie(ms_graph *graph, uint64_t weight_bytes)
{
    enum { COUNT = 7 };
    static const ms_event by_embedding[COUNT] = {
        {.kind = MS_EVENT_ALLOC, .storage = 4}, {.kind = MS_EVENT_WORK, .bytes = 1000},
        {.kind = MS_EVENT_ALLOC, .storage = 3}, {.kind = MS_EVENT_WORK, .bytes = 1000},
        {.kind = MS_EVENT_FREE, .storage = 2},  {.kind = MS_EVENT_FREE, .storage = 4},
        {.kind = MS_EVENT_FREE, .storage = 1}};
    ms_profile *head = &graph->profiles[2], *embed = &graph->profiles[1];
    for (uint32_t i = 0; i < head->forward_count; i++) {
        head->forward[i].storage = moved(head->forward[i].storage);
    }
    for (uint32_t i = 0; i < head->backward_count; i++) {
        head->backward[i].storage = moved(head->backward[i].storage);
    }
    head->storage_bytes[3] = weight_bytes;
    head->storage_bytes[7] = LOGITS;
    uint32_t first = graph->storage_count;
    graph->storages = ms_realloc_array(graph->storages, first + 2, sizeof *graph->storages);
    graph->storages[first] =
        (ms_storage){.bytes = weight_bytes, .role = MS_STORAGE_ACTIVATION, .first_node = LAYERS + 1, .last_node = 0};
    graph->storages[first + 1] = (ms_storage){.bytes = weight_bytes, .role = MS_STORAGE_GRADIENT};
    graph->storage_count += 2;
    bind(graph, &graph->nodes[LAYERS + 1], first);
    bind(graph, &graph->nodes[0], first);
    bind(graph, &graph->nodes[0], first + 1);
    embed->storage_count = 5;
    embed->storage_bytes = ms_realloc_array(embed->storage_bytes, 5, sizeof *embed->storage_bytes);
    embed->storage_bytes[2] = embed->storage_bytes[3] = embed->storage_bytes[4] = weight_bytes;
    embed->backward = ms_realloc_array(embed->backward, COUNT, sizeof *embed->backward);
    memcpy(embed->backward, by_embedding, sizeof by_embedding);
    embed->backward_count = COUNT;
    ms_error err;
    assert_ms_ok(ms_graph_check(graph, &err), err);
}

/* Autograd adds the embedding's gradient to the head's in place, but not to the layer's own, which is a
 * view. */
static void a_tied_weight_has_two_gradients_at_most(void **state)
{
    fixture *f = *state;
    const uint64_t weight = 2000 * MIB, rest = 120 * MIB + LAYERS * 4 * MIB + ACTIVATION + 4;
    tie(f->graph, weight);
    ms_replay without = fixture_simulate(f, keep, exact_bit), with = fixture_simulate(f, keep, chunked_bit);
    assert_int_equal(without.peak_node, 0);
    assert_int_equal(without.peak_live_bytes, rest + 3 * weight);
    assert_int_equal(with.peak_node, 0);
    assert_int_equal(with.peak_live_bytes, rest + 2 * weight);
}

/* The logits as an output of the model that no caller keeps. */
static void returned_logits_are_removed_too(void **state)
{
    fixture *f = *state;
    ms_replay local = fixture_simulate(f, keep, chunked_bit);
    ms_profile *head = &f->graph->profiles[2];
    ms_node *node = &f->graph->nodes[LAYERS + 1];
    f->graph->storages = ms_realloc_array(f->graph->storages, f->graph->storage_count + 1, sizeof *f->graph->storages);
    f->graph->storages[f->graph->storage_count] =
        (ms_storage){.bytes = LOGITS, .role = MS_STORAGE_OUTPUT, .first_node = LAYERS + 1, .last_node = LAYERS + 1};
    node->externals = ms_realloc_array(node->externals, 4, sizeof *node->externals);
    node->externals[3] = f->graph->storage_count++;
    head->external_count = 4;
    ms_error err;
    assert_ms_ok(ms_graph_check(f->graph, &err), err);
    f->graph->loop.outputs_held = true;
    ms_replay returned = fixture_simulate(f, keep, chunked_bit);
    assert_in_range(returned.peak_live_bytes, local.peak_live_bytes, local.peak_live_bytes + 4096);
}

/* ---- when it is chosen ----------------------------------------------------------------------------- */

static void assert_off(const fixture *f, uint64_t budget_bytes, ms_rule rule)
{
    ms_plan *plan = fixture_plan_at(f, budget_bytes);
    const ms_plan_option *option = &plan->step_options[MS_STEP_CHUNKED_LOSS_HEAD];
    assert_false(option->chosen);
    assert_string_equal(ms_rule_name((ms_rule)option->rule), ms_rule_name(rule));
    ms_plan_free(plan);
}

static void it_fits_smaller_budgets(void **state)
{
    const fixture *f = *state;
    uint64_t with = fixture_smallest_budget(f), without = smallest_exact_budget(f);
    assert_true(with + LOGITS / 2 < without);
    ms_plan *plan = fixture_plan_at(f, with);
    assert_true(plan->step_options[MS_STEP_CHUNKED_LOSS_HEAD].chosen);
    assert_false(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].chosen);
    assert_true(plan->replay.peak_bytes <= with);
    assert_int_equal(ms_plan_step_options(plan), chunked_bit);
    ms_plan_free(plan);
}

/* From the smallest exact budget on, the flag changes nothing; below, it is needed. */
static void exact_budgets_do_not_use_it(void **state)
{
    fixture *f = *state;
    uint64_t exact = smallest_exact_budget(f);
    for (uint64_t budget = exact; budget < 3 * exact; budget += exact / 7) {
        ms_plan *with = fixture_plan_at(f, budget);
        assert_false(with->step_options[MS_STEP_CHUNKED_LOSS_HEAD].chosen);
        if (!with->skipped) {
            assert_int_equal(with->step_options[MS_STEP_CHUNKED_LOSS_HEAD].rule, MS_RULE_EXACT_FITS);
        }
        f->config.enable_tiling = false;
        ms_plan *without = fixture_plan_at(f, budget);
        f->config.enable_tiling = true;
        assert_int_equal(with->replay.step_ns, without->replay.step_ns);
        assert_int_equal(with->replay.peak_bytes, without->replay.peak_bytes);
        ms_plan_free(with);
        ms_plan_free(without);
    }
    ms_plan *below = fixture_plan_at(f, exact - 1);
    assert_true(below->step_options[MS_STEP_CHUNKED_LOSS_HEAD].chosen);
    ms_plan_free(below);
}

/* In an unobserved loop, relaxing an assumption comes before rounding. */
static void the_same_holds_before_the_loop_is_observed(void **state)
{
    fixture *f = *state;
    f->graph->loop.observed = false;
    exact_budgets_do_not_use_it(state);
}

static void plans_below_exact_budgets_are_monotone(void **state)
{
    const fixture *f = *state;
    uint64_t smallest = fixture_smallest_budget(f), exact = smallest_exact_budget(f), slower_ns = UINT64_MAX;
    for (uint64_t budget = smallest; budget < exact; budget += (exact - smallest) / 9 + 1) {
        ms_plan *plan = fixture_plan_at(f, budget);
        assert_true(plan->replay.peak_bytes <= budget);
        assert_true(plan->replay.step_ns <= slower_ns);
        slower_ns = plan->replay.step_ns;
        ms_plan_free(plan);
    }
}

static void the_next_larger_budget_is_the_exact_one(void **state)
{
    const fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, smallest_exact_budget(f) - 1);
    assert_true(plan->why.known);
    ms_plan *next = fixture_plan_at(f, plan->why.larger.budget_bytes);
    assert_false(next->step_options[MS_STEP_CHUNKED_LOSS_HEAD].chosen);
    ms_plan_free(next);
    ms_plan_free(plan);
}

static void the_flag_and_the_mode_refuse_it(void **state)
{
    fixture *f = *state;
    uint64_t exact = smallest_exact_budget(f);
    f->config.enable_tiling = false;
    assert_off(f, exact, MS_RULE_FLAG_OFF);
    f->config.enable_tiling = true;
    f->config.mode = MS_MODE_CONSERVATIVE;
    assert_off(f, fixture_smallest_budget(f), MS_RULE_MODE);
    f->config.mode = MS_MODE_BALANCED;
    assert_off(f, 100000 * MIB, MS_RULE_COMFORTABLE);
}

/* A refusal without the flag names the flag's budget; one with it does not. */
static void a_refusal_names_the_flag(void **state)
{
    fixture *f = *state;
    ms_error err = {0};
    ms_plan *none;
    double with_gb = (double)fixture_smallest_budget(f) / 1e9;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_null(strstr(err.text, "enable_tiling"));
    f->config.enable_tiling = false;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    const char *at = strstr(err.text, "with enable_tiling=True ");
    assert_non_null(at);
    char unit[3] = "";
    double named = 0;
    at = strstr(at, "it would be ") != NULL ? strstr(at, "it would be ") + strlen("it would be ") : at + 24;
    assert_int_equal(sscanf(at, "%lf %2s", &named, unit), 2);
    named = strcmp(unit, "MB") == 0 ? named / 1000 : named;
    assert_true(fabs(named - with_gb) < 0.006);
    f->config.mode = MS_MODE_CONSERVATIVE; /* which admits no rounding */
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_null(strstr(err.text, "with enable_tiling=True"));
}

static void an_unmarked_layer_has_no_chunked_head(void **state)
{
    fixture *f = *state;
    use_graph(f, false, false);
    assert_off(f, fixture_smallest_budget(f), MS_RULE_NO_PLAIN_HEAD);
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, chunked_bit);
    assert_memory_equal(&without, &with, sizeof with);
}

/* Marks of another storage, or of one that another node uses. */
static void odd_marks_change_nothing(void **state)
{
    fixture *f = *state;
    ms_profile *head = &f->graph->profiles[2];
    head->backward[9].storage = 5;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, chunked_bit);
    assert_memory_equal(&without, &with, sizeof with);
    use_graph(f, true, false);
    f->graph->profiles[2].forward[3].kind = MS_EVENT_LOSS_END;
    without = fixture_simulate(f, keep, 0);
    with = fixture_simulate(f, keep, chunked_bit);
    assert_memory_equal(&without, &with, sizeof with);
}

static void a_forced_plan_takes_the_smaller_head(void **state)
{
    fixture *f = *state;
    f->config.force_optimize = true;
    ms_plan *plan = fixture_plan_at(f, MS_UNSET);
    assert_int_equal(plan->step_options[MS_STEP_CHUNKED_LOSS_HEAD].rule, MS_RULE_FORCED);
    assert_int_equal(ms_plan_step_options(plan), chunked_bit);
    ms_plan_free(plan);
}

static void a_missed_target_takes_it(void **state)
{
    fixture *f = *state;
    f->hardware->ram.limit_bytes = fixture_smallest_budget(f);
    ms_plan *plan = fixture_plan_at(f, MS_UNSET);
    assert_true(plan->over_target);
    assert_true(plan->step_options[MS_STEP_CHUNKED_LOSS_HEAD].chosen);
    ms_plan_free(plan);
}

/* ---- texts
 * ------------------------------------------------------------------------------------------------ */

static void it_is_explained(void **state)
{
    const fixture *f = *state;
    uint64_t exact = smallest_exact_budget(f);
    ms_plan *plan = fixture_plan_at(f, exact - 1), *read;
    fixture_assert_says(ms_plan_explain(plan, -1), "chunked_loss_head is on: ");
    fixture_assert_says(ms_plan_explain(plan, -1), "(rounding; rule pressure)");
    fixture_assert_says(ms_plan_table(plan, f->hardware), "options     chunked_loss_head: frees ");
    ms_error err;
    char *text = ms_plan_to_json(plan);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    assert_memory_equal(plan->step_options, read->step_options, sizeof plan->step_options);
    ms_free(text);
    ms_plan_free(read);
    ms_plan_free(plan);
    plan = fixture_plan_at(f, exact);
    fixture_assert_says(ms_plan_explain(plan, -1), "chunked_loss_head is off: exact_fits - ");
    ms_plan_free(plan);
}

static void its_names_are_stable(void **state)
{
    (void)state;
    assert_string_equal(ms_step_option_name(MS_STEP_CHUNKED_LOSS_HEAD), "chunked_loss_head");
    assert_int_equal(ms_step_option_exactness(MS_STEP_CHUNKED_LOSS_HEAD), MS_ROUNDING);
    assert_false(ms__step_options_agree(chunked_bit | exact_bit));
    assert_true(ms__step_options_agree(chunked_bit));
}

/* Nothing leaks if memory runs out at any allocation. */
static void failed_allocations_leave_no_leak(void **state)
{
    const fixture *f = *state;
    fixture_plan_without_memory(f, fixture_smallest_budget(f));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_by_vocabulary_never_exists),
        TEST(a_16_bit_layer_sums_in_32),
        TEST(a_released_gradient_is_there_from_the_first_chunk_on),
        TEST(the_chunks_work_counts),
        TEST(chunk_bytes_equal_the_loss_heads),
        TEST(a_tied_weight_has_two_gradients_at_most),
        TEST(returned_logits_are_removed_too),
        TEST(it_fits_smaller_budgets),
        TEST(exact_budgets_do_not_use_it),
        TEST(the_same_holds_before_the_loop_is_observed),
        TEST(plans_below_exact_budgets_are_monotone),
        TEST(the_next_larger_budget_is_the_exact_one),
        TEST(the_flag_and_the_mode_refuse_it),
        TEST(a_refusal_names_the_flag),
        TEST(an_unmarked_layer_has_no_chunked_head),
        TEST(odd_marks_change_nothing),
        TEST(a_forced_plan_takes_the_smaller_head),
        TEST(a_missed_target_takes_it),
        TEST(it_is_explained),
        TEST(its_names_are_stable),
        TEST(failed_allocations_leave_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
