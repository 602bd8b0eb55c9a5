/*
 * One rank's documents among many. Sharding divides what is resident; gathering adds to what the process holds.
 */
#include "memscale/cluster.h"

#include <string.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/sim.h"

/* A DGX H100 has one network adapter of 400 Gb/s for each of its eight GPUs (its datasheet). */
static const uint64_t network_bytes_per_s = 50000000000;

const char *ms_parallelism_name(ms_parallelism parallelism)
{
    static const char *const names[] = {"none", "ddp", "fsdp"};
    return names[parallelism];
}

/* ---- the mesh ------------------------------------------------------------------------ */

static uint32_t or_one(uint32_t count)
{
    return count > 0 ? count : 1;
}

static bool is_piped(const ms_cluster *cluster)
{
    return or_one(cluster->stages) > 1;
}

uint32_t ms_cluster_copies(const ms_cluster *cluster)
{
    uint64_t one_model = ms__mul_sat(or_one(cluster->tensor_ranks), or_one(cluster->stages));
    return cluster->ranks % one_model == 0 ? (uint32_t)(cluster->ranks / one_model) : 0;
}

static int check_mesh(const ms_cluster *cluster, ms_error *err)
{
    uint32_t copies = ms_cluster_copies(cluster);
    if (cluster->ranks == 0 || cluster->ranks > MS_CLUSTER_RANKS_MOST) {
        return ms_fail(err, MS_EINVAL, "cluster: %u ranks; give 1 to %d", cluster->ranks, MS_CLUSTER_RANKS_MOST);
    }
    if (copies == 0) {
        return ms_fail(err, MS_EINVAL, "cluster: %u ranks are no multiple of %u stages of %u ranks", cluster->ranks,
                       or_one(cluster->stages), or_one(cluster->tensor_ranks));
    }
    if (copies > 1 && cluster->parallelism == MS_PARALLELISM_NONE) {
        return ms_fail(err, MS_EINVAL, "cluster: %u copies of the model share nothing; give ddp or fsdp", copies);
    }
    if (cluster->mixed && cluster->parallelism != MS_PARALLELISM_FSDP) {
        return ms_fail(err, MS_EINVAL, "cluster: mixed precision is fsdp's");
    }
    return MS_OK;
}

/* ---- what layers hold -------------------------------------------------------------- */

static bool is_gradient(const ms_graph *graph, uint32_t storage)
{
    return graph->storages[storage].role == MS_STORAGE_GRADIENT;
}

static bool is_layer(const ms_graph *graph, uint32_t node)
{
    return graph->nodes[node].kind == MS_NODE_LAYER;
}

/* Gradients of a layer's own parameters; the first node of a storage is the one that allocates it. */
static uint64_t gradient_bytes_of(const ms_graph *graph, uint32_t node)
{
    uint64_t bytes = 0;
    const ms_node *layer = &graph->nodes[node];
    for (uint32_t i = 0; i < graph->profiles[layer->profile].external_count; i++) {
        uint32_t storage = layer->externals[i];
        if (is_gradient(graph, storage) && graph->storages[storage].first_node == node) {
            bytes = ms__add_sat(bytes, graph->storages[storage].bytes);
        }
    }
    return bytes;
}

/* The layers whose parameters are gathered together. */
typedef struct groups {
    uint32_t layers;
    uint64_t all_layers_bytes;     /* of their gradients */
    uint64_t largest_layer_bytes;
} groups;

static groups groups_of(const ms_graph *graph)
{
    groups found = {0};
    for (uint32_t i = 0; i < graph->node_count; i++) {
        uint64_t bytes = is_layer(graph, i) ? gradient_bytes_of(graph, i) : 0;
        found.layers += is_layer(graph, i) && graph->nodes[i].call == 0;
        found.all_layers_bytes = ms__add_sat(found.all_layers_bytes, bytes);
        found.largest_layer_bytes = ms__max_u64(found.largest_layer_bytes, bytes);
    }
    return found;
}

/* The graph has only the sum of the frozen parameters, and the largest parameter. If the root trains nothing, the largest
 * one is taken for its embedding; the rest belongs to the layers in equal parts. */
static uint64_t frozen_root_bytes(const ms_graph *graph, uint64_t trainable_root_bytes)
{
    const ms_residents *held = &graph->residents;
    uint64_t frozen = held->parameter_bytes - held->trainable_bytes;
    return trainable_root_bytes == 0 ? ms__min_u64(frozen, held->largest_parameter_bytes) : 0;
}

