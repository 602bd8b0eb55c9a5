/*
 * What a refused budget is told besides: techniques, options and optimizers that the user
 * leaves unused, each with the smallest budget that it alone would allow. Called by pipeline.c
 * for a refusal that somebody will read; each line costs one search of the solver.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "memscale/optimizer_stream.h"
#include "pipeline/pipeline_internal.h"

/* Less than this of the smallest budget is not worth a line. */
enum { WORTH_PERMILLE = 20 };

/* What the optimizer's state is made of: fp32 moments, two of them. */
enum { ELEMENT_BYTES = 4, MOMENTS = 2, BLOCK_ELEMENTS = 256, LEAST_8BIT_ELEMENTS = 4096 };

typedef struct refusal {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    ms_error *err;
    uint64_t smallest_bytes; /* of what was named so far */
    uint32_t named_count;
} refusal;

/* Whole or not at all; whether it fits. */
static bool append(ms_error *err, const char *text)
{
    size_t length = strlen(err->text), more = strlen(text);
    bool fits = length + more < sizeof err->text;
    if (fits) {
        memcpy(err->text + length, text, more + 1);
    }
    return fits;
}

/* Names what leads to this graph and configuration, if its smallest budget is below `least`;
 * the smallest with it, or without. */
static uint64_t name(refusal *r, const ms_graph *graph, const ms_config *config, uint64_t least, const char *what)
{
    uint64_t bytes = 0;
    char text[240];
    if (ms__pipeline_smallest(graph, r->hardware, config, &bytes, NULL) != MS_OK ||
        bytes >= least - ms__mul_div(least, WORTH_PERMILLE, 1000)) {
        return least;
    }
    bool is_first = r->named_count == 0;
    snprintf(text, sizeof text, "%s with %s%s %s", is_first ? ";" : ",", what, is_first ? " it would be" : "",
             ms__text_bytes_up(bytes).text);
    if (append(r->err, text)) {
        r->smallest_bytes = ms__min_u64(r->smallest_bytes, bytes);
        r->named_count++;
    }
    return bytes;
}

/* ---- techniques --------------------------------------------------------------------------- */

static void name_techniques(refusal *r)
{
    ms_config open = *r->config;
    char what[120];
    open.mode = r->config->mode == MS_MODE_CONSERVATIVE ? MS_MODE_BALANCED : r->config->mode;
    open.enable_checkpointing = open.enable_offloading = true;
    bool other_mode = open.mode != r->config->mode;
    if (other_mode || !r->config->enable_checkpointing || !r->config->enable_offloading) {
        snprintf(what, sizeof what, "%s%s%s", other_mode ? "mode=\"balanced\" " : "",
                 !r->config->enable_checkpointing ? "enable_checkpointing=True " : "",
                 !r->config->enable_offloading ? "enable_offloading=True " : "");
        what[strlen(what) - 1] = '\0';
        (void)name(r, r->graph, &open, r->err->hint_bytes, what);
    }
}

/* Where the step was not traced in tiles, these may go lower still. */
static void name_tiling(refusal *r)
{
    ms_config open = *r->config;
    open.enable_tiling = true;
    if (!r->config->enable_tiling) {
        (void)name(r, r->graph, &open, r->err->hint_bytes, "enable_tiling=True");
    }
}

/* ---- the optimizer -------------------------------------------------------------------------- */

typedef struct state_bytes {
    uint64_t full, streamed;       /* two fp32 moments; of those, what can lie on disk */
    uint64_t in_8bit, in_8bit_streamed;
} state_bytes;

