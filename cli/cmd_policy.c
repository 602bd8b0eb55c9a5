/*
 * `memscale policy`: what the policy (auto_policy) would choose for a graph, who chose it and why, and what the other
 * strategies would have given. Without Python or torch.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "commands.h"
#include "common.h"
#include "inputs.h"
#include "memscale/pipeline.h"
#include "options.h"
#include "plan/text.h"

static const char help[] = "Usage: memscale policy --graph FILE [--hardware NAME] [--config FILE]\n"
                           "                       [--budget BYTES] [--policy FILE | --rules]\n"
                           "                       [--json | --explain]\n"
                           "\n"
                           "Shows what auto_policy=True would choose for a graph: the mode, the techniques\n"
                           "that may be used and how far the planner searches; who chose it, and why.\n"
                           "\n"
                           "  --graph FILE      the graph (docs/formats/graph.schema.json)\n"
                           "  --hardware NAME   a saved machine's file, or a GPU to train on in this machine;\n"
                           "                    this machine if not given\n"
                           "  --config FILE     a configuration; the defaults if not given\n"
                           "  --budget BYTES    replaces the configuration's budget: 4000000000, 4.0GB, 3.7GiB\n"
                           "  --policy FILE     a trained policy (docs/formats/policy.schema.json); the one that\n"
                           "                    MEMSCALE_POLICY names, else the built-in one, if not given\n"
                           "  --rules           let the rules decide\n"
                           "  --json            print the decision as JSON\n"
                           "  --explain         also plan under every strategy, and compare\n"
                           "\n"
                           "Examples:\n"
                           "  memscale policy --graph gpt2.json --budget 4.0GB\n"
                           "  memscale policy --graph gpt2.json --hardware machine.json --budget 4.0GB --explain\n"
                           "\n"
                           "Exit status: 0 with a decision, 1 if no plan fits the budget, 2 for a wrong option\n"
                           "or file.\n";

typedef struct policy_request {
    const char *graph_path, *hardware_path, *config_path, *budget, *policy_path;
    bool by_rules, as_json, explains;
} policy_request;

typedef struct policy_work {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config, effective;
    ms_policy *trained;
    ms_strategy_decision decision;
    ms_plan *plan;
} policy_work;

/* ---- inputs --------------------------------------------------------------------------- */

/* MEMSCALE_POLICY stands for the option that is not given. */
static void read_environment(policy_request *request)
{
    const char *named = getenv("MEMSCALE_POLICY");
    if (named != NULL && *named != '\0' && request->policy_path == NULL && !request->by_rules) {
        request->by_rules = strcmp(named, "rule") == 0;
        request->policy_path = request->by_rules ? NULL : named;
    }
}

static int load_policy(const policy_request *request, policy_work *work)
{
    ms_error err;
    char *text = NULL;
    int rc = MS_OK;
    if (request->by_rules) {
        return CLI_OK;
    }
    if (request->policy_path != NULL) {
        rc = cli_read_text(request->policy_path, &text, &err);
    }
    if (rc == MS_OK) {
        rc = ms_policy_parse(text != NULL ? text : ms_policy_shipped(), &work->trained, &err);
    }
    ms_free(text);
    return cli_file_status("policy", "--policy", request->policy_path != NULL ? request->policy_path : "built in", rc,
                           &err);
}

static int load_all(const policy_request *request, policy_work *work)
{
    int status = cli_load_graph("policy", request->graph_path, &work->graph);
    if (status == CLI_OK) {
        status = cli_load_config("policy", request->config_path, request->budget, &work->config);
    }
    if (status == CLI_OK) {
        status = load_policy(request, work);
    }
    return status == CLI_OK ? cli_load_hardware("policy", request->hardware_path, &work->hardware) : status;
}

/* ---- answers -------------------------------------------------------------------------- */

static const char *who(ms_decision_source source)
{
    static const char *const texts[MS_DECISION_SOURCE_COUNT] = {
        [MS_DECISION_SOURCE_USER_CONFIG] = "the configuration, unchanged",
        [MS_DECISION_SOURCE_ML] = "the trained policy",
        [MS_DECISION_SOURCE_RULE_FALLBACK] = "the rules, in place of the trained policy",
        [MS_DECISION_SOURCE_RULE] = "the rules, as asked",
    };
    return texts[source];
}

static void add_decision(ms__text *text, const policy_work *work)
{
    const ms_strategy_decision *decision = &work->decision;
    const ms_strategy *s = &decision->strategy;
    ms__text_add(text, "chosen    %s: %s\n", ms_strategy_name(s), ms_strategy_text(s));
    ms__text_add(text, "          mode %s, recompute %s, offload %s, %u of 1000 replays\n", ms_mode_name(s->mode),
                 s->enable_checkpointing ? "yes" : "no", s->enable_offloading ? "yes" : "no", s->search_permille);
    ms__text_add(text, "by        %s (%s)\n", who(decision->source), ms_decision_source_name(decision->source));
    ms__text_add(text, "because   %s\n", decision->reason);
    ms__text_add(text, "plan      peak %s, step %.4g s\n", ms__text_bytes(work->plan->replay.peak_bytes).text,
                 (double)work->plan->replay.step_ns / 1e9);
}

