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
#include "memscale/pipeline.h"
#include "memscale/predict.h"
#include "options.h"
#include "plan/text.h"
#include "predict_ranks.h"

static const char help[] = "Usage: memscale predict --hf FILE --batch B [--seq S] [--budget BYTES]\n"
                           "                        [--dtype TYPE] [--optimizer NAME] [--lora RANK]\n"
                           "                        [--compile [BACKEND]] [--mode MODE] [--technique NAME]\n"
                           "                        [--hardware NAME] [--host-memory BYTES]\n"
                           "                        [--json | --graph]\n"
                           "                        [--ranks N [--ddp | --fsdp [--mixed]] [--tp T [--sp]]\n"
                           "                        [--pp P [--microbatches M]] [--link BYTES]]\n"
                           "\n"
                           "Predicts the memory of a training step of a Hugging Face model: unoptimized, with\n"
                           "the plan for this machine or a budget, and the smallest budget. Reads only the\n"
                           "configuration. For the families (\"model_type\") llama, mistral, qwen2, qwen3, gpt2\n"
                           "and bert in float32 with AdamW it needs no torch. Every other question is answered\n"
                           "by a trace, by a Python that has torch and transformers, beside this program or on\n"
                           "the PATH.\n"
                           "\n"
                           "  --hf FILE         the model's config.json\n"
                           "  --batch B         sequences, images or recordings in a batch\n"
                           "  --seq S           tokens in a sequence; not for models that take none\n"
                           "  --dtype TYPE      of the weights: float32 (default), bfloat16, float16\n"
                           "  --optimizer NAME  adamw (default), adam, sgd, sgd-momentum, rmsprop, adagrad,\n"
                           "                    adafactor; memscale-adamw, whose state can be on disk\n"
                           "                    or, for a GPU, in host memory; adamw-8bit\n"
                           "  --lora RANK       train adapters of this rank on all linear layers (needs PEFT)\n"
                           "  --compile [BACKEND]\n"
                           "                    layers are compiled (by inductor); one call of each kind is\n"
                           "                    measured on this machine; not with --hardware\n"
                           "  --budget BYTES    plan for this budget: 4000000000, 4.0GB, 3.7GiB\n"
                           "  --mode MODE       what the plan may use: conservative, balanced (default),\n"
                           "                    aggressive (gradients released in backward)\n"
                           "  --technique NAME  of every layer, in place of a search: keep, recompute,\n"
                           "                    selective_1 to selective_4\n"
                           "  --hardware NAME   a saved machine's file, or a GPU to train on in this machine:\n"
                           "                    rtx-4090, h100, ... (memscale hardware --cards); this machine\n"
                           "                    if not given\n"
                           "  --host-memory BYTES\n"
                           "                    free host memory, in place of the machine's\n"
                           "  --ranks N         a rank's share of a training on N ranks, 1 to 65536; N is\n"
                           "                    copies of the model (--ddp, --fsdp) x T x P\n"
                           "  --ddp             every copy holds all; --batch is each copy's\n"
                           "  --fsdp            copies divide parameters, gradients and state: torch's\n"
                           "                    fully_shard() on every layer and on the model\n"
                           "  --mixed           with --fsdp: layers in bfloat16, the rest in float32\n"
                           "                    (MixedPrecisionPolicy)\n"
                           "  --tp T            T ranks divide each layer, by columns and rows (llama,\n"
                           "                    mistral, qwen2, qwen3; float32 or --mixed)\n"
                           "  --sp              with --tp: they divide the tokens between these layers\n"
                           "  --pp P            P stages divide the layers (Schedule1F1B)\n"
                           "  --microbatches M  with --pp: equal parts of --batch; one sequence each by default\n"
                           "  --link BYTES      that a rank sends in a second: 50GB; by default the card's\n"
                           "                    links, and beyond 8 ranks a network of 400 Gb/s a card\n"
                           "  --json            print the JSON document (docs/formats/predict.schema.json)\n"
                           "  --graph           print the step's graph, for memscale plan --graph\n"
                           "\n"
                           "Examples:\n"
                           "  memscale predict --hf config.json --batch 4 --seq 512 --budget 4.0GB\n"
                           "  memscale predict --hf config.json --batch 4 --seq 1024 --hardware rtx-4090 \\\n"
                           "                   --dtype bfloat16 --optimizer memscale-adamw --budget 8GB\n"
                           "  memscale predict --hf config.json --batch 32 --seq 8192 --hardware h100 \\\n"
                           "                   --ranks 512 --fsdp --mixed --tp 8 --sp --pp 8\n"
                           "\n"
                           "Exit status: 0 with a plan, 1 if none fits the budget (the smallest that fits is\n"
                           "printed, with --json as {\"feasible\": false, \"smallest_budget_bytes\": ...}) or the\n"
                           "machine (the smallest plan is printed), 2 for a wrong option or file.\n";