/* ---- sharding ------------------------------------------------------------------------ */

/* Shards are padded to equal sizes along the first dimension; for matrices of thousands of rows the padding is
 * negligible. */
static uint64_t part_of(uint64_t bytes, uint32_t ranks)
{
    return ms__div_up(bytes, ranks);
}

/* Gradients of the root's group are whole until the end of backward, when the peak is past: they count as whole. */
static bool is_divided(const ms_graph *graph, uint32_t storage)
{
    return is_gradient(graph, storage) && is_layer(graph, graph->storages[storage].first_node);
}

/* What sharding makes of a gradient that stays after backward: a stage's are whole until its last microbatch, and in
 * FP32 with mixed precision. */
static uint64_t gradient_share(const ms_cluster *cluster, const ms_graph *graph, uint32_t storage)
{
    uint64_t bytes = graph->storages[storage].bytes, wide = cluster->mixed ? ms__mul_sat(2, bytes) : bytes;
    if (!is_gradient(graph, storage)) {
        return bytes;
    }
    if (is_piped(cluster)) {
        return wide;
    }
    return is_divided(graph, storage) ? part_of(wide, ms_cluster_copies(cluster)) : bytes;
}

/* A profile repeats the sizes of the storages that it binds. */
static void shard_profile(const ms_cluster *cluster, ms_graph *graph, const ms_node *node, uint32_t index)
{
    ms_profile *profile = &graph->profiles[index];
    for (uint32_t i = 0; i < profile->external_count; i++) {
        profile->storage_bytes[i] = gradient_share(cluster, graph, node->externals[i]);
    }
}

static void shard_gradients(const ms_cluster *cluster, ms_graph *graph)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *node = &graph->nodes[i];
        shard_profile(cluster, graph, node, node->profile);
        if (node->tiled > 0) {
            shard_profile(cluster, graph, node, node->tiled - 1);
        }
    }
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        graph->storages[i].bytes = gradient_share(cluster, graph, i);
    }
}

/* With mixed precision, parameters become FP32, and AdamW's state is two more of that size. */
static void widen_residents(ms_graph *graph)
{
    uint64_t *const half[] = {&graph->residents.parameter_bytes, &graph->residents.trainable_bytes,
                              &graph->residents.largest_parameter_bytes};
    for (size_t i = 0; i < sizeof half / sizeof half[0]; i++) {
        *half[i] = ms__mul_sat(2, *half[i]);
    }
    if (graph->loop.gradients_releasable) {
        return; /* the step of memscale's own optimizer was traced with FP32 parameters */
    }
    graph->loop.optimizer_state_bytes = ms__mul_sat(2, graph->residents.trainable_bytes);
    uint64_t largest = ms__min_u64(graph->residents.largest_parameter_bytes, graph->residents.trainable_bytes);
    graph->loop.optimizer_transient_bytes = ms__mul_sat(2, largest);
}

static void shard_residents(ms_graph *graph, uint32_t copies)
{
    uint64_t *const shared[] = {
        &graph->residents.parameter_bytes,         &graph->residents.trainable_bytes,
        &graph->residents.largest_parameter_bytes, &graph->loop.optimizer_state_bytes,
        &graph->loop.optimizer_transient_bytes,    &graph->loop.optimizer_stream_bytes,
    };
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        *shared[i] = part_of(*shared[i], copies);
    }
}

/* ---- the exchange ---------------------------------------------------------------------- */

static uint64_t sent_of(uint64_t bytes, uint32_t copies)
{
    return ms__mul_div(bytes, copies - 1, copies);
}

static void share_ddp(const ms_cluster *cluster, const ms_graph *graph, ms_cluster_share *share)
{
    uint64_t gradients = graph->residents.trainable_bytes;
    share->gathered_bytes = gradients;
    share->sent_bytes = ms__mul_sat(2, sent_of(gradients, ms_cluster_copies(cluster)));
}

/* A stage's parameters are gathered once a step, and its gradients reduced once, a layer at a time. */
static void share_fsdp_stage(const ms_cluster *cluster, const ms_graph *graph, ms_cluster_share *share)
{
    uint64_t gradients = graph->residents.trainable_bytes, parameters = graph->residents.parameter_bytes;
    uint32_t width = cluster->mixed ? 2 : 1;
    share->gathered_bytes = ms__add_sat(parameters, ms__mul_sat(width, groups_of(graph).largest_layer_bytes));
    share->sent_bytes = sent_of(ms__add_sat(parameters, ms__mul_sat(width, gradients)), ms_cluster_copies(cluster));
}