static void add_features(ms__text *text, const ms_strategy_context *context)
{
    ms__text_add(text, "\nwhat was compared\n");
    for (int i = 0; i < MS_FEATURE_COUNT; i++) {
        ms__text_add(text, "  %-26s %15" PRIu64 "  %s\n", ms_feature_name((ms_feature)i), context->value[i],
                     ms_feature_text((ms_feature)i));
    }
}

static bool is_chosen(const ms_strategy *a, const ms_strategy *b)
{
    return strcmp(ms_strategy_name(a), ms_strategy_name(b)) == 0;
}

/* A line for each strategy. Work is in replayed events, over the widest strategy's. */
static int add_others(ms__text *text, const policy_work *work, ms_error *err)
{
    ms_strategy strategy;
    ms_strategy_outcome outcome, widest = {0};
    ms__text_add(text, "\nwhat each strategy gives\n  %-22s %10s %10s %12s\n", "", "step s", "peak", "planning");
    for (size_t i = 0; ms_strategy_at(i, &strategy); i++) {
        int rc = ms_pipeline_try_strategy(work->graph, work->hardware, &work->config, &strategy, &outcome, err);
        if (rc != MS_OK) {
            return rc;
        }
        widest = i == 0 ? outcome : widest;
        double work_share = (double)outcome.replayed_events / (double)ms__max_u64(widest.replayed_events, 1);
        const char *mark = is_chosen(&strategy, &work->decision.strategy) ? "> " : "  ";
        if (outcome.fits) {
            ms__text_add(text, "%s%-22s %10.4g %10s %11.0f%%\n", mark, ms_strategy_name(&strategy),
                         (double)outcome.step_ns / 1e9, ms__text_bytes(outcome.peak_bytes).text, 100 * work_share);
        } else {
            ms__text_add(text, "%s%-22s %10s %10s %11.0f%%\n", mark, ms_strategy_name(&strategy), "-", "none fits",
                         100 * work_share);
        }
    }
    return MS_OK;
}

static int show_policy(const policy_request *request, const policy_work *work)
{
    ms_error err;
    ms__text text = {0};
    if (request->as_json) {
        return cli_print_made(ms_strategy_decision_to_json(&work->decision));
    }
    add_decision(&text, work);
    if (request->explains) {
        add_features(&text, &work->decision.context);
        int rc = add_others(&text, work, &err);
        if (rc != MS_OK) {
            ms_free(ms__text_take(&text));
            return cli_fail(&err);
        }
    }
    return cli_print_made(ms__text_take(&text));
}

static int decide(const policy_request *request, policy_work *work)
{
    ms_error err;
    int rc = ms_pipeline_plan_by_policy(work->graph, work->hardware, &work->config, work->trained, request->by_rules,
                                        &work->decision, &work->effective, &work->plan, &err);
    if (rc == MS_EINFEASIBLE) {
        return cli_infeasible(&err, request->as_json);
    }
    if (rc == MS_EINVAL) {
        return cli_file_status("policy", "--graph", request->graph_path, rc, &err);
    }
    return rc == MS_OK ? show_policy(request, work) : cli_fail(&err);
}

static int check_request(const policy_request *request)
{
    if (request->graph_path == NULL) {
        return cli_usage_error("policy", "--graph FILE is missing");
    }
    if (request->as_json && request->explains) {
        return cli_usage_error("policy", "--json excludes --explain");
    }
    return request->by_rules && request->policy_path != NULL ? cli_usage_error("policy", "--rules excludes --policy")
                                                             : CLI_OK;
}

int cmd_policy(int argc, char **argv)
{
    policy_request request = {0};
    const cli_option table[] = {
        {"--graph", NULL, &request.graph_path},   {"--hardware", NULL, &request.hardware_path},
        {"--config", NULL, &request.config_path}, {"--budget", NULL, &request.budget},
        {"--policy", NULL, &request.policy_path}, {"--rules", &request.by_rules, NULL},
        {"--json", &request.as_json, NULL},       {"--explain", &request.explains, NULL},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status == CLI_GO_ON) {
        status = check_request(&request);
    } else {
        return status;
    }
    policy_work work = {0};
    if (status == CLI_OK) {
        read_environment(&request);
        status = load_all(&request, &work);
    }
    status = status == CLI_OK ? decide(&request, &work) : status;
    ms_graph_free(work.graph);
    ms_free(work.hardware);
    ms_policy_free(work.trained);
    ms_plan_free(work.plan);
    return status;
}
