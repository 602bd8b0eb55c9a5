/*
 * Replays of random steps under random choices keep the simulator's promises, and are those of random_steps.golden: a
 * change of the simulator shows there. `MEMSCALE_WRITE_GOLDEN=1 meson test -C build/test random_steps` writes the file.
 *
 * A line is a step: its peak and time with everything kept, and a checksum of its replays.
 */
#include <xxhash.h>

#include "plan_random.h"
#include "sim/step_options.h"

enum { STEPS = 150, DRAWS = 50, NODES_MOST = 16 };

/* ---- promises ---------------------------------------------------------------------- */

/* The owners' bytes sum to the device's at every sample. */
static void check_samples(const ms_sample *samples, uint32_t count, const ms_replay *replay)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (int owner = 0; owner < MS_OWNER_COUNT; owner++) {
            sum += samples[i].owner_bytes[owner];
        }
        assert_int_equal(sum, samples[i].device_bytes);
        assert_true(samples[i].device_bytes <= replay->peak_bytes);
        assert_true(i == 0 || samples[i].at_ns >= samples[i - 1].at_ns);
        assert_int_equal(samples[i].node, samples[i].in_backward ? count - 1 - i : i);
    }
}

/* A cache moves no event: it saves page faults, and takes memory. */
static void check_cached(const ms__outcome *plain, const ms__outcome *cached)
{
    const ms_replay *without = &plain->replay, *with = &cached->replay;
    assert_int_equal(with->step_ns - with->fault_ns, without->step_ns - without->fault_ns);
    assert_true(with->fault_ns <= without->fault_ns);
    assert_int_equal(plain->live_peak_bytes, cached->live_peak_bytes);
    assert_true(with->peak_bytes >= without->peak_bytes);
}

static void check_parts(const ms_replay *replay)
{
    uint64_t stalls = replay->stall_forward_ns + replay->stall_backward_ns;
    assert_int_equal(replay->compute_ns + replay->recompute_ns + stalls, replay->step_ns);
    assert_true(replay->fault_ns + replay->packing_ns <= replay->compute_ns);
}

/* ---- replays ----------------------------------------------------------------------- */

typedef struct draws {
    uint8_t techniques[NODES_MOST], packed[NODES_MOST];
    ms_choices choices;
} draws;

/* What the rules could admit: root work moves or stays, and packing is for what stays or moves. */
static void draw_choices(const ms__sim *sim, draws *d, uint64_t *seed)
{
    static const uint8_t for_roots[] = {MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_OFFLOAD_HOST,
                                        MS_TECHNIQUE_OFFLOAD_DISK};
    assert_true(sim->node_count <= NODES_MOST);
    for (uint32_t i = 0; i < sim->node_count; i++) {
        bool is_root = sim->nodes[i].is_root;
        d->techniques[i] = is_root ? for_roots[random_below(seed, 4)] : (uint8_t)random_below(seed, MS_TECHNIQUE_COUNT);
        d->packed[i] = (uint8_t)random_below(seed, 4);
    }
    d->choices = (ms_choices){.technique = d->techniques,
                              .packed = random_once_in(seed, 2) ? d->packed : NULL,
                              .offload_min_bytes = random_once_in(seed, 2) ? 1 : MIB,
                              .write_window_bytes = (1 + random_below(seed, 5)) * 12 * MIB,
                              .read_window_bytes = (1 + random_below(seed, 5)) * 12 * MIB,
                              .host_leads = random_once_in(seed, 2),
                              .waits = random_once_in(seed, 3),
                              .pinned_bytes = random_once_in(seed, 2) ? random_below(seed, 60) * MIB : 0};
}

