/*
 * Step options of optimizers: state on disk and gradient release take the right bytes off the peak, cost the
 * right time, and are refused by the right rule.
 */
#include <math.h>

#include "memscale/optimizer_stream.h"
#include "memscale/pipeline.h"
#include "plan_fixture.h"
#include "sim/step_options.h"

enum { LAYERS = 6, NODES = LAYERS + 2 };
#define STATE (80 * MIB)
#define GRADIENT (100 * MIB)
static const uint32_t disk_bit = 1u << MS_STEP_STATE_ON_DISK;
static const uint32_t host_bit = 1u << MS_STEP_STATE_ON_HOST;
static const uint32_t release_bit = 1u << MS_STEP_GRADIENT_RELEASE;
static const uint32_t ahead_bit = 1u << MS_STEP_STATE_READ_AHEAD;
static const uint8_t keep[NODES];

typedef fixture_planning fixture;

/* Gradients are the largest tensors. */
static int set_up(void **state)
{
    const fixture_layer layer = {.saved_bytes = MIB, .flops = 5000000, .gradient_bytes = GRADIENT};
    const fixture_chain chain = {.layer_count = LAYERS,
                                 .layers = &layer,
                                 .uniform = true,
                                 .activation_bytes = MIB,
                                 .logits_bytes = 2 * MIB,
                                 .parameter_bytes = 40 * MIB,
                                 .state_bytes = STATE};
    fixture *f = calloc(1, sizeof *f);
    f->graph = fixture_chain_graph(&chain);
    f->graph->loop.optimizer_stream_bytes = STATE;
    f->graph->loop.gradients_releasable = true;
    f->hardware = fixture_hardware();
    ms_config_default(&f->config);
    f->config.mode = MS_MODE_AGGRESSIVE;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture_close(*state);
    free(*state);
    return 0;
}

/* The rule that judged an option. */
static uint32_t rule_of(const fixture *f, ms_step_option option)
{
    const ms_pressure pressure = {.need_bytes = 2, .allowed_bytes = 1, .permille = 2000};
    const ms__step_case facts = {f->graph, f->hardware, &f->config, &pressure};
    uint32_t rules[MS_STEP_OPTION_COUNT];
    uint32_t admitted = ms__step_options_admit(&facts, rules);
    assert_int_equal((admitted >> option) & 1, rules[option] == MS_RULE_PRESSURE);
    return rules[option];
}

static void state_on_disk_frees_the_state_and_takes_disk_time(void **state)
{
    fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, disk_bit);
    /* The peak moves from backward to the optimizer, where the buffers are. */
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, STATE - MS__STREAM_BUFFER_BYTES,
                    STATE - MS__STREAM_BUFFER_BYTES + 4 * MIB);
    assert_int_equal(with.step_ns - without.step_ns, 2 * STATE); /* 1 GB/s each way */
    assert_int_equal(with.tier_peak_bytes[1] + with.tier_peak_bytes[2], STATE + MS__STREAM_BUFFER_BYTES);
}

/* A GPU with links of 1 and 2 GB/s. */
static void train_on_a_gpu(fixture *f, uint32_t copy_engines)
{
    f->hardware->device = 0;
    f->hardware->gpu_count = 1;
    f->hardware->gpu[0] = (ms_gpu){.total_bytes = 64000 * MIB,
                                   .copy_engines = copy_engines,
                                   .matmul_flops_per_s = 1000000000,
                                   .stream_bytes_per_s = UINT64_C(1000000000000),
                                   .to_host_bytes_per_s = 1000000000,
                                   .from_host_bytes_per_s = 2000000000};
}

