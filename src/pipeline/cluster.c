/*
 * One rank's documents among many. Sharding divides what is resident; gathering adds to what the process holds.
 */
#include "memscale/cluster.h"

#include <string.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"

/* A DGX H100 has one network adapter of 400 Gb/s for each of its eight GPUs (its datasheet). */
static const uint64_t network_bytes_per_s = 50000000000;

const char *ms_parallelism_name(ms_parallelism parallelism)
{
    return parallelism == MS_PARALLELISM_FSDP ? "fsdp" : "ddp";
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

/* A profile repeats the sizes of the storages that it binds. */
static void shard_profile(ms_graph *graph, const ms_node *node, uint32_t index, uint32_t ranks)
{
    ms_profile *profile = &graph->profiles[index];
    for (uint32_t i = 0; i < profile->external_count; i++) {
        if (is_divided(graph, node->externals[i])) {
            profile->storage_bytes[i] = part_of(graph->storages[node->externals[i]].bytes, ranks);
        }
    }
}

/* The gradients that stay after backward. */
static void shard_gradients(ms_graph *graph, uint32_t ranks)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *node = &graph->nodes[i];
        shard_profile(graph, node, node->profile, ranks);
        if (node->tiled > 0) {
            shard_profile(graph, node, node->tiled - 1, ranks);
        }
    }
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        if (is_divided(graph, i)) {
            graph->storages[i].bytes = part_of(graph->storages[i].bytes, ranks);
        }
    }
}

static void shard_residents(ms_graph *graph, uint32_t ranks)
{
    uint64_t *const shared[] = {
        &graph->residents.parameter_bytes,         &graph->residents.trainable_bytes,
        &graph->residents.largest_parameter_bytes, &graph->loop.optimizer_state_bytes,
        &graph->loop.optimizer_transient_bytes,    &graph->loop.optimizer_stream_bytes,
    };
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        *shared[i] = part_of(*shared[i], ranks);
    }
}

/* ---- the exchange ---------------------------------------------------------------------- */

static uint64_t sent_of(uint64_t bytes, uint32_t ranks)
{
    return ms__mul_div(bytes, ranks - 1, ranks);
}

static void share_ddp(const ms_cluster *cluster, const ms_graph *graph, ms_cluster_share *share)
{
    uint64_t gradients = graph->residents.trainable_bytes;
    share->gathered_bytes = gradients;
    share->sent_bytes = ms__mul_sat(2, sent_of(gradients, cluster->ranks));
}

static void share_fsdp(const ms_cluster *cluster, const ms_graph *graph, ms_cluster_share *share)
{
    groups found = groups_of(graph);
    uint64_t gradients = graph->residents.trainable_bytes, parameters = graph->residents.parameter_bytes;
    uint64_t root_gradients = ms__sub_sat(gradients, found.all_layers_bytes);
    uint64_t frozen = parameters - gradients, frozen_root = frozen_root_bytes(graph, root_gradients);
    uint64_t frozen_layer = found.layers > 0 ? ms__div_up(frozen - frozen_root, found.layers) : 0;
    uint64_t root = ms__add_sat(root_gradients, frozen_root);
    uint64_t layer = ms__add_sat(found.largest_layer_bytes, frozen_layer);
    share->gathered_bytes = ms__add_sat(root, ms__mul_sat(2, ms__add_sat(layer, found.largest_layer_bytes)));
    uint64_t twice = ms__mul_sat(2, ms__sub_sat(parameters, root));
    uint64_t moved = ms__add_sat(ms__add_sat(twice, root), gradients);
    share->sent_bytes = sent_of(moved, cluster->ranks);
}

static uint64_t link_of(const ms_cluster *cluster, const ms_hardware *hardware)
{
    uint64_t peer = ms_hardware_peer_bytes_per_s(hardware);
    if (cluster->link_bytes_per_s > 0 || peer == 0) {
        return cluster->link_bytes_per_s;
    }
    return cluster->ranks > MS_CLUSTER_HOST_RANKS ? ms__min_u64(peer, network_bytes_per_s) : peer;
}

static void price(const ms_cluster *cluster, const ms_hardware *hardware, ms_cluster_share *share)
{
    share->link_bytes_per_s = link_of(cluster, hardware);
    share->exchange_ns =
        share->link_bytes_per_s > 0 ? ms__mul_div_up(share->sent_bytes, 1000000000, share->link_bytes_per_s) : 0;
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

int ms_cluster_apply(const ms_cluster *cluster, ms_graph *graph, ms_hardware *hardware, ms_config *config,
                     ms_cluster_share *share, ms_error *err)
{
    memset(share, 0, sizeof *share);
    if (cluster->ranks == 0 || cluster->ranks > MS_CLUSTER_RANKS_MOST) {
        return ms_fail(err, MS_EINVAL, "cluster: %u ranks; give 1 to %d", cluster->ranks, MS_CLUSTER_RANKS_MOST);
    }
    if (cluster->ranks == 1) {
        return MS_OK; /* neither gathers nor sends */
    }
    if (cluster->parallelism == MS_PARALLELISM_FSDP) {
        share_fsdp(cluster, graph, share);
        shard_residents(graph, cluster->ranks);
        shard_gradients(graph, cluster->ranks);
        ms_pipeline_sharded(config);
    } else {
        share_ddp(cluster, graph, share);
    }
    price(cluster, hardware, share);
    hold(graph, hardware, share->gathered_bytes);
    int rc = share_host(cluster, hardware, config, err);
    return rc == MS_OK ? ms_graph_check(graph, err) : rc;
}
