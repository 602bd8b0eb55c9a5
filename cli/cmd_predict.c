/*
 * `memscale predict`: the memory of a Hugging Face model's training step, its plan and the smallest budget, without
 * weights; for the families of ms_predict_hf_graph() also without Python and torch.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "commands.h"
#include "common.h"
#include "inputs.h"
#include "memscale/cluster.h"
#include "memscale/pipeline.h"
#include "memscale/predict.h"
#include "options.h"
#include "plan/text.h"

static const char help[] = "Usage: memscale predict --hf FILE --batch B [--seq S] [--budget BYTES]\n"
                           "                        [--dtype TYPE] [--optimizer NAME] [--lora RANK]\n"
                           "                        [--mode MODE] [--hardware NAME] [--host-memory BYTES]\n"
                           "                        [--json | --graph]\n"
                           "                        [--ranks N (--ddp | --fsdp) [--link BYTES]]\n"
                           "\n"
                           "Predicts the memory of a training step of a Hugging Face model: unoptimized, with\n"
                           "the plan for this machine or a budget, and the smallest budget. Reads only the\n"
                           "configuration; needs no weights. For the families (\"model_type\") llama, mistral,\n"
                           "qwen2, qwen3, gpt2 and bert in float32 with AdamW it needs no torch. Every other\n"
                           "question is answered by a trace, by a Python that has torch and transformers,\n"
                           "beside this program or on the PATH.\n"
                           "\n"
                           "  --hf FILE         the model's config.json\n"
                           "  --batch B         sequences, images or recordings in a batch\n"
                           "  --seq S           tokens in a sequence; not for models that take none\n"
                           "  --dtype TYPE      of the weights: float32 (default), bfloat16, float16\n"
                           "  --optimizer NAME  adamw (default), adam, sgd, sgd-momentum, rmsprop, adagrad,\n"
                           "                    adafactor; memscale-adamw, whose state can be on disk\n"
                           "                    or, for a GPU, in host memory; adamw-8bit\n"
                           "  --lora RANK       train adapters of this rank on all linear layers (needs PEFT)\n"
                           "  --budget BYTES    plan for this budget: 4000000000, 4.0GB, 3.7GiB\n"
                           "  --mode MODE       what the plan may use: conservative, balanced (default),\n"
                           "                    aggressive (gradients released in backward)\n"
                           "  --hardware NAME   a saved machine's file, or a GPU to train on in this machine:\n"
                           "                    rtx-4090, h100, ... (memscale hardware --cards); this machine\n"
                           "                    if not given\n"
                           "  --host-memory BYTES\n"
                           "                    free host memory, in place of the machine's\n"
                           "  --ranks N         a rank's share of a training on N ranks, 1 to 65536; --batch is\n"
                           "                    each rank's\n"
                           "  --ddp             every rank holds the whole model\n"
                           "  --fsdp            parameters, gradients and state are divided: torch's\n"
                           "                    fully_shard() on every layer and on the model\n"
                           "  --link BYTES      that a rank sends in a second: 50GB; by default the card's\n"
                           "                    links, and beyond 8 ranks a network of 400 Gb/s a card\n"
                           "  --json            print the JSON document (docs/formats/predict.schema.json)\n"
                           "  --graph           print the step's graph, for memscale plan --graph\n"
                           "\n"
                           "Examples:\n"
                           "  memscale predict --hf config.json --batch 4 --seq 512 --budget 4.0GB\n"
                           "  memscale predict --hf config.json --batch 8 --seq 2048 --hardware rtx-4090 \\\n"
                           "                   --dtype bfloat16 --lora 16\n"
                           "  memscale predict --hf config.json --batch 4 --seq 1024 --hardware rtx-4090 \\\n"
                           "                   --host-memory 64GB --dtype bfloat16 --budget 8GB \\\n"
                           "                   --optimizer memscale-adamw --mode aggressive\n"
                           "  memscale predict --hf config.json --batch 2 --seq 4096 --hardware h100 \\\n"
                           "                   --dtype bfloat16 --ranks 64 --fsdp\n"
                           "\n"
                           "Exit status: 0 with a plan, 1 if none fits the budget (the smallest that fits is\n"
                           "printed, with --json as {\"feasible\": false, \"smallest_budget_bytes\": ...}) or the\n"
                           "machine (the smallest plan is printed), 2 for a wrong option or file.\n";

typedef struct predict_request {
    const char *hf_path, *batch, *seq, *budget, *hardware_path, *mode, *host_memory;
    const char *dtype, *optimizer, *lora; /* only a trace knows them */
    const char *ranks, *link;
    bool as_json, as_graph, ddp, fsdp;
    uint64_t batch_size, seq_length, budget_bytes, host_bytes;
    ms_cluster cluster; /* 0 ranks: not asked */
} predict_request;

