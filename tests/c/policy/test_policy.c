/*
 * Stage 1: a trained policy follows its trees and is refused whole if malformed; a policy narrows, and never
 * makes a run fail that the caller's own configuration lets succeed.
 */
#include "plan_fixture.h"
#include "sim/sim.h"

#define STRATEGY(mode, recomputes, moves, permille, base) \
    "{\"mode\":\"" mode "\",\"enable_checkpointing\":" recomputes ",\"enable_offloading\":" moves \
    ",\"search_permille\":" permille ",\"second_permille\":0,\"base_cost\":" base "}"
#define FEATURE(name, least, usual, most, is_checked) \
    "{\"name\":\"" name "\",\"least\":" least ",\"usual\":" usual ",\"most\":" most ",\"is_checked\":" is_checked "}"
/* A policy of one strategy, which keeps everything at any pressure. */
#define KEEPS_ALL(name, feature) \
    "{\"name\":\"" name "\",\"features\":[" feature "],\"strategies\":[" STRATEGY( \
        "conservative", "false", "false", "1000", "0") "],\"trees\":[{\"strategy\":0,\"nodes\":[[1]]}]}"

static const char two_trees[] =
    "{\"name\":\"test\",\"features\":[" FEATURE("pressure_permille", "0", "1000", "90000", "false") "," FEATURE(
        "layer_count", "1", "8", "400",
        "true") "],\"strategies\":[" STRATEGY("conservative", "true", "false", "1000",
                                              "0") "," STRATEGY("aggressive", "false", "true", "250",
                                                                "1") "],"
                                                                     "\"trees\":[{\"strategy\":0,\"nodes\":[[0,1200,1,"
                                                                     "2],[1],[4]]},"
                                                                     "{\"strategy\":1,\"nodes\":[[1,10,1,2],[2],[5]]}]"
                                                                     "}";

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

