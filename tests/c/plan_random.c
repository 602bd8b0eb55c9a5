/*
 * Random steps of plan_random.h. A layer binds the storages of plan_fixture.c's layers: 0 its input, 1 its output, 2 and
 * 3 their gradients, 4 that of its parameter.
 */
#include "plan_random.h"

#include "graph/graph_internal.h"

enum { INPUT, OUTPUT, OUTPUT_GRADIENT, INPUT_GRADIENT, WEIGHT_GRADIENT, FIRST_INNER };
enum { LAYERS_MOST = 10, INNER_MOST = 6, EVENTS_MOST = 96, STORAGES_MOST = 32, OPERANDS_MOST = 4 * INNER_MOST };

uint64_t random_below(uint64_t *seed, uint64_t below)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return (*seed >> 11) % below;
}

bool random_once_in(uint64_t *seed, uint64_t times)
{
    return random_below(seed, times) == 0;
}

static uint64_t random_bytes(uint64_t *seed)
{
    static const uint64_t sizes[] = {0,       4,           4096,     100000,   128 << 10, MIB - 8, MIB,
                                     3 * MIB, 4 * MIB + 8, 10 * MIB, 24 * MIB, 24 * MIB,  56 * MIB};
    return sizes[random_below(seed, sizeof sizes / sizeof sizes[0])];
}

/* ---- a layer's program ------------------------------------------------------------- */

typedef struct program {
    ms_event events[EVENTS_MOST];
    uint32_t count;
} program;

typedef struct layer {
    program forward, backward;
    uint64_t bytes[STORAGES_MOST];
    uint32_t storages;
    bool saved[STORAGES_MOST], made[STORAGES_MOST];
    ms_maker makers[INNER_MOST];
    uint32_t maker_count;
    uint32_t operands[OPERANDS_MOST];
    uint32_t operand_count;
} layer;

static void add(program *to, ms_event_kind kind, uint32_t storage)
{
    assert_true(to->count < EVENTS_MOST);
    to->events[to->count++] = (ms_event){.kind = kind, .storage = storage};
}

static void add_work(program *to, uint64_t *seed)
{
    assert_true(to->count < EVENTS_MOST);
    ms_event work = {.kind = MS_EVENT_WORK, .bytes = random_below(seed, 64) * MIB};
    switch (random_below(seed, 6)) {
    case 0:
        work.draws = random_below(seed, 4000000);
        break;
    case 1:
        work.evaluations = random_below(seed, 40000000);
        break;
    case 2:
        work.precision = (uint32_t)random_below(seed, 3);
        work.flops = random_below(seed, 20) * 1000000000;
        break;
    default:
        work.flops = random_below(seed, 12) * 700000000;
    }
    to->events[to->count++] = work;
}

/* A tensor that lives for one operator. */
static void add_temporary(layer *l, program *to, uint64_t *seed)
{
    uint32_t storage = l->storages++;
    assert_true(storage < STORAGES_MOST);
    l->bytes[storage] = random_bytes(seed);
    add(to, MS_EVENT_ALLOC, storage);
    add_work(to, seed);
    add(to, MS_EVENT_FREE, storage);
}

/* The operator that makes `inner` can run again, from what is saved or can be made. */
static void add_maker(layer *l, uint32_t inner, uint64_t *seed)
{
    ms_maker *maker = &l->makers[l->maker_count];
    *maker = (ms_maker){
        .flops = random_below(seed, 8) * 200000000, .bytes = random_below(seed, 40) * MIB, .first = l->operand_count};
    for (uint32_t from = 0; from < inner; from = from == INPUT ? FIRST_INNER : from + 1) {
        bool can = l->saved[from] || l->made[from];
        if (can && maker->input_count < 2 && random_below(seed, 3) > 0) {
            l->operands[l->operand_count++] = from;
            maker->input_count++;
        }
    }
    l->operands[l->operand_count++] = inner;
    maker->output_count = 1;
    l->made[inner] = true;
    l->maker_count++;
}