typedef struct predict_work {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_cluster_share share;
    ms_plan *plan;
    ms_plan *settled; /* the plan once the loop has been observed, if that is faster; or NULL */
    uint64_t smallest_bytes;
} predict_work;

/* ---- the request ---------------------------------------------------------------- */

enum { COUNT_MOST = 999999999 };

static bool parse_count(const char *text, uint64_t *count)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    *count = value;
    return *text >= '0' && *text <= '9' && *end == '\0' && value > 0 && value <= COUNT_MOST;
}

static int check_cluster(predict_request *request)
{
    uint64_t ranks = 0;
    ms_cluster *cluster = &request->cluster;
    if (request->ranks == NULL) {
        return !request->ddp && !request->fsdp && request->link == NULL
                   ? CLI_OK
                   : cli_usage_error("predict", "--ddp, --fsdp and --link go with --ranks N");
    }
    if (request->ddp == request->fsdp || request->as_graph) {
        return cli_usage_error("predict", "--ranks needs --ddp or --fsdp, and excludes --graph");
    }
    if (!parse_count(request->ranks, &ranks) || ranks > MS_CLUSTER_RANKS_MOST) {
        return cli_usage_error("predict", "--ranks %s: give a number of ranks, 1 to %d", request->ranks,
                               MS_CLUSTER_RANKS_MOST);
    }
    cluster->ranks = (uint32_t)ranks;
    cluster->parallelism = request->fsdp ? MS_PARALLELISM_FSDP : MS_PARALLELISM_DDP;
    return request->link != NULL ? cli_parse_bytes("predict", "--link", request->link, 1, &cluster->link_bytes_per_s)
                                 : CLI_OK;
}

static int check_request(predict_request *request)
{
    uint64_t rank;
    if (request->hf_path == NULL || request->batch == NULL) {
        return cli_usage_error("predict", "--hf FILE and --batch B are needed, and --seq S if the model takes tokens");
    }
    if (!parse_count(request->batch, &request->batch_size)) {
        return cli_usage_error("predict", "--batch %s: give a number of sequences, 1 to %d", request->batch,
                               COUNT_MOST);
    }
    if (request->seq != NULL && !parse_count(request->seq, &request->seq_length)) {
        return cli_usage_error("predict", "--seq %s: give a number of tokens, 1 to %d", request->seq, COUNT_MOST);
    }
    if (request->lora != NULL && !parse_count(request->lora, &rank)) {
        return cli_usage_error("predict", "--lora %s: give a rank, 1 to %d", request->lora, COUNT_MOST);
    }
    if (request->as_json && request->as_graph) {
        return cli_usage_error("predict", "--json excludes --graph");
    }
    int status = check_cluster(request);
    if (status == CLI_OK && request->host_memory != NULL) {
        status = cli_parse_bytes("predict", "--host-memory", request->host_memory, 1, &request->host_bytes);
    }
    if (status == CLI_OK && request->budget != NULL) {
        status = cli_parse_bytes("predict", "--budget", request->budget, 1, &request->budget_bytes);
    }
    return status;
}

/* Python builds the model without memory for its weights and traces a step. */
static int trace_graph(const predict_request *request, predict_work *work)
{
    const struct {
        const char *name, *value;
    } options[] = {
        {"--hf", request->hf_path},  {"--batch", request->batch},         {"--seq", request->seq},
        {"--dtype", request->dtype}, {"--optimizer", request->optimizer}, {"--lora", request->lora},
    };
    enum { OPTIONS = sizeof options / sizeof options[0] };
    const char *words[2 * OPTIONS + 1] = {NULL};
    size_t count = 0;
    for (size_t i = 0; i < OPTIONS; i++) {
        if (options[i].value != NULL) {
            words[count++] = options[i].name;
            words[count++] = options[i].value;
        }
    }
    ms_error err;
    char *text;
    int status = cli_ask_python("predict", "memscale.autotuning", words, &text);
    if (status == CLI_OK && ms_graph_parse(text, &work->graph, &err) != MS_OK) {
        status = cli_fail(&err);
    }
    ms_free(text);
    return status;
}