static void costs_add_up_over_the_trees(void **state)
{
    (void)state;
    ms_policy *policy = policy_of(two_trees);
    const struct {
        uint64_t permille, layers;
        ms_mode mode;
    } cases[] = {
        {1200, 10, MS_MODE_CONSERVATIVE}, /* 1:3 */
        {1201, 10, MS_MODE_AGGRESSIVE},   /* 4:3 */
        {1201, 11, MS_MODE_CONSERVATIVE}, /* 4:6 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ms_strategy_context context = {0};
        context.value[MS_FEATURE_PRESSURE_PERMILLE] = cases[i].permille;
        context.value[MS_FEATURE_LAYER_COUNT] = cases[i].layers;
        ms_strategy chosen = ms_policy_choose(policy, &context);
        assert_int_equal(chosen.mode, cases[i].mode);
        assert_int_equal(chosen.enable_offloading, cases[i].mode == MS_MODE_AGGRESSIVE);
        assert_int_equal(chosen.search_permille, cases[i].mode == MS_MODE_AGGRESSIVE ? 250 : 1000);
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
        {"1200,1,2", "1200,0,2", "[2]"},                     /* not after its parent: a loop */
        {"1200,1,2", "1200,1,3", "[3]"},                     /* beyond the tree */
        {"[0,1200", "[2,1200", "[0]"},                       /* no such feature */
        {"1200,1,2", "9223372036854775808,1,2", "integer"},  /* a threshold out of range */
        {"1200,1,2", "-1,1,2", "[1]"},
        {"[1],[4]", "[1],[4,4]", "split"},
        {"[4]", "[1099511627777]", "[0]"},
        {"[4]", "[0,1,1,2]", "last node"},
        {"pressure_permille", "colour", "name"},
        {"layer_count", "pressure_permille", "twice"},
        {"\"usual\":8", "\"usual\":500", "usual"},
        {"conservative", "careful", "mode"},
        {"\"search_permille\":250", "\"search_permille\":0", "search_permille"},
        {"\"second_permille\":0", "\"second_permille\":1001", "second_permille"},
        {"\"strategy\":1", "\"strategy\":2", "strategy"},
        {"\"name\":\"test\",", "", "name"},
        {"\"nodes\":[[1,10,1,2],[2],[5]]", "\"nodes\":[]", "a node"},
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
    touched = changed(artifact, "\"version\":2", "\"version\":1");
    assert_ms_fails(ms_policy_parse(touched, &policy, &err), MS_EVERSION, err, "version");
    free(touched);
    touched = changed(artifact, "\"version\":2", "\"version\":3");
    assert_ms_fails(ms_policy_parse(touched, &policy, &err), MS_EVERSION, err, "version");
    free(touched);
    for (size_t length = strlen(artifact) - 1; length > 0; length -= length > 40 ? 37 : 1) {
        artifact[length] = '\0';
        assert_ms_fails(ms_policy_parse(artifact, &policy, &err), MS_EFORMAT, err, "policy");
    }
    ms_free(artifact);
}

static void an_artifact_of_100_mb_is_refused_unread(void **state)
{
    (void)state;
    ms_error err;
    ms_policy *policy = NULL;
    const size_t bytes = 100000000;
    char *text = malloc(bytes + 1);
    memset(text, '[', bytes);
    text[bytes] = '\0';
    assert_ms_fails(ms_policy_parse(text, &policy, &err), MS_EFORMAT, err, "at most 4194304 bytes");
    free(text);
}

static void a_policy_says_what_it_was_not_trained_for(void **state)
{
    (void)state;
    char why[MS_REASON_MAX] = "";
    ms_policy *policy = policy_of(two_trees);
    ms_strategy_context context = {0};
    context.value[MS_FEATURE_PRESSURE_PERMILLE] = 100000; /* not checked */
    context.value[MS_FEATURE_LAYER_COUNT] = 400;
    assert_true(ms_policy_covers(policy, &context, why));
    context.value[MS_FEATURE_LAYER_COUNT] = 401;
    assert_false(ms_policy_covers(policy, &context, why));
    assert_string_equal(why, "layer_count 401 is above 400, the most that policy \"test\" was trained for");
    context.value[MS_FEATURE_LAYER_COUNT] = 0;
    assert_false(ms_policy_covers(policy, &context, why));
    assert_non_null(strstr(why, "layer_count 0 is below 1, the least"));
    ms_policy_free(policy);
}

static void a_choice_is_explained_by_the_features_that_made_it(void **state)
{
    (void)state;
    char text[MS_REASON_MAX];
    ms_policy *policy = policy_of(two_trees);
    ms_strategy_context context = {0};
    context.value[MS_FEATURE_PRESSURE_PERMILLE] = 1000; /* usual: no reason */
    context.value[MS_FEATURE_LAYER_COUNT] = 20;
    ms_policy_explain(policy, &context, text);
    assert_string_equal(text, "policy \"test\": conservative rather than offload, quick, because layer_count is high");
    ms_policy_free(policy);
}

static void the_table_of_strategies_begins_with_the_widest(void **state)
{
    (void)state;
    ms_strategy strategy, widest = ms_strategy_widest();
    size_t count = 0;
    for (; ms_strategy_at(count, &strategy); count++) {
        assert_true(strategy.mode <= widest.mode && strategy.search_permille <= widest.search_permille);
        assert_true(strategy.search_permille > 0);
    }
    assert_true(count > 1 && widest.enable_checkpointing && widest.enable_offloading);
    assert_true(ms_strategy_at(0, &strategy));
    assert_string_equal(ms_strategy_name(&strategy), ms_strategy_name(&widest));
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
    ms_policy *policy = policy_of(KEEPS_ALL("lazy", FEATURE("on_gpu", "0", "0", "1", "false")));
    ms_config config;
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    answer found = plan_by(&config, policy, false);
    assert_int_equal(found.decision.source, MS_DECISION_SOURCE_RULE_FALLBACK);
    assert_non_null(strstr(found.decision.reason, "narrower"));
    ms_free(found.plan);
    ms_policy_free(policy);
}

#define ONE_STRATEGY(strategy) \
    "{\"name\":\"one\",\"features\":[" FEATURE("glance_step_permille", "0", "1000", "9000", \
                                               "false") "],\"strategies\":[" strategy \
                                                        "],\"trees\":[{\"strategy\":0,\"nodes\":[[1]]}]}"

/* Plans under a policy of one strategy, and says how many events the planner has replayed. */
static answer plan_by_one(const char *body, const ms_config *config, uint64_t *events)
{
    ms_policy *policy = policy_of(body);
    uint64_t before = ms__sim_events_replayed();
    answer found = plan_by(config, policy, false);
    *events = ms__sim_events_replayed() - before;
    assert_int_equal(found.decision.source, MS_DECISION_SOURCE_ML);
    ms_policy_free(policy);
    return found;
}

static uint64_t step_ns_of(const char *plan)
{
    const char *predicted = strstr(plan, "\"predicted\"");
    assert_non_null(predicted);
    return strtoull(strstr(predicted, "\"step_ns\": ") + strlen("\"step_ns\": "), NULL, 10);
}

static void a_trained_policy_looks_before_it_decides_and_plans_nothing_twice(void **state)
{
    (void)state;
    ms_config config;
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    uint64_t glance_events, short_events;
    answer glance =
        plan_by_one(ONE_STRATEGY(STRATEGY("aggressive", "true", "true", "20", "0")), &config, &glance_events);
    ms_strategy shortest = ms_strategy_glance();
    assert_int_equal(shortest.search_permille, 20);
    assert_int_equal(glance.decision.strategy.search_permille, 20);
    assert_in_range(glance.decision.context.value[MS_FEATURE_GLANCE_STEP_PERMILLE], 900, 5000);
    /* As much as that search alone, and the few replays of the context. */
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    ms_strategy_outcome alone;
    ms_error err;
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &shortest, &alone, &err), err);
    assert_in_range(glance_events, alone.replayed_events, 3 * alone.replayed_events / 2);
    assert_int_equal(step_ns_of(glance.plan), alone.step_ns);
    /* A search that may not move finds nothing better here than the glance, whose plan is kept. */
    answer narrow =
        plan_by_one(ONE_STRATEGY(STRATEGY("aggressive", "true", "false", "1", "0")), &config, &short_events);
    assert_true(short_events > glance_events);
    assert_true(step_ns_of(narrow.plan) <= step_ns_of(glance.plan));
    ms_free(glance.plan);
    ms_free(narrow.plan);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void who_decides_without_a_trained_policy_does_not_look(void **state)
{
    (void)state;
    ms_config config;
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    answer rules = plan_by(&config, NULL, true);
    assert_int_equal(rules.decision.context.value[MS_FEATURE_GLANCE_STEP_PERMILLE], 0);
    ms_free(rules.plan);
}

