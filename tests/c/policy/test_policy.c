/*
 * Stage 1: a trained policy follows its trees and is refused whole if malformed; a policy narrows, and never
 * makes a run fail that the caller's own configuration lets succeed.
 */
#include "plan_fixture.h"

static const char two_trees[] =
    "{\"name\":\"test\",\"strategies\":["
    "{\"mode\":\"conservative\",\"enable_checkpointing\":true,\"enable_offloading\":false},"
    "{\"mode\":\"aggressive\",\"enable_checkpointing\":false,\"enable_offloading\":true}],"
    "\"trees\":[[{\"feature\":\"pressure_permille\",\"at_most\":1200,\"then\":1,\"else\":2},"
    "{\"scores\":[3,1]},{\"scores\":[1,3]}],"
    "[{\"feature\":\"layer_count\",\"at_most\":10,\"then\":1,\"else\":2},{\"scores\":[0,1]},{\"scores\":[5,0]}]]}";

static ms_policy *policy_of(const char *body)
{
    ms_error err;
    char *artifact = NULL;
    ms_policy *policy = NULL;
    assert_ms_ok(ms_policy_seal(body, &artifact, &err), err);
    assert_ms_ok(ms_policy_parse(artifact, &policy, &err), err);
    ms_free(artifact);
    return policy;
}

static void scores_add_up_over_the_trees(void **state)
{
    (void)state;
    ms_policy *policy = policy_of(two_trees);
    const struct {
        uint64_t permille, layers;
        ms_mode mode;
    } cases[] = {
        {1200, 10, MS_MODE_CONSERVATIVE}, /* 3:2 */
        {1201, 10, MS_MODE_AGGRESSIVE},   /* 1:4 */
        {1201, 11, MS_MODE_CONSERVATIVE}, /* 6:3 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_strategy_context context = {0};
        context.value[MS_FEATURE_PRESSURE_PERMILLE] = cases[i].permille;
        context.value[MS_FEATURE_LAYER_COUNT] = cases[i].layers;
        ms_strategy chosen = ms_policy_choose(policy, &context);
        assert_int_equal(chosen.mode, cases[i].mode);
        assert_int_equal(chosen.enable_offloading, cases[i].mode == MS_MODE_AGGRESSIVE);
    }
    ms_policy_free(policy);
}

/* The text with the first `from` replaced. */
static char *changed(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    char *made = malloc(strlen(text) + strlen(to) + 1);
    sprintf(made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return made;
}

static void a_malformed_artifact_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *from, *to, *part;
    } bodies[] = {
        {"\"then\":1", "\"then\":0", "then"},                /* not after its parent: a loop */
        {"\"else\":2", "\"else\":3", "else"},                /* beyond the tree */
        {"pressure_permille", "colour", "feature"},          /* unknown */
        {"{\"scores\":[1,3]}", "{\"scores\":[1]}", "score"}, /* one strategy has no score */
        {"[3,1]", "[3,1099511627777]", "scores"},
        {"conservative", "careful", "mode"},
        {"\"name\":\"test\",", "", "name"},
        {"{\"scores\":[5,0]}", "{\"feature\":\"on_gpu\",\"at_most\":0,\"then\":1,\"else\":2}", "last node"},
    };
    ms_error err;
    ms_policy *policy = NULL;
    char *artifact = NULL;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char *body = changed(two_trees, bodies[i].from, bodies[i].to);
        assert_ms_fails(ms_policy_seal(body, &artifact, &err), MS_EFORMAT, err, bodies[i].part);
        free(body);
    }
    assert_ms_ok(ms_policy_seal(two_trees, &artifact, &err), err);
    char *touched = changed(artifact, "1200", "1300");
    assert_ms_fails(ms_policy_parse(touched, &policy, &err), MS_EFORMAT, err, "checksum");
    free(touched);
    touched = changed(artifact, "\"version\": 1", "\"version\": 2");
    assert_ms_fails(ms_policy_parse(touched, &policy, &err), MS_EVERSION, err, "version");
    free(touched);
    for (size_t length = strlen(artifact) - 2; length > 0; length -= length > 40 ? 37 : 1) {
        artifact[length] = '\0';
        assert_ms_fails(ms_policy_parse(artifact, &policy, &err), MS_EFORMAT, err, "policy");
    }
    ms_free(artifact);
}

static void reading_an_artifact_leaks_nothing_out_of_memory(void **state)
{
    (void)state;
    ms_error err;
    char *artifact = NULL;
    assert_ms_ok(ms_policy_seal(two_trees, &artifact, &err), err);
    for (uint64_t nth = 1;; nth++) {
        uint64_t blocks = ms_memory_live_blocks();
        ms_policy *policy = NULL;
        ms_fault_arm(MS_FAULT_ALLOC, nth, 0);
        int rc = ms_policy_parse(artifact, &policy, &err);
        ms_fault_disarm_all();
        if (rc == MS_OK) {
            ms_policy_free(policy);
            break;
        }
        assert_int_equal(rc, MS_ENOMEM);
        assert_int_equal(ms_memory_live_blocks(), blocks);
    }
    ms_free(artifact);
}

