/*
 * The plans of some graphs on some machines are those of plans.golden: a change of the planner shows there which plans
 * it changes, and by how much. `MEMSCALE_WRITE_GOLDEN=1 meson test -C build/test plans` writes the file.
 *
 * A line is a plan: the budget, what it takes and its techniques. The last column is a checksum of its document, its
 * texts, its timeline, and the plan that follows after a small correction.
 */
#include <xxhash.h>

#include "plan_fixture.h"

enum { BUDGETS = 5, NODES_MOST = 64, LINE_MOST = 1024 };

/* ---- what is planned ------------------------------------------------------------------- */

static ms_graph *alike(void)
{
    return fixture_graph(0);
}

static ms_graph *many(void)
{
    return fixture_graph(1);
}

static ms_graph *dear(void)
{
    return fixture_graph(2);
}

static ms_graph *uneven(void)
{
    return fixture_graph(3);
}

static ms_graph *remade(void)
{
    return fixture_graph(5);
}

static fixture_chain chain_of(uint32_t count, const fixture_layer *layer)
{
    return (fixture_chain){.layer_count = count,
                           .layers = layer,
                           .uniform = true,
                           .activation_bytes = 16 * MIB,
                           .logits_bytes = 96 * MIB,
                           .parameter_bytes = 300 * MIB,
                           .state_bytes = 600 * MIB};
}

/* Each layer's argument is the result of the one before. */
static ms_graph *chained(void)
{
    static const fixture_layer layer = {80 * MIB, 12 * MIB, 30000000000, 20 * MIB, MS_NODE_CHAINED};
    fixture_chain chain = chain_of(16, &layer);
    return fixture_chain_graph(&chain);
}

static ms_graph *masks(void)
{
    static const fixture_layer layer = {128 * MIB, 12 * MIB, 60000000000, 20 * MIB, MS_NODE_USES_RNG};
    fixture_chain chain = chain_of(8, &layer);
    ms_graph *graph = fixture_chain_graph(&chain);
    fixture_mark_masks(graph);
    return graph;
}

/* The loss needs more than the layers, and the loop holds outputs and several forwards. */
static ms_graph *large_loss(void)
{
    static const fixture_layer layer = {40 * MIB, 12 * MIB, 20000000000, 20 * MIB, MS_NODE_UPDATES_BUFFERS};
    fixture_chain chain = chain_of(6, &layer);
    chain.logits_bytes = 500 * MIB;
    chain.marks_loss = chain.marks_head = chain.is_half = true;
    chain.head_bytes = 60 * MIB;
    ms_graph *graph = fixture_chain_graph(&chain);
    graph->loop.outputs_held = graph->loop.gradients_live_in_forward = true;
    graph->loop.external_loss_bytes = 30 * MIB;
    ms_graph_pend(graph, 1);
    return graph;
}

/* An optimizer of memscale: its state can lie elsewhere, and it can update parameters in backward. */
static ms_graph *own_optimizer(void)
{
    static const fixture_layer layer = {40 * MIB, 12 * MIB, 20000000000, 60 * MIB, 0};
    fixture_chain chain = chain_of(8, &layer);
    chain.parameter_bytes = 480 * MIB;
    chain.state_bytes = 960 * MIB;
    ms_graph *graph = fixture_chain_graph(&chain);
    graph->residents.largest_parameter_bytes = 60 * MIB;
    graph->loop.optimizer_stream_bytes = 960 * MIB;
    graph->loop.optimizer_made_bytes = 480 * MIB;
    graph->loop.optimizer_transient_bytes = 90 * MIB;
    graph->loop.gradients_releasable = true;
    return graph;
}

/* A traced step: GPT-2 of transformers with 4 layers, 4 x 512 tokens, dropout, `enable_tiling`. */
static ms_graph *traced(const char *file)
{
    char text[1 << 16];
    FILE *in = fopen(test_data(file), "r");
    assert_non_null(in);
    size_t length = fread(text, 1, sizeof text - 1, in);
    assert_int_equal(fclose(in), 0);
    text[length] = '\0';
    ms_graph *graph;
    ms_error err;
    assert_ms_ok(ms_graph_parse(text, &graph, &err), err);
    return graph;
}