static void state_in_host_memory_frees_the_card_and_takes_the_links_time(void **state)
{
    fixture *f = *state;
    for (uint32_t engines = 1; engines <= 2; engines++) {
        train_on_a_gpu(f, engines);
        ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, host_bit);
        assert_in_range(without.peak_live_bytes - with.peak_live_bytes, STATE - MS__HOST_STREAM_BYTES,
                        STATE - MS__HOST_STREAM_BYTES + 4 * MIB);
        uint64_t both_ns = STATE + STATE / 2, longer_ns = STATE; /* one engine moves both ways by turns */
        uint64_t added_ns = with.step_ns - without.step_ns;
        assert_in_range(added_ns, (engines == 1 ? both_ns : longer_ns) - 1000000, engines == 1 ? both_ns : longer_ns);
        assert_int_equal(with.tier_peak_bytes[1] + with.tier_peak_bytes[2], STATE);
    }
}

static void the_cards_buffers_equal_the_updates(void **state)
{
    (void)state;
    uint64_t buffers = (uint64_t)MS_OPTIMIZER_HOST_BUFFERS * MS_OPTIMIZER_HOST_BUFFER_BYTES;
    assert_int_equal(MS__HOST_BUFFER_BYTES, buffers);
    assert_int_equal(MS__HOST_STREAM_BYTES, buffers + MS_OPTIMIZER_HOST_BUFFER_BYTES);
    for (uint32_t arrays = 2; arrays <= 3; arrays++) {
        uint64_t elements = ms_optimizer_host_elements(arrays, 4);
        assert_true(elements * arrays * 4 <= MS_OPTIMIZER_HOST_BUFFER_BYTES && elements % 512 == 0);
        assert_true((elements + 512) * arrays * 4 > MS_OPTIMIZER_HOST_BUFFER_BYTES);
    }
}

static void rules_of_state_in_host_memory(void **state)
{
    fixture *f = *state;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_HOST_IS_DEVICE);
    train_on_a_gpu(f, 2);
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_PRESSURE);
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_PRESSURE);
    f->config.max_cpu_offload_bytes = STATE - 1;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_HOST_CAP);
    f->config.enable_offloading = false;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_FLAG_OFF);
    f->config.mode = MS_MODE_CONSERVATIVE;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_MODE);
    f->graph->loop.optimizer_stream_bytes = 0;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_OTHER_OPTIMIZER);
}

static void part_of_the_state_may_stay(void **state)
{
    fixture *f = *state;
    f->graph->loop.optimizer_stream_bytes = STATE / 2;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, disk_bit);
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, STATE / 2 - MS__STREAM_BUFFER_BYTES,
                    STATE / 2 - MS__STREAM_BUFFER_BYTES + 4 * MIB);
    assert_int_equal(with.step_ns - without.step_ns, STATE);
}

static void gradient_release_keeps_one_layers_gradients_at_a_time(void **state)
{
    fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, release_bit);
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, (LAYERS - 1) * GRADIENT - 20 * MIB,
                    (LAYERS - 1) * GRADIENT);
    assert_int_equal(with.step_ns, without.step_ns);
}

/* Lets every layer make its gradient (local 4) first, with or without the mark that it is final. */
static void make_gradients_first(ms_graph *graph, bool marked)
{
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        ms_profile *profile = &graph->profiles[i];
        if (profile->external_count < 5 || profile->storage_bytes[4] != GRADIENT) {
            continue;
        }
        ms_event *events = ms_calloc(profile->backward_count + 1, sizeof *events);
        uint32_t count = 0;
        events[count++] = (ms_event){.kind = MS_EVENT_ALLOC, .storage = 4};
        if (marked) {
            events[count++] = (ms_event){.kind = MS_EVENT_FINAL, .storage = 4};
        }
        for (uint32_t k = 0; k < profile->backward_count; k++) {
            if (profile->backward[k].kind == MS_EVENT_WORK || profile->backward[k].storage != 4) {
                events[count++] = profile->backward[k];
            }
        }
        ms_free(profile->backward);
        profile->backward = events;
        profile->backward_count = count;
    }
}