static void share_fsdp(const ms_cluster *cluster, const ms_graph *graph, ms_cluster_share *share)
{
    groups found = groups_of(graph);
    uint32_t width = cluster->mixed ? 2 : 1;
    uint64_t gradients = graph->residents.trainable_bytes, parameters = graph->residents.parameter_bytes;
    uint64_t root_gradients = ms__sub_sat(gradients, found.all_layers_bytes);
    uint64_t frozen = parameters - gradients, frozen_root = frozen_root_bytes(graph, root_gradients);
    uint64_t frozen_layer = found.layers > 0 ? ms__div_up(frozen - frozen_root, found.layers) : 0;
    uint64_t root = ms__add_sat(root_gradients, frozen_root);
    uint64_t layer = ms__add_sat(found.largest_layer_bytes, frozen_layer);
    uint64_t layer_gradients = ms__mul_sat(1 + width, found.largest_layer_bytes);
    share->gathered_bytes = ms__add_sat(root, ms__add_sat(ms__mul_sat(2, layer), layer_gradients));
    uint64_t twice = ms__mul_sat(2, ms__sub_sat(parameters, root));
    uint64_t moved = ms__add_sat(ms__add_sat(twice, root), ms__mul_sat(width, gradients));
    share->sent_bytes = sent_of(moved, ms_cluster_copies(cluster));
}

/* `near_ranks`: ranks between which nothing leaves a host if they fit one. */
static uint64_t link_of(const ms_cluster *cluster, const ms_hardware *hardware, uint64_t near_ranks)
{
    uint64_t peer = ms_hardware_peer_bytes_per_s(hardware);
    if (cluster->link_bytes_per_s > 0 || peer == 0) {
        return cluster->link_bytes_per_s;
    }
    return near_ranks > MS_CLUSTER_HOST_RANKS ? ms__min_u64(peer, network_bytes_per_s) : peer;
}

static uint64_t sending_ns(uint64_t bytes, uint64_t bytes_per_s)
{
    return bytes_per_s > 0 ? ms__mul_div_up(bytes, 1000000000, bytes_per_s) : 0;
}

static void price(const ms_cluster *cluster, const ms_graph *graph, const ms_hardware *hardware,
                  ms_cluster_share *share)
{
    uint32_t tensor = or_one(cluster->tensor_ranks);
    uint64_t stage = ms__mul_sat(tensor, ms_cluster_copies(cluster));
    share->link_bytes_per_s = link_of(cluster, hardware, stage);
    share->exchange_ns = sending_ns(share->sent_bytes, share->link_bytes_per_s);
    share->tensor_ns = sending_ns(cluster->tensor_bytes, link_of(cluster, hardware, tensor));
    /* The next stage begins where this one ends. */
    share->stage_ns = sending_ns(cluster->stage_bytes, link_of(cluster, hardware, ms__mul_sat(2, stage)));
    share->optimizer_ns = ms__sim_optimizer_ns(graph, hardware);
}

static uint32_t rounds_of(const ms_cluster *cluster)
{
    return is_piped(cluster) ? or_one(cluster->microbatches) + cluster->stages - 1 : 1;
}

uint64_t ms_cluster_step_ns(const ms_cluster *cluster, const ms_cluster_share *share, uint64_t part_ns, bool hidden)
{
    uint64_t work = ms__add_sat(ms__sub_sat(part_ns, share->optimizer_ns), share->tensor_ns);
    uint64_t piped = ms__mul_sat(rounds_of(cluster), hidden ? work : ms__add_sat(work, share->stage_ns));
    uint64_t shown = hidden ? ms__max_u64(piped, share->exchange_ns) : ms__add_sat(piped, share->exchange_ns);
    return ms__add_sat(shown, share->optimizer_ns);
}

uint32_t ms_cluster_idle_permille(const ms_cluster *cluster)
{
    uint32_t rounds = rounds_of(cluster);
    return rounds > 1 ? (uint32_t)(UINT64_C(1000) * (cluster->stages - 1) / rounds) : 0;
}

