/*
 * One rank's part of a model: sizes follow from the model's shape, what is sent from the ring's arithmetic; what torch
 * does not divide is refused by name. tests/python/test_parallel.py compares with real ranks.
 */
#include <errno.h>
#include <string.h>

#include "base/fault.h"
#include "memscale/predict.h"
#include "test_common.h"

enum { WIDTH = 64, INNER = 192, HEADS = 8, KEY_HEADS = 4, WORDS = 513, LAYERS = 7, BATCH = 2, TOKENS = 32, FLOAT = 4 };

static const char model[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":192,\"num_hidden_layers\":7,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"vocab_size\":513,\"tie_word_embeddings\":false}";

/* Elements of a layer's matrices, and of its norms. */
static const uint64_t matrices = 2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH * KEY_HEADS / HEADS + 3 * WIDTH * INNER;
static const uint64_t norms = 2 * WIDTH;

static const ms_part whole = {.tensor_ranks = 1, .stages = 1, .microbatches = 1};

static ms_graph *graph_of(ms_part part, ms_part_traffic *traffic)
{
    ms_graph *graph;
    ms_error err;
    assert_ms_ok(ms_predict_hf_part(model, BATCH, TOKENS, &part, &graph, traffic, &err), err);
    assert_ms_ok(ms_graph_check(graph, &err), err);
    return graph;
}

static uint32_t layers_of(const ms_graph *graph)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        layers += graph->nodes[i].kind == MS_NODE_LAYER;
    }
    return layers;
}

static uint64_t saved_of(const ms_graph *graph)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_profile *profile = &graph->profiles[graph->nodes[i].profile];
        for (uint32_t j = 0; j < profile->forward_count; j++) {
            bool saves = profile->forward[j].kind == MS_EVENT_SAVE;
            sum += saves ? profile->storage_bytes[profile->forward[j].storage] : 0;
        }
    }
    return sum;
}

static void matrices_are_divided_and_norms_are_not(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        for (int by_sequence = 0; by_sequence < 2; by_sequence++) {
            ms_part_traffic traffic;
            ms_part part = {.tensor_ranks = ranks, .by_sequence = by_sequence, .stages = 1, .microbatches = 1};
            ms_graph *graph = graph_of(part, &traffic);
            uint64_t words = (WORDS + ranks - 1) / ranks; /* the first rank has one more */
            uint64_t elements = LAYERS * (matrices / ranks + norms) + 2 * words * WIDTH + WIDTH;
            assert_int_equal(graph->residents.parameter_bytes, elements * FLOAT);
            assert_int_equal(graph->loop.optimizer_state_bytes, 2 * elements * FLOAT);
            ms_graph_free(graph);
        }
    }
}

/* Without sequence parallelism a layer sums its two outputs in forward, and the gradients of five inputs in backward; an
 * all-reduce goes around the ring twice. With it, four values are gathered or scattered in each pass. The embedding
 * and the head have one exchange each; with it two. The loss exchanges little. */
static void what_is_sent_follows_from_the_sums(void **state)
{
    (void)state;
    uint64_t stream = BATCH * TOKENS * WIDTH * FLOAT;
    uint64_t loss = UINT64_C(6) * BATCH * TOKENS * FLOAT;
    for (uint32_t ranks = 2; ranks <= 4; ranks *= 2) {
        ms_part_traffic traffic;
        ms_part part = {.tensor_ranks = ranks, .stages = 1, .microbatches = 1};
        ms_graph_free(graph_of(part, &traffic));
        uint64_t around = (LAYERS * 7 + 2) * 2 * stream + loss;
        assert_int_equal(traffic.tensor_bytes, around * (ranks - 1) / ranks);
        part.by_sequence = true;
        ms_graph_free(graph_of(part, &traffic));
        around = (LAYERS * 8 + 4) * stream + loss;
        assert_int_equal(traffic.tensor_bytes, around * (ranks - 1) / ranks);
        assert_int_equal(traffic.stage_bytes, 0);
    }
}

static void tokens_divided_save_less(void **state)
{
    (void)state;
    ms_part_traffic traffic;
    ms_graph *alone = graph_of(whole, &traffic);
    assert_int_equal(traffic.tensor_bytes + traffic.stage_bytes, 0);
    ms_graph *four = graph_of((ms_part){.tensor_ranks = 4, .stages = 1, .microbatches = 1}, &traffic);
    ms_graph *by_tokens =
        graph_of((ms_part){.tensor_ranks = 4, .by_sequence = true, .stages = 1, .microbatches = 1}, &traffic);
    assert_true(saved_of(four) < saved_of(alone));
    assert_true(saved_of(by_tokens) < saved_of(four));
    ms_graph_free(alone);
    ms_graph_free(four);
    ms_graph_free(by_tokens);
}