static void a_released_gradient_ends_where_it_is_final(void **state)
{
    fixture *f = *state;
    ms_error err;
    make_gradients_first(f->graph, false);
    ms_replay unmarked = fixture_simulate(f, keep, release_bit), kept = fixture_simulate(f, keep, 0);
    make_gradients_first(f->graph, true);
    assert_ms_ok(ms_graph_check(f->graph, &err), err);
    ms_replay marked = fixture_simulate(f, keep, release_bit), marked_kept = fixture_simulate(f, keep, 0);
    assert_int_equal(unmarked.peak_live_bytes - marked.peak_live_bytes, MIB); /* the gradient of the layer's input */
    assert_int_equal(marked.step_ns, unmarked.step_ns);
    assert_int_equal(marked_kept.peak_live_bytes, kept.peak_live_bytes); /* a mark alone frees nothing */
    assert_int_equal(marked_kept.peak_bytes, kept.peak_bytes);
}

static void with_both_options_the_buffers_are_live_in_backward(void **state)
{
    fixture *f = *state;
    ms_replay release = fixture_simulate(f, keep, release_bit),
              both = fixture_simulate(f, keep, release_bit | disk_bit);
    assert_int_equal(release.peak_bytes - both.peak_bytes, STATE - MS__STREAM_BUFFER_BYTES);
}

/* Multiplies the time that layers compute. */
static void compute_longer(ms_graph *graph, uint64_t times)
{
    for (uint32_t i = 0; i < graph->profile_count; i++) {
        ms_profile *profile = &graph->profiles[i];
        for (uint32_t k = 0; k < profile->backward_count; k++) {
            profile->backward[k].flops *= times;
        }
    }
}

/* Each of six layers has 60 MiB of state, which the disk moves both ways in `moving_ns`. */
static uint64_t give_layers_state(fixture *f)
{
    f->graph->loop.optimizer_state_bytes = f->graph->loop.optimizer_stream_bytes = LAYERS * 60 * MIB;
    f->hardware->disk.free_bytes = UINT64_C(1) << 40;
    return 2 * 60 * MIB; /* 1 GB/s each way */
}

/* The time of a step whose layers compute longer than the disk moves: what half of the buffers hold is hidden, but for
 * the first layer's. */
