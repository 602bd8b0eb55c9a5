/*
 * The part of `memscale predict` that --ranks asks for.
 */
#include "predict_ranks.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/units.h"
#include "common.h"
#include "inputs.h"

/* ---- options ------------------------------------------------------------------------------ */

static int parse_count(const char *option, const char *text, uint32_t *count)
{
    char *end;
    if (text == NULL) {
        *count = 1;
        return CLI_OK;
    }
    unsigned long long value = strtoull(text, &end, 10);
    *count = (uint32_t)value;
    if (*text < '0' || *text > '9' || *end != '\0' || value == 0 || value > MS_CLUSTER_RANKS_MOST) {
        return cli_usage_error("predict", "%s %s: give a number, 1 to %d", option, text, MS_CLUSTER_RANKS_MOST);
    }
    return CLI_OK;
}

static int parse_counts(const cli_ranks_options *options, uint64_t batch, cli_ranks *ranks)
{
    ms_cluster *cluster = &ranks->cluster;
    const struct {
        const char *option, *text;
        uint32_t *count;
    } counts[] = {
        {"--ranks", options->ranks, &cluster->ranks},
        {"--tp", options->tensor, &cluster->tensor_ranks},
        {"--pp", options->stages, &cluster->stages},
        {"--microbatches", options->microbatches, &cluster->microbatches},
    };
    int status = CLI_OK;
    for (size_t i = 0; status == CLI_OK && i < sizeof counts / sizeof counts[0]; i++) {
        status = parse_count(counts[i].option, counts[i].text, counts[i].count);
    }
    if (status == CLI_OK && cluster->stages > 1 && options->microbatches == NULL) {
        cluster->microbatches = (uint32_t)ms__min_u64(batch, UINT32_MAX);
    }
    return status;
}

/* Options that need another one. */
static int check_companions(const cli_ranks_options *options, const ms_cluster *cluster)
{
    if (options->ddp && options->fsdp) {
        return cli_usage_error("predict", "--ddp excludes --fsdp");
    }
    if (options->by_sequence && cluster->tensor_ranks == 1) {
        return cli_usage_error("predict", "--sp divides tokens among the ranks of --tp T");
    }
    if (options->microbatches != NULL && cluster->stages == 1) {
        return cli_usage_error("predict", "--microbatches are those of a pipeline: --pp P");
    }
    if (options->ddp && cluster->tensor_ranks > 1) {
        return cli_usage_error("predict", "--ddp: torch's DDP takes no layers that --tp divides; give --fsdp");
    }
    if (options->mixed && !options->fsdp) {
        return cli_usage_error("predict", "--mixed is a policy of --fsdp");
    }
    return CLI_OK;
}

static int check_mesh(const cli_ranks_options *options, uint64_t batch, const ms_cluster *cluster)
{
    uint32_t copies = ms_cluster_copies(cluster);
    if (copies == 0) {
        return cli_usage_error("predict", "--ranks %u: give a multiple of --tp %u x --pp %u", cluster->ranks,
                               cluster->tensor_ranks, cluster->stages);
    }
    if (!options->ddp && !options->fsdp && copies > 1) {
        return cli_usage_error("predict", "--ranks %u: %u copies of the model need --ddp or --fsdp", cluster->ranks,
                               copies);
    }
    if (batch % cluster->microbatches != 0) {
        return cli_usage_error("predict", "--batch %" PRIu64 ": give a multiple of --microbatches %u", batch,
                               cluster->microbatches);
    }
    return CLI_OK;
}

