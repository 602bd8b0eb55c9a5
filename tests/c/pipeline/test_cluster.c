/* One rank's documents: the sizes follow from the model's shape, what is sent from the ring's arithmetic. */
#include <string.h>

#include "memscale/cluster.h"
#include "memscale/predict.h"
#include "plan_fixture.h"

enum { WIDTH = 64, INNER = 192, LAYERS = 3, WORDS = 512, FLOAT = 4 };

/* Of a Llama with as many key heads as heads, and a head of its own. */
static const uint64_t layer_bytes = (4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH) * FLOAT;
static const uint64_t root_bytes = (2 * WORDS * WIDTH + WIDTH) * FLOAT;
static const uint64_t model_bytes =
    LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH) * FLOAT + (2 * WORDS * WIDTH + WIDTH) * FLOAT;

typedef struct fixture {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_cluster_share share;
} fixture;

static fixture *opened(const char *card)
{
    fixture *f = calloc(1, sizeof *f);
    char text[512];
    ms_error err;
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":%d,\"tie_word_embeddings\":false}",
             WIDTH, INNER, LAYERS, WORDS);
    assert_ms_ok(ms_predict_hf_graph(text, 2, 32, &f->graph, &err), err);
    f->hardware = fixture_real_hardware();
    if (card != NULL) {
        assert_ms_ok(ms_hardware_use_card(f->hardware, card, &err), err);
    }
    ms_config_default(&f->config);
    return f;
}

static void closed(fixture *f)
{
    ms_graph_free(f->graph);
    ms_free(f->hardware);
    free(f);
}

static void apply(fixture *f, ms_cluster cluster)
{
    ms_error err;
    assert_ms_ok(ms_cluster_apply(&cluster, f->graph, f->hardware, &f->config, &f->share, &err), err);
}

static uint64_t peak_of(const fixture *f)
{
    ms_error err;
    ms_plan *plan = NULL;
    assert_ms_ok(ms_pipeline_plan(f->graph, f->hardware, &f->config, &plan, &err), err);
    uint64_t peak_bytes = plan->replay.peak_bytes;
    ms_plan_free(plan);
    return peak_bytes;
}

static uint64_t gradients_of(const ms_graph *graph)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        bytes += graph->storages[i].role == MS_STORAGE_GRADIENT ? graph->storages[i].bytes : 0;
    }
    return bytes;
}

static void one_rank_is_a_process_alone(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        fixture *f = opened(NULL);
        char *before = ms_graph_to_json(f->graph);
        uint64_t baseline_bytes = f->hardware->process.baseline_bytes;
        apply(f, (ms_cluster){.ranks = 1, .parallelism = which == 0 ? MS_PARALLELISM_DDP : MS_PARALLELISM_FSDP});
        char *after = ms_graph_to_json(f->graph);
        assert_string_equal(before, after);
        assert_int_equal(f->hardware->process.baseline_bytes, baseline_bytes);
        assert_int_equal(f->share.gathered_bytes + f->share.sent_bytes, 0);
        ms_free(before);
        ms_free(after);
        closed(f);
    }
}

static void ddp_adds_its_buckets(void **state)
{
    (void)state;
    fixture *f = opened(NULL);
    uint64_t alone_bytes = peak_of(f);
    apply(f, (ms_cluster){.ranks = 4, .parallelism = MS_PARALLELISM_DDP, .link_bytes_per_s = 1000000000});
    assert_int_equal(f->share.gathered_bytes, model_bytes);
    assert_int_equal(f->share.sent_bytes, 2 * (model_bytes * 3 / 4));
    assert_int_equal(f->share.exchange_ns, f->share.sent_bytes);
    assert_int_equal(peak_of(f), alone_bytes + model_bytes);
    assert_true(f->config.enable_offloading);
    closed(f);
}

static void fsdp_divides_what_stays_and_gathers_what_runs(void **state)
{
    (void)state;
    fixture *f = opened(NULL);
    assert_int_equal(f->graph->residents.parameter_bytes, model_bytes);
    apply(f, (ms_cluster){.ranks = 8, .parallelism = MS_PARALLELISM_FSDP});
    assert_int_equal(f->graph->residents.parameter_bytes, model_bytes / 8);
    assert_int_equal(f->graph->loop.optimizer_state_bytes, 2 * model_bytes / 8);
    assert_int_equal(f->share.gathered_bytes, root_bytes + 4 * layer_bytes);
    uint64_t moved_bytes = 2 * LAYERS * layer_bytes + root_bytes + model_bytes;
    assert_int_equal(f->share.sent_bytes, moved_bytes * 7 / 8);
    assert_int_equal(f->share.exchange_ns, 0); /* nobody knows the rate between these machines */
    assert_true(f->config.enable_offloading);
    assert_int_equal(gradients_of(f->graph), root_bytes + LAYERS * layer_bytes / 8);
    closed(f);
}

