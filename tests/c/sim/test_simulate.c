/*
 * The simulator against cases worked out on paper. Two layers, activations of 2 MiB, inner results of 8,
 * scratch of 4, gradients of 1, logits of 16; a FLOP takes a nanosecond, an operator 2 us more, a transfer 15
 * us of handling. The loss is a small tensor; libc keeps its memory, so it always counts.
 */
#include "sim/sim.h"
#include "two_layers.h"

static ms_replay replay_layers(ms_technique technique)
{
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, (uint8_t)technique, (uint8_t)technique, 0};
    ms_replay result = replay(graph, hardware, techniques, 8 * MIB, 0, NULL);
    ms_graph_free(graph);
    ms_free(hardware);
    return result;
}

static uint64_t peak_of(ms_graph *graph, ms_technique first, ms_technique second,
                        void (*run)(ms__sim *, const ms_choices *, ms__outcome *))
{
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, (uint8_t)first, (uint8_t)second, 0};
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = MIB,
                          .write_window_bytes = 8 * MIB,
                          .read_window_bytes = 16 * MIB};
    ms__sim *sim;
    ms_error err;
    ms__outcome outcome;
    assert_ms_ok(ms__sim_new(graph, hardware, &sim, &err), err);
    run(sim, &choices, &outcome);
    ms__sim_free(sim);
    ms_free(hardware);
    return outcome.replay.peak_bytes;
}

static uint64_t expected_peak(ms_graph *graph, ms_technique first, ms_technique second)
{
    return peak_of(graph, first, second, ms__sim_run_expected);
}

/* The loss outside holds 20 MiB, half of it in forward, when outputs of 40 MiB are held besides those of
 * the step before. */
static void a_loss_outside_is_expected_to_be_a_cross_entropy(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    graph->loop.external_loss_bytes = 20 * MIB;
    graph->loop.outputs_held = true;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        graph->storages[i].bytes = graph->storages[i].role == MS_STORAGE_OUTPUT ? 40 * MIB : graph->storages[i].bytes;
    }
    graph->profiles[graph->profile_count - 1].storage_bytes[2] = 40 * MIB;
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    /* x_0, inner, x_1, inner, x_2, log-softmax, outputs twice. */
    uint64_t held = RUNTIME_BYTES + (2 + 8 + 2 + 8 + 2 + 16 + 80) * MIB;
    assert_int_equal(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).peak_bytes, held + 20 * MIB);
    assert_int_equal(expected_peak(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP), held + 10 * MIB);
    /* In backward it holds all 20, until the model's first own gradient. */
    graph->loop.external_loss_bytes = 90 * MIB;
    assert_int_equal(expected_peak(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP), held - 40 * MIB + (90 + 16) * MIB);
    ms_free(hardware);
    ms_graph_free(graph);
}

/* Embedding 2 x 3 us; a layer 2 x 1.002 + 2 x 2.002 ms; the head 4 x 1.002 ms. */
static const uint64_t kept_ns = 2 * 3000 + LAYERS * (2 * 1002000 + 2 * 2002000) + 4 * 1002000;