static void make_forward(layer *l, uint32_t inners, uint64_t *seed)
{
    program *to = &l->forward;
    l->saved[INPUT] = !random_once_in(seed, 4);
    if (l->saved[INPUT]) {
        add(to, MS_EVENT_SAVE, INPUT);
    }
    for (uint32_t inner = FIRST_INNER; inner < FIRST_INNER + inners; inner++) {
        l->bytes[inner] = random_bytes(seed);
        add(to, MS_EVENT_ALLOC, inner);
        add_work(to, seed);
        l->saved[inner] = !random_once_in(seed, 4);
        if (random_below(seed, 2) == 0) {
            add_maker(l, inner, seed);
        }
        if (l->saved[inner]) {
            add(to, MS_EVENT_SAVE, inner);
        }
        if (random_once_in(seed, 4)) {
            add_temporary(l, to, seed);
        }
        if (inner > FIRST_INNER) {
            add(to, MS_EVENT_FREE, inner - 1);
        }
    }
    add(to, MS_EVENT_ALLOC, OUTPUT);
    add_work(to, seed);
    l->saved[OUTPUT] = random_once_in(seed, 4);
    if (l->saved[OUTPUT]) {
        add(to, MS_EVENT_SAVE, OUTPUT);
    }
    add(to, MS_EVENT_FREE, FIRST_INNER + inners - 1);
    add(to, MS_EVENT_FREE, INPUT);
}

static void use_saved(layer *l, uint32_t storage, uint64_t *seed)
{
    program *to = &l->backward;
    if (!l->saved[storage]) {
        return;
    }
    bool is_used = !random_once_in(seed, 12), ends = !random_once_in(seed, 16);
    if (is_used) {
        add(to, MS_EVENT_NEED, storage);
        add_work(to, seed);
    }
    if (random_once_in(seed, 4)) {
        add_temporary(l, to, seed);
    }
    if (ends) {
        add(to, MS_EVENT_DROP, storage);
    }
}

static void make_backward(layer *l, uint32_t inners, uint64_t *seed)
{
    program *to = &l->backward;
    bool is_early = random_once_in(seed, 3);
    use_saved(l, OUTPUT, seed);
    if (is_early) {
        add(to, MS_EVENT_FREE, OUTPUT_GRADIENT);
    }
    for (uint32_t inner = FIRST_INNER + inners; inner-- > FIRST_INNER;) {
        use_saved(l, inner, seed);
    }
    add(to, MS_EVENT_ALLOC, WEIGHT_GRADIENT);
    add_work(to, seed);
    add(to, MS_EVENT_ALLOC, INPUT_GRADIENT);
    use_saved(l, INPUT, seed);
    if (!is_early) {
        add(to, MS_EVENT_FREE, OUTPUT_GRADIENT);
    }
}

static void *copied(const void *from, size_t count, size_t size)
{
    void *copy = ms_calloc(count, size);
    assert_non_null(copy);
    memcpy(copy, from, count * size);
    return copy;
}

static void list_pairs(const layer *l, ms_storage_list *list, bool saved_only, uint64_t *seed)
{
    ms_storage_bytes items[STORAGES_MOST];
    uint32_t count = 0;
    for (uint32_t storage = FIRST_INNER; storage < l->storages; storage++) {
        bool may = saved_only ? l->saved[storage] : l->bytes[storage] > 0;
        if (may && random_once_in(seed, saved_only ? 3 : 8)) {
            uint64_t part = l->bytes[storage] / 2 + 1;
            items[count++] = (ms_storage_bytes){storage, saved_only ? (uint64_t)1 << random_below(seed, 3) : part};
        }
    }
    list->items = copied(items, count, sizeof *items);
    list->count = count;
}

/* Replaces a program of the fixture by a random one over the same external storages. */
static void make_profile(ms_profile *profile, uint64_t *seed)
{
    layer l = {.storages = FIRST_INNER};
    uint32_t inners = 1 + (uint32_t)random_below(seed, INNER_MOST);
    memcpy(l.bytes, profile->storage_bytes, FIRST_INNER * sizeof *l.bytes);
    l.storages = FIRST_INNER + inners;
    make_forward(&l, inners, seed);
    make_backward(&l, inners, seed);
    ms_free(profile->forward);
    ms_free(profile->backward);
    ms_free(profile->storage_bytes);
    ms_free(profile->makers);
    ms_free(profile->operands);
    ms_free(profile->two_valued.items);
    ms_free(profile->untouched.items);
    profile->storage_count = l.storages;
    profile->storage_bytes = copied(l.bytes, l.storages, sizeof *l.bytes);
    profile->forward_count = l.forward.count;
    profile->forward = copied(l.forward.events, l.forward.count, sizeof *l.forward.events);
    profile->backward_count = l.backward.count;
    profile->backward = copied(l.backward.events, l.backward.count, sizeof *l.backward.events);
    profile->maker_count = l.maker_count;
    profile->makers = copied(l.makers, l.maker_count, sizeof *l.makers);
    profile->operand_count = l.operand_count;
    profile->operands = copied(l.operands, l.operand_count, sizeof *l.operands);
    list_pairs(&l, &profile->two_valued, true, seed);
    list_pairs(&l, &profile->untouched, false, seed);
    if (random_once_in(seed, 10)) {
        profile->forward_ns = 1000000 + random_below(seed, 50000000);
        profile->backward_ns = 1000000 + random_below(seed, 90000000);
    }
}

