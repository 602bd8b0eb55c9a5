/*
 * The built-in artifact: it is small, reads, decides for an ordinary run, and leaves unknown machines to the rules.
 */
#include "memscale/predict.h"
#include "plan_fixture.h"

static const char gpt2[] = "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"vocab_size\":50257}";

static ms_policy *shipped(void)
{
    ms_error err;
    ms_policy *policy = NULL;
    assert_ms_ok(ms_policy_parse(ms_policy_shipped(), &policy, &err), err);
    return policy;
}

static void it_is_small_and_has_a_name(void **state)
{
    (void)state;
    assert_true(strlen(ms_policy_shipped()) <= 300000);
    ms_policy *policy = shipped();
    assert_true(strlen(ms_policy_name(policy)) > 0);
    ms_policy_free(policy);
}

static ms_strategy_decision decided(ms_hardware *hardware, const ms_policy *policy)
{
    ms_error err;
    ms_config config, effective;
    ms_pressure pressure;
    ms_plan *plan = NULL;
    ms_graph *graph = NULL;
    ms_strategy_decision decision;
    ms_strategy_context context;
    assert_ms_ok(ms_predict_hf_graph(gpt2, 4, 256, &graph, &err), err);
    graph->loop.observed = true;
    ms_config_default(&config);
    config.memory_budget_bytes = (uint64_t)1 << 50;
    assert_ms_ok(ms_pipeline_context(graph, hardware, &config, &context, &err), err);
    config.memory_budget_bytes = context.value[MS_FEATURE_NEED_BYTES] * 4 / 5;
    assert_ms_ok(
        ms_pipeline_plan_by_policy(graph, hardware, &config, policy, false, &decision, &effective, &plan, &err), err);
    assert_false(plan->over_target);
    ms_pressure_of(context.value[MS_FEATURE_NEED_BYTES], hardware, &config, &pressure);
    assert_true(plan->replay.peak_bytes <= pressure.allowed_bytes);
    ms_plan_free(plan);
    ms_graph_free(graph);
    return decision;
}

static void it_decides_for_an_ordinary_run(void **state)
{
    (void)state;
    ms_policy *policy = shipped();
    ms_hardware *hardware = fixture_real_hardware();
    ms_strategy_decision decision = decided(hardware, policy);
    assert_int_equal(decision.source, MS_DECISION_SOURCE_ML);
    assert_non_null(strstr(decision.reason, ms_policy_name(policy)));
    ms_free(hardware);
    ms_policy_free(policy);
}

static void a_machine_beyond_all_seen_is_left_to_the_rules(void **state)
{
    (void)state;
    ms_policy *policy = shipped();
    ms_hardware *hardware = fixture_real_hardware();
    hardware->cpu.matmul_flops_per_s = UINT64_C(4000000000000000000);
    ms_strategy_decision decision = decided(hardware, policy);
    assert_int_equal(decision.source, MS_DECISION_SOURCE_RULE_FALLBACK);
    assert_non_null(strstr(decision.reason, "matmul_flops_per_s 4000000000000000000 is above"));
    ms_free(hardware);
    ms_policy_free(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_small_and_has_a_name),
        cmocka_unit_test(it_decides_for_an_ordinary_run),
        cmocka_unit_test(a_machine_beyond_all_seen_is_left_to_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
