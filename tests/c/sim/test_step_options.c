/*
 * Step options: the exact loss head's effect on a step's peak and time, when it is used, and that plans with
 * it keep every plan's promises.
 */
#include <jansson.h>

#include "plan_fixture.h"
#include "sim/step_options.h"

enum { LAYERS = 6 };
#define LOGITS (400 * MIB)
#define ACTIVATION (8 * MIB)
/* The head peaks at its end: the logits and the gradient of its input. */
#define FREED (2 * LOGITS - ACTIVATION)
static const uint32_t head_bit = 1u << MS_STEP_EXACT_LOSS_HEAD;

typedef fixture_planning fixture;

/* Layers that save little besides the logits. */
static ms_graph *make_graph(bool marks_loss)
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
                                 .marks_loss = marks_loss};
    return fixture_chain_graph(&chain);
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->graph = make_graph(true);
    f->hardware = fixture_hardware();
    ms_config_default(&f->config);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(*state);
    free(*state);
    return 0;
}

/* ---- the head's effect ------------------------------------------------------------------------- */

/* In backward: log-softmax, scattered gradient and gradient; with the head, the logits alone. */
static void the_head_keeps_one_buffer_of_three(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, FREED);
    assert_int_equal(without.peak_node, LAYERS + 1);
}

/* The logits as an output of the model, bound as storage 3 of the head's profile. */
static void return_logits(ms_graph *graph)
{
    ms_profile *head = &graph->profiles[2];
    ms_node *node = &graph->nodes[LAYERS + 1];
    graph->storages = ms_realloc_array(graph->storages, graph->storage_count + 1, sizeof *graph->storages);
    graph->storages[graph->storage_count] =
        (ms_storage){.bytes = LOGITS, .role = MS_STORAGE_OUTPUT, .first_node = LAYERS + 1, .last_node = LAYERS + 1};
    node->externals = ms_realloc_array(node->externals, 4, sizeof *node->externals);
    node->externals[3] = graph->storage_count++;
    head->external_count = 4;
    ms_error err;
    assert_ms_ok(ms_graph_check(graph, &err), err);
}

static void returned_logits_are_overwritten_after_their_drop(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    return_logits(f->graph);
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, FREED);
}

/* With the caller's there are four buffers; the head needs one besides the caller's. */
static void logits_that_the_caller_holds_are_not_overwritten(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    return_logits(f->graph);
    ms_replay dropped = fixture_simulate(f, keep, head_bit);
    f->graph->loop.outputs_held = true;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, FREED);
    assert_int_equal(with.peak_live_bytes - dropped.peak_live_bytes, LOGITS); /* libc keeps the loss's memory */
}

/* The region's only work is one pass that reads rows, and one that reads and writes them. */
static void the_heads_work_replaces_the_regions(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    uint64_t operators = 3 * 1000000 + 3 * 2000, head = 2 * 2000;
    assert_int_equal(without.step_ns - with.step_ns, operators - head);
    f->hardware->cpu.stream_bytes_per_s = 1000000000;
    ms_replay moved = fixture_simulate(f, keep, head_bit);
    assert_true(moved.step_ns - with.step_ns >= 3 * LOGITS);
}

/* A saved tensor of the head can be offloaded; the logits that it keeps can't. */
static void the_heads_logits_stay_in_memory(void **state)
{
    fixture *f = *state;
    uint8_t techniques[LAYERS + 2] = {0};
    techniques[LAYERS + 1] = MS_TECHNIQUE_OFFLOAD_DISK;
    ms_replay without = fixture_simulate(f, techniques, 0), with = fixture_simulate(f, techniques, head_bit);
    assert_true(without.moved_bytes >= LOGITS);
    assert_true(with.moved_bytes <= 2 * ACTIVATION);
}

/* Marks without a pair are no head: the backward is of another program, or missing. */
static void unpaired_marks_change_nothing(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    f->graph->profiles[2].backward[0].storage = 5; /* "loss" of another storage */
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    assert_memory_equal(&without, &with, sizeof with);
}

/* ---- the plan ------------------------------------------------------------------------------------- */

static void a_binding_budget_turns_the_head_on(void **state)
{
    fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f));
    const ms_plan_option *option = &plan->step_options[MS_STEP_EXACT_LOSS_HEAD];
    assert_true(option->chosen);
    assert_int_equal(option->rule, MS_RULE_PRESSURE);
    assert_true(option->saved_bytes > LOGITS);
    assert_true(option->gain_ns > 0 && option->cost_ns == 0);
    /* The proof of fit is the replay of exactly these choices. */
    uint8_t techniques[LAYERS + 2];
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        techniques[i] = (uint8_t)plan->entries[i].technique;
    }
    assert_int_equal(ms_plan_step_options(plan), head_bit);
    ms_choices choices = {.technique = techniques,
                          .step_options = ms_plan_step_options(plan),
                          .offload_min_bytes = plan->offload_min_bytes,
                          .write_window_bytes = plan->write_window_bytes,
                          .read_window_bytes = plan->read_window_bytes};
    ms_replay replay;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
    assert_true(replay.peak_bytes <= plan->replay.peak_bytes + plan->reserve_bytes);
    ms_plan_free(plan);
}

