/*
 * Graphs from Hugging Face configurations are sound for every family; faults are refused with their place; running
 * out of memory leaks nothing. tests/python/test_predict.py compares them with traces of the real models.
 */
#include <errno.h>

#include "base/fault.h"
#include "memscale/predict.h"
#include "test_common.h"

#define SIZES "\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"vocab_size\":100"

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"intermediate_size\":96," SIZES "}",
    "{\"model_type\":\"mistral\",\"intermediate_size\":96,\"num_key_value_heads\":2," SIZES "}",
    "{\"model_type\":\"qwen2\",\"intermediate_size\":96,\"num_key_value_heads\":2,\"tie_word_embeddings\":true," SIZES
    "}",
    "{\"model_type\":\"qwen3\",\"intermediate_size\":96,\"num_key_value_heads\":1," SIZES "}",
    "{\"model_type\":\"bert\",\"intermediate_size\":96," SIZES "}",
    "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":3,\"n_head\":4,\"vocab_size\":100}",
};
enum { CONFIGS = sizeof configs / sizeof configs[0] };

static uint32_t layers_of(const ms_graph *graph)
{
    uint32_t layers = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        layers += graph->nodes[i].kind == MS_NODE_LAYER;
    }
    return layers;
}

static void every_family_gives_a_sound_graph(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        ms_graph *graph;
        ms_error err;
        assert_ms_ok(ms_predict_hf_graph(configs[i], 2, 16, &graph, &err), err);
        assert_ms_ok(ms_graph_check(graph, &err), err);
        assert_int_equal(layers_of(graph), 3);
        assert_int_equal(graph->residents.parameter_bytes, graph->residents.trainable_bytes);
        assert_int_equal(graph->loop.optimizer_state_bytes, 2 * graph->residents.parameter_bytes);
        ms_graph_free(graph);
    }
}

static void sizes_grow_with_batch_and_sequence(void **state)
{
    (void)state;
    for (int i = 0; i < CONFIGS; i++) {
        uint64_t before = 0;
        for (uint64_t batch = 1; batch <= 4; batch *= 2) {
            ms_graph *graph;
            ms_error err;
            uint64_t sum = 0;
            assert_ms_ok(ms_predict_hf_graph(configs[i], batch, 8 * batch, &graph, &err), err);
            for (uint32_t p = 0; p < graph->profile_count; p++) {
                for (uint32_t s = 0; s < graph->profiles[p].storage_count; s++) {
                    sum += graph->profiles[p].storage_bytes[s];
                }
            }
            assert_true(sum > before);
            before = sum;
            ms_graph_free(graph);
        }
    }
}

static void faults_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        uint64_t batch, seq;
        int code;
        const char *text;
    } wrong[] = {
        {"{\"model_type\":\"t5\"}", 1, 1, MS_ENOTSUP, "model_type"},
        {"{}", 1, 1, MS_EFORMAT, "model_type"},
        {"{\"model_type\":\"llama\"," SIZES "}", 1, 1, MS_EFORMAT, "intermediate_size"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":-3,\"n_head\":4,\"vocab_size\":9}", 1, 1, MS_EFORMAT,
         "n_layer"},
        {"{\"model_type\":\"mistral\",\"intermediate_size\":96,\"num_key_value_heads\":2,\"sliding_window\":0," SIZES
         "}",
         1, 16, MS_EFORMAT, "sliding_window"},
        {"{\"model_type\":\"mistral\",\"intermediate_size\":96,\"num_key_value_heads\":2,\"sliding_window\":1," SIZES
         "}",
         1, 1, MS_ENOTSUP, "sliding_window"},
        {"{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":3,\"n_head\":4,\"vocab_size\":9,\"n_positions\":8}", 1, 9,
         MS_EINVAL, "positions"},
        {"{\"model_type\":\"bert\"", 1, 1, MS_EFORMAT, "line 1"},
        {"{}", 0, 1, MS_EINVAL, "batch and seq"},
        {"{}", 1, UINT64_MAX, MS_EINVAL, "batch and seq"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ms_graph *graph;
        ms_error err;
        assert_ms_fails(ms_predict_hf_graph(wrong[i].config, wrong[i].batch, wrong[i].seq, &graph, &err), wrong[i].code,
                        err, wrong[i].text);
    }
}

static void running_out_of_memory_leaks_nothing(void **state)
{
    (void)state;
    uint64_t before = ms_memory_live_blocks();
    bool failed = true;
    for (uint64_t nth = 1; failed; nth += 1 + nth / 20) {
        ms_graph *graph = NULL;
        ms_error err;
        ms_fault_arm(MS_FAULT_ALLOC, nth, ENOMEM);
        int rc = ms_predict_hf_graph(configs[0], 2, 16, &graph, &err);
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
        cmocka_unit_test(every_family_gives_a_sound_graph),
        cmocka_unit_test(sizes_grow_with_batch_and_sequence),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(running_out_of_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