static int load_graph(const predict_request *request, predict_work *work)
{
    ms_error err;
    char *text = NULL;
    if (request->seq == NULL || request->dtype != NULL || request->optimizer != NULL || request->lora != NULL) {
        return trace_graph(request, work);
    }
    int rc = cli_read_text(request->hf_path, &text, &err);
    if (rc == MS_OK) {
        rc = ms_predict_hf_graph(text, request->batch_size, request->seq_length, &work->graph, &err);
    }
    ms_free(text);
    if (rc == MS_ENOTSUP) {
        return trace_graph(request, work);
    }
    if (rc != MS_OK && err.system_errno == EISDIR) {
        return cli_usage_error("predict", "--hf %s: that is a folder; name the config.json in it", request->hf_path);
    }
    return cli_file_status("predict", "--hf", request->hf_path, rc, &err);
}

/* ---- answers -------------------------------------------------------------------------- */

/* A plan for a budget of almost nothing is refused with the smallest budget. */
static int find_smallest(predict_work *work, ms_error *err)
{
    ms_config config = work->config;
    ms_plan *plan = NULL;
    config.memory_budget_bytes = 1;
    int rc = ms_pipeline_plan(work->graph, work->hardware, &config, &plan, err);
    ms_plan_free(plan);
    work->smallest_bytes = err->hint_bytes;
    return rc == MS_EINFEASIBLE ? MS_OK : rc;
}

enum { FASTER_PERCENT = 95 };

/* The first plan assumes that gradients live in the forward and that the loop holds the outputs. This one is made after
 * two steps of the usual loop, which clears gradients before each forward and releases the outputs before backward. */
static int make_settled(predict_work *work, ms_error *err)
{
    ms_graph usual = *work->graph;
    usual.loop.observed = true;
    usual.loop.outputs_held = usual.loop.gradients_live_in_forward = false;
    if (work->graph->loop.observed || work->plan->skipped) {
        return MS_OK;
    }
    int rc = ms_pipeline_plan(&usual, work->hardware, &work->config, &work->settled, err);
    uint64_t enough_ns = ms__mul_div(work->plan->replay.step_ns, FASTER_PERCENT, 100);
    if (rc == MS_OK && work->settled->replay.step_ns > enough_ns) {
        ms_plan_free(work->settled);
        work->settled = NULL;
    }
    return rc == MS_EINFEASIBLE ? MS_OK : rc;
}

static int apply_request(const predict_request *request, predict_work *work)
{
    ms_config *config = &work->config;
    ms_ram *ram = &work->hardware->ram;
    ms_config_default(config);
    if (request->mode != NULL && ms_mode_parse(request->mode, &config->mode) != MS_OK) {
        return cli_usage_error("predict", "--mode %s: give conservative, balanced or aggressive", request->mode);
    }
    if (request->host_bytes > 0) {
        ram->available_bytes = request->host_bytes;
        ram->total_bytes = ms__max_u64(ram->total_bytes, request->host_bytes);
    }
    return CLI_OK;
}

static int make_plan(const predict_request *request, predict_work *work)
{
    ms_error err = {0};
    int rc = MS_OK;
    ms_config *config = &work->config;
    config->memory_budget_bytes = request->budget_bytes != 0 ? request->budget_bytes : config->memory_budget_bytes;
    if (request->cluster.ranks > 0) {
        rc = ms_cluster_apply(&request->cluster, work->graph, work->hardware, config, &work->share, &err);
    }
    if (rc == MS_OK) {
        rc = find_smallest(work, &err);
    }
    if (rc == MS_OK) {
        rc = ms_pipeline_plan(work->graph, work->hardware, config, &work->plan, &err);
    }
    if (rc == MS_EINFEASIBLE) {
        return cli_infeasible(&err, request->as_json);
    }
    if (rc == MS_OK) {
        rc = make_settled(work, &err);
    }
    return rc == MS_OK ? CLI_OK : cli_fail(&err);
}

static uint64_t saved_bytes(const ms_graph *graph, uint32_t node)
{
    const ms_profile *profile = &graph->profiles[graph->nodes[node].profile];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < profile->forward_count; i++) {
        const ms_event *event = &profile->forward[i];
        sum += event->kind == MS_EVENT_SAVE ? profile->storage_bytes[event->storage] : 0;
    }
    return sum;
}