static ms_graph *gpt2(void)
{
    return traced("plan/gpt2.json");
}

/* Under autocast. */
static ms_graph *gpt2_bf16(void)
{
    return traced("plan/gpt2_bf16.json");
}

static const struct subject {
    const char *name;
    ms_graph *(*make)(void);
    ms_mode mode;
} subjects[] = {
    {"alike", alike, MS_MODE_BALANCED},
    {"many", many, MS_MODE_BALANCED},
    {"dear", dear, MS_MODE_BALANCED},
    {"uneven", uneven, MS_MODE_BALANCED},
    {"remade", remade, MS_MODE_BALANCED},
    {"chained", chained, MS_MODE_CONSERVATIVE},
    {"masks", masks, MS_MODE_BALANCED},
    {"large loss", large_loss, MS_MODE_AGGRESSIVE},
    {"own optimizer", own_optimizer, MS_MODE_BALANCED},
    {"gpt2", gpt2, MS_MODE_AGGRESSIVE},
    {"gpt2 bf16", gpt2_bf16, MS_MODE_AGGRESSIVE},
};

/* ---- on what ----------------------------------------------------------------------------- */

static void with_a_disk(ms_hardware *hardware)
{
    (void)hardware;
}

static void without_a_disk(ms_hardware *hardware)
{
    hardware->disk.free_bytes = hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 0;
}

static void with_a_card(ms_hardware *hardware)
{
    fixture_use_card(hardware, 12000000000);
}

static const struct machine {
    const char *name;
    void (*set)(ms_hardware *hardware);
} machines[] = {{"disk", with_a_disk}, {"no disk", without_a_disk}, {"card", with_a_card}};

/* ---- lines ------------------------------------------------------------------------------- */

static void hash_text(XXH64_state_t *hash, char *text)
{
    assert_non_null(text);
    XXH64_update(hash, text, strlen(text));
    ms_free(text);
}

static void hash_timeline(XXH64_state_t *hash, const fixture_planning *f, const ms_plan *plan)
{
    uint8_t techniques[NODES_MOST], packed[NODES_MOST];
    ms_sample samples[2 * NODES_MOST];
    assert_true(plan->entry_count <= NODES_MOST);
    ms_plan_copy_choices(plan, techniques, packed);
    ms_choices choices = {.technique = techniques,
                          .packed = packed,
                          .step_options = ms_plan_step_options(plan),
                          .offload_min_bytes = plan->offload_min_bytes,
                          .write_window_bytes = plan->write_window_bytes,
                          .read_window_bytes = plan->read_window_bytes,
                          .ceiling_bytes = plan->ceiling_bytes};
    ms_replay replay;
    ms_error err;
    memset(samples, 0, sizeof samples);
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, samples, &err), err);
    XXH64_update(hash, samples, 2 * plan->entry_count * sizeof *samples);
}

/* The plan with a corrected document, if its choices stay. */
static void hash_again(XXH64_state_t *hash, const fixture_planning *f, uint64_t budget_bytes, const ms_plan *plan)
{
    ms_config config = f->config;
    config.memory_budget_bytes = budget_bytes;
    uint64_t before = f->graph->residents.buffer_bytes;
    f->graph->residents.buffer_bytes += MIB / 2;
    ms_plan *again;
    ms_error err;
    assert_ms_ok(ms_plan_again(f->graph, f->hardware, &config, plan, &again, &err), err);
    if (again != NULL) {
        hash_text(hash, ms_plan_to_json(again));
        ms_plan_free(again);
    }
    f->graph->residents.buffer_bytes = before;
}

