/*
 * Graphs and machines of plan_fixture.h. A layer's program: it saves its input and one inner result, frees
 * its input and gives an output; its backward needs both, and makes the gradients of its input and of its
 * parameter.
 */
#include "plan_fixture.h"

/* Storages of the graph: activations x_0..x_L, their gradients, parameters' gradients,
 * the loss. */
typedef struct numbering {
    uint32_t activations, gradients, weights, loss, count;
} numbering;

static numbering number_storages(uint32_t layers)
{
    numbering n = {.activations = 0, .gradients = layers + 1, .weights = 2 * (layers + 1)};
    n.loss = n.weights + layers;
    n.count = n.loss + 1;
    return n;
}

static ms_event *events_copy(const ms_event *events, uint32_t count)
{
    ms_event *copy = ms_calloc(count, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, events, count * sizeof *copy);
    return copy;
}

#define EV(kind_name, number) {.kind = MS_EVENT_##kind_name, .storage = (number)}
#define WORKED(ns) {.kind = MS_EVENT_WORK, .flops = (ns)}

static void set_programs(ms_profile *profile, const ms_event *forward, size_t forward_count, const ms_event *backward,
                         size_t backward_count)
{
    profile->forward_count = (uint32_t)forward_count;
    profile->forward = events_copy(forward, profile->forward_count);
    profile->backward_count = (uint32_t)backward_count;
    profile->backward = events_copy(backward, profile->backward_count);
}

static void set_storages(ms_profile *profile, uint32_t externals, const uint64_t *bytes, uint32_t count)
{
    profile->external_count = externals;
    profile->storage_count = count;
    profile->storage_bytes = ms_calloc(count, sizeof *profile->storage_bytes);
    assert_non_null(profile->storage_bytes);
    memcpy(profile->storage_bytes, bytes, count * sizeof *bytes);
}

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* 0 input, 1 output, 2 gradient of output, 3 gradient of input, 4 of the parameter; 5
 * the inner result, 6 scratch. */
static void layer_profile(ms_profile *profile, const fixture_chain *chain, const fixture_layer *layer)
{
    uint64_t x = chain->activation_bytes;
    const uint64_t bytes[] = {x, x, x, x, layer->gradient_bytes, layer->saved_bytes, layer->temp_bytes};
    const ms_event forward[] = {EV(SAVE, 0), EV(ALLOC, 5), WORKED(layer->flops), EV(SAVE, 5), EV(ALLOC, 6),
                                EV(FREE, 6), EV(ALLOC, 1), WORKED(layer->flops), EV(FREE, 5), EV(FREE, 0)};
    const ms_event backward[] = {EV(NEED, 5), EV(ALLOC, 3), WORKED(2 * layer->flops), EV(DROP, 5),
                                 EV(NEED, 0), EV(ALLOC, 4), WORKED(2 * layer->flops), EV(DROP, 0),
                                 EV(FREE, 2)};
    set_storages(profile, 5, bytes, LENGTH(bytes));
    set_programs(profile, forward, LENGTH(forward), backward, LENGTH(backward));
    profile->input_count = 1;
    profile->inputs = ms_calloc(1, sizeof *profile->inputs);
    assert_non_null(profile->inputs);
    if (layer->maker_flops > 0) {
        static const uint32_t operands[] = {0, 5};
        profile->maker_count = 1;
        profile->makers = ms_calloc(1, sizeof *profile->makers);
        profile->operand_count = 2;
        profile->operands = ms_calloc(2, sizeof *profile->operands);
        assert_true(profile->makers != NULL && profile->operands != NULL);
        profile->makers[0] = (ms_maker){.flops = layer->maker_flops, .input_count = 1, .output_count = 1};
        memcpy(profile->operands, operands, sizeof operands);
    }
}

/* 0 output, 1 its gradient. */
static void embed_profile(ms_profile *profile, const fixture_chain *chain)
{
    const uint64_t bytes[] = {chain->activation_bytes, chain->activation_bytes};
    const ms_event forward[] = {EV(ALLOC, 0), WORKED(1000)};
    const ms_event backward[] = {WORKED(1000), EV(FREE, 1)};
    set_storages(profile, 2, bytes, LENGTH(bytes));
    set_programs(profile, forward, LENGTH(forward), backward, LENGTH(backward));
}