static void add_layers(ms__text *text, const ms_graph *graph)
{
    bool first = true;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].kind == MS_NODE_LAYER) {
            ms__text_add(text, "%s\n    {\"name\": \"%s\", \"saved_bytes\": %" PRIu64 "}", first ? "" : ",",
                         graph->nodes[i].name, saved_bytes(graph, i));
            first = false;
        }
    }
}

static void add_cluster_json(ms__text *text, const ms_cluster *cluster, const ms_cluster_share *share)
{
    ms__text_add(text,
                 "  \"cluster\": {\"ranks\": %u, \"parallelism\": \"%s\", \"gathered_bytes\": %" PRIu64
                 ", \"sent_bytes\": %" PRIu64 ", \"link_bytes_per_s\": %" PRIu64 ", \"exchange_ns\": %" PRIu64 "},\n",
                 cluster->ranks, ms_parallelism_name(cluster->parallelism), share->gathered_bytes, share->sent_bytes,
                 share->link_bytes_per_s, share->exchange_ns);
}

static char *json_of(const predict_request *request, const predict_work *work)
{
    ms__text text = {0};
    const ms_graph *graph = work->graph;
    char *plan = ms_plan_to_json(work->plan);
    if (plan == NULL) {
        return NULL;
    }
    ms__text_add(&text, "{\n  \"version\": 1,\n  \"model\": \"%s\",\n  \"signature\": \"%s\",\n", graph->model,
                 graph->signature);
    ms__text_add(&text, "  \"parameter_bytes\": %" PRIu64 ",\n", graph->residents.parameter_bytes);
    ms__text_add(&text, "  \"optimizer_state_bytes\": %" PRIu64 ",\n", graph->loop.optimizer_state_bytes);
    ms__text_add(&text, "  \"need_bytes\": %" PRIu64 ",\n", ms__min_u64(work->plan->pressure.need_bytes, INT64_MAX));
    ms__text_add(&text, "  \"smallest_budget_bytes\": %" PRIu64 ",\n  \"layers\": [", work->smallest_bytes);
    add_layers(&text, graph);
    ms__text_add(&text, "\n  ],\n");
    if (request->cluster.ranks > 0) {
        add_cluster_json(&text, &request->cluster, &work->share);
    }
    if (work->settled != NULL) {
        ms__text_add(&text, "  \"settled\": {\"peak_bytes\": %" PRIu64 ", \"step_ns\": %" PRIu64 "},\n",
                     work->settled->replay.peak_bytes, work->settled->replay.step_ns);
    }
    ms__text_add(&text, "  \"plan\": %s\n}\n", plan);
    ms_free(plan);
    return ms__text_take(&text);
}

static bool fits_device(const predict_work *work)
{
    return work->plan->replay.peak_bytes <= ms_hardware_device_bytes(work->hardware);
}

/* Whether the plan needs memscale's optimizer. */
static bool places_state(const ms_plan *plan)
{
    return plan->step_options[MS_STEP_STATE_ON_HOST].chosen || plan->step_options[MS_STEP_STATE_ON_DISK].chosen ||
           plan->step_options[MS_STEP_GRADIENT_RELEASE].chosen;
}

/* The line to paste, or that there is none. */
static void add_config(ms__text *text, const predict_work *work)
{
    const ms_pressure *pressure = &work->plan->pressure;
    if (!fits_device(work)) {
        ms__text_add(text, "  does not fit: take a smaller batch, shorter sequences or more than %s\n",
                     ms__text_bytes(ms_hardware_device_bytes(work->hardware)).text);
        return;
    }
    bool ours = places_state(work->plan);
    bool is_usual = work->config.mode == MS_MODE_BALANCED;
    ms__text_add(text, "  to use it   memscale.%s, memscale.Config(",
                 ours ? "apply_all_optimizations(model, optimizer" : "wrap(model");
    if (pressure->budget_given) {
        ms__text_add(text, "memory_budget_gb=%.12g%s", (double)pressure->allowed_bytes / 1e9, is_usual ? "" : ", ");
    }
    if (!is_usual) {
        ms__text_add(text, "mode=\"%s\"", ms_mode_name(work->config.mode));
    }
    ms__text_add(text, "))%s\n", ours ? "  # optimizer = memscale.optim.AdamW(...)" : "");
}

static void add_settled(ms__text *text, const predict_work *work)
{
    if (work->settled != NULL) {
        ms__text_add(
            text, "  later       %s a step, peak %s: after two steps, if the loop clears gradients and logits\n",
            ms__text_ns(work->settled->replay.step_ns).text, ms__text_bytes(work->settled->replay.peak_bytes).text);
    }
}

