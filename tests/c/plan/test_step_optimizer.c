/*
 * Options of the step that are the optimizer's: state on disk and gradient release take the
 * right bytes off the peak, cost the right time, and are refused with the right rule.
 */
#include "memscale/optimizer_stream.h"
#include "plan/step_options.h"
#include "plan_fixture.h"

enum { LAYERS = 6, NODES = LAYERS + 2 };
#define STATE (80 * MIB)
#define GRADIENT (100 * MIB)
static const uint32_t disk_bit = 1u << MS_STEP_STATE_ON_DISK;
static const uint32_t release_bit = 1u << MS_STEP_GRADIENT_RELEASE;
static const uint8_t keep[NODES];

typedef fixture_planning fixture;

/* Gradients are what is large. */
static int set_up(void **state)
{
    const fixture_layer layer = {.saved_bytes = MIB, .flops = 5000000, .gradient_bytes = GRADIENT};
    const fixture_chain chain = {.layer_count = LAYERS, .layers = &layer, .uniform = true, .activation_bytes = MIB,
                                 .logits_bytes = 2 * MIB, .parameter_bytes = 40 * MIB, .state_bytes = STATE};
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

static void state_on_disk_frees_the_state_and_takes_the_disks_time(void **state)
{
    fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, disk_bit);
    /* The peak moves from backward to the optimizer, where the buffers are. */
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, STATE - MS__STREAM_BUFFER_BYTES,
                    STATE - MS__STREAM_BUFFER_BYTES + 4 * MIB);
    assert_int_equal(with.step_ns - without.step_ns, 2 * STATE); /* 1 GB/s each way */
    assert_int_equal(with.tier_peak_bytes[1] + with.tier_peak_bytes[2], STATE + MS__STREAM_BUFFER_BYTES);
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

static void release_leaves_one_layers_gradients_at_a_time(void **state)
{
    fixture *f = *state;
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, release_bit);
    assert_in_range(without.peak_live_bytes - with.peak_live_bytes, (LAYERS - 1) * GRADIENT - 20 * MIB,
                    (LAYERS - 1) * GRADIENT);
    assert_int_equal(with.step_ns, without.step_ns);
}

static void with_both_the_buffers_are_there_in_backward(void **state)
{
    fixture *f = *state;
    ms_replay release = fixture_simulate(f, keep, release_bit), both = fixture_simulate(f, keep, release_bit | disk_bit);
    assert_int_equal(release.peak_bytes - both.peak_bytes, STATE - MS__STREAM_BUFFER_BYTES);
}

static void a_gradient_that_another_node_adds_to_stays_until_then(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < f->graph->storage_count; i++) {
        ms_storage *storage = &f->graph->storages[i];
        if (storage->role == MS_STORAGE_GRADIENT && storage->bytes == GRADIENT) {
            storage->last_node = 0; /* as if tied to the embedding */
        }
    }
    ms_replay without = fixture_simulate(f, keep, 0), with = fixture_simulate(f, keep, release_bit);
    assert_int_equal(with.peak_live_bytes, without.peak_live_bytes);
}

static void the_buffers_are_the_streams(void **state)
{
    (void)state;
    assert_int_equal(MS__STREAM_BUFFER_BYTES, (uint64_t)MS_OPTIMIZER_CHUNKS * MS_OPTIMIZER_CHUNK_BYTES);
}

static void rules_say_why_not(void **state)
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
    f->hardware->device = 0;
    assert_int_equal(rule_of(f, MS_STEP_STATE_ON_DISK), MS_RULE_HOST_ONLY);
    assert_int_equal(rule_of(f, MS_STEP_GRADIENT_RELEASE), MS_RULE_HOST_ONLY);
}

static void what_the_optimizer_can_do_survives_the_documents(void **state)
{
    fixture *f = *state;
    ms_graph *read;
    ms_error err;
    char *text = ms_graph_to_json(f->graph);
    assert_ms_ok(ms_graph_parse(text, &read, &err), err);
    assert_int_equal(read->loop.optimizer_stream_bytes, STATE);
    assert_true(read->loop.gradients_releasable);
    ms_graph_free(read);
    ms_free(text);
}

int main(void)
{
#define TEST(body) cmocka_unit_test_setup_teardown(body, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(state_on_disk_frees_the_state_and_takes_the_disks_time),
        TEST(part_of_the_state_may_stay),
        TEST(release_leaves_one_layers_gradients_at_a_time),
        TEST(with_both_the_buffers_are_there_in_backward),
        TEST(a_gradient_that_another_node_adds_to_stays_until_then),
        TEST(the_buffers_are_the_streams),
        TEST(rules_say_why_not),
        TEST(what_the_optimizer_can_do_survives_the_documents),
    };
    return cmocka_run_group_tests_name("options of the optimizer", tests, NULL, NULL);
}