int cli_ranks_parse(const cli_ranks_options *options, uint64_t batch, cli_ranks *ranks)
{
    ms_cluster *cluster = &ranks->cluster;
    bool any = options->ddp || options->fsdp || options->link != NULL || options->tensor != NULL ||
               options->stages != NULL || options->microbatches != NULL || options->by_sequence || options->mixed;
    ranks->batch = batch;
    if (options->ranks == NULL) {
        return any ? cli_usage_error("predict",
                                     "--ddp, --fsdp, --tp, --sp, --pp, --microbatches, --mixed and --link go "
                                     "with --ranks N")
                   : CLI_OK;
    }
    int status = parse_counts(options, batch, ranks);
    status = status != CLI_OK ? status : check_companions(options, cluster);
    status = status != CLI_OK ? status : check_mesh(options, batch, cluster);
    if (status != CLI_OK) {
        return status;
    }
    cluster->parallelism = options->fsdp  ? MS_PARALLELISM_FSDP
                           : options->ddp ? MS_PARALLELISM_DDP
                                          : MS_PARALLELISM_NONE;
    cluster->mixed = options->mixed;
    ranks->batch = batch / cluster->microbatches;
    ranks->part = (ms_part){.tensor_ranks = cluster->tensor_ranks,
                            .by_sequence = options->by_sequence,
                            .stages = cluster->stages,
                            .microbatches = cluster->microbatches,
                            .is_half = options->mixed};
    return options->link != NULL ? cli_parse_bytes("predict", "--link", options->link, 1, &cluster->link_bytes_per_s)
                                 : CLI_OK;
}

bool cli_ranks_divide(const cli_ranks *ranks)
{
    return ranks->cluster.tensor_ranks > 1 || ranks->cluster.stages > 1 || ranks->cluster.mixed;
}

void cli_ranks_free(cli_ranks *ranks)
{
    ms_free(ranks->stages);
}

/* ---- parts ---------------------------------------------------------------------------------- */

static int judge_stage(const ms_cluster *cluster, const ms_graph *graph, const ms_hardware *hardware,
                       const ms_config *config, ms_technique technique, cli_stage *stage, ms_error *err)
{
    ms_cluster_share share;
    ms_config own_config = *config;
    ms_plan *plan = NULL;
    int rc = MS_ENOMEM;
    ms_graph *own_graph = ms_graph_copy(graph, err);
    ms_hardware *own_hardware = ms_malloc(sizeof *own_hardware);
    if (own_graph == NULL || own_hardware == NULL) {
        ms_fail(err, rc, "predict: out of memory");
        goto cleanup;
    }
    *own_hardware = *hardware;
    rc = ms_cluster_apply(cluster, own_graph, own_hardware, &own_config, &share, err);
    if (rc == MS_OK) {
        rc = ms_plan_uniform(own_graph, own_hardware, &own_config, technique, &plan, err);
    }
    if (rc == MS_OK) {
        const ms_replay *step = technique == MS_TECHNIQUE_KEEP ? &plan->unoptimized : &plan->replay;
        *stage = (cli_stage){step->peak_bytes, step->step_ns};
    }
cleanup:
    ms_plan_free(plan);
    ms_graph_free(own_graph);
    ms_free(own_hardware);
    return rc;
}

static int load_part(cli_ranks *ranks, const char *config_json, uint64_t seq, uint32_t stage, ms_graph **graph,
                     ms_error *err)
{
    ms_part_traffic traffic;
    ranks->part.stage = stage;
    int rc = ms_predict_hf_part(config_json, ranks->batch, seq, &ranks->part, graph, &traffic, err);
    if (rc == MS_OK) {
        ranks->cluster.tensor_bytes = traffic.tensor_bytes;
        ranks->cluster.stage_bytes = traffic.stage_bytes;
    }
    return rc;
}

/* Judges every stage. */
static int judge_stages(cli_ranks *ranks, const char *config_json, uint64_t seq, const ms_hardware *hardware,
                        const ms_config *config, ms_technique technique, uint32_t *largest, ms_error *err)
{
    int rc = MS_OK;
    uint32_t count = ranks->part.stages;
    ranks->stages = ms_calloc(count, sizeof *ranks->stages);
    if (ranks->stages == NULL) {
        return ms_fail(err, MS_ENOMEM, "predict: out of memory");
    }
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        ms_graph *graph = NULL;
        rc = load_part(ranks, config_json, seq, i, &graph, err);
        if (rc == MS_OK) {
            rc = judge_stage(&ranks->cluster, graph, hardware, config, technique, &ranks->stages[i], err);
        }
        ms_graph_free(graph);
        *largest = ranks->stages[i].peak_bytes > ranks->stages[*largest].peak_bytes ? i : *largest;
    }
    return rc;
}