/* x_0, inner, x_1, inner, x_2 and twice the logits. */
static void keep_holds_every_saved_tensor(void **state)
{
    (void)state;
    ms_replay kept = replay_layers(MS_TECHNIQUE_KEEP);
    assert_int_equal(kept.peak_bytes, RUNTIME_BYTES + (2 + 8 + 2 + 8 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(kept.peak_live_bytes, (2 + 8 + 2 + 8 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(kept.first_step_peak_bytes, kept.peak_bytes);
    assert_int_equal(kept.peak_node, NODES - 1);
    assert_false(kept.peak_in_backward);
    assert_int_equal(kept.step_ns, kept_ns);
    assert_int_equal(kept.compute_ns, kept_ns);
    assert_int_equal(kept.moved_bytes, 0);
}

/* Only x_0, x_1, x_2 stay; each layer runs again up to its last saved tensor. */
static void recompute_holds_arguments_and_runs_again(void **state)
{
    (void)state;
    ms_replay again = replay_layers(MS_TECHNIQUE_RECOMPUTE);
    assert_int_equal(again.peak_live_bytes, (2 + 2 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(again.recompute_ns, LAYERS * 1002000);
    assert_int_equal(again.step_ns, kept_ns + LAYERS * 1002000);
    assert_int_equal(again.peak_bytes, RUNTIME_BYTES + again.peak_live_bytes);
}

/* 1 GB/s, window 8 MiB, storages of 2 and 8 MiB by turns. Both directions share the disk while the last
 * store overlaps the first fetches. */
static void offload_stalls_on_a_slow_disk(void **state)
{
    (void)state;
    ms_replay moved = replay_layers(MS_TECHNIQUE_OFFLOAD_DISK);
    assert_int_equal(moved.stall_forward_ns, 1080152 + 7371608 + 1080152);
    assert_int_equal(moved.stall_backward_ns, 2192304 + 7653064 + 80152);
    assert_int_equal(moved.step_ns, 35592432);
    assert_int_equal(moved.compute_ns, moved.step_ns - moved.stall_forward_ns - moved.stall_backward_ns);
    /* The last store is still in flight beside x_2 and twice the logits. */
    assert_int_equal(moved.peak_live_bytes, (8 + 2 + 32) * MIB + LOSS_BYTES);
    assert_int_equal(moved.peak_bytes, RUNTIME_BYTES + ms__slab_bytes(true, MIB) + moved.peak_live_bytes);
    assert_int_equal(moved.tier_peak_bytes[2], 20 * MIB);
    /* The last layer's inner result is written, but backward needs it before memory is released. */
    assert_int_equal(moved.moved_bytes, (20 + 12) * MIB);
}

static void compute_hides_a_fast_disk(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 1000000000000;
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, MS_TECHNIQUE_OFFLOAD_DISK, 0};
    ms_replay moved = replay(graph, hardware, techniques, 64 * MIB, 0, NULL);
    assert_int_equal(moved.stall_forward_ns, 0);
    /* Backward waits for its first fetch (x_1 is behind the inner result). */
    assert_true(moved.stall_backward_ns <= 8389);
    assert_int_equal(moved.peak_live_bytes, (2 + 32) * MIB + LOSS_BYTES);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* A window that holds every store never stalls forward, but stores in flight stay resident. */
static void the_write_window_trades_memory_for_waiting(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, MS_TECHNIQUE_OFFLOAD_DISK, 0};
    ms_replay narrow = replay(graph, hardware, techniques, 8 * MIB, 0, NULL);
    ms_replay wide = replay(graph, hardware, techniques, 64 * MIB, 0, NULL);
    assert_int_equal(wide.stall_forward_ns, 0);
    assert_true(wide.peak_live_bytes > narrow.peak_live_bytes);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* The arguments of recomputed layers are offloaded, and fetched before the layers run again. */
static void offloaded_arguments_come_back_before_recompute(void **state)
{
    (void)state;
    ms_replay away = replay_layers(MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT);
    assert_int_equal(away.recompute_ns, LAYERS * 1002000);
    assert_int_equal(away.tier_peak_bytes[2], 4 * MIB);
    /* Writing x_1 takes longer than running h.1, and the executor does not poll while the head runs: */
    assert_int_equal(away.peak_live_bytes, (2 + 2 + 32) * MIB + LOSS_BYTES);
}

/* Storages below the floor stay. */
static void small_storages_stay(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, MS_TECHNIQUE_OFFLOAD_DISK, 0};
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = 4 * MIB,
                          .write_window_bytes = 64 * MIB,
                          .read_window_bytes = 64 * MIB};
    ms_replay result;
    ms_error err;
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
    assert_int_equal(result.tier_peak_bytes[2], 16 * MIB);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Layers that save their output as well as their input. */
static ms_graph *output_savers(void)
{
    ms_graph *graph = two_layers();
    ms_profile *profile = &graph->profiles[0];
    const ms_event saves = {.kind = MS_EVENT_SAVE, .storage = 1}, needs = {.kind = MS_EVENT_NEED, .storage = 1},
                   drops = {.kind = MS_EVENT_DROP, .storage = 1};
    profile->forward = ms_realloc_array(profile->forward, profile->forward_count + 1, sizeof saves);
    profile->backward = ms_realloc_array(profile->backward, profile->backward_count + 2, sizeof saves);
    profile->forward[profile->forward_count++] = saves;
    memmove(profile->backward + 2, profile->backward, profile->backward_count * sizeof saves);
    profile->backward[0] = needs;
    profile->backward[1] = drops;
    profile->backward_count += 2;
    ms_error err;
    assert_ms_ok(ms_graph_check(graph, &err), err);
    return graph;
}

/* A storage that two nodes save is one extent. It stays as long as one of them keeps it. */
static void a_storage_that_one_node_keeps_stays(void **state)
{
    (void)state;
    ms_graph *graph = output_savers();
    ms_hardware *hardware = fixture_hardware();
    hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 1000000000000;
    uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, MS_TECHNIQUE_KEEP, 0};
    ms_sample samples[2 * NODES];
    replay(graph, hardware, techniques, 64 * MIB, 0, samples);
    /* x_0, inner and x_1 were offloaded; h.1 still keeps x_1. */
    assert_int_equal(samples[NODES - 1].lower_tier_bytes, (2 + 8 + 2) * MIB);
    uint64_t fixed = RUNTIME_BYTES + ms__slab_bytes(true, MIB);
    assert_int_equal(samples[NODES - 1].device_bytes, fixed + (2 + 8 + 2 + 16) * MIB + LOSS_BYTES);
    uint64_t kept = owned(samples, NODES - 1, MS_OWNER_LAYERS);
    techniques[2] = MS_TECHNIQUE_OFFLOAD_DISK;
    replay(graph, hardware, techniques, 64 * MIB, 0, samples);
    assert_int_equal(samples[NODES - 1].lower_tier_bytes, (2 + 8 + 2 + 8 + 2) * MIB);
    assert_int_equal(samples[NODES - 1].device_bytes, fixed + (2 + 16) * MIB + LOSS_BYTES);
    assert_int_equal(kept, owned(samples, NODES - 1, MS_OWNER_LAYERS) + (8 + 2) * MIB);
    assert_int_equal(owned(samples, 2 * NODES - 1, MS_OWNER_LAYERS), 0);
    assert_int_equal(samples[2 * NODES - 1].lower_tier_bytes, 0);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void a_measured_baseline_replaces_the_stated_runtime(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    graph->residents.parameter_bytes = 7 * MIB;
    ms_replay stated = replay(graph, hardware, techniques, 0, 0, NULL);
    hardware->process.baseline_bytes = 300 * MIB;
    hardware->process.scratch_bytes = 10 * MIB;
    ms_replay measured = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(stated.peak_bytes - RUNTIME_BYTES - 7 * MIB, measured.peak_bytes - 310 * MIB);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Without a cache every map is faulted in again; with an unbounded one the second step faults nothing; the
 * ceiling is exceeded only by live bytes. */
static void the_cache_saves_faults_under_its_ceiling(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    hardware->cpu.fault_bytes_per_s = 1000000000;
    const uint8_t techniques[NODES] = {0};
    ms_replay none = replay(graph, hardware, techniques, 0, 0, NULL);
    /* x_0..x_2, inner and scratch twice, logits three times, gradients of x and weights. */
    assert_int_equal(none.fault_ns, (3 * 2 + 2 * (8 + 4) + 3 * 16 + 3 * 2 + 2 * 1) * MIB);
    ms_replay all = replay(graph, hardware, techniques, 0, UINT64_MAX, NULL);
    assert_int_equal(all.fault_ns, 0);
    assert_int_equal(all.step_ns, kept_ns);
    uint64_t live = none.peak_live_bytes;
    for (uint64_t ceiling = live; ceiling < live + 40 * MIB; ceiling += 3 * MIB) {
        ms_replay some = replay(graph, hardware, techniques, 0, ceiling, NULL);
        assert_true(some.peak_bytes <= RUNTIME_BYTES + ceiling);
        assert_true(some.peak_bytes >= none.peak_bytes);
        assert_true(some.fault_ns <= none.fault_ns);
    }
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Untouched bytes of fresh maps are not resident in an unmodified run; in other runs they count. */
static void untouched_bytes_are_not_expected_of_an_unmodified_run(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    uint64_t all = expected_peak(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP);
    uint64_t must_fit = replay(graph, hardware, techniques, 0, 0, NULL).peak_bytes;
    assert_int_equal(peak_of(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP, ms__sim_run_unmodified), all);
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        ms_profile *profile = &graph->profiles[i];
        if (profile->input_count > 0) {
            fixture_list_storage(&profile->untouched, 5, 3 * MIB);
        }
    }
    assert_int_equal(peak_of(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP, ms__sim_run_unmodified),
                     all - LAYERS * 3 * MIB);
    assert_int_equal(expected_peak(graph, MS_TECHNIQUE_KEEP, MS_TECHNIQUE_KEEP), all);
    assert_int_equal(replay(graph, hardware, techniques, 0, 0, NULL).peak_bytes, must_fit);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Inner results and logits are four maps of 16 MiB at once. The two gradients leave two of them free,
 * which serve the optimizer's step. Without a cache the step's temporaries are part of the peak. */
static void the_optimizers_step_reuses_cached_maps(void **state)
{
    (void)state;
    static const fixture_layer wide = {16 * MIB, 4 * MIB, 1000000, 16 * MIB, 0};
    fixture_chain chain = {
        .layer_count = LAYERS, .layers = &wide, .uniform = true, .activation_bytes = 2 * MIB, .logits_bytes = 16 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    ms_replay bare = replay(graph, hardware, techniques, 0, UINT64_MAX, NULL);
    ms_replay bare_live = replay(graph, hardware, techniques, 0, 0, NULL);
    graph->loop.optimizer_transient_bytes = 2 * 16 * MIB;
    ms_replay stepped = replay(graph, hardware, techniques, 0, UINT64_MAX, NULL);
    ms_replay stepped_live = replay(graph, hardware, techniques, 0, 0, NULL);
    assert_int_equal(stepped.peak_bytes, bare.peak_bytes);
    assert_int_equal(stepped.step_ns, bare.step_ns);
    assert_true(stepped.peak_live_bytes >= bare_live.peak_live_bytes);
    assert_int_equal(stepped.peak_live_bytes, stepped_live.peak_live_bytes);
    /* An update of all parameters at once does not take maps of one size. */
    graph->loop.optimizer_transient_bytes = 5 * 16 * MIB;
    ms_replay at_once = replay(graph, hardware, techniques, 0, UINT64_MAX, NULL);
    assert_int_equal(at_once.peak_bytes, bare.peak_bytes + 5 * 16 * MIB);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void the_timeline_has_every_node_twice(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_DISK, 0, 0};
    ms_sample samples[2 * NODES];
    ms_replay result = replay(graph, hardware, techniques, 8 * MIB, 0, samples);
    for (uint32_t i = 0; i < 2 * NODES; i++) {
        assert_int_equal(samples[i].node, i < NODES ? i : 2 * NODES - 1 - i);
        assert_int_equal(samples[i].in_backward, i >= NODES);
        assert_true(i == 0 || samples[i].at_ns >= samples[i - 1].at_ns);
        assert_true(samples[i].device_bytes <= result.peak_bytes);
    }
    assert_int_equal(samples[1].lower_tier_bytes, 10 * MIB);
    assert_int_equal(samples[2 * NODES - 1].lower_tier_bytes, 0);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* A GPU counts multiples of 512 bytes, has no hostmem cache, and two copy engines that move both ways at
 * once. */
static void a_gpu_moves_to_host_memory(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    hardware->gpu_count = 1;
    hardware->device = 0;
    hardware->gpu[0] = (ms_gpu){.total_bytes = 1000 * MIB,
                                .free_bytes = 1000 * MIB,
                                .copy_engines = 2,
                                .matmul_flops_per_s = 1000000000,
                                .stream_bytes_per_s = 1000000000000,
                                .to_host_bytes_per_s = 1000000000,
                                .from_host_bytes_per_s = 1000000000};
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_HOST, MS_TECHNIQUE_OFFLOAD_HOST, 0};
    ms_replay moved = replay(graph, hardware, techniques, 8 * MIB, 0, NULL);
    assert_int_equal(moved.tier_peak_bytes[1], 20 * MIB);
    assert_int_equal(moved.tier_peak_bytes[2], 0);
    assert_int_equal(moved.peak_bytes, GPU_RUNTIME_BYTES + moved.peak_live_bytes);
    /* The same links as the disk's, but not shared between directions. */
    assert_true(moved.step_ns < 35592432);
    ms_graph_free(graph);
    ms_free(hardware);
}

static ms_hardware *hardware_with_gpu(void)
{
    ms_hardware *hardware = fixture_hardware();
    hardware->gpu_count = 1;
    hardware->device = 0;
    hardware->gpu[0] = (ms_gpu){.total_bytes = 1000 * MIB,
                                .free_bytes = 1000 * MIB,
                                .copy_engines = 2,
                                .matmul_flops_per_s = 1000000000,
                                .stream_bytes_per_s = 1000000000000,
                                .to_host_bytes_per_s = UINT64_C(1000000000000),
                                .from_host_bytes_per_s = UINT64_C(1000000000000)};
    return hardware;
}

/* Stores take no time here, yet a host that is far ahead holds a window of them. */
static void the_peak_on_a_gpu_bounds_any_lead_of_the_host(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = hardware_with_gpu();
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_HOST, MS_TECHNIQUE_OFFLOAD_HOST, 0};
    const uint8_t kept[NODES] = {0};
    ms_choices choices = {
        .technique = techniques, .offload_min_bytes = 1, .read_window_bytes = 8 * MIB, .host_leads = true};
    ms_replay result;
    ms_error err;
    uint64_t peaks[2];
    for (int i = 0; i < 2; i++) {
        choices.write_window_bytes = i == 0 ? 1 : 64 * MIB;
        assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
        peaks[i] = result.peak_live_bytes;
    }
    assert_true(peaks[1] > peaks[0]);
    /* While all stores are in flight, all storages are still resident, as without offloading. */
    choices.technique = kept;
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
    assert_true(peaks[1] >= result.peak_live_bytes);
    /* Waiting for each layer's stores, the host sees their ends. */
    choices.technique = techniques;
    choices.waits = true;
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
    assert_true(result.peak_live_bytes < peaks[1]);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void what_exceeds_pinned_memory_moves_at_the_pageable_rate(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = hardware_with_gpu();
    hardware->gpu[0].pageable_to_host_bytes_per_s = hardware->gpu[0].pageable_from_host_bytes_per_s = 1000 * MIB;
    const uint8_t techniques[NODES] = {0, MS_TECHNIQUE_OFFLOAD_HOST, MS_TECHNIQUE_OFFLOAD_HOST, 0};
    ms_choices choices = {.technique = techniques,
                          .offload_min_bytes = 1,
                          .write_window_bytes = 64 * MIB,
                          .read_window_bytes = 8 * MIB,
                          .waits = true};
    const uint64_t pinned_bytes[] = {0, UINT64_C(1) << 40, 5 * MIB, 1};
    uint64_t step_ns[4];
    ms_replay result;
    ms_error err;
    for (int i = 0; i < 4; i++) {
        choices.pinned_bytes = pinned_bytes[i];
        assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
        step_ns[i] = result.step_ns;
    }
    assert_int_equal(step_ns[0], step_ns[1]);
    assert_true(step_ns[1] < step_ns[2]);
    assert_true(step_ns[2] < step_ns[3]);
    hardware->gpu[0].pageable_to_host_bytes_per_s = hardware->gpu[0].pageable_from_host_bytes_per_s = 0; /* unknown */
    assert_ms_ok(ms_simulate(graph, hardware, &choices, &result, NULL, &err), err);
    assert_int_equal(result.step_ns, step_ns[0]);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void the_same_documents_give_the_same_replay(void **state)
{
    (void)state;
    for (int which = 0; which < FIXTURE_GRAPHS; which++) {
        ms_graph *graph = fixture_graph(which);
        ms_hardware *hardware = fixture_real_hardware();
        uint8_t techniques[64];
        for (uint32_t i = 0; i < 64; i++) {
            techniques[i] = (uint8_t)(i * 7 % 3 == 0 ? MS_TECHNIQUE_OFFLOAD_DISK : i * 7 % 3 == 1);
        }
        ms_replay first = replay(graph, hardware, techniques, 64 * MIB, 3000 * MIB, NULL);
        ms_replay second = replay(graph, hardware, techniques, 64 * MIB, 3000 * MIB, NULL);
        assert_memory_equal(&first, &second, sizeof first);
        ms_graph_free(graph);
        ms_free(hardware);
    }
}

static void it_fails_only_out_of_memory(void **state)
{
    (void)state;
    ms_graph *graph = two_layers();
    ms_hardware *hardware = fixture_hardware();
    const uint8_t techniques[NODES] = {0};
    ms_choices choices = {.technique = techniques};
    uint64_t before = ms_memory_live_blocks(), nth = 0;
    ms_replay result;
    ms_error err;
    int rc;
    do {
        ms_fault_arm(MS_FAULT_ALLOC, ++nth, 0);
        rc = ms_simulate(graph, hardware, &choices, &result, NULL, &err);
        assert_true(rc == MS_OK || rc == MS_ENOMEM);
        assert_int_equal(ms_memory_live_blocks(), before);
    } while (rc != MS_OK);
    ms_fault_disarm_all();
    assert_true(nth > 10);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Drawn one after the other on a CPU; a GPU draws as fast as it writes. */
static void random_numbers_take_time_on_a_cpu(void **state)
{
    (void)state;
    enum { DRAWS = 10000000 };
    static const uint8_t techniques[NODES] = {0};
    ms_hardware *hardware = fixture_hardware();
    uint64_t took_ns[2][2];
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        for (int draws = 0; draws < 2; draws++) {
            ms_graph *graph = two_layers();
            ms_event *event = graph->profiles[graph->nodes[1].profile].forward;
            while (event->kind != MS_EVENT_WORK) {
                event++;
            }
            event->draws = draws ? DRAWS : 0;
            hardware->device = on_gpu ? 0 : -1;
            hardware->gpu_count = (uint32_t)on_gpu;
            hardware->gpu[0] = (ms_gpu){.total_bytes = 24000 * MIB,
                                        .matmul_flops_per_s = 1000000000,
                                        .stream_bytes_per_s = 1000000000000,
                                        .to_host_bytes_per_s = 1000000000,
                                        .from_host_bytes_per_s = 1000000000};
            took_ns[on_gpu][draws] = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
            ms_graph_free(graph);
        }
    }
    ms_free(hardware);
    /* Both layers have this profile; the operator took a millisecond without. */
    assert_int_equal(took_ns[0][1] - took_ns[0][0], LAYERS * (DRAWS / 1000 * MS__DRAW_PS - 1000000));
    assert_int_equal(took_ns[1][1], took_ns[1][0]);
}

/* At the description's rate; on a GPU, while the bytes move. */
static void evaluations_take_time_on_a_cpu(void **state)
{
    (void)state;
    enum { EVALUATIONS = 500000000 };
    static const uint8_t techniques[NODES] = {0};
    ms_hardware *hardware = fixture_hardware();
    ms_graph *graph = two_layers();
    uint64_t plain_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    ms_event *event = graph->profiles[graph->nodes[1].profile].forward;
    while (event->kind != MS_EVENT_WORK) {
        event++;
    }
    event->evaluations = EVALUATIONS;
    hardware->cpu.evaluations_per_s = 10000000000;
    uint64_t slow_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    /* Both layers have this profile; the operator took a millisecond without. */
    assert_int_equal(slow_ns - plain_ns, LAYERS * (50000000 - 1000000));
    hardware->cpu.evaluations_per_s = 0;
    assert_true(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns > plain_ns);
    hardware->device = 0;
    hardware->gpu_count = 1;
    hardware->gpu[0] = (ms_gpu){.total_bytes = 24000 * MIB,
                                .matmul_flops_per_s = 1000000000,
                                .stream_bytes_per_s = 1000000000000,
                                .to_host_bytes_per_s = 1000000000,
                                .from_host_bytes_per_s = 1000000000};
    uint64_t on_gpu_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    event->evaluations = 0;
    assert_int_equal(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns, on_gpu_ns);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* At the rate of the link between two devices; a host is alone. */
static void bytes_of_another_device_take_the_links_time(void **state)
{
    (void)state;
    static const uint8_t techniques[NODES] = {0};
    ms_hardware *hardware = fixture_hardware();
    ms_graph *graph = two_layers();
    ms_event *event = graph->profiles[graph->nodes[1].profile].forward;
    while (event->kind != MS_EVENT_WORK) {
        event++;
    }
    uint64_t on_host_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    event->moved_bytes = 500000000;
    assert_int_equal(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns, on_host_ns);
    fixture_use_card(hardware, 10000000000);
    uint64_t slow_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    *event = (ms_event){.kind = MS_EVENT_WORK};
    uint64_t without_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    assert_int_equal(slow_ns - without_ns, LAYERS * 50000000);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* A measured profile takes its measured times, at the scale of the machine. */
static void measured_times_replace_computed_ones(void **state)
{
    (void)state;
    static const uint8_t techniques[NODES] = {0};
    ms_hardware *hardware = fixture_hardware();
    ms_graph *graph = two_layers();
    uint64_t computed_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    ms_profile *profile = &graph->profiles[graph->nodes[1].profile];
    profile->forward_ns = 300000000;
    profile->backward_ns = 500000000;
    uint64_t measured_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    profile->forward_ns += 7000000;
    assert_int_equal(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns, measured_ns + LAYERS * 7000000);
    assert_true(measured_ns > computed_ns && measured_ns > LAYERS * 800000000ULL);
    uint64_t as_it_is_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    hardware->time_scale_permille = 2000;
    assert_in_range(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns, 2 * as_it_is_ns - 10,
                    2 * as_it_is_ns + 10);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* Products in BF16 and FP16 take their own rate's time on a GPU, or FP32's if theirs is unknown. */
static void products_take_the_time_of_their_precision(void **state)
{
    (void)state;
    static const uint8_t techniques[NODES] = {0};
    static const uint64_t expected_ns[] = {1000000000, 250000000, 500000000};
    ms_hardware *hardware = fixture_hardware();
    ms_graph *graph = two_layers();
    hardware->device = 0;
    hardware->gpu_count = 1;
    hardware->gpu[0] = (ms_gpu){.total_bytes = 24000 * MIB,
                                .matmul_flops_per_s = 1000000000,
                                .bf16_flops_per_s = 4000000000,
                                .fp16_flops_per_s = 2000000000,
                                .stream_bytes_per_s = 1000000000000,
                                .to_host_bytes_per_s = 1000000000,
                                .from_host_bytes_per_s = 1000000000};
    ms_event *event = graph->profiles[graph->nodes[1].profile].forward;
    while (event->kind != MS_EVENT_WORK) {
        event++;
    }
    event->flops = 0;
    uint64_t without_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns;
    event->flops = 1000000000;
    for (uint32_t precision = MS_PRECISION_AS_IS; precision <= MS_PRECISION_FP16; precision++) {
        event->precision = precision;
        uint64_t took_ns = replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns - without_ns;
        assert_in_range(took_ns, LAYERS * (expected_ns[precision] - 1000000), LAYERS * expected_ns[precision]);
    }
    hardware->gpu[0].fp16_flops_per_s = 0;
    assert_true(replay(graph, hardware, techniques, 8 * MIB, 0, NULL).compute_ns - without_ns > LAYERS * 900000000);
    ms_graph_free(graph);
    ms_free(hardware);
}

/* 2^58 bytes at a byte a second take 2^88 ns. Times saturate at UINT64_MAX, and replays end. */
static void times_beyond_64_bits_saturate(void **state)
{
    (void)state;
    static const ms_technique tried[] = {MS_TECHNIQUE_KEEP, MS_TECHNIQUE_RECOMPUTE, MS_TECHNIQUE_OFFLOAD_DISK,
                                         MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT};
    const fixture_layer huge = {UINT64_C(1) << 58, 4 * MIB, INT64_MAX / 16, MIB, 0, 0};
    fixture_chain chain = {.layer_count = LAYERS,
                           .layers = &huge,
                           .uniform = true,
                           .activation_bytes = UINT64_C(1) << 56,
                           .logits_bytes = 16 * MIB};
    ms_graph *graph = fixture_chain_graph(&chain);
    ms_hardware *hardware = fixture_hardware();
    hardware->disk.write_bytes_per_s = hardware->disk.read_bytes_per_s = 1;
    hardware->cpu.fault_bytes_per_s = hardware->cpu.checksum_bytes_per_s = 1;
    for (size_t i = 0; i < sizeof tried / sizeof tried[0]; i++) {
        const uint8_t techniques[NODES] = {0, (uint8_t)tried[i], (uint8_t)tried[i], 0};
        for (uint64_t window = MIB; window != 0; window = window == MIB ? UINT64_C(1) << 60 : 0) {
            ms_replay found = replay(graph, hardware, techniques, window, 0, NULL);
            assert_true(found.step_ns == UINT64_MAX);
            assert_true(found.compute_ns <= found.step_ns);
        }
    }
    ms_graph_free(graph);
    ms_free(hardware);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_take_time_on_a_cpu),
        cmocka_unit_test(bytes_of_another_device_take_the_links_time),
        cmocka_unit_test(measured_times_replace_computed_ones),
        cmocka_unit_test(products_take_the_time_of_their_precision),
        cmocka_unit_test(random_numbers_take_time_on_a_cpu),
        cmocka_unit_test(keep_holds_every_saved_tensor),
        cmocka_unit_test(a_loss_outside_is_expected_to_be_a_cross_entropy),
        cmocka_unit_test(recompute_holds_arguments_and_runs_again),
        cmocka_unit_test(offload_stalls_on_a_slow_disk),
        cmocka_unit_test(compute_hides_a_fast_disk),
        cmocka_unit_test(the_write_window_trades_memory_for_waiting),
        cmocka_unit_test(offloaded_arguments_come_back_before_recompute),
        cmocka_unit_test(small_storages_stay),
        cmocka_unit_test(a_storage_that_one_node_keeps_stays),
        cmocka_unit_test(a_measured_baseline_replaces_the_stated_runtime),
        cmocka_unit_test(the_cache_saves_faults_under_its_ceiling),
        cmocka_unit_test(untouched_bytes_are_not_expected_of_an_unmodified_run),
        cmocka_unit_test(the_optimizers_step_reuses_cached_maps),
        cmocka_unit_test(the_timeline_has_every_node_twice),
        cmocka_unit_test(a_gpu_moves_to_host_memory),
        cmocka_unit_test(the_peak_on_a_gpu_bounds_any_lead_of_the_host),
        cmocka_unit_test(what_exceeds_pinned_memory_moves_at_the_pageable_rate),
        cmocka_unit_test(the_same_documents_give_the_same_replay),
        cmocka_unit_test(it_fails_only_out_of_memory),
        cmocka_unit_test(times_beyond_64_bits_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
