/*
 * `memscale plan`: the plan for a graph document, as a table, as JSON or explained, without Python or torch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os/file.h"
#include "commands.h"
#include "common.h"
#include "inputs.h"
#include "memscale/frontier.h"
#include "options.h"

static const char help[] = "Usage: memscale plan --graph FILE [--hardware NAME] [--config FILE]\n"
                           "                     [--budget BYTES] [--json | --explain [LAYER]]\n"
                           "       memscale plan --graph FILE --sweep N [--json | --csv] [--plot FILE] [...]\n"
                           "\n"
                           "Makes the plan for a graph: which layers are kept, recomputed or moved to a lower\n"
                           "tier, the predicted peak and step time, and why.\n"
                           "\n"
                           "  --graph FILE      the graph (docs/formats/graph.schema.json)\n"
                           "  --hardware NAME   a saved machine's file, or a GPU to train on in this machine:\n"
                           "                    rtx-4090, h100, ... (memscale hardware --cards); this machine\n"
                           "                    if not given\n"
                           "  --config FILE     a configuration; the defaults if not given\n"
                           "  --budget BYTES    replaces the configuration's budget: 4000000000, 4.0GB, 3.7GiB\n"
                           "  --json            print the JSON document (docs/formats/plan.schema.json)\n"
                           "  --explain [LAYER] why a layer has its technique (a module's name or its number\n"
                           "                    in the list of layers), or the whole plan\n"
                           "  --sweep N         plans for N budgets, from the need of the unoptimized step\n"
                           "                    down to the smallest that fits\n"
                           "  --csv             print the sweep as CSV (--json: docs/formats/frontier.schema.json)\n"
                           "  --plot FILE       also write the sweep as an SVG picture\n"
                           "\n"
                           "Examples:\n"
                           "  memscale plan --graph gpt2.json --budget 4.0GB\n"
                           "  memscale plan --graph gpt2.json --hardware machine.json --json > plan.json\n"
                           "  memscale plan --graph gpt2.json --budget 4.0GB --explain transformer.h.0\n"
                           "  memscale plan --graph gpt2.json --sweep 8 --plot gpt2.svg\n"
                           "\n"
                           "Exit status: 0 with a plan, 1 if no plan fits the budget (the smallest that\n"
                           "fits is printed, with --json as {\"feasible\": false, \"smallest_budget_bytes\": ...}),\n"
                           "2 for a wrong option or file.\n";

/* The command line. */
typedef struct plan_request {
    const char *graph_path, *hardware_path, *config_path, *budget, *explain, *sweep, *plot_path;
    bool as_json, as_csv, explain_all;
    uint32_t sweep_points; /* 0: one plan */
} plan_request;

/* The input and output of planning. */
typedef struct plan_work {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_plan *plan;
} plan_work;

/* ---- answers -------------------------------------------------------------------------- */

/* The node of the layer `text`: a module's name, or its number among layers. */
static int64_t find_layer(const ms_graph *graph, const char *text)
{
    char *end;
    unsigned long long wanted = strtoull(text, &end, 10);
    bool number = *text >= '0' && *text <= '9' && *end == '\0';
    unsigned long long layer = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].name[0] != '\0' && strcmp(graph->nodes[i].name, text) == 0) {
            return i;
        }
    }
    for (uint32_t i = 0; number && i < graph->node_count; i++) {
        if (graph->nodes[i].name[0] != '\0' && layer++ == wanted) {
            return i;
        }
    }
    return -1;
}

static int show_plan(const plan_request *request, const plan_work *work)
{
    /* A plan has an entry for each node, in order. */
    int64_t entry = request->explain != NULL ? find_layer(work->graph, request->explain) : -1;
    bool explains = request->explain_all || request->explain != NULL;
    char *text = request->as_json ? ms_plan_to_json(work->plan)
                 : explains       ? ms_plan_explain(work->plan, entry)
                                  : ms_plan_table(work->plan, work->hardware);
    return cli_print_made(text);
}

static int write_plot(const char *path, const ms_frontier *frontier)
{
    ms_error err;
    char *picture = ms_frontier_svg(frontier);
    int rc = picture == NULL ? ms_fail(&err, MS_ENOMEM, "out of memory")
                             : ms__file_write_text(path, picture, strlen(picture), &err);
    ms_free(picture);
    return cli_file_status("plan", "--plot", path, rc, &err);
}