/* Without the head, the smallest budget is larger by the head's savings. */
static void the_head_lowers_the_smallest_budget(void **state)
{
    fixture *f = *state;
    uint64_t with = fixture_smallest_budget(f);
    ms_graph_free(f->graph);
    f->graph = make_graph(false); /* two buffers in its backward, no marks */
    uint64_t without = fixture_smallest_budget(f);
    assert_true(without >= with + LOGITS - ACTIVATION);
}

static void a_comfortable_fit_leaves_the_head_off(void **state)
{
    fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, 100000 * MIB);
    assert_true(plan->skipped);
    assert_false(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].chosen);
    assert_int_equal(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].rule, MS_RULE_COMFORTABLE);
    ms_plan_free(plan);
}

static void an_unmarked_step_has_no_head(void **state)
{
    fixture *f = *state;
    ms_graph_free(f->graph);
    f->graph = make_graph(false);
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f));
    assert_false(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].chosen);
    assert_int_equal(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].rule, MS_RULE_NO_LOSS_HEAD);
    ms_plan_free(plan);
}

/* If it matters, the plan says that the caller's loop can use the exact cross entropy. */
static void a_loss_outside_the_model_is_reported(void **state)
{
    fixture *f = *state;
    ms_graph_free(f->graph);
    f->graph = make_graph(false);
    const struct {
        uint64_t bytes;
        ms_rule rule;
    } cases[] = {{4096, MS_RULE_NO_LOSS_HEAD}, {800 * MIB, MS_RULE_LOSS_OUTSIDE}};
    for (size_t i = 0; i < 2; i++) {
        f->graph->loop.external_loss_bytes = cases[i].bytes;
        ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f));
        assert_string_equal(ms_rule_name((ms_rule)plan->step_options[MS_STEP_EXACT_LOSS_HEAD].rule),
                            ms_rule_name(cases[i].rule));
        char *table = ms_plan_table(plan, NULL);
        assert_true((strstr(table, "techniques.cross_entropy") != NULL) == (i == 1));
        ms_free(table);
        ms_plan_free(plan);
    }
}

/* There torch's operators allocate one chunk in forward and two in backward. */
static void on_a_gpu_the_head_takes_two_chunks(void **state)
{
    fixture *f = *state;
    const uint8_t keep[LAYERS + 2] = {0};
    f->hardware->device = 0;
    f->hardware->gpu_count = 1;
    f->hardware->gpu[0] = (ms_gpu){.total_bytes = 64000 * MIB,
                                   .matmul_flops_per_s = 1000000000,
                                   .stream_bytes_per_s = 1000000000,
                                   .to_host_bytes_per_s = 1000000000,
                                   .from_host_bytes_per_s = 1000000000};
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, head_bit);
    assert_int_equal(without.peak_live_bytes - with.peak_live_bytes, 2 * LOGITS - 2 * MS__LOSS_CHUNK_BYTES);
    f->config.force_optimize = true;
    ms_plan *plan = fixture_plan_at(f, MS_UNSET);
    assert_int_equal(plan->step_options[MS_STEP_EXACT_LOSS_HEAD].rule, MS_RULE_FORCED);
    ms_plan_free(plan);
}

/* A larger budget is never slower, and no plan takes more than its budget. */
static void plans_stay_monotone(void **state)
{
    fixture *f = *state;
    ms_free(f->hardware);
    f->hardware = fixture_real_hardware();
    uint64_t smallest = fixture_smallest_budget(f), slower_ns = UINT64_MAX;
    for (uint64_t budget = smallest; budget < 4 * smallest; budget += smallest / 13) {
        ms_plan *plan = fixture_plan_at(f, budget);
        assert_true(plan->replay.peak_bytes + plan->reserve_bytes <= budget);
        assert_true(plan->skipped || plan->replay.step_ns <= slower_ns);
        slower_ns = plan->replay.step_ns;
        ms_plan_free(plan);
    }
}

/* ---- documents and texts ----------------------------------------------------------------------------- */

static void table_and_explanation_name_it(void **state)
{
    fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f));
    fixture_assert_says(ms_plan_table(plan, f->hardware), "options     exact_loss_head: frees ");
    fixture_assert_says(ms_plan_explain(plan, -1), "exact_loss_head is on: ");
    fixture_assert_says(ms_plan_explain(plan, -1), "of the peak and takes ");
    ms_plan_free(plan);
    ms_error err;
    assert_int_equal(fixture_try_plan(f, 1, &plan, &err), MS_EINFEASIBLE);
    assert_non_null(strstr(err.text, "exact_loss_head"));
}