static void the_disk_works_while_layers_compute(void **state)
{
    fixture *f = *state;
    uint64_t moving_ns = give_layers_state(f);
    compute_longer(f->graph, 1000);
    ms_replay bare = fixture_simulate(f, keep, release_bit);
    const struct {
        uint32_t options;
        uint64_t half_bytes;
    } cases[] = {{release_bit | disk_bit, MS__STREAM_BUFFER_BYTES / 2},
                 {release_bit | disk_bit | ahead_bit, 60 * MIB / 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t hidden_ns = 2 * cases[i].half_bytes;
        uint64_t waits_ns = LAYERS * moving_ns - (LAYERS - 1) * hidden_ns;
        ms_replay with = fixture_simulate(f, keep, cases[i].options);
        /* Without state on disk, the update's own time is part of the step. */
        assert_in_range(with.step_ns - bare.step_ns, waits_ns - waits_ns / 100, waits_ns + waits_ns / 100);
        assert_in_range(with.stall_backward_ns, waits_ns - waits_ns / 100, waits_ns + waits_ns / 100);
        assert_int_equal(with.tier_peak_bytes[2], LAYERS * 60 * MIB + 2 * cases[i].half_bytes);
    }
}

/* The same for a GPU, whose link moves both ways at once. */
static void the_link_works_while_layers_compute(void **state)
{
    fixture *f = *state;
    (void)give_layers_state(f);
    train_on_a_gpu(f, 2);
    compute_longer(f->graph, 1000);
    ms_replay bare = fixture_simulate(f, keep, release_bit);
    const uint64_t moving_ns = 60 * MIB; /* 1 GB/s down, 2 GB/s up */
    const struct {
        uint32_t options;
        uint64_t half_bytes;
    } cases[] = {{release_bit | host_bit, MS__HOST_BUFFER_BYTES / 2}, {release_bit | host_bit | ahead_bit, 32 * MIB}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t hidden_ns = cases[i].half_bytes;
        uint64_t waits_ns = LAYERS * moving_ns - (LAYERS - 1) * hidden_ns;
        ms_replay with = fixture_simulate(f, keep, cases[i].options);
        assert_in_range(with.step_ns - bare.step_ns, waits_ns - waits_ns / 50, waits_ns + waits_ns / 50);
        assert_int_equal(with.tier_peak_bytes[1], LAYERS * 60 * MIB);
    }
}

/* If layers compute for a shorter time than the disk moves, the disk's time is what a step takes. */
static void the_disk_hides_no_more_than_layers_compute(void **state)
{
    fixture *f = *state;
    uint64_t moving_ns = give_layers_state(f);
    uint32_t both = release_bit | disk_bit;
    ms_replay bare = fixture_simulate(f, keep, release_bit), with = fixture_simulate(f, keep, both | ahead_bit);
    assert_in_range(with.step_ns, LAYERS * moving_ns, LAYERS * moving_ns + bare.step_ns);
}

static void the_buffers_are_live_in_backward_and_as_large_as_a_layers_state(void **state)
{
    fixture *f = *state;
    uint32_t both = release_bit | disk_bit;
    (void)give_layers_state(f);
    ms_replay usual = fixture_simulate(f, keep, both), ahead = fixture_simulate(f, keep, both | ahead_bit);
    assert_int_equal(ahead.peak_bytes - usual.peak_bytes, 60 * MIB - MS__STREAM_BUFFER_BYTES);
    f->graph->loop.optimizer_state_bytes = f->graph->loop.optimizer_stream_bytes = LAYERS * (2048 * MIB);
    usual = fixture_simulate(f, keep, both);
    ahead = fixture_simulate(f, keep, both | ahead_bit);
    assert_int_equal(ahead.peak_bytes - usual.peak_bytes, MS__STREAM_BUFFER_MOST_BYTES - MS__STREAM_BUFFER_BYTES);
}

static void reading_ahead_needs_both_options_and_large_layers(void **state)
{
    fixture *f = *state;
    f->hardware->disk.free_bytes = UINT64_C(1) << 40;
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_TOO_SMALL); /* 13 MiB a layer */
    (void)give_layers_state(f);
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_PRESSURE);
    assert_false(ms__step_options_agree(ahead_bit) || ms__step_options_agree(ahead_bit | disk_bit) ||
                 ms__step_options_agree(ahead_bit | release_bit));
    assert_true(ms__step_options_agree(ahead_bit | disk_bit | release_bit));
    assert_int_equal(ms__step_options_toggle(disk_bit, MS_STEP_STATE_READ_AHEAD), ahead_bit | disk_bit | release_bit);
    assert_int_equal(ms__step_options_toggle(ahead_bit | disk_bit | release_bit, MS_STEP_STATE_ON_DISK), release_bit);
    f->config.max_disk_offload_bytes = LAYERS * 60 * MIB + MS__STREAM_BUFFER_BYTES; /* no more than the usual buffers */
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_PRESSURE);
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_DISK_CAP);
    f->config.max_disk_offload_bytes = MS_UNSET;
    f->graph->loop.gradients_releasable = false;
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_OTHER_OPTIMIZER);
    f->graph->loop.gradients_releasable = true;
    f->config.mode = MS_MODE_BALANCED;
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_MODE);
    f->hardware->disk.dir[0] = '\0';
    assert_int_equal(rule_of(f, MS_STEP_STATE_READ_AHEAD), MS_RULE_NO_DISK);
}

/* A plan uses the memory that a budget leaves for it, and tells the optimizer. */
static void a_plan_reads_ahead_if_the_budget_allows(void **state)
{
    fixture *f = *state;
    uint32_t both = release_bit | disk_bit;
    ms_error err = {0};
    (void)give_layers_state(f);
    compute_longer(f->graph, 1000);
    uint64_t tight = fixture_simulate(f, keep, both).peak_bytes, enough = tight + 60 * MIB;
    for (int is_enough = 0; is_enough <= 1; is_enough++) {
        ms_plan *plan = NULL, *read = NULL;
        f->config.memory_budget_bytes = is_enough ? enough : tight;
        assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), err);
        assert_int_equal(ms_plan_step_options(plan) & ahead_bit, is_enough ? ahead_bit : 0);
        assert_int_equal(ms_plan_for_optimizer(plan, &f->config).state_buffer_bytes, is_enough ? 60 * MIB : 0);
        char *text = ms_plan_to_json(plan);
        assert_ms_ok(ms_plan_parse(text, &read, &err), err);
        assert_int_equal(read->state_buffer_bytes, plan->state_buffer_bytes);
        ms_plan_free(read);
        ms_free(text);
        ms_plan_free(plan);
    }
}