static void what_a_policy_was_not_trained_for_is_left_to_the_rules(void **state)
{
    (void)state;
    ms_policy *policy = policy_of(KEEPS_ALL("fast", FEATURE("matmul_flops_per_s", "1", "1", "2", "true")));
    ms_config config;
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    answer found = plan_by(&config, policy, false), rules = plan_by(&config, NULL, true);
    assert_int_equal(found.decision.source, MS_DECISION_SOURCE_RULE_FALLBACK);
    assert_non_null(strstr(found.decision.reason, "is above 2, the most that policy \"fast\" was trained for"));
    assert_int_equal(found.decision.strategy.mode, rules.decision.strategy.mode);
    ms_free(found.plan);
    ms_free(rules.plan);
    ms_policy_free(policy);
}

static void a_shorter_search_replays_less_and_still_fits(void **state)
{
    (void)state;
    ms_error err;
    ms_config config;
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    ms_strategy strategy = ms_strategy_widest();
    ms_strategy_outcome wide, brief;
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &strategy, &wide, &err), err);
    strategy.search_permille = 50;
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &strategy, &brief, &err), err);
    assert_true(wide.fits && brief.fits);
    assert_true(brief.replayed_events < wide.replayed_events / 2);
    assert_true(wide.step_ns > 0 && brief.step_ns > 0);
    config.memory_budget_bytes = 1000;
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &strategy, &brief, &err), err);
    assert_false(brief.fits);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void of_two_searches_the_better_plan_is_taken(void **state)
{
    (void)state;
    ms_error err;
    ms_config config;
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    /* Keeping everything does not fit; a search without moves does. */
    ms_strategy keep = {MS_MODE_AGGRESSIVE, false, false, 1000, 0}, both = keep, second;
    both.second_permille = 250;
    assert_true(ms_strategy_second(&both, &second));
    ms_strategy_outcome alone, other, better;
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &keep, &alone, &err), err);
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &second, &other, &err), err);
    assert_ms_ok(ms_pipeline_try_strategy(graph, hardware, &config, &both, &better, &err), err);
    assert_false(alone.fits);
    assert_true(better.fits && better.step_ns == other.step_ns && better.peak_bytes == other.peak_bytes);
    assert_int_equal(better.replayed_events, alone.replayed_events + other.replayed_events);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void the_context_compares_uniform_plans(void **state)
{
    (void)state;
    ms_error err;
    ms_config config;
    ms_strategy_context context;
    ms_graph *graph = fixture_graph(0);
    ms_hardware *hardware = fixture_real_hardware();
    ms_config_default(&config);
    config.memory_budget_bytes = need_bytes() * 4 / 5;
    assert_ms_ok(ms_pipeline_context(graph, hardware, &config, &context, &err), err);
    const uint64_t *value = context.value;
    assert_in_range(value[MS_FEATURE_PRESSURE_PERMILLE], 1250, 1260); /* rounded */
    assert_true(value[MS_FEATURE_EVENT_COUNT] > 0);
    assert_in_range(value[MS_FEATURE_RECOMPUTE_PEAK_PERMILLE], 1, value[MS_FEATURE_PRESSURE_PERMILLE] - 1);
    assert_true(value[MS_FEATURE_RECOMPUTE_STEP_PERMILLE] > 1000);
    assert_in_range(value[MS_FEATURE_FIXED_PERMILLE], 1, value[MS_FEATURE_RECOMPUTE_PEAK_PERMILLE]);
    ms_graph_free(graph);
    ms_free(hardware);
}