static void the_table_lists_no_option_without_effect(void **state)
{
    fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f));
    ms_plan_option *option = &plan->step_options[MS_STEP_EXACT_LOSS_HEAD];
    option->saved_bytes = 0;
    option->gain_ns = 2000;
    fixture_assert_says(ms_plan_table(plan, f->hardware), "options     exact_loss_head: gains 2.00 us\n");
    option->gain_ns = 0;
    char *table = ms_plan_table(plan, f->hardware);
    assert_null(strstr(table, "exact_loss_head"));
    ms_free(table);
    ms_plan_free(plan);
}

static void options_survive_the_round_trip(void **state)
{
    fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f)), *read;
    ms_error err;
    char *text = ms_plan_to_json(plan);
    assert_ms_ok(ms_plan_parse(text, &read, &err), err);
    assert_memory_equal(plan->step_options, read->step_options, sizeof plan->step_options);
    char *again = ms_plan_to_json(read);
    assert_string_equal(text, again);
    ms_free(text);
    ms_free(again);
    ms_plan_free(read);
    ms_plan_free(plan);
}

/* ms_plan_parse() of a document with a changed first option. */
static void refuse_option(const fixture *f, const char *member, json_t *value, const char *place)
{
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f)), *read;
    ms_error err;
    char *text = ms_plan_to_json(plan);
    json_t *tree = json_loads(text, 0, NULL);
    json_t *option = json_array_get(json_object_get(tree, "step_options"), 0);
    json_object_set_new(option, member, value);
    char *changed = json_dumps(tree, 0);
    assert_ms_fails(ms_plan_parse(changed, &read, &err), MS_EFORMAT, err, place);
    free(changed);
    json_decref(tree);
    ms_free(text);
    ms_plan_free(plan);
}

static void a_document_of_other_options_is_refused(void **state)
{
    const fixture *f = *state;
    refuse_option(f, "name", json_string("magic"), "step_options");
    refuse_option(f, "exactness", json_string("lossy"), "step_options");
    refuse_option(f, "more", json_true(), "step_options");
}

/* An older document without options, or one with an empty list. */
static void a_document_without_options_is_read(void **state)
{
    const fixture *f = *state;
    ms_plan *plan = fixture_plan_at(f, fixture_smallest_budget(f)), *read;
    ms_error err;
    char *text = ms_plan_to_json(plan);
    json_t *tree = json_loads(text, 0, NULL);
    for (int i = 0; i < 2; i++) {
        char *changed = json_dumps(tree, 0);
        if (i == 0) {
            json_array_clear(json_object_get(tree, "step_options"));
        } else {
            json_object_del(tree, "step_options");
        }
        char *shorter = json_dumps(tree, 0);
        assert_string_not_equal(changed, shorter);
        assert_ms_ok(ms_plan_parse(shorter, &read, &err), err);
        assert_false(read->step_options[MS_STEP_EXACT_LOSS_HEAD].chosen);
        ms_plan_free(read);
        free(changed);
        free(shorter);
    }
    json_decref(tree);
    ms_free(text);
    ms_plan_free(plan);
}

static void names_and_classes_are_stable(void **state)
{
    (void)state;
    assert_string_equal(ms_step_option_name(MS_STEP_EXACT_LOSS_HEAD), "exact_loss_head");
    assert_int_equal(ms_step_option_exactness(MS_STEP_EXACT_LOSS_HEAD), MS_EXACT);
    assert_string_equal(ms_step_option_name(MS_STEP_OPTION_COUNT), "unknown");
    assert_int_equal(ms_step_option_exactness(MS_STEP_OPTION_COUNT), MS_LOSSY); /* the worst may be assumed */
    assert_string_equal(ms_exactness_name(MS_ROUNDING), "rounding");
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
        TEST(the_head_keeps_one_buffer_of_three),
        TEST(returned_logits_are_overwritten_after_their_drop),
        TEST(logits_that_the_caller_holds_are_not_overwritten),
        TEST(the_heads_work_replaces_the_regions),
        TEST(the_heads_logits_stay_in_memory),
        TEST(unpaired_marks_change_nothing),
        TEST(a_binding_budget_turns_the_head_on),
        TEST(the_head_lowers_the_smallest_budget),
        TEST(a_comfortable_fit_leaves_the_head_off),
        TEST(an_unmarked_step_has_no_head),
        TEST(a_loss_outside_the_model_is_reported),
        TEST(on_a_gpu_the_head_takes_two_chunks),
        TEST(plans_stay_monotone),
        TEST(table_and_explanation_name_it),
        TEST(the_table_lists_no_option_without_effect),
        TEST(options_survive_the_round_trip),
        TEST(a_document_of_other_options_is_refused),
        TEST(a_document_without_options_is_read),
        TEST(names_and_classes_are_stable),
        TEST(failed_allocations_leave_no_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