/* While backward waits for the disk, a layer's recomputation costs nothing, so the bound must not add it to the waits. */
static void the_lower_bound_holds_if_recomputation_hides_behind_the_disk(void **state)
{
    fixture *f = *state;
    ms_error err = {0};
    (void)give_layers_state(f);
    f->config.enable_offloading = true;
    uint64_t smallest = fixture_smallest_budget(f), need = fixture_need(f), before = UINT64_MAX;
    uint32_t recomputed = 0;
    for (uint64_t budget = smallest; budget < need; budget += (need - smallest) / 40 + 1) {
        ms_plan *plan = NULL;
        f->config.memory_budget_bytes = budget;
        assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), err);
        assert_true(plan->why.lower_bound_ns <= plan->replay.step_ns);
        assert_true(plan->replay.step_ns <= before);
        before = plan->replay.step_ns;
        for (uint32_t i = 0; i < plan->entry_count; i++) {
            recomputed += plan->entries[i].technique != MS_TECHNIQUE_KEEP;
        }
        ms_plan_free(plan);
    }
    assert_true(recomputed > 0);
}

/* Parameters that stream have the disk first. */
static void streamed_parameters_leave_less_time_for_state(void **state)
{
    fixture *f = *state;
    uint32_t options = release_bit | disk_bit | ahead_bit;
    uint64_t moving_ns = give_layers_state(f);
    compute_longer(f->graph, 1000);
    ms_replay alone = fixture_simulate(f, keep, options);
    uint64_t layer_ns = alone.step_ns / LAYERS; /* longer than a layer's backward */
    f->hardware->process.window_backward_ns = LAYERS * layer_ns;
    ms_replay busy = fixture_simulate(f, keep, options);
    uint64_t hidden_ns = (LAYERS - 1) * (moving_ns / 2);
    assert_in_range(busy.stall_backward_ns - alone.stall_backward_ns, hidden_ns - hidden_ns / 10, hidden_ns);
}

/* Activations that move and state share the disk: neither moves while the other does. */
static void activations_and_state_take_turns(void **state)
{
    fixture *f = *state;
    uint8_t away[NODES] = {0};
    uint64_t moving_ns = give_layers_state(f);
    for (uint32_t i = 0; i < f->graph->profile_count; i++) {
        ms_profile *profile = &f->graph->profiles[i];
        for (uint32_t local = profile->external_count; local < profile->storage_count; local++) {
            profile->storage_bytes[local] = 40 * MIB; /* more than moves while a layer computes */
        }
    }
    memset(away + 1, MS_TECHNIQUE_OFFLOAD_DISK, LAYERS);
    ms_replay without = fixture_simulate(f, away, release_bit);
    ms_replay with = fixture_simulate(f, away, release_bit | disk_bit);
    assert_true(without.stall_backward_ns > 0);
    assert_in_range(with.step_ns - without.step_ns, LAYERS * moving_ns * 99 / 100, LAYERS * moving_ns);
}

static void a_gradient_stays_until_the_last_node_adds_to_it(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < f->graph->storage_count; i++) {
        ms_storage *storage = &f->graph->storages[i];
        if (storage->role == MS_STORAGE_GRADIENT && storage->bytes == GRADIENT) {
            storage->last_node = 0; /* like a tied embedding */
        }
    }
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, release_bit);
    assert_int_equal(with.peak_live_bytes, without.peak_live_bytes);
}