/* 0 input, 1 its gradient, 2 the loss; 3 logits, 4 log-softmax, 5 their gradient. */
static void head_profile(ms_profile *profile, const fixture_chain *chain)
{
    uint64_t x = chain->activation_bytes, logits = chain->logits_bytes;
    const uint64_t bytes[] = {x, x, 4, logits, logits, logits};
    const ms_event forward[] = {EV(SAVE, 0), EV(ALLOC, 3), WORKED(1000000), EV(ALLOC, 4), WORKED(1000000),
                                EV(SAVE, 4), EV(FREE, 3),  EV(FREE, 4),     EV(ALLOC, 2), EV(FREE, 0)};
    const ms_event backward[] = {EV(NEED, 4),  EV(ALLOC, 5),    WORKED(1000000), EV(DROP, 4), EV(NEED, 0),
                                 EV(ALLOC, 1), WORKED(1000000), EV(DROP, 0),     EV(FREE, 5)};
    set_storages(profile, 3, bytes, LENGTH(bytes));
    set_programs(profile, forward, LENGTH(forward), backward, LENGTH(backward));
}

/* As above, with 6 the gradient that the cross entropy scatters before it makes 5. */
static void marked_head_profile(ms_profile *profile, const fixture_chain *chain)
{
    uint64_t x = chain->activation_bytes, logits = chain->logits_bytes;
    const uint64_t bytes[] = {x, x, 4, logits, logits, logits, logits};
    const ms_event forward[] = {EV(SAVE, 0),  EV(ALLOC, 3),    WORKED(1000000), EV(LOSS, 3),
                                EV(ALLOC, 4), WORKED(1000000), EV(SAVE, 4),     EV(FREE, 4),
                                EV(ALLOC, 2), EV(LOSS_END, 3), EV(FREE, 3),     EV(FREE, 0)};
    const ms_event backward[] = {EV(LOSS, 3),     EV(ALLOC, 6),    WORKED(1000000), EV(NEED, 4),     EV(ALLOC, 5),
                                 WORKED(1000000), EV(FREE, 6),     EV(DROP, 4),     EV(LOSS_END, 5), EV(NEED, 0),
                                 EV(ALLOC, 1),    WORKED(1000000), EV(DROP, 0),     EV(FREE, 5)};
    set_storages(profile, 3, bytes, LENGTH(bytes));
    set_programs(profile, forward, LENGTH(forward), backward, LENGTH(backward));
}

/* As above, with the marks of the layer that makes 3, and 7 the gradient of its weight. A 16-bit layer
 * makes 8; 3 is its cast, and 9 the cast of 5. */
static void marked_layer_profile(ms_profile *profile, const fixture_chain *chain)
{
    uint64_t x = chain->activation_bytes, logits = chain->logits_bytes;
    const uint64_t bytes[] = {x, x, 4, logits, logits, logits, logits, chain->head_bytes, logits / 2, logits / 2};
    const ms_event forward[] = {EV(SAVE, 0),     EV(ALLOC, 3),    WORKED(1000000), EV(HEAD, 3), EV(LOSS, 3),
                                EV(ALLOC, 4),    WORKED(1000000), EV(SAVE, 4),     EV(FREE, 4), EV(ALLOC, 2),
                                EV(LOSS_END, 3), EV(FREE, 3),     EV(FREE, 0)};
    const ms_event backward[] = {EV(LOSS, 3),     EV(ALLOC, 6), WORKED(1000000), EV(NEED, 4),     EV(ALLOC, 5),
                                 WORKED(1000000), EV(FREE, 6),  EV(DROP, 4),     EV(LOSS_END, 5), EV(HEAD, 3),
                                 EV(NEED, 0),     EV(ALLOC, 7), WORKED(500000),  EV(ALLOC, 1),    WORKED(500000),
                                 EV(DROP, 0),     EV(FREE, 5),  EV(HEAD_END, 1)};
    const ms_event half_forward[] = {EV(SAVE, 0),  EV(ALLOC, 8),    WORKED(1000000), EV(HEAD, 8),
                                     EV(ALLOC, 3), WORKED(1000),    EV(FREE, 8),     EV(LOSS, 3),
                                     EV(ALLOC, 4), WORKED(1000000), EV(SAVE, 4),     EV(FREE, 4),
                                     EV(ALLOC, 2), EV(LOSS_END, 3), EV(FREE, 3),     EV(FREE, 0)};
    const ms_event half_backward[] = {
        EV(LOSS, 3),  EV(ALLOC, 6),    WORKED(1000000), EV(NEED, 4),    EV(ALLOC, 5), WORKED(1000000), EV(FREE, 6),
        EV(DROP, 4),  EV(LOSS_END, 5), EV(ALLOC, 9),    WORKED(1000),   EV(FREE, 5),  EV(HEAD, 8),     EV(NEED, 0),
        EV(ALLOC, 7), WORKED(500000),  EV(ALLOC, 1),    WORKED(500000), EV(DROP, 0),  EV(FREE, 9),     EV(HEAD_END, 1)};
    set_storages(profile, 3, bytes, chain->is_half ? 10 : 8);
    if (chain->is_half) {
        set_programs(profile, half_forward, LENGTH(half_forward), half_backward, LENGTH(half_backward));
    } else {
        set_programs(profile, forward, LENGTH(forward), backward, LENGTH(backward));
    }
}