/* Divides a host's memory and disk among the ranks on it. */
static int share_host(const ms_cluster *cluster, ms_hardware *hardware, ms_config *config, ms_error *err)
{
    const ms_hardware *same_hardware = hardware;
    const ms_config *same_config = config;
    uint32_t on_host = (uint32_t)ms__min_u64(cluster->ranks, MS_CLUSTER_HOST_RANKS);
    return ms_pipeline_agree(&same_hardware, &same_config, 1, ms_hardware_host_is_device(hardware) ? 1 : on_host,
                             hardware, config, err);
}

/* Adds bytes to the baseline: they are held whatever the plan does. */
static void hold(const ms_graph *graph, ms_hardware *hardware, uint64_t bytes)
{
    uint64_t *baseline = &hardware->process.baseline_bytes;
    *baseline = ms__add_sat(*baseline > 0 ? *baseline : ms__baseline_with_model(hardware, graph), bytes);
}

/* FSDP gathers a layer's parameters for its own backward. A chain would be replayed before those of its lower layers
 * are there. */
static void unchain(ms_graph *graph)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        graph->nodes[i].flags &= ~(uint32_t)MS_NODE_CHAINED;
    }
}

/* What the copies of a part hold of it. */
static void share_copies(const ms_cluster *cluster, ms_graph *graph, ms_cluster_share *share)
{
    if (ms_cluster_copies(cluster) == 1 && !cluster->mixed) {
        return; /* neither gathers nor sends */
    }
    if (cluster->parallelism == MS_PARALLELISM_DDP) {
        share_ddp(cluster, graph, share);
        return;
    }
    if (is_piped(cluster)) {
        share_fsdp_stage(cluster, graph, share);
    } else {
        share_fsdp(cluster, graph, share);
    }
    if (cluster->mixed) {
        widen_residents(graph);
    }
    shard_residents(graph, ms_cluster_copies(cluster));
    shard_gradients(cluster, graph);
}

/* Parameters that stay gathered, beside a layer's gradients, which are reduced as soon as they are there. */
static uint64_t gathered_throughout(const ms_sharding *sharding, const ms_graph *graph)
{
    uint64_t layer = ms__mul_sat(sharding->mixed ? 3 : 2, groups_of(graph).largest_layer_bytes);
    return ms__add_sat(graph->residents.parameter_bytes, layer);
}

int ms_cluster_shard(const ms_sharding *sharding, ms_graph *graph, ms_hardware *hardware, uint64_t *gathered_bytes,
                     ms_error *err)
{
    uint32_t stages = sharding->reduces_once ? 2 : 1;
    ms_cluster cluster = {.ranks = (uint32_t)ms__min_u64(ms__mul_sat(sharding->copies, stages), UINT32_MAX),
                          .stages = stages,
                          .parallelism = MS_PARALLELISM_FSDP,
                          .mixed = sharding->mixed};
    int rc = check_mesh(&cluster, err);
    if (rc != MS_OK) {
        return rc;
    }
    bool throughout = sharding->stays_gathered && !sharding->reduces_once && sharding->copies > 1;
    uint64_t whole_bytes = throughout ? gathered_throughout(sharding, graph) : 0;
    ms_cluster_share share = {0};
    share_copies(&cluster, graph, &share);
    unchain(graph);
    uint64_t gathered = ms__max_u64(share.gathered_bytes, whole_bytes);
    hold(graph, hardware, ms__sub_sat(gathered, *gathered_bytes));
    *gathered_bytes = ms__max_u64(gathered, *gathered_bytes);
    return ms_graph_check(graph, err);
}

int ms_cluster_apply(const ms_cluster *cluster, ms_graph *graph, ms_hardware *hardware, ms_config *config,
                     ms_cluster_share *share, ms_error *err)
{
    memset(share, 0, sizeof *share);
    int rc = check_mesh(cluster, err);
    if (rc != MS_OK || (cluster->ranks == 1 && !cluster->mixed)) {
        return rc;
    }
    share_copies(cluster, graph, share);
    if (or_one(cluster->tensor_ranks) > 1) {
        ms_pipeline_in_parts(config);
    }
    if (cluster->parallelism == MS_PARALLELISM_FSDP) {
        unchain(graph);
    }
    price(cluster, graph, hardware, share);
    hold(graph, hardware, share->gathered_bytes);
    rc = share_host(cluster, hardware, config, err);
    return rc == MS_OK ? ms_graph_check(graph, err) : rc;
}