static void buffer_bytes_equal_the_streams(void **state)
{
    (void)state;
    assert_int_equal(MS__STREAM_CHUNK_BYTES, MS_OPTIMIZER_CHUNK_BYTES);
    assert_int_equal(MS__STREAM_BUFFER_BYTES, (uint64_t)MS_OPTIMIZER_CHUNKS * MS_OPTIMIZER_CHUNK_BYTES);
    assert_int_equal(MS__STREAM_BUFFER_MOST_BYTES, (uint64_t)MS_OPTIMIZER_CHUNKS_MOST * MS_OPTIMIZER_CHUNK_BYTES);
    assert_int_equal(MS__STREAM_LEAST_ELEMENTS, MS_OPTIMIZER_STREAM_LEAST_ELEMENTS);
}

static void rules_name_the_reason(void **state)
{
    fixture *f = *state;
    f->hardware->disk.free_bytes = UINT64_C(1) << 40;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_PRESSURE);
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_PRESSURE);
    f->config.max_disk_offload_bytes = STATE;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_DISK_CAP);
    f->hardware->disk.dir[0] = '\0';
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_NO_DISK);
    f->config.enable_offloading = false;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_FLAG_OFF);
    f->config.mode = MS_MODE_BALANCED;
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_MODE);
    f->config.mode = MS_MODE_CONSERVATIVE;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_MODE);
    f->graph->loop.optimizer_stream_bytes = 0;
    f->graph->loop.gradients_releasable = false;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_OTHER_OPTIMIZER);
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_OTHER_OPTIMIZER);
}

/* Host memory is faster than a disk. */
static void a_gpus_state_lies_on_disk_if_host_memory_has_no_room(void **state)
{
    fixture *f = *state;
    train_on_a_gpu(f, 2);
    f->hardware->disk.free_bytes = UINT64_C(1) << 40;
    f->hardware->ram.total_bytes = f->hardware->ram.available_bytes = UINT64_C(1) << 40;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_PRESSURE);
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_HOST_HAS_ROOM);
    f->config.max_cpu_offload_bytes = STATE - 1;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_HOST), MS_RULE_HOST_CAP);
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_PRESSURE);
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, disk_bit);
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, STATE - MS__DISK_ON_GPU_BYTES,
                    STATE - MS__DISK_ON_GPU_BYTES + 4 * MIB);
    uint64_t added_ns = with.step_ns - without.step_ns;
    assert_in_range(added_ns, 2 * STATE - 1000000, 2 * STATE); /* 1 GB/s each way */
    assert_int_equal(with.tier_peak_bytes[1] + with.tier_peak_bytes[2], STATE + MS__STREAM_BUFFER_BYTES);
    f->hardware->disk.dir[0] = '\0';
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_NO_DISK);
}

static void the_optimizers_abilities_survive_the_round_trip(void **state)
{
    fixture *f = *state;
    ms_graph *read;
    ms_error err;
    char *text = ms_graph_to_json(f->graph);
    assert_ms_ok(ms_graph_parse(text, &read, &err), err);
    assert_int_equal(read->loop.optimizer_stream_bytes, STATE);
    assert_true(read->loop.gradients_releasable);
    assert_false(read->loop.gradients_released || read->loop.state_streamed);
    ms_graph_free(read);
    ms_free(text);
    f->graph->loop.gradients_released = f->graph->loop.state_streamed = true;
    text = ms_graph_to_json(f->graph);
    assert_ms_ok(ms_graph_parse(text, &read, &err), err);
    assert_true(read->loop.gradients_released && read->loop.state_streamed);
    assert_false(read->loop.gradients_needed);
    ms_graph_free(read);
    ms_free(text);
    f->graph->loop.gradients_needed = true;
    text = ms_graph_to_json(f->graph);
    assert_ms_ok(ms_graph_parse(text, &read, &err), err);
    assert_true(read->loop.gradients_needed);
    ms_graph_free(read);
    ms_free(text);
}

/* If its caller asks for release, the optimizer releases gradients in every plan's step, and no plan lists it
 * as an option. */