static void name_storages(ms_graph *graph, const fixture_chain *chain, numbering n)
{
    uint32_t last = chain->layer_count + 1;
    for (uint32_t i = 0; i <= chain->layer_count; i++) {
        graph->storages[n.activations + i] = (ms_storage){
            .bytes = chain->activation_bytes, .role = MS_STORAGE_ACTIVATION, .first_node = i, .last_node = i + 1};
        graph->storages[n.gradients + i] = (ms_storage){
            .bytes = chain->activation_bytes, .role = MS_STORAGE_ACTIVATION, .first_node = i + 1, .last_node = i};
    }
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        const fixture_layer *layer = &chain->layers[chain->uniform ? 0 : i];
        graph->storages[n.weights + i] = (ms_storage){
            .bytes = layer->gradient_bytes, .role = MS_STORAGE_GRADIENT, .first_node = i + 1, .last_node = i + 1};
    }
    graph->storages[n.loss] =
        (ms_storage){.bytes = 4, .role = MS_STORAGE_OUTPUT, .first_node = last, .last_node = last};
}

static void make_node(ms_node *node, const char *name, uint32_t kind, uint32_t profile, const uint32_t *externals,
                      uint32_t external_count)
{
    node->name = ms_strdup(name);
    node->kind = kind;
    node->profile = profile;
    node->externals = ms_calloc(external_count, sizeof *externals);
    assert_non_null(node->externals);
    memcpy(node->externals, externals, external_count * sizeof *externals);
}

static void make_nodes(ms_graph *graph, const fixture_chain *chain, numbering n)
{
    uint32_t count = chain->layer_count, layer_profiles = chain->uniform ? 1 : count;
    const uint32_t embed[] = {n.activations, n.gradients};
    make_node(&graph->nodes[0], "", MS_NODE_ROOT, layer_profiles, embed, LENGTH(embed));
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%u", i);
        const uint32_t layer[] = {n.activations + i, n.activations + i + 1, n.gradients + i + 1, n.gradients + i,
                                  n.weights + i};
        make_node(&graph->nodes[i + 1], name, MS_NODE_LAYER, chain->uniform ? 0 : i, layer, LENGTH(layer));
        graph->nodes[i + 1].flags = chain->layers[chain->uniform ? 0 : i].flags;
    }
    const uint32_t head[] = {n.activations + count, n.gradients + count, n.loss};
    make_node(&graph->nodes[count + 1], "", MS_NODE_ROOT, layer_profiles + 1, head, LENGTH(head));
    graph->nodes[count + 1].call = 1;
}

void fixture_list_storage(ms_storage_list *list, uint32_t storage, uint64_t bytes)
{
    list->items = ms_calloc(1, sizeof *list->items);
    assert_non_null(list->items);
    list->items[0] = (ms_storage_bytes){storage, bytes};
    list->count = 1;
}

void fixture_mark_masks(ms_graph *graph)
{
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        ms_profile *profile = &graph->profiles[i];
        if (profile->input_count > 0) {
            fixture_list_storage(&profile->two_valued, 5, 4);
        }
    }
    ms_error err;
    assert_ms_ok(ms_graph_check(graph, &err), err);
}