static int show_sweep(const plan_request *request, const ms_frontier *frontier)
{
    if (request->plot_path != NULL) {
        int status = write_plot(request->plot_path, frontier);
        if (status != CLI_OK) {
            return status;
        }
    }
    char *text = request->as_json  ? ms_frontier_json(frontier)
                 : request->as_csv ? ms_frontier_csv(frontier)
                                   : ms_frontier_table(frontier);
    return cli_print_made(text);
}

/* Reports a sound graph that can't be planned, or a budget that no plan fits. */
static int not_planned(const plan_request *request, int rc, const ms_error *err)
{
    if (rc == MS_EINFEASIBLE) {
        return cli_infeasible(err, request->as_json);
    }
    return rc == MS_EINVAL ? cli_file_status("plan", "--graph", request->graph_path, rc, err) : cli_fail(err);
}

static int run_sweep(const plan_request *request, const plan_work *work)
{
    ms_error err;
    ms_frontier *frontier = NULL;
    int rc = ms_frontier_make(work->graph, work->hardware, &work->config, request->sweep_points, &frontier, &err);
    if (rc != MS_OK) {
        return not_planned(request, rc, &err);
    }
    int status = show_sweep(request, frontier);
    ms_frontier_free(frontier);
    return status;
}

static int make_plan(const plan_request *request, plan_work *work)
{
    int status = cli_load_graph("plan", request->graph_path, &work->graph);
    if (status == CLI_OK && request->explain != NULL && find_layer(work->graph, request->explain) < 0) {
        status = cli_usage_error("plan", "--explain %s: the graph has no such layer", request->explain);
    }
    if (status == CLI_OK) {
        status = cli_load_config("plan", request->config_path, request->budget, &work->config);
    }
    if (status == CLI_OK) {
        status = cli_load_hardware("plan", request->hardware_path, &work->hardware);
    }
    if (status != CLI_OK) {
        return status;
    }
    if (request->sweep_points > 0) {
        return run_sweep(request, work);
    }
    ms_error err;
    int rc = ms_pipeline_plan(work->graph, work->hardware, &work->config, &work->plan, &err);
    return rc == MS_OK ? show_plan(request, work) : not_planned(request, rc, &err);
}

/* Options that exclude or need each other. */
static int check_request(plan_request *request)
{
    bool explains = request->explain_all || request->explain != NULL;
    if (request->as_json && explains) {
        return cli_usage_error("plan", "--json excludes --explain");
    }
    if (request->graph_path == NULL) {
        return cli_usage_error("plan", "--graph FILE is missing");
    }
    if (request->sweep == NULL) {
        bool alone = request->as_csv || request->plot_path != NULL;
        return alone ? cli_usage_error("plan", "--csv and --plot go with --sweep N") : CLI_OK;
    }
    char *end;
    unsigned long count = strtoul(request->sweep, &end, 10);
    if (*request->sweep < '0' || *request->sweep > '9' || *end != '\0' || count < 1 ||
        count > MS_FRONTIER_MOST_POINTS) {
        return cli_usage_error("plan", "--sweep %s: give a number of budgets, 1 to %d", request->sweep,
                               MS_FRONTIER_MOST_POINTS);
    }
    if (explains || request->budget != NULL || (request->as_json && request->as_csv)) {
        return cli_usage_error("plan", "--sweep excludes --explain and --budget, and --json excludes --csv");
    }
    request->sweep_points = (uint32_t)count;
    return CLI_OK;
}

int cmd_plan(int argc, char **argv)
{
    plan_request request = {0};
    const cli_option table[] = {
        {"--graph", NULL, &request.graph_path},   {"--hardware", NULL, &request.hardware_path},
        {"--config", NULL, &request.config_path}, {"--budget", NULL, &request.budget},
        {"--json", &request.as_json, NULL},       {"--explain", &request.explain_all, &request.explain},
        {"--sweep", NULL, &request.sweep},        {"--csv", &request.as_csv, NULL},
        {"--plot", NULL, &request.plot_path},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status != CLI_GO_ON) {
        return status;
    }
    status = check_request(&request);
    if (status != CLI_OK) {
        return status;
    }
    plan_work work = {0};
    status = make_plan(&request, &work);
    ms_graph_free(work.graph);
    ms_free(work.hardware);
    ms_plan_free(work.plan);
    return status;
}