static void the_callers_choices_are_part_of_every_step(void **state)
{
    fixture *f = *state;
    ms_replay plain = fixture_simulate(f, keep, 0), chosen = fixture_simulate(f, keep, release_bit);
    f->graph->loop.gradients_released = true;
    ms_replay given = fixture_simulate(f, keep, 0);
    assert_true(given.peak_bytes < plain.peak_bytes);
    assert_int_equal(given.peak_bytes, chosen.peak_bytes);
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_OTHER_OPTIMIZER);
    f->graph->loop.state_streamed = true; /* updates and buffers are in backward */
    assert_int_equal(fixture_simulate(f, keep, 0).peak_bytes - given.peak_bytes, MS__STREAM_BUFFER_BYTES);
    f->graph->loop.gradients_released = false;
    f->graph->loop.optimizer_state_bytes = 0;
    ms_replay streamed = fixture_simulate(f, keep, 0);
    f->graph->loop.state_streamed = false;
    f->graph->loop.optimizer_transient_bytes += MS__STREAM_BUFFER_BYTES;
    assert_int_equal(streamed.peak_bytes, fixture_simulate(f, keep, 0).peak_bytes);
}

/* torch's update takes temporaries as large as the parameters, an update in pieces those of one piece. */
static void temporaries_of_the_state_that_stays(void **state)
{
    (void)state;
    ms_loop loop = {.optimizer_state_bytes = 1000 * MIB, .optimizer_stream_bytes = 500 * MIB};
    loop.optimizer_transient_bytes = 400 * MIB;
    assert_int_equal(ms__other_transient_bytes(&loop), 200 * MIB);
    loop.optimizer_transient_bytes = 16 * MIB;
    assert_int_equal(ms__other_transient_bytes(&loop), 16 * MIB);
    loop.optimizer_stream_bytes = 999 * MIB; /* less stays than a piece takes */
    assert_int_equal(ms__other_transient_bytes(&loop), 2 * MIB);
    loop.optimizer_stream_bytes = 1000 * MIB;
    assert_int_equal(ms__other_transient_bytes(&loop), 0);
}

/* A GradScaler must see every gradient first: nothing is released. */
static void needed_gradients_are_kept(void **state)
{
    fixture *f = *state;
    ms_replay plain = fixture_simulate(f, keep, 0);
    f->graph->loop.gradients_needed = true;
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_GRADIENTS_NEEDED);
    f->graph->loop.gradients_released = true;
    assert_int_equal(fixture_simulate(f, keep, 0).peak_bytes, plain.peak_bytes);
}

/* Before the training loop has been observed, it may accumulate the gradients of several backwards. */
static void an_unobserved_loop_keeps_its_gradients(void **state)
{
    fixture *f = *state;
    f->graph->loop.observed = false;
    f->graph->loop.gradients_live_in_forward = true;
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_GRADIENTS_NEEDED);
    f->graph->loop.gradients_live_in_forward = false; /* if no other plan fits */
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_PRESSURE);
    f->graph->loop.observed = f->graph->loop.gradients_live_in_forward = true; /* zero_grad() after forward */
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_PRESSURE);
}

/* ---- optimizers that a refusal suggests ---------------------------------------------------- */

/* The figure behind `what` in a refusal, in GB; 0 if it is not named. */
static double named(const char *text, const char *what)
{
    const char *at = strstr(text, what);
    at = at != NULL ? at + strlen(what) : NULL;
    at = at != NULL && strncmp(at, " it would be", 12) == 0 ? at + 12 : at;
    char *unit = NULL;
    double value = at != NULL ? strtod(at, &unit) : 0.0;
    return unit != NULL && strncmp(unit, " MB", 3) == 0 ? value / 1000 : value;
}

static double smallest_gb(const fixture *f, const ms_config *config)
{
    ms_config tight = *config;
    ms_error err = {0};
    ms_plan *none;
    tight.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &tight, &none, &err), MS_EINFEASIBLE);
    return (double)err.hint_bytes / 1e9;
}