int cli_ranks_load(cli_ranks *ranks, const char *config_json, uint64_t seq, const ms_hardware *hardware,
                   const ms_config *config, ms_technique technique, ms_graph **graph)
{
    ms_error err;
    uint32_t largest = 0;
    int rc = MS_OK;
    if (ranks->part.stages > 1) {
        rc = judge_stages(ranks, config_json, seq, hardware, config, technique, &largest, &err);
    }
    if (rc == MS_OK) {
        rc = load_part(ranks, config_json, seq, largest, graph, &err);
    }
    for (uint32_t i = 0; rc == MS_OK && i < (*graph)->node_count; i++) {
        ranks->layers += (*graph)->nodes[i].kind == MS_NODE_LAYER;
    }
    if (rc == MS_ENOTSUP) {
        return cli_usage_error("predict", "%s", err.text);
    }
    return rc == MS_OK ? CLI_OK : cli_fail(&err);
}

/* ---- answers ------------------------------------------------------------------------------------ */

/* Every stage takes as long as the slowest one. The plan is for one of them. */
static uint64_t slowest_ns(const cli_ranks *ranks, const ms_plan *plan)
{
    uint64_t part_ns = plan->replay.step_ns;
    for (uint32_t i = 0; ranks->stages != NULL && i < ranks->part.stages; i++) {
        part_ns = ms__max_u64(part_ns, ranks->stages[i].part_ns);
    }
    return part_ns;
}

static void add_mesh(const cli_ranks *ranks, ms__text *text)
{
    const ms_cluster *cluster = &ranks->cluster;
    uint32_t copies = ms_cluster_copies(cluster);
    const char *name = cluster->parallelism == MS_PARALLELISM_FSDP ? "FSDP" : "DDP";
    ms__text_add(text, "  ranks       one of %u", cluster->ranks);
    if (cluster->stages > 1) {
        ms__text_add(text, ", %u stages", cluster->stages);
    }
    if (cluster->tensor_ranks > 1) {
        ms__text_add(text, ", %u to a layer%s", cluster->tensor_ranks,
                     ranks->part.by_sequence ? " and its tokens" : "");
    }
    if (cluster->tensor_ranks == 1 && cluster->stages == 1) {
        ms__text_add(text, " under %s", name);
    } else if (copies > 1) {
        ms__text_add(text, ", %u copies under %s", copies, name);
    }
    ms__text_add(text, "%s", cluster->mixed ? " in BF16 with FP32 masters" : "");
    if (ranks->share.gathered_bytes > 0) {
        ms__text_add(text, "; %s of its peak are for the exchange", ms__text_bytes(ranks->share.gathered_bytes).text);
    }
    ms__text_add(text, "\n");
}

static void add_stages(const cli_ranks *ranks, ms__text *text)
{
    uint32_t waiting = ranks->part.stages - ranks->part.stage;
    waiting = waiting < ranks->part.microbatches ? waiting : ranks->part.microbatches;
    ms__text_add(text,
                 "  stage       %u of %u takes most: %" PRIu64
                 " layers; %u of %u microbatches wait in it; the step above is one\n",
                 ranks->part.stage + 1, ranks->part.stages, ranks->layers, waiting, ranks->part.microbatches);
    ms__text_add(text, "  stages     ");
    for (uint32_t i = 0; i < ranks->part.stages && i < 8; i++) {
        ms__text_add(text, "%s %s", i > 0 ? "," : "", ms__text_bytes(ranks->stages[i].peak_bytes).text);
    }
    ms__text_add(text, "%s before a plan; idle for %u.%u%% of the time\n", ranks->part.stages > 8 ? ", ..." : "",
                 ms_cluster_idle_permille(&ranks->cluster) / 10, ms_cluster_idle_permille(&ranks->cluster) % 10);
}

static void add_sums(const cli_ranks *ranks, ms__text *text)
{
    bool piped = ranks->part.stages > 1;
    ms__text_add(text, "  sums        of divided layers: %s sent in a %s",
                 ms__text_bytes(ranks->cluster.tensor_bytes).text, piped ? "microbatch" : "step");
    if (ranks->share.tensor_ns > 0) {
        ms__text_add(text, ", %s, which nothing hides", ms__text_ns(ranks->share.tensor_ns).text);
    }
    ms__text_add(text, "\n");
}