ms_graph *fixture_chain_graph(const fixture_chain *chain)
{
    uint32_t layer_profiles = chain->uniform ? 1 : chain->layer_count;
    numbering n = number_storages(chain->layer_count);
    ms_graph *graph = ms_calloc(1, sizeof *graph);
    assert_non_null(graph);
    graph->model = ms_strdup("Fixture");
    graph->signature = ms_strdup("x=float32[1]");
    graph->source = ms_strdup("static");
    graph->residents.parameter_bytes = chain->parameter_bytes;
    graph->residents.trainable_bytes = chain->parameter_bytes;
    graph->loop.observed = true;
    graph->loop.optimizer_state_bytes = chain->state_bytes;
    graph->storage_count = n.count;
    graph->storages = ms_calloc(n.count, sizeof *graph->storages);
    graph->profile_count = layer_profiles + 2;
    graph->profiles = ms_calloc(graph->profile_count, sizeof *graph->profiles);
    graph->node_count = chain->layer_count + 2;
    graph->nodes = ms_calloc(graph->node_count, sizeof *graph->nodes);
    assert_true(graph->storages != NULL && graph->profiles != NULL && graph->nodes != NULL);
    for (uint32_t i = 0; i < layer_profiles; i++) {
        layer_profile(&graph->profiles[i], chain, &chain->layers[i]);
    }
    embed_profile(&graph->profiles[layer_profiles], chain);
    if (chain->marks_head) {
        marked_layer_profile(&graph->profiles[layer_profiles + 1], chain);
    } else if (chain->marks_loss) {
        marked_head_profile(&graph->profiles[layer_profiles + 1], chain);
    } else {
        head_profile(&graph->profiles[layer_profiles + 1], chain);
    }
    name_storages(graph, chain, n);
    make_nodes(graph, chain, n);
    ms_error err;
    assert_ms_ok(ms_graph_check(graph, &err), err);
    return graph;
}

ms_hardware *fixture_hardware(void)
{
    ms_hardware *hardware = ms_calloc(1, sizeof *hardware);
    assert_non_null(hardware);
    hardware->cpu.usable_cpus = 2;
    hardware->cpu.matmul_flops_per_s = 1000000000;
    hardware->ram.total_bytes = hardware->ram.available_bytes = 64000 * MIB;
    hardware->ram.limit_bytes = UINT64_MAX;
    strcpy(hardware->disk.dir, "/somewhere");
    hardware->disk.free_bytes = 100000 * MIB;
    hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 1000000000;
    hardware->device = -1;
    hardware->time_scale_permille = 1000;
    return hardware;
}

ms_hardware *fixture_real_hardware(void)
{
    ms_hardware *hardware = fixture_hardware();
    hardware->cpu.matmul_flops_per_s = 320000000000;
    hardware->cpu.stream_bytes_per_s = 28000000000;
    hardware->cpu.fault_bytes_per_s = 8400000000;
    hardware->cpu.checksum_bytes_per_s = 6400000000;
    hardware->disk.write_bytes_per_s = 1700000000;
    hardware->disk.read_bytes_per_s = 1400000000;
    return hardware;
}

void fixture_use_card(ms_hardware *hardware, uint64_t link_bytes_per_s)
{
    hardware->gpu_count = 1;
    hardware->device = 0;
    hardware->gpu[0] = (ms_gpu){.kind = MS_DEVICE_CUDA,
                                .total_bytes = 24000 * MIB,
                                .matmul_flops_per_s = 10000000000000,
                                .stream_bytes_per_s = 900000000000,
                                .to_host_bytes_per_s = link_bytes_per_s,
                                .from_host_bytes_per_s = link_bytes_per_s,
                                .copy_engines = 2};
}

static ms_graph *uneven_graph(uint32_t count, uint64_t flops)
{
    fixture_layer layers[64];
    for (uint32_t i = 0; i < count; i++) {
        uint64_t spread = (uint64_t)(i * 7 + 3) % 11 + 1;
        layers[i] = (fixture_layer){.saved_bytes = spread * 12 * MIB + 4096 * i,
                                    .temp_bytes = (i % 3 + 1) * 5 * MIB,
                                    .flops = flops * ((uint64_t)(i * 5) % 7 + 1),
                                    .gradient_bytes = 3 * MIB};
        layers[i].flags = i % 5 == 4 ? MS_NODE_MUTATES_INPUT : 0;
    }
    fixture_chain chain = {.layer_count = count,
                           .layers = layers,
                           .activation_bytes = 6 * MIB,
                           .logits_bytes = 90 * MIB,
                           .parameter_bytes = 200 * MIB,
                           .state_bytes = 400 * MIB};
    return fixture_chain_graph(&chain);
}