static void a_refusal_names_optimizers_and_the_budget_of_each(void **state)
{
    fixture *f = *state;
    ms_loop *loop = &f->graph->loop;
    ms_error err = {0};
    ms_plan *none;
    loop->optimizer_state_bytes = 2 * LAYERS * GRADIENT; /* Adam's */
    loop->optimizer_transient_bytes = loop->optimizer_stream_bytes = 0;
    loop->gradients_releasable = false;
    f->config.mode = MS_MODE_BALANCED;
    f->config.memory_budget_bytes = 1;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    double own = named(err.text, "with memscale.optim.AdamW (state on disk)");
    assert_null(strstr(err.text, "use_8bit_optimizer")); /* on disk, 8 bits take no less memory */
    double all = named(err.text, "with mode=\"aggressive\" and every option but 8-bit state");
    assert_true(own > 0 && all > 0);
    assert_true(all < own);
    assert_null(strstr(err.text, "enable_tiling")); /* it would not help */

    loop->optimizer_stream_bytes = loop->optimizer_state_bytes;
    loop->gradients_releasable = true;
    assert_true(fabs(smallest_gb(f, &f->config) - own) < 0.006);
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    double released = named(err.text, "with mode=\"aggressive\" (gradients released)");
    assert_true(fabs(released - all) < 0.006);
    assert_null(strstr(err.text, "memscale.optim.AdamW"));

    f->hardware->disk.dir[0] = '\0';
    loop->optimizer_stream_bytes = 0;
    loop->gradients_releasable = false;
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    double small = named(err.text, "with use_8bit_optimizer=True");
    assert_true(small > 0);
    uint64_t elements = GRADIENT / 4;
    loop->optimizer_state_bytes = LAYERS * 2 * (elements + 4 * (elements / 256));
    assert_true(fabs(smallest_gb(f, &f->config) - small) < 0.011);

    loop->optimizer_state_bytes = 5 * MIB; /* not Adam's */
    assert_int_equal(ms_pipeline_plan(f->graph, f->hardware, &f->config, &none, &err), MS_EINFEASIBLE);
    assert_null(strstr(err.text, "optimizer="));
    assert_null(strstr(err.text, "AdamW"));
}

int main(void)
{
#define TEST(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(state_on_disk_frees_the_state_and_takes_disk_time),
        TEST(state_in_host_memory_frees_the_card_and_takes_the_links_time),
        TEST(the_cards_buffers_equal_the_updates),
        TEST(rules_of_state_in_host_memory),
        TEST(part_of_the_state_may_stay),
        TEST(gradient_release_keeps_one_layers_gradients_at_a_time),
        TEST(a_released_gradient_ends_where_it_is_final),
        TEST(with_both_options_the_buffers_are_live_in_backward),
        TEST(the_disk_works_while_layers_compute),
        TEST(the_link_works_while_layers_compute),
        TEST(the_disk_hides_no_more_than_layers_compute),
        TEST(the_buffers_are_live_in_backward_and_as_large_as_a_layers_state),
        TEST(reading_ahead_needs_both_options_and_large_layers),
        TEST(a_plan_reads_ahead_if_the_budget_allows),
        TEST(the_lower_bound_holds_if_recomputation_hides_behind_the_disk),
        TEST(streamed_parameters_leave_less_time_for_state),
        TEST(activations_and_state_take_turns),
        TEST(a_gradient_stays_until_the_last_node_adds_to_it),
        TEST(buffer_bytes_equal_the_streams),
        TEST(rules_name_the_reason),
        TEST(a_gpus_state_lies_on_disk_if_host_memory_has_no_room),
        TEST(the_optimizers_abilities_survive_the_round_trip),
        TEST(the_callers_choices_are_part_of_every_step),
        TEST(temporaries_of_the_state_that_stays),
        TEST(needed_gradients_are_kept),
        TEST(an_unobserved_loop_keeps_its_gradients),
        TEST(a_refusal_names_optimizers_and_the_budget_of_each),
    };
    return cmocka_run_group_tests_name("options of the optimizer", tests, NULL, NULL);
}