static void hash_outcome(XXH64_state_t *hash, const ms__outcome *outcome)
{
    const ms_replay *replay = &outcome->replay;
    const uint64_t numbers[] = {replay->peak_bytes,
                                replay->peak_live_bytes,
                                replay->first_step_peak_bytes,
                                replay->small_peak_bytes,
                                replay->peak_node,
                                replay->peak_in_backward,
                                replay->step_ns,
                                replay->compute_ns,
                                replay->recompute_ns,
                                replay->fault_ns,
                                replay->stall_forward_ns,
                                replay->stall_backward_ns,
                                replay->moved_bytes,
                                replay->packed_bytes,
                                replay->packing_ns,
                                outcome->fixed_bytes,
                                outcome->held_most_bytes,
                                outcome->live_peak_bytes,
                                outcome->boundary_bytes,
                                outcome->activation_peak_bytes,
                                outcome->peak_phase,
                                replay->tier_peak_bytes[1],
                                replay->tier_peak_bytes[2]};
    XXH64_update(hash, numbers, sizeof numbers);
}

static void replay_once(XXH64_state_t *hash, ms__sim *sim, uint32_t options, uint64_t *seed)
{
    draws d;
    ms__outcome plain, cached, expected;
    ms_sample samples[2 * NODES_MOST];
    draw_choices(sim, &d, seed);
    d.choices.step_options = options;
    memset(samples, 0, sizeof samples);
    ms__sim_run(sim, &d.choices, &plain, samples);
    check_samples(samples, 2 * sim->node_count, &plain.replay);
    check_parts(&plain.replay);
    XXH64_update(hash, samples, 2 * sim->node_count * sizeof *samples);
    ms__sim_run_expected(sim, &d.choices, &expected);
    hash_outcome(hash, &expected);
    ms__sim_run_unmodified(sim, &d.choices, &expected);
    hash_outcome(hash, &expected);
    hash_outcome(hash, &plain);
    if (sim->on_host) {
        uint64_t more = random_below(seed, 5) * (plain.held_most_bytes - plain.live_peak_bytes) / 3;
        d.choices.ceiling_bytes = plain.live_peak_bytes + more;
        ms__sim_run(sim, &d.choices, &cached, NULL);
        check_cached(&plain, &cached);
        hash_outcome(hash, &cached);
    }
}

/* Each replay has step options that are admitted and agree. */
static void write_step(FILE *out, uint64_t seed)
{
    fixture_planning f = random_planning(&seed);
    XXH64_state_t hash;
    ms_error err;
    ms_replay kept;
    XXH64_reset(&hash, 0);
    ms_pressure pressure = {.permille = 2000};
    ms__step_case facts = {f.graph, f.hardware, &f.config, &pressure};
    uint32_t rules[MS_STEP_OPTION_COUNT], admitted = ms__step_options_admit(&facts, rules);
    XXH64_update(&hash, rules, sizeof rules);
    assert_ms_ok(ms__simulate_kept(f.graph, f.hardware, &kept, &err), err);
    for (int draw = 0; draw < DRAWS; draw++) {
        uint32_t options = admitted & (uint32_t)random_below(&seed, 1 << MS_STEP_OPTION_COUNT);
        options = ms__step_options_agree(options) ? options : 0;
        ms__sim *sim;
        assert_ms_ok(ms__step_sim_new(f.graph, f.hardware, options, 0, &sim, &err), err);
        replay_once(&hash, sim, options, &seed);
        ms__sim_free(sim);
    }
    fprintf(out, "%llu, %llu ns; %016llx\n", (unsigned long long)kept.peak_bytes, (unsigned long long)kept.step_ns,
            (unsigned long long)XXH64_digest(&hash));
    fixture_close(&f);
}

static void random_replays_keep_promises_and_are_the_golden_ones(void **state)
{
    (void)state;
    bool writes = getenv("MEMSCALE_WRITE_GOLDEN") != NULL;
    FILE *golden = fopen(test_data("sim/random_steps.golden"), writes ? "w" : "r");
    assert_non_null(golden);
    for (uint64_t step = 1; step <= STEPS; step++) {
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        assert_non_null(out);
        write_step(out, step * 104729);
        assert_int_equal(fclose(out), 0);
        golden_line(golden, writes, text);
        free(text);
    }
    assert_int_equal(fclose(golden), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_replays_keep_promises_and_are_the_golden_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