typedef struct predict_request {
    const char *hf_path, *batch, *seq, *budget, *hardware_path, *mode, *host_memory;
    const char *dtype, *optimizer, *lora, *backend; /* only a trace knows them */
    const char *technique; /* of every layer, in place of a search */
    cli_ranks_options of_ranks;
    bool as_json, as_graph, compiles;
    uint64_t batch_size, seq_length, budget_bytes, host_bytes;
} predict_request;

typedef struct predict_work {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_technique technique; /* MS_TECHNIQUE_COUNT: a plan is searched */
    cli_ranks ranks;
    ms_plan *plan;
    ms_plan *settled; /* the plan once the loop has been observed, if that is faster; or NULL */
    uint64_t smallest_bytes;
    bool is_bf16; /* the weights */
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

static int check_request(predict_request *request, predict_work *work)
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
    if (request->compiles && request->backend == NULL) {
        request->backend = "inductor";
    }
    if (request->backend != NULL && request->hardware_path != NULL) {
        return cli_usage_error("predict", "--compile excludes --hardware: compiled layers are measured where they run. "
                                          "On that machine, compile the layers and wrap the model "
                                          "(docs/compile.md): its plan knows what they do");
    }
    if (request->as_graph && (request->as_json || request->of_ranks.ranks != NULL)) {
        return cli_usage_error("predict", "--graph excludes --json and --ranks");
    }
    int status = cli_ranks_parse(&request->of_ranks, request->batch_size, &work->ranks);
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
        {"--hf", request->hf_path},      {"--batch", request->batch},         {"--seq", request->seq},
        {"--dtype", request->dtype},     {"--optimizer", request->optimizer}, {"--lora", request->lora},
        {"--compile", request->backend},
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

static bool needs_trace(const predict_request *request)
{
    return request->seq == NULL || request->dtype != NULL || request->optimizer != NULL || request->lora != NULL ||
           request->backend != NULL;
}

static int predict_graph(const predict_request *request, const char *config_json, predict_work *work)
{
    ms_error err;
    int rc = ms_predict_hf_graph(config_json, request->batch_size, request->seq_length, &work->graph, &err);
    if (rc == MS_ENOTSUP) {
        return trace_graph(request, work);
    }
    return cli_file_status("predict", "--hf", request->hf_path, rc, &err);
}

static int load_graph(const predict_request *request, predict_work *work)
{
    ms_error err;
    char *text = NULL;
    bool divided = cli_ranks_divide(&work->ranks);
    if (divided && needs_trace(request)) {
        return cli_usage_error("predict",
                               "--tp, --pp and --mixed need --seq, and exclude --dtype, --optimizer, --lora and "
                               "--compile");
    }
    if (needs_trace(request)) {
        return trace_graph(request, work);
    }
    int rc = cli_read_text(request->hf_path, &text, &err);
    if (rc != MS_OK && err.system_errno == EISDIR) {
        return cli_usage_error("predict", "--hf %s: that is a folder; name the config.json in it", request->hf_path);
    }
    int status = cli_file_status("predict", "--hf", request->hf_path, rc, &err);
    if (status == CLI_OK) {
        ms_technique assumed = work->technique < MS_TECHNIQUE_COUNT ? work->technique : MS_TECHNIQUE_KEEP;
        status = divided ? cli_ranks_load(&work->ranks, text, request->seq_length, work->hardware, &work->config,
                                          assumed, &work->graph)
                         : predict_graph(request, text, work);
    }
    ms_free(text);
    return status;
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
    if (work->technique < MS_TECHNIQUE_COUNT) {
        return ms_plan_uniform(&usual, work->hardware, &work->config, work->technique, &work->settled, err);
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
    work->technique = MS_TECHNIQUE_COUNT;
    if (request->technique != NULL && ms_technique_parse(request->technique, &work->technique) != MS_OK) {
        return cli_usage_error("predict", "--technique %s: give keep, recompute, selective_1 to selective_4",
                               request->technique);
    }
    if (request->host_bytes > 0) {
        ram->available_bytes = request->host_bytes;
        ram->total_bytes = ms__max_u64(ram->total_bytes, request->host_bytes);
    }
    return CLI_OK;
}

static int choose_plan(predict_work *work, ms_error *err)
{
    if (work->technique == MS_TECHNIQUE_COUNT) {
        return ms_pipeline_plan(work->graph, work->hardware, &work->config, &work->plan, err);
    }
    int rc = ms_plan_uniform(work->graph, work->hardware, &work->config, work->technique, &work->plan, err);
    if (rc == MS_OK) {
        work->plan->over_target = false; /* a smaller plan was not looked for */
    }
    return rc;
}

static int make_plan(const predict_request *request, predict_work *work)
{
    ms_error err = {0};
    int rc = MS_OK;
    ms_config *config = &work->config;
    config->memory_budget_bytes = request->budget_bytes != 0 ? request->budget_bytes : config->memory_budget_bytes;
    if (work->ranks.cluster.ranks > 0) {
        rc = ms_cluster_apply(&work->ranks.cluster, work->graph, work->hardware, config, &work->ranks.share, &err);
    }
    if (rc == MS_OK) {
        rc = find_smallest(work, &err);
    }
    if (rc == MS_OK) {
        rc = choose_plan(work, &err);
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

static char *json_of(const predict_work *work)
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
    if (work->ranks.cluster.ranks > 0) {
        cli_ranks_add_json(&work->ranks, work->plan, &text);
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
    if (cli_ranks_divide(&work->ranks)) {
        return; /* memscale was not run on such ranks */
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
    const char *form = work->is_bf16 ? ", bf16=\"split\"" : ""; /* a GPU's AdamW has fp32 state only then */
    ms__text_add(text, "))");
    if (ours) {
        ms__text_add(text, "  # optimizer = memscale.optim.AdamW(...%s)", form);
    }
    ms__text_add(text, "\n");
}

static void add_settled(ms__text *text, const predict_work *work)
{
    if (work->settled != NULL) {
        ms__text_add(
            text, "  later       %s a step, peak %s: after two steps, if the loop clears gradients and logits\n",
            ms__text_ns(work->settled->replay.step_ns).text, ms__text_bytes(work->settled->replay.peak_bytes).text);
    }
}

static char *table_of(const predict_work *work)
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
    if (work->ranks.cluster.ranks > 0) {
        cli_ranks_add_text(&work->ranks, work->plan, &text);
    }
    add_settled(&text, work);
    add_config(&text, work);
    return ms__text_take(&text);
}

static int show_prediction(const predict_request *request, const predict_work *work)
{
    char *text = request->as_graph ? ms_graph_to_json(work->graph) : request->as_json ? json_of(work) : table_of(work);
    int status = cli_print_made(text);
    return status == CLI_OK && !request->as_graph && !fits_device(work) ? CLI_FAILED : status;
}

static int answer(const predict_request *request, predict_work *work)
{
    int status = CLI_OK;
    if (!request->as_graph) {
        status = cli_load_hardware("predict", request->hardware_path, &work->hardware);
        status = status != CLI_OK ? status : apply_request(request, work);
    }
    status = status != CLI_OK ? status : load_graph(request, work);
    if (status == CLI_OK && !request->as_graph) {
        status = make_plan(request, work);
    }
    return status != CLI_OK ? status : show_prediction(request, work);
}

int cmd_predict(int argc, char **argv)
{
    predict_request request = {0};
    cli_ranks_options *ranks = &request.of_ranks;
    const cli_option table[] = {
        {"--hf", NULL, &request.hf_path},
        {"--batch", NULL, &request.batch},
        {"--seq", NULL, &request.seq},
        {"--budget", NULL, &request.budget},
        {"--dtype", NULL, &request.dtype},
        {"--optimizer", NULL, &request.optimizer},
        {"--lora", NULL, &request.lora},
        {"--hardware", NULL, &request.hardware_path},
        {"--json", &request.as_json, NULL},
        {"--graph", &request.as_graph, NULL},
        {"--mode", NULL, &request.mode},
        {"--host-memory", NULL, &request.host_memory},
        {"--ranks", NULL, &ranks->ranks},
        {"--link", NULL, &ranks->link},
        {"--ddp", &ranks->ddp, NULL},
        {"--fsdp", &ranks->fsdp, NULL},
        {"--tp", NULL, &ranks->tensor},
        {"--sp", &ranks->by_sequence, NULL},
        {"--pp", NULL, &ranks->stages},
        {"--microbatches", NULL, &ranks->microbatches},
        {"--mixed", &ranks->mixed, NULL},
        {"--technique", NULL, &request.technique},
        {"--compile", &request.compiles, &request.backend},
    };
    int status = cli_parse(argc, argv, table, sizeof table / sizeof table[0], help);
    if (status != CLI_GO_ON) {
        return status;
    }
    predict_work work = {.is_bf16 = request.dtype != NULL && strcmp(request.dtype, "bfloat16") == 0};
    status = check_request(&request, &work);
    status = status != CLI_OK ? status : answer(&request, &work);
    ms_graph_free(work.graph);
    ms_free(work.hardware);
    ms_plan_free(work.plan);
    ms_plan_free(work.settled);
    cli_ranks_free(&work.ranks);
    return status;
}