/* Of the parameters that have gradients, each of fp32. */
static state_bytes measure(const ms_graph *graph)
{
    state_bytes bytes = {0};
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        if (graph->storages[i].role != MS_STORAGE_GRADIENT) {
            continue;
        }
        uint64_t elements = graph->storages[i].bytes / ELEMENT_BYTES;
        uint64_t full = ms__mul_sat(MOMENTS * ELEMENT_BYTES, elements);
        uint64_t small = elements < LEAST_8BIT_ELEMENTS
                             ? full
                             : MOMENTS * (elements + ELEMENT_BYTES * ms__div_up(elements, BLOCK_ELEMENTS));
        bool streams = ms_optimizer_stream_takes(elements);
        bytes.full = ms__add_sat(bytes.full, full);
        bytes.in_8bit = ms__add_sat(bytes.in_8bit, small);
        bytes.streamed = ms__add_sat(bytes.streamed, streams ? full : 0);
        bytes.in_8bit_streamed = ms__add_sat(bytes.in_8bit_streamed, streams ? small : 0);
    }
    return bytes;
}

/* Whether the state that is counted is that of an Adam with fp32 moments. */
static bool is_adam(const ms_graph *graph, const state_bytes *bytes)
{
    uint64_t state = graph->loop.optimizer_state_bytes;
    uint64_t off = state > bytes->full ? state - bytes->full : bytes->full - state;
    return bytes->full > 0 && off <= ms__mul_div(bytes->full, WORTH_PERMILLE, 1000);
}

/* The step with an optimizer of memscale's. */
static ms_graph with_optimizer(const ms_graph *graph, uint64_t state, uint64_t streamed)
{
    ms_graph other = *graph;
    other.loop.optimizer_state_bytes = state;
    other.loop.optimizer_transient_bytes = 0;
    other.loop.optimizer_stream_bytes = streamed;
    other.loop.gradients_releasable = true;
    return other;
}

static void name_optimizers(refusal *r)
{
    const ms_loop *loop = &r->graph->loop;
    uint64_t least = r->err->hint_bytes;
    state_bytes bytes = measure(r->graph);
    if (is_adam(r->graph, &bytes) && !loop->gradients_releasable && ms_hardware_host_is_device(r->hardware)) {
        ms_graph own = with_optimizer(r->graph, bytes.full, bytes.streamed);
        least = name(r, &own, r->config, least, "memscale.optim.AdamW (state on disk)");
    }
    if (is_adam(r->graph, &bytes) && !r->config->use_8bit_optimizer) { /* rounds: only for less */
        ms_graph smaller = with_optimizer(r->graph, bytes.in_8bit, bytes.in_8bit_streamed);
        (void)name(r, &smaller, r->config, least, "use_8bit_optimizer=True");
    }
    if (loop->gradients_releasable && !loop->gradients_released && r->config->mode != MS_MODE_AGGRESSIVE) {
        ms_config far = *r->config;
        far.mode = MS_MODE_AGGRESSIVE;
        (void)name(r, r->graph, &far, r->err->hint_bytes, "mode=\"aggressive\" (gradients released)");
    }
}

/* Where nothing alone would do. */
static void name_all(refusal *r)
{
    state_bytes bytes = measure(r->graph);
    ms_config open = *r->config;
    ms_graph own = *r->graph;
    if (r->named_count == 0 || r->smallest_bytes <= r->config->memory_budget_bytes) {
        return;
    }
    open.mode = MS_MODE_AGGRESSIVE;
    open.enable_checkpointing = open.enable_offloading = open.enable_tiling = true;
    if (is_adam(&own, &bytes) && !own.loop.gradients_releasable && ms_hardware_host_is_device(r->hardware)) {
        own = with_optimizer(r->graph, bytes.full, bytes.streamed);
    }
    (void)name(r, &own, &open, r->smallest_bytes, "all that keeps 32 bits and mode=\"aggressive\"");
}

void ms__pipeline_suggest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_error *err)
{
    refusal r = {.graph = graph, .hardware = hardware, .config = config, .err = err, .smallest_bytes = err->hint_bytes};
    name_techniques(&r);
    name_tiling(&r);
    name_optimizers(&r);
    name_all(&r);
    bool moves = config->enable_offloading && config->mode != MS_MODE_CONSERVATIVE;
    if (moves && ms_rules_disk_cap(hardware, config) == 0) {
        (void)append(err, "; there is no disk tier here (disk_offload_dir)");
    }
}