/* ---- the step ------------------------------------------------------------------------ */

static fixture_chain random_chain(fixture_layer *layers, uint64_t *seed)
{
    fixture_chain chain = {.layer_count = 1 + (uint32_t)random_below(seed, random_once_in(seed, 4) ? LAYERS_MOST : 5),
                           .layers = layers,
                           .uniform = random_once_in(seed, 2),
                           .activation_bytes = (1 + random_below(seed, 12)) * MIB,
                           .logits_bytes = (1 + random_below(seed, 30)) * MIB,
                           .parameter_bytes = (20 + random_below(seed, 100)) * MIB,
                           .state_bytes = random_below(seed, 200) * MIB};
    if (chain.state_bytes > 150 * MIB) {
        chain.state_bytes *= 20; /* so that a layer's is more than the buffers of a state on disk */
    }
    chain.marks_loss = !random_once_in(seed, 3);
    chain.marks_head = chain.marks_loss && !random_once_in(seed, 3);
    chain.is_half = random_once_in(seed, 3);
    chain.head_bytes = (1 + random_below(seed, 30)) * MIB;
    for (uint32_t i = 0; i < chain.layer_count; i++) {
        layers[i] = (fixture_layer){.gradient_bytes = (1 + random_below(seed, 8)) * MIB};
    }
    return chain;
}

static uint32_t random_flags(bool chained, uint64_t *seed)
{
    static const uint32_t rare[] = {MS_NODE_MUTATES_INPUT,  MS_NODE_OPAQUE_ARGUMENT, MS_NODE_UPDATES_BUFFERS,
                                    MS_NODE_NOT_REPEATABLE, MS_NODE_COMPILED,        MS_NODE_UNHOOKABLE};
    uint32_t flags = chained ? MS_NODE_CHAINED : 0;
    for (size_t i = 0; i < sizeof rare / sizeof rare[0]; i++) {
        flags |= random_once_in(seed, 20) ? rare[i] : 0;
    }
    return flags | (random_once_in(seed, 4) ? MS_NODE_USES_RNG : 0);
}

/* Half of the programs that layers have get one in tiles beside them. */
static void add_tiles(ms_graph *graph, const fixture_chain *chain, uint64_t *seed)
{
    uint32_t count = chain->uniform ? 1 : chain->layer_count, first = graph->profile_count;
    ms_profile *profiles = ms_calloc(first + count, sizeof *profiles);
    assert_non_null(profiles);
    memcpy(profiles, graph->profiles, first * sizeof *profiles);
    for (uint32_t i = 0; i < count; i++) {
        ms_profile *tiled = &profiles[first + i];
        const ms_profile *whole = &profiles[i];
        *tiled = (ms_profile){.external_count = FIRST_INNER, .input_count = 1};
        tiled->storage_bytes = copied(whole->storage_bytes, FIRST_INNER, sizeof *whole->storage_bytes);
        tiled->inputs = copied(whole->inputs, 1, sizeof *whole->inputs);
        make_profile(tiled, seed);
    }
    for (uint32_t i = 0; i < chain->layer_count; i++) {
        graph->nodes[i + 1].tiled = first + (chain->uniform ? 0 : i) + 1;
    }
    ms_free(graph->profiles);
    graph->profiles = profiles;
    graph->profile_count = first + count;
}

static uint64_t largest_gradient(const ms_graph *graph)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        bool larger = graph->storages[i].role == MS_STORAGE_GRADIENT && graph->storages[i].bytes > largest;
        largest = larger ? graph->storages[i].bytes : largest;
    }
    return largest;
}