/* ---- in the pipeline -------------------------------------------------------------- */

typedef struct answer {
    ms_strategy_decision decision;
    ms_config effective;
    char *plan;
} answer;

static answer plan_by(const ms_config *config, const ms_policy *trained, bool rules_only)
{
    ms_error err;
    answer found = {0};
    ms_plan *plan = NULL;
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    assert_ms_ok(ms_pipeline_plan_by_policy(graph, hardware, config, trained, rules_only, &found.decision,
                                            &found.effective, &plan, &err),
                 err);
    assert_string_equal(plan->decision_source, ms_decision_source_name(found.decision.source));
    found.plan = ms_plan_to_json(plan);
    ms_plan_free(plan);
    ms_graph_free(graph);
    ms_free(hardware);
    return found;
}

static void expect_source(const ms_config *config, const ms_policy *trained, bool rules_only, ms_decision_source source)
{
    answer found = plan_by(config, trained, rules_only);
    assert_int_equal(found.decision.source, source);
    ms_free(found.plan);
}

static uint64_t need_bytes(void)
{
    ms_config config;
    ms_config_default(&config);
    answer found = plan_by(&config, NULL, true);
    ms_free(found.plan);
    return found.decision.context.value[MS_FEATURE_NEED_BYTES];
}

static void the_source_names_the_policy(void **state)
{
    (void)state;
    ms_policy *policy = policy_of(two_trees);
    ms_config config;
    ms_config_default(&config);
    expect_source(&config, policy, false, MS_DECISION_SOURCE_USER_CONFIG); /* no pressure to judge by */
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    expect_source(&config, NULL, false, MS_DECISION_SOURCE_RULE_FALLBACK);
    expect_source(&config, NULL, true, MS_DECISION_SOURCE_RULE);
    expect_source(&config, policy, true, MS_DECISION_SOURCE_RULE);
    expect_source(&config, policy, false, MS_DECISION_SOURCE_ML);
    ms_policy_free(policy);
}

static void techniques_switched_off_stay_off(void **state)
{
    (void)state;
    ms_config config;
    ms_config_default(&config);
    config.enable_offloading = false;
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    answer found = plan_by(&config, NULL, true);
    assert_int_equal(found.effective.mode, MS_MODE_AGGRESSIVE);
    assert_false(found.effective.enable_offloading);
    assert_false(found.effective.enable_tiling || found.effective.use_8bit_optimizer ||
                 found.effective.use_mixed_precision);
    assert_null(strstr(found.plan, "\"technique\": \"offload"));
    ms_free(found.plan);
}

static void a_strategy_that_fits_no_plan_is_widened(void **state)
{
    (void)state;
    /* Keeps everything at any pressure. */
    ms_policy *policy = policy_of("{\"name\":\"lazy\",\"strategies\":[{\"mode\":\"conservative\","
                                  "\"enable_checkpointing\":false,\"enable_offloading\":false}],"
                                  "\"trees\":[[{\"scores\":[1]}]]}");
    ms_config config;
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    answer found = plan_by(&config, policy, false);
    assert_int_equal(found.decision.source, MS_DECISION_SOURCE_RULE_FALLBACK);
    assert_non_null(strstr(found.decision.reason, "narrower"));
    ms_free(found.plan);
    ms_policy_free(policy);
}

static void a_budget_that_nothing_fits_is_refused(void **state)
{
    (void)state;
    ms_error err;
    ms_config config, effective;
    ms_strategy_decision decision;
    ms_plan *plan = NULL;
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config_default(&config);
    config.memory_budget_bytes = 1000;
    assert_ms_fails(
        ms_pipeline_plan_by_policy(graph, hardware, &config, NULL, true, &decision, &effective, &plan, &err),
        MS_EINFEASIBLE, err, "smallest");
    assert_true(err.hint_bytes > 1000);
    ms_graph_free(graph);
    ms_free(hardware);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_add_up_over_the_trees),
        cmocka_unit_test(a_malformed_artifact_is_refused),
        cmocka_unit_test(reading_an_artifact_leaks_nothing_out_of_memory),
        cmocka_unit_test(the_source_names_the_policy),
        cmocka_unit_test(techniques_switched_off_stay_off),
        cmocka_unit_test(a_strategy_that_fits_no_plan_is_widened),
        cmocka_unit_test(a_budget_that_nothing_fits_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