/* How much of the exchange hides behind computation depends on the loop: both ends are told. */
static void add_exchange(const cli_ranks *ranks, uint64_t part_ns, ms__text *text)
{
    const ms_cluster_share *share = &ranks->share;
    ms__unit_text hidden = ms__text_ns(ms_cluster_step_ns(&ranks->cluster, share, part_ns, true));
    if (share->sent_bytes == 0) {
        ms__text_add(text, "  whole step  %s\n", hidden.text);
        return;
    }
    ms__text_add(text, "  exchange    %s sent in a step", ms__text_bytes(share->sent_bytes).text);
    if (share->link_bytes_per_s == 0) {
        ms__text_add(text, "; --link BYTES tells how long that takes\n");
        return;
    }
    ms__text_add(text, ", %s at %s/s; a step takes %s if it hides behind computation, ",
                 ms__text_ns(share->exchange_ns).text, ms__text_bytes(share->link_bytes_per_s).text, hidden.text);
    ms__text_add(text, "%s if it does not\n",
                 ms__text_ns(ms_cluster_step_ns(&ranks->cluster, share, part_ns, false)).text);
}

void cli_ranks_add_text(const cli_ranks *ranks, const ms_plan *plan, ms__text *text)
{
    add_mesh(ranks, text);
    if (ranks->stages != NULL) {
        add_stages(ranks, text);
    }
    if (ranks->cluster.tensor_ranks > 1) {
        add_sums(ranks, text);
    }
    add_exchange(ranks, slowest_ns(ranks, plan), text);
}

static void add_mesh_json(const cli_ranks *ranks, ms__text *text)
{
    const ms_cluster *cluster = &ranks->cluster;
    ms__text_add(text,
                 "  \"cluster\": {\"ranks\": %u, \"parallelism\": \"%s\", \"copies\": %u, \"tensor_ranks\": %u, "
                 "\"sequence_parallel\": %s, \"stages\": %u, \"microbatches\": %u, \"mixed\": %s,\n",
                 cluster->ranks, ms_parallelism_name(cluster->parallelism), ms_cluster_copies(cluster),
                 cluster->tensor_ranks, ranks->part.by_sequence ? "true" : "false", cluster->stages,
                 cluster->microbatches, cluster->mixed ? "true" : "false");
}

void cli_ranks_add_json(const cli_ranks *ranks, const ms_plan *plan, ms__text *text)
{
    const ms_cluster *cluster = &ranks->cluster;
    const ms_cluster_share *share = &ranks->share;
    uint64_t part_ns = slowest_ns(ranks, plan);
    add_mesh_json(ranks, text);
    ms__text_add(text,
                 "    \"gathered_bytes\": %" PRIu64 ", \"sent_bytes\": %" PRIu64 ", \"link_bytes_per_s\": %" PRIu64
                 ", \"exchange_ns\": %" PRIu64 ",\n",
                 share->gathered_bytes, share->sent_bytes, share->link_bytes_per_s, share->exchange_ns);
    ms__text_add(text,
                 "    \"tensor_bytes\": %" PRIu64 ", \"tensor_ns\": %" PRIu64 ", \"stage_bytes\": %" PRIu64
                 ", \"stage_ns\": %" PRIu64 ",\n",
                 cluster->tensor_bytes, share->tensor_ns, cluster->stage_bytes, share->stage_ns);
    ms__text_add(text,
                 "    \"step_ns\": %" PRIu64 ", \"exposed_step_ns\": %" PRIu64
                 ", \"idle_permille\": %u, \"stage\": %u, "
                 "\"stage_peaks\": [",
                 ms_cluster_step_ns(cluster, share, part_ns, true), ms_cluster_step_ns(cluster, share, part_ns, false),
                 ms_cluster_idle_permille(cluster), ranks->part.stage);
    for (uint32_t i = 0; ranks->stages != NULL && i < ranks->part.stages; i++) {
        ms__text_add(text, "%s%" PRIu64, i > 0 ? ", " : "", ranks->stages[i].peak_bytes);
    }
    ms__text_add(text, "]},\n");
}