static uint64_t checksum_of(const fixture_planning *f, uint64_t budget_bytes, const ms_plan *plan)
{
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    hash_text(&hash, ms_plan_to_json(plan));
    hash_text(&hash, ms_plan_table(plan, f->hardware));
    for (int64_t entry = -1; entry < (int64_t)plan->entry_count; entry++) {
        hash_text(&hash, ms_plan_explain(plan, entry));
    }
    hash_timeline(&hash, f, plan);
    hash_again(&hash, f, budget_bytes, plan);
    return XXH64_digest(&hash);
}

static uint32_t count_entries(const ms_plan *plan, int technique)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        count += plan->entries[i].technique == (uint32_t)technique;
    }
    return count;
}

static void write_text(FILE *out, char *text)
{
    assert_non_null(text);
    fprintf(out, "%s\n", text);
    ms_free(text);
}

static void write_choices(FILE *out, const ms_plan *plan)
{
    uint32_t packed = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        packed += plan->entries[i].packing.packed;
    }
    for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        uint32_t count = count_entries(plan, technique);
        if (count > 0) {
            fprintf(out, ", %u %s", count, ms_technique_name((ms_technique)technique));
        }
    }
    if (packed > 0) {
        fprintf(out, ", %u packed", packed);
    }
    for (int option = 0; option < MS_STEP_OPTION_COUNT; option++) {
        if (plan->step_options[option].chosen) {
            fprintf(out, ", %s", ms_step_option_name((ms_step_option)option));
        }
    }
}

static void write_plan(FILE *out, const fixture_planning *f, uint64_t budget_bytes)
{
    ms_plan *plan = fixture_plan_at(f, budget_bytes);
    const ms_replay *replay = &plan->replay;
    fprintf(out, "  %llu: peak %llu, first %llu, reserve %llu; %llu ns, stalls %llu", (unsigned long long)budget_bytes,
            (unsigned long long)replay->peak_bytes, (unsigned long long)replay->first_step_peak_bytes,
            (unsigned long long)plan->reserve_bytes, (unsigned long long)replay->step_ns,
            (unsigned long long)(replay->stall_forward_ns + replay->stall_backward_ns));
    write_choices(out, plan);
    ms_plan_optimizer optimizer = ms_plan_for_optimizer(plan, &f->config);
    fprintf(out, "%s; %016llx\n", optimizer.may_release ? ", may release" : "",
            (unsigned long long)checksum_of(f, budget_bytes, plan));
    ms_plan_free(plan);
}

static void write_plans(FILE *out, const struct subject *subject, const struct machine *machine)
{
    fixture_planning f = fixture_open(subject->make());
    machine->set(f.hardware);
    f.config.mode = subject->mode;
    f.config.enable_tiling = subject->mode == MS_MODE_AGGRESSIVE;
    uint64_t smallest = fixture_smallest_budget(&f), need = fixture_need(&f);
    fprintf(out, "%s, %s: smallest %llu, need %llu; ", subject->name, machine->name, (unsigned long long)smallest,
            (unsigned long long)need);
    write_text(out, ms_plan_intent(f.hardware, &f.config, "Model", f.graph->residents.parameter_bytes));
    for (uint64_t k = 0; k < BUDGETS; k++) {
        write_plan(out, &f, fixture_budget(smallest, need, k, BUDGETS));
    }
    fixture_close(&f);
}

/* ---- tests --------------------------------------------------------------------------------- */

static char *all_plans(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        for (size_t j = 0; j < sizeof machines / sizeof machines[0]; j++) {
            write_plans(out, &subjects[i], &machines[j]);
        }
    }
    assert_int_equal(fclose(out), 0);
    return text;
}

static void plans_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("plan/plans.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    char *text = all_plans(), *rest = text;
    if (writes) {
        fputs(text, golden);
        rest = NULL;
    }
    char expected[LINE_MOST];
    for (char *line = strsep(&rest, "\n"); rest != NULL; line = strsep(&rest, "\n")) {
        assert_non_null(fgets(expected, sizeof expected, golden));
        expected[strcspn(expected, "\n")] = '\0';
        assert_string_equal(line, expected);
    }
    assert_true(writes || fgets(expected, sizeof expected, golden) == NULL);
    assert_int_equal(fclose(golden), 0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_the_golden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