static void a_traced_model_is_divided_as_a_predicted_one(void **state)
{
    (void)state;
    for (int stays = 0; stays < 2; stays++) {
        fixture *predicted = opened(NULL), *traced = opened(NULL);
        uint32_t stages = stays ? 2 : 1;
        apply(predicted, (ms_cluster){.ranks = 4 * stages, .stages = stages, .parallelism = MS_PARALLELISM_FSDP});
        ms_sharding sharding = {.copies = 4, .stays_gathered = stays, .reduces_once = stays};
        uint64_t gathered_bytes = 0, again_bytes;
        ms_error err;
        assert_ms_ok(ms_cluster_shard(&sharding, traced->graph, traced->hardware, &gathered_bytes, &err), err);
        assert_int_equal(gathered_bytes, predicted->share.gathered_bytes);
        assert_int_equal(traced->graph->residents.parameter_bytes, predicted->graph->residents.parameter_bytes);
        assert_int_equal(gradients_of(traced->graph), gradients_of(predicted->graph));
        uint64_t baseline_bytes = traced->hardware->process.baseline_bytes;
        fixture *other_shape = opened(NULL);
        again_bytes = gathered_bytes;
        assert_ms_ok(ms_cluster_shard(&sharding, other_shape->graph, traced->hardware, &again_bytes, &err), err);
        assert_int_equal(traced->hardware->process.baseline_bytes, baseline_bytes); /* counted once */
        assert_int_equal(again_bytes, gathered_bytes);
        sharding.copies = 0;
        assert_int_equal(ms_cluster_shard(&sharding, traced->graph, traced->hardware, &again_bytes, &err), MS_EINVAL);
        closed(predicted);
        closed(traced);
        closed(other_shape);
    }
}

/* reshard_after_forward=False: all parameters beside a layer's gradients, twice; what stays is divided. */
static void parameters_that_stay_gathered_count_whole(void **state)
{
    (void)state;
    fixture *resharded = opened(NULL), *stays = opened(NULL);
    ms_sharding sharding = {.copies = 4};
    uint64_t before_bytes = 0, gathered_bytes = 0;
    ms_error err;
    assert_ms_ok(ms_cluster_shard(&sharding, resharded->graph, resharded->hardware, &before_bytes, &err), err);
    sharding.stays_gathered = true;
    assert_ms_ok(ms_cluster_shard(&sharding, stays->graph, stays->hardware, &gathered_bytes, &err), err);
    assert_int_equal(gathered_bytes, model_bytes + 2 * layer_bytes);
    assert_true(before_bytes < gathered_bytes);
    assert_int_equal(gradients_of(stays->graph), gradients_of(resharded->graph));
    closed(resharded);
    closed(stays);
}

static void more_ranks_take_less_each(void **state)
{
    (void)state;
    uint64_t before_bytes = UINT64_MAX;
    for (uint32_t ranks = 2; ranks <= 8192; ranks *= 8) {
        fixture *f = opened("h100");
        apply(f, (ms_cluster){.ranks = ranks, .parallelism = MS_PARALLELISM_FSDP});
        uint64_t now_bytes = peak_of(f);
        assert_true(now_bytes < before_bytes);
        before_bytes = now_bytes;
        closed(f);
    }
}

static void links_and_hosts_are_those_of_the_card(void **state)
{
    (void)state;
    const struct {
        const char *card;
        uint32_t ranks, on_host;
        uint64_t link_bytes_per_s;
    } cases[] = {
        {"h100", 4, 4, UINT64_C(360000000000)}, /* four fifths of NVLink's 450 GB/s */
        {"h100", 16, 8, UINT64_C(50000000000)}, /* the network */
        {"rtx-4090", 8, 8, UINT64_C(24000000000)},
        {"t4", 16, 8, UINT64_C(12000000000)}, /* slower than the network */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture *f = opened(cases[i].card);
        uint64_t ram_bytes = f->hardware->ram.available_bytes;
        apply(f, (ms_cluster){.ranks = cases[i].ranks, .parallelism = MS_PARALLELISM_DDP});
        assert_int_equal(f->share.link_bytes_per_s, cases[i].link_bytes_per_s);
        assert_int_equal(f->hardware->ram.available_bytes, ram_bytes / cases[i].on_host);
        closed(f);
    }
    fixture *f = opened(NULL);
    uint64_t ram_bytes = f->hardware->ram.available_bytes;
    apply(f, (ms_cluster){.ranks = 4, .parallelism = MS_PARALLELISM_DDP});
    assert_int_equal(f->hardware->ram.available_bytes, ram_bytes);
    closed(f);
}

/* Microbatches gather nothing again, and their gradients are whole until the last of them: in FP32 with mixed
 * precision, for which the graph stands for BF16. */