static void without_a_tier_the_rules_still_admit_masks_as_bits(void **state)
{
    (void)state;
    ms_config config;
    ms_strategy_decision decision = {0};
    ms_strategy_context context = {0};
    ms_config_default(&config);
    context.value[MS_FEATURE_PRESSURE_PERMILLE] = 2000;
    ms_policy_rule(&context, &config, &decision);
    assert_true(decision.strategy.enable_offloading);
    context.value[MS_FEATURE_ON_GPU] = 1;
    ms_policy_rule(&context, &config, &decision);
    assert_false(decision.strategy.enable_offloading);
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
        cmocka_unit_test(costs_add_up_over_the_trees),
        cmocka_unit_test(a_malformed_artifact_is_refused),
        cmocka_unit_test(an_artifact_of_100_mb_is_refused_unread),
        cmocka_unit_test(a_policy_says_what_it_was_not_trained_for),
        cmocka_unit_test(a_choice_is_explained_by_the_features_that_made_it),
        cmocka_unit_test(the_table_of_strategies_begins_with_the_widest),
        cmocka_unit_test(reading_an_artifact_leaks_nothing_out_of_memory),
        cmocka_unit_test(the_source_names_the_policy),
        cmocka_unit_test(techniques_switched_off_stay_off),
        cmocka_unit_test(a_strategy_that_fits_no_plan_is_widened),
        cmocka_unit_test(a_trained_policy_looks_before_it_decides_and_plans_nothing_twice),
        cmocka_unit_test(who_decides_without_a_trained_policy_does_not_look),
        cmocka_unit_test(what_a_policy_was_not_trained_for_is_left_to_the_rules),
        cmocka_unit_test(a_shorter_search_replays_less_and_still_fits),
        cmocka_unit_test(of_two_searches_the_better_plan_is_taken),
        cmocka_unit_test(the_context_compares_uniform_plans),
        cmocka_unit_test(without_a_tier_the_rules_still_admit_masks_as_bits),
        cmocka_unit_test(a_budget_that_nothing_fits_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
