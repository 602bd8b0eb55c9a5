/*
 * The simulator's shorter programs give the same result as the whole ones, to the byte and the nanosecond:
 * layers with random temporaries under random techniques.
 */
#include "plan_fixture.h"
#include "sim/sim.h"

enum { TEMPORARIES = 60, ROUNDS = 40, DRAWS = 60, PROGRAM_MOST = 4 * TEMPORARIES + 64 };

static uint64_t draw_next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    return (uint32_t)(draw_next(seed) % below);
}

/* ---- layers with temporaries ----------------------------------------------------- */

typedef struct program {
    ms_event events[PROGRAM_MOST];
    uint32_t count;
} program;

static void insert(program *to, uint32_t at, ms_event event)
{
    assert_true(to->count < PROGRAM_MOST && at <= to->count);
    memmove(&to->events[at + 1], &to->events[at], (to->count - at) * sizeof event);
    to->events[at] = event;
    to->count++;
}

static void insert_life(program *to, uint32_t storage, bool ends, uint64_t *seed)
{
    uint32_t birth = draw(seed, to->count + 1);
    insert(to, birth, (ms_event){.kind = MS_EVENT_ALLOC, .storage = storage});
    insert(to, birth + 1, (ms_event){.kind = MS_EVENT_WORK, .flops = draw(seed, 3000000)});
    if (ends) {
        uint32_t death = birth + 2 + draw(seed, to->count - birth - 1);
        insert(to, death, (ms_event){.kind = MS_EVENT_FREE, .storage = storage});
    }
}

static void replace(ms_event **events, uint32_t *count, const program *by)
{
    ms_free(*events);
    *events = ms_calloc(by->count, sizeof **events);
    assert_non_null(*events);
    memcpy(*events, by->events, by->count * sizeof **events);
    *count = by->count;
}

static void add_temporaries(ms_profile *profile, uint64_t *seed)
{
    static const uint64_t sizes[] = {0, 1, 4096, MIB - 1, MIB, 3 * MIB, 3 * MIB + 1, 17 * MIB, 5 * MIB};
    program forward = {.count = profile->forward_count}, backward = {.count = profile->backward_count};
    memcpy(forward.events, profile->forward, forward.count * sizeof *profile->forward);
    memcpy(backward.events, profile->backward, backward.count * sizeof *profile->backward);
    uint32_t first = profile->storage_count;
    uint64_t *bytes = ms_calloc(first + TEMPORARIES, sizeof *bytes);
    assert_non_null(bytes);
    memcpy(bytes, profile->storage_bytes, first * sizeof *bytes);
    for (uint32_t storage = first; storage < first + TEMPORARIES; storage++) {
        bytes[storage] = sizes[draw(seed, sizeof sizes / sizeof sizes[0])];
        uint32_t fate = draw(seed, 8);
        insert_life(fate < 4 ? &forward : &backward, storage, fate % 4 != 0, seed);
        if (fate == 0) { /* lives until backward */
            uint32_t death = draw(seed, backward.count + 1);
            insert(&backward, death, (ms_event){.kind = MS_EVENT_FREE, .storage = storage});
        }
    }
    ms_free(profile->storage_bytes);
    profile->storage_bytes = bytes;
    profile->storage_count = first + TEMPORARIES;
    replace(&profile->forward, &profile->forward_count, &forward);
    replace(&profile->backward, &profile->backward_count, &backward);
}

/* ---- both ways --------------------------------------------------------------------- */

static void compare(ms__sim *sim, const ms_choices *choices)
{
    ms__outcome brief, full;
    sim->in_full = false;
    ms__sim_run(sim, choices, &brief, NULL);
    sim->in_full = true;
    ms__sim_run(sim, choices, &full, NULL);
    brief.peak_tick = full.peak_tick = 0; /* the shorter programs note less */
    assert_memory_equal(&brief, &full, sizeof full);
}

static void compare_techniques(const ms_graph *graph, const ms_hardware *hardware, uint64_t *seed)
{
    ms__sim *sim;
    ms_error err;
    uint8_t techniques[64] = {0};
    assert_true(graph->node_count <= 64);
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    for (int i = 0; i < DRAWS; i++) {
        for (uint32_t node = 0; node < graph->node_count; node++) {
            bool layer = graph->nodes[node].kind == MS_NODE_LAYER;
            techniques[node] = layer ? (uint8_t)draw(seed, MS_TECHNIQUE_COUNT) : 0;
        }
        ms_choices choices = {.technique = techniques,
                              .offload_min_bytes = draw(seed, 2) == 0 ? 1 : 4 * MIB,
                              .write_window_bytes = (uint64_t)(draw(seed, 4) + 1) * 16 * MIB,
                              .read_window_bytes = (uint64_t)(draw(seed, 4) + 1) * 16 * MIB};
        compare(sim, &choices);
    }
    ms__sim_free(sim);
}

/* The programs do get shorter; otherwise the test proves nothing. */
static void check_shorter(const ms_graph *graph, const ms_hardware *hardware)
{
    ms__sim *sim;
    ms_error err;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    const ms__sim_profile *profile = sim->nodes[1].profile;
    assert_true(profile->short_forward_count < profile->forward_count);
    assert_true(profile->short_backward_count < profile->backward_count);
    ms__sim_free(sim);
}

static void short_programs_give_the_same(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    for (int round = 0; round < ROUNDS; round++) {
        ms_graph *graph = fixture_graph(round % FIXTURE_GRAPHS);
        ms_hardware *hardware = round % 2 == 0 ? fixture_hardware() : fixture_real_hardware();
        for (uint32_t i = 0; i < graph->profile_count; i++) {
            add_temporaries(&graph->profiles[i], &seed);
        }
        ms_error err;
        assert_ms_ok(ms_graph_check(graph, &err), err);
        check_shorter(graph, hardware);
        compare_techniques(graph, hardware, &seed);
        ms_graph_free(graph);
        ms_free(hardware);
    }
}

/* The fixture's layer: a temporary's life and the work around it become one event; a saved storage's life does not. */
static void a_temporarys_life_joins_the_work_around_it(void **state)
{
    (void)state;
    ms_graph *graph = fixture_graph(1);
    ms_hardware *hardware = fixture_hardware();
    ms__sim *sim;
    ms_error err;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    const ms__sim_profile *profile = sim->nodes[1].profile;
    assert_int_equal(profile->forward_count, 10);
    assert_int_equal(profile->short_forward_count, 9);
    const ms__op *joined = &profile->short_forward[4];
    assert_int_equal(joined->kind, MS__OP_STRETCH);
    assert_int_equal(profile->stretches[joined->value].most_bytes, 4 * MIB);
    assert_int_equal(profile->stretches[joined->value].after_bytes, 0);
    assert_int_equal(profile->short_replay_count, 4);
    ms__sim_free(sim);
    /* If the inner result is not saved, it is a temporary too, over two stretches. */
    ms_profile *layer = &graph->profiles[0];
    layer->forward[3] = layer->backward[0] = layer->backward[3] = (ms_event){.kind = MS_EVENT_WORK};
    assert_ms_ok(ms_graph_check(graph, &err), err);
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    profile = sim->nodes[1].profile;
    assert_int_equal(profile->short_forward_count, 5);
    joined = &profile->short_forward[1];
    assert_int_equal(profile->stretches[joined->value].most_bytes, 34 * MIB);
    assert_int_equal(profile->stretches[joined->value].after_bytes, 30 * MIB);
    ms__sim_free(sim);
    ms_graph_free(graph);
    ms_free(hardware);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_temporarys_life_joins_the_work_around_it),
        cmocka_unit_test(short_programs_give_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