static void a_stage_under_fsdp_stays_gathered(void **state)
{
    (void)state;
    for (uint64_t width = 1; width <= 2; width++) {
        fixture *f = opened(NULL);
        ms_cluster cluster = {.ranks = 8, .parallelism = MS_PARALLELISM_FSDP, .stages = 2, .microbatches = 4};
        cluster.mixed = width == 2;
        apply(f, cluster);
        assert_int_equal(f->graph->residents.parameter_bytes, width * model_bytes / 4);
        assert_int_equal(f->share.gathered_bytes, model_bytes + width * layer_bytes);
        assert_int_equal(f->share.sent_bytes, (1 + width) * model_bytes * 3 / 4);
        assert_int_equal(gradients_of(f->graph), width * model_bytes);
        closed(f);
    }
}

/* The graph stands for BF16 here; only its bytes count. */
static void mixed_precision_keeps_twice_and_gathers_once(void **state)
{
    (void)state;
    fixture *f = opened(NULL);
    apply(f, (ms_cluster){.ranks = 4, .parallelism = MS_PARALLELISM_FSDP, .mixed = true});
    assert_int_equal(f->graph->residents.parameter_bytes, 2 * model_bytes / 4);
    assert_int_equal(f->graph->loop.optimizer_state_bytes, 4 * model_bytes / 4);
    assert_int_equal(f->share.gathered_bytes, root_bytes + 5 * layer_bytes);
    uint64_t moved_bytes = 2 * LAYERS * layer_bytes + root_bytes + 2 * model_bytes;
    assert_int_equal(f->share.sent_bytes, moved_bytes * 3 / 4);
    closed(f);
}

static void a_pipeline_waits_for_its_ends(void **state)
{
    (void)state;
    const ms_cluster cluster = {.ranks = 4, .stages = 4, .microbatches = 12};
    const ms_cluster_share share = {
        .exchange_ns = 400, .tensor_ns = 10, .stage_ns = 5, .optimizer_ns = 50, .sent_bytes = 1};
    assert_int_equal(ms_cluster_idle_permille(&cluster), 200);
    assert_int_equal(ms_cluster_step_ns(&cluster, &share, 150, true), 15 * 110 + 50);
    assert_int_equal(ms_cluster_step_ns(&cluster, &share, 150, false), 15 * 115 + 400 + 50);
    const ms_cluster flat = {.ranks = 4, .parallelism = MS_PARALLELISM_DDP};
    assert_int_equal(ms_cluster_idle_permille(&flat), 0);
    assert_int_equal(ms_cluster_step_ns(&flat, &share, 150, true), 400 + 50);
    assert_int_equal(ms_cluster_copies(&cluster), 1);
    assert_int_equal(ms_cluster_copies(&flat), 4);
}

static void ranks_that_form_no_mesh_are_refused(void **state)
{
    (void)state;
    const struct {
        ms_cluster cluster;
        const char *text;
    } wrong[] = {
        {{.ranks = 6, .tensor_ranks = 4, .parallelism = MS_PARALLELISM_FSDP}, "no multiple"},
        {{.ranks = 8, .tensor_ranks = 4}, "2 copies"},
        {{.ranks = 4, .parallelism = MS_PARALLELISM_DDP, .mixed = true}, "mixed"},
    };
    fixture *f = opened(NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_error err;
        const ms_cluster *cluster = &wrong[i].cluster;
        assert_int_equal(ms_cluster_apply(cluster, f->graph, f->hardware, &f->config, &f->share, &err), MS_EINVAL);
        assert_non_null(strstr(err.text, wrong[i].text));
    }
    closed(f);
}

static void wrong_numbers_of_ranks_change_nothing(void **state)
{
    (void)state;
    const uint32_t wrong[] = {0, MS_CLUSTER_RANKS_MOST + 1};
    fixture *f = opened(NULL);
    char *before = ms_graph_to_json(f->graph);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_error err;
        ms_cluster cluster = {.ranks = wrong[i], .parallelism = MS_PARALLELISM_FSDP};
        assert_int_equal(ms_cluster_apply(&cluster, f->graph, f->hardware, &f->config, &f->share, &err), MS_EINVAL);
        char *after = ms_graph_to_json(f->graph);
        assert_string_equal(before, after);
        ms_free(after);
    }
    ms_free(before);
    closed(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_a_process_alone),
        cmocka_unit_test(ddp_adds_its_buckets),
        cmocka_unit_test(fsdp_divides_what_stays_and_gathers_what_runs),
        cmocka_unit_test(a_traced_model_is_divided_as_a_predicted_one),
        cmocka_unit_test(parameters_that_stay_gathered_count_whole),
        cmocka_unit_test(more_ranks_take_less_each),
        cmocka_unit_test(links_and_hosts_are_those_of_the_card),
        cmocka_unit_test(a_stage_under_fsdp_stays_gathered),
        cmocka_unit_test(mixed_precision_keeps_twice_and_gathers_once),
        cmocka_unit_test(a_pipeline_waits_for_its_ends),
        cmocka_unit_test(ranks_that_form_no_mesh_are_refused),
        cmocka_unit_test(wrong_numbers_of_ranks_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