static void stages_make_up_the_model(void **state)
{
    (void)state;
    const uint32_t layers[] = {1, 2, 2, 2}; /* odd layers go to the stages after the first */
    ms_part_traffic traffic;
    uint64_t parameters = 0, stream = BATCH * TOKENS * WIDTH * FLOAT;
    for (uint32_t stage = 0; stage < 4; stage++) {
        ms_graph *graph =
            graph_of((ms_part){.tensor_ranks = 1, .stages = 4, .stage = stage, .microbatches = 6}, &traffic);
        bool inner = stage == 1 || stage == 2;
        uint64_t received = (inner ? 2 : 1) * UINT64_C(6) * stream; /* inputs and gradients of six microbatches */
        assert_int_equal(layers_of(graph), layers[stage]);
        assert_int_equal(graph->loop.pending_forwards, 3 - stage);
        assert_int_equal(traffic.stage_bytes, (inner ? 2 : 1) * stream);
        assert_in_range(graph->residents.buffer_bytes, received, received + 1024);
        parameters += graph->residents.parameter_bytes;
        ms_graph_free(graph);
    }
    ms_graph *alone = graph_of(whole, &traffic);
    assert_int_equal(parameters, alone->residents.parameter_bytes);
    ms_graph_free(alone);
}

static void half_layers_take_half(void **state)
{
    (void)state;
    ms_part_traffic traffic;
    ms_graph *alone = graph_of(whole, &traffic);
    ms_graph *half = graph_of((ms_part){.tensor_ranks = 1, .stages = 1, .microbatches = 1, .is_half = true}, &traffic);
    assert_int_equal(2 * half->residents.parameter_bytes, alone->residents.parameter_bytes);
    assert_true(saved_of(half) < saved_of(alone));
    assert_true(half->half_products > 0);
    ms_graph_free(alone);
    ms_graph_free(half);
}

static void what_is_not_divided_is_named(void **state)
{
    (void)state;
    static const char gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":3,\"n_head\":4,\"vocab_size\":100}";
    static const char tied[] =
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":192,\"num_hidden_layers\":7,"
        "\"num_attention_heads\":8,\"vocab_size\":513,\"tie_word_embeddings\":true}";
    const struct {
        const char *config;
        ms_part part;
        int code;
        const char *text;
    } wrong[] = {
        {model, {3, false, 1, 0, 1, false}, MS_ENOTSUP, "8 heads"},
        {model, {8, false, 1, 0, 1, false}, MS_ENOTSUP, "4 key heads"},
        {model, {1, false, 8, 0, 8, false}, MS_ENOTSUP, "the model has 7 layers"},
        {model, {1, false, 4, 0, 3, false}, MS_ENOTSUP, "at least as many microbatches"},
        {tied, {1, false, 2, 0, 2, false}, MS_ENOTSUP, "tie_word_embeddings"},
        {tied, {2, false, 1, 0, 1, false}, MS_ENOTSUP, "parallelize_module() gives each"},
        {gpt2, {2, false, 1, 0, 1, false}, MS_ENOTSUP, "gpt2"},
        {gpt2, {1, false, 1, 0, 1, true}, MS_ENOTSUP, "gpt2"},
        {model, {0, false, 1, 0, 1, false}, MS_EINVAL, "no such part"},
        {model, {1, false, 2, 2, 2, false}, MS_EINVAL, "no such part"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_graph *graph = NULL;
        ms_part_traffic traffic;
        ms_error err;
        int rc = ms_predict_hf_part(wrong[i].config, BATCH, TOKENS, &wrong[i].part, &graph, &traffic, &err);
        assert_int_equal(rc, wrong[i].code);
        assert_non_null(strstr(err.text, wrong[i].text));
        assert_null(graph);
    }
    ms_error err;
    ms_graph *graph = NULL;
    ms_part_traffic traffic;
    const ms_part odd = {.tensor_ranks = 2, .by_sequence = true, .stages = 1, .microbatches = 1};
    assert_int_equal(ms_predict_hf_part(model, BATCH, 31, &odd, &graph, &traffic, &err), MS_ENOTSUP);
    assert_non_null(strstr(err.text, "31 tokens"));
}

static void running_out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    const ms_part part = {.tensor_ranks = 2, .by_sequence = true, .stages = 2, .microbatches = 2, .is_half = true};
    uint64_t before = ms_memory_live_blocks();
    bool failed = true;
    for (uint64_t nth = 1; failed; nth += 1 + nth / 20) {
        ms_graph *graph = NULL;
        ms_part_traffic traffic;
        ms_error err;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = ms_predict_hf_part(model, BATCH, TOKENS, &part, &graph, &traffic, &err);
        failed = ms_fault_passed(MS_FAULT_ALLOC) >= nth;
        ms_fault_disarm_all();
        assert_int_equal(rc, failed ? MS_ENOMEM : MS_OK);
        ms_graph_free(graph);
        assert_int_equal(ms_memory_live_blocks(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_divided_and_norms_are_not),
        cmocka_unit_test(what_is_sent_follows_from_the_sums),
        cmocka_unit_test(tokens_divided_save_less),
        cmocka_unit_test(stages_make_up_the_model),
        cmocka_unit_test(half_layers_take_half),
        cmocka_unit_test(what_is_not_divided_is_named),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
