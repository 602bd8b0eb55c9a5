/*
 * The graphs and machines of plan_subjects.h.
 */
#include "plan_subjects.h"

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

const plan_subject plan_subjects[PLAN_SUBJECTS] = {
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

const plan_machine plan_machines[PLAN_MACHINES] = {
    {"disk", with_a_disk}, {"no disk", without_a_disk}, {"card", with_a_card}};

fixture_planning plan_subject_open(const plan_subject *subject, const plan_machine *machine)
{
    fixture_planning f = fixture_open(subject->make());
    machine->set(f.hardware);
    f.config.mode = subject->mode;
    f.config.enable_tiling = subject->mode == MS_MODE_AGGRESSIVE;
    return f;
}