ms_graph *fixture_graph(int which)
{
    static const fixture_layer transformer = {340 * MIB, 25 * MIB, 50000000000, 28 * MIB, 0};
    static const fixture_layer light = {30 * MIB, 4 * MIB, 200000000, 6 * MIB, 0};
    static const fixture_layer remade = {200 * MIB, 25 * MIB, 50000000000, 28 * MIB, 0, 2000000000};
    static const fixture_layer dear = {64 * MIB, 8 * MIB, 400000000000, 6 * MIB, 0};
    fixture_chain chain = {.layer_count = 12,
                           .layers = &transformer,
                           .uniform = true,
                           .activation_bytes = 6 * MIB,
                           .logits_bytes = 412 * MIB,
                           .parameter_bytes = 500 * MIB,
                           .state_bytes = 1000 * MIB};
    switch (which) {
    case 0:
        return fixture_chain_graph(&chain);
    case 1:
        chain.layers = &light;
        chain.layer_count = 40;
        chain.logits_bytes = 10 * MIB;
        return fixture_chain_graph(&chain);
    case 2:
        chain.layers = &dear;
        chain.layer_count = 6;
        return fixture_chain_graph(&chain);
    case 3:
        return uneven_graph(9, 3000000000);
    case 5:
        chain.layers = &remade;
        chain.layer_count = 8;
        return fixture_chain_graph(&chain);
    default:
        return uneven_graph(33, 80000000);
    }
}

fixture_planning fixture_open(ms_graph *graph)
{
    fixture_planning f = {.graph = graph, .hardware = fixture_real_hardware()};
    ms_config_default(&f.config);
    return f;
}

void fixture_close(fixture_planning *f)
{
    ms_graph_free(f->graph);
    ms_free(f->hardware);
}

ms_replay fixture_simulate(const fixture_planning *f, const uint8_t *techniques, uint32_t step_options)
{
    ms_choices choices = {.technique = techniques,
                          .step_options = step_options,
                          .offload_min_bytes = MIB,
                          .write_window_bytes = 64 * MIB,
                          .read_window_bytes = 64 * MIB};
    ms_replay replay;
    ms_error err;
    assert_ms_ok(ms_simulate(f->graph, f->hardware, &choices, &replay, NULL, &err), err);
    return replay;
}

int fixture_try_plan(const fixture_planning *f, uint64_t budget_bytes, ms_plan **plan, ms_error *err)
{
    ms_config config = f->config;
    config.memory_budget_bytes = budget_bytes;
    return ms_pipeline_plan(f->graph, f->hardware, &config, plan, err);
}

ms_plan *fixture_plan_at(const fixture_planning *f, uint64_t budget_bytes)
{
    ms_plan *plan;
    ms_error err;
    assert_ms_ok(fixture_try_plan(f, budget_bytes, &plan, &err), err);
    return plan;
}

uint64_t fixture_smallest_budget(const fixture_planning *f)
{
    ms_plan *plan;
    ms_error err = {0};
    assert_int_equal(fixture_try_plan(f, 1, &plan, &err), MS_EINFEASIBLE);
    assert_true(err.hint_bytes > 0);
    return err.hint_bytes;
}

uint64_t fixture_need(const fixture_planning *f)
{
    ms_plan *plan = fixture_plan_at(f, INT64_MAX);
    uint64_t need = plan->pressure.need_bytes;
    ms_plan_free(plan);
    return need;
}

uint64_t fixture_budget(uint64_t smallest, uint64_t need, uint64_t k, uint64_t count)
{
    return smallest + (need + need / 5 - smallest) * k / (count - 1);
}

void fixture_plan_without_memory(const fixture_planning *f, uint64_t budget_bytes)
{
    uint64_t blocks = ms_memory_live_blocks();
    for (uint64_t nth = 1; nth < 200000; nth += 1 + nth / 8) {
        ms_plan *plan = NULL;
        ms_error err;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 12);
        int rc = fixture_try_plan(f, budget_bytes, &plan, &err);
        bool reached = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        if (rc == MS_OK) {
            ms_plan_free(plan);
        }
        assert_int_equal(ms_memory_live_blocks(), blocks);
        if (!reached) {
            return;
        }
    }
    fail_msg("planning never ran to its end");
}

void fixture_assert_says(char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in: %s", part, text != NULL ? text : "nothing");
    }
    ms_free(text);
}