/* How much of the exchange hides behind computation depends on the loop: both ends are told. */
static void add_cluster(ms__text *text, const ms_cluster *cluster, const predict_work *work)
{
    const ms_cluster_share *share = &work->share;
    ms__text_add(text, "  ranks       one of %u under %s; %s of its peak are for the exchange\n", cluster->ranks,
                 cluster->parallelism == MS_PARALLELISM_FSDP ? "FSDP" : "DDP",
                 ms__text_bytes(share->gathered_bytes).text);
    if (share->link_bytes_per_s == 0) {
        ms__text_add(text, "  exchange    %s sent in a step; --link BYTES tells how long that takes\n",
                     ms__text_bytes(share->sent_bytes).text);
        return;
    }
    uint64_t step_ns = work->plan->replay.step_ns;
    ms__text_add(text, "  exchange    %s sent in a step, %s at %s/s; ", ms__text_bytes(share->sent_bytes).text,
                 ms__text_ns(share->exchange_ns).text, ms__text_bytes(share->link_bytes_per_s).text);
    ms__text_add(text, "a step takes %s if it hides behind computation, ",
                 ms__text_ns(ms__max_u64(step_ns, share->exchange_ns)).text);
    ms__text_add(text, "%s if it does not\n", ms__text_ns(ms__add_sat(step_ns, share->exchange_ns)).text);
}

static char *table_of(const predict_request *request, const predict_work *work)
{
    ms__text text = {0};
    const ms_graph *graph = work->graph;
    char *plan = ms_plan_table(work->plan, work->hardware);
    if (plan == NULL) {
        return NULL;
    }
    ms__text_add(&text, "%s for %s\n", graph->model, graph->signature);
    ms__text_add(&text, "  parameters  %s, gradients %s, optimizer state %s\n",
                 ms__text_bytes(graph->residents.parameter_bytes).text,
                 ms__text_bytes(graph->residents.trainable_bytes).text,
                 ms__text_bytes(graph->loop.optimizer_state_bytes).text);
    ms__text_add(&text, "  smallest    %s (%" PRIu64 " bytes) is the smallest budget that a plan fits\n",
                 ms__text_bytes(work->smallest_bytes).text, work->smallest_bytes);
    ms__text_add(&text, "%s", plan);
    ms_free(plan);
    if (request->cluster.ranks > 0) {
        add_cluster(&text, &request->cluster, work);
    }
    add_settled(&text, work);
    add_config(&text, work);
    return ms__text_take(&text);
}

static int show_prediction(const predict_request *request, const predict_work *work)
{
    char *text = request->as_graph  ? ms_graph_to_json(work->graph)
                 : request->as_json ? json_of(request, work)
                                    : table_of(request, work);
    int status = cli_print_made(text);
    return status == CLI_OK && !request->as_graph && !fits_device(work) ? CLI_FAILED : status;
}

int cmd_predict(int argc, char **argv)
{
    predict_request request = {0};
    const cli_option table[] = {
        {"--hf", NULL, &request.hf_path},   {"--batch", NULL, &request.batch},
        {"--seq", NULL, &request.seq},      {"--budget", NULL, &request.budget},
        {"--dtype", NULL, &request.dtype},  {"--optimizer", NULL, &request.optimizer},
        {"--lora", NULL, &request.lora},    {"--hardware", NULL, &request.hardware_path},
        {"--json", &request.as_json, NULL}, {"--graph", &request.as_graph, NULL},
        {"--ranks", NULL, &request.ranks},  {"--link", NULL, &request.link},
        {"--ddp", &request.ddp, NULL},      {"--fsdp", &request.fsdp, NULL},
        {"--mode", NULL, &request.mode},    {"--host-memory", NULL, &request.host_memory},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status != CLI_GO_ON) {
        return status;
    }
    predict_work work = {0};
    status = check_request(&request);
    status = status != CLI_OK ? status : load_graph(&request, &work);
    if (status == CLI_OK && !request.as_graph) {
        status = cli_load_hardware("predict", request.hardware_path, &work.hardware);
        status = status != CLI_OK ? status : apply_request(&request, &work);
        status = status != CLI_OK ? status : make_plan(&request, &work);
    }
    status = status != CLI_OK ? status : show_prediction(&request, &work);
    ms_graph_free(work.graph);
    ms_free(work.hardware);
    ms_plan_free(work.plan);
    ms_plan_free(work.settled);
    return status;
}