/* Half of the optimizers hold copies of one parameter at a time. */
static void random_loop(ms_graph *graph, uint64_t *seed)
{
    ms_loop *loop = &graph->loop;
    loop->observed = !random_once_in(seed, 3);
    loop->outputs_held = random_once_in(seed, 2);
    loop->gradients_live_in_forward = random_once_in(seed, 3);
    loop->gradients_cleared = random_once_in(seed, 3);
    loop->optimizer_transient_bytes =
        random_once_in(seed, 2) ? random_below(seed, 40) * MIB : (1 + random_below(seed, 5)) * largest_gradient(graph);
    loop->external_loss_bytes = random_once_in(seed, 4) ? random_below(seed, 30) * MIB : 0;
    if (random_once_in(seed, 2)) {
        loop->optimizer_stream_bytes = loop->optimizer_state_bytes;
        loop->optimizer_made_bytes = loop->optimizer_state_bytes / 3;
        loop->gradients_releasable = random_once_in(seed, 2);
        loop->gradients_needed = random_once_in(seed, 4);
    }
    graph->residents.buffer_bytes = random_below(seed, 4) * MIB;
    graph->residents.batch_bytes = random_below(seed, 4) * MIB;
    graph->residents.largest_parameter_bytes = random_below(seed, 20) * MIB;
    if (random_once_in(seed, 8)) {
        ms_graph_pend(graph, 1 + random_below(seed, 2));
    }
}

ms_graph *random_graph(uint64_t *seed)
{
    fixture_layer layers[LAYERS_MOST];
    fixture_chain chain = random_chain(layers, seed);
    ms_graph *graph = fixture_chain_graph(&chain);
    bool chained = random_once_in(seed, 2);
    for (uint32_t i = 0; i < (chain.uniform ? 1 : chain.layer_count); i++) {
        make_profile(&graph->profiles[i], seed);
    }
    for (uint32_t i = 1; i <= chain.layer_count; i++) {
        graph->nodes[i].flags = random_flags(chained, seed);
    }
    if (random_once_in(seed, 2)) {
        add_tiles(graph, &chain, seed);
    }
    random_loop(graph, seed);
    ms_error err;
    assert_ms_ok(ms__graph_place_storages(graph, &err), err);
    assert_ms_ok(ms_graph_check(graph, &err), err);
    return graph;
}

/* ---- machine and options --------------------------------------------------------------- */

static void random_machine(ms_hardware *hardware, uint64_t *seed)
{
    hardware->disk.write_bytes_per_s = (1 + random_below(seed, 20)) * 150000000;
    hardware->disk.read_bytes_per_s = (1 + random_below(seed, 20)) * 150000000;
    hardware->time_scale_permille = random_once_in(seed, 3) ? 1300 : 1000;
    hardware->process = (ms_process){.baseline_bytes = random_below(seed, 3) * 150 * MIB,
                                     .scratch_bytes = 50 * MIB,
                                     .reserve_bytes = random_below(seed, 30) * MIB,
                                     .products_bytes = random_below(seed, 2) * 9 * MIB,
                                     .storages_bytes = random_below(seed, 2) * MIB};
    if (random_once_in(seed, 4)) {
        hardware->disk.free_bytes = hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 0;
    }
    if (random_once_in(seed, 3)) {
        fixture_use_card(hardware, (1 + random_below(seed, 12)) * 1000000000);
        hardware->gpu[0].copy_engines = 1 + (uint32_t)random_below(seed, 2);
        hardware->gpu[0].pageable_to_host_bytes_per_s = random_below(seed, 2) * 700000000;
        hardware->gpu[0].pageable_from_host_bytes_per_s = hardware->gpu[0].pageable_to_host_bytes_per_s;
        hardware->gpu[0].matmul_flops_per_s = 900000000000;
    }
}

static void random_options(ms_config *config, uint64_t *seed)
{
    config->mode = (ms_mode)random_below(seed, MS_MODE_COUNT);
    config->mode = random_once_in(seed, 3) ? MS_MODE_AGGRESSIVE : config->mode;
    config->enable_checkpointing = !random_once_in(seed, 6);
    config->enable_offloading = !random_once_in(seed, 6);
    config->enable_tiling = !random_once_in(seed, 3);
    config->async_offload = !random_once_in(seed, 4);
    config->prefetch_depth = (uint32_t)random_below(seed, 3);
    config->max_disk_offload_bytes = random_once_in(seed, 3) ? random_below(seed, 200) * MIB : MS_UNSET;
    config->max_cpu_offload_bytes = random_once_in(seed, 3) ? random_below(seed, 200) * MIB : MS_UNSET;
    config->pinned_pool_bytes = random_once_in(seed, 2) ? (40 + random_below(seed, 60)) * MIB : MS_UNSET;
    config->search_permille = 150;
}

fixture_planning random_planning(uint64_t *seed)
{
    fixture_planning f = fixture_open(random_graph(seed));
    random_machine(f.hardware, seed);
    random_options(&f.config, seed);
    return f;
}

void golden_line(FILE *golden, bool writes, const char *text)
{
    char expected[4096];
    if (writes) {
        fputs(text, golden);
        return;
    }
    assert_non_null(fgets(expected, sizeof expected, golden));
    assert_string_equal(text, expected);
}
