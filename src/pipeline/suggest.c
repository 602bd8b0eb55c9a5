/*
 * Suggestions for a refused budget: techniques, options and optimizers that the user leaves unused, each with
 * the smallest budget that it alone would allow. Called by pipeline.c for refusals that users read; each line
 * costs one search.
 */
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "memscale/optimizer.h"
#include "memscale/optimizer_stream.h"
#include "pipeline/pipeline_internal.h"

/* A gain below this part of the smallest budget is not worth a line. */
enum { WORTH_PERMILLE = 20 };
/* Nor is a loop's part below this. */
enum { LOOP_PERMILLE = 5 };

enum { ELEMENT_BYTES = 4 };

typedef struct refusal {
    const ms_graph *graph;
    const ms_hardware *hardware;
    const ms_config *config;
    ms_error *err;
    uint64_t smallest_bytes; /* smallest named so far */
    uint32_t named_count;
} refusal;

/* Appends the whole text or nothing; returns whether it fitted. */
static bool suggest_append(ms_error *err, const char *text)
{
    size_t length = strlen(err->text), more = strlen(text);
    bool fits = length + more < sizeof err->text;
    if (fits) {
        memcpy(err->text + length, text, more + 1);
    }
    return fits;
}

/* Names `what` if the smallest budget of this graph and configuration is well below `least`. Returns the
 * smaller of both. */
static uint64_t suggest_name(refusal *r, const ms_graph *graph, const ms_config *config, uint64_t least,
                             const char *what)
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
    if (suggest_append(r->err, text)) {
        r->smallest_bytes = ms__min_u64(r->smallest_bytes, bytes);
        r->named_count++;
    }
    return bytes;
}

/* ---- techniques --------------------------------------------------------------------------- */

static void suggest_techniques(refusal *r)
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
        (void)suggest_name(r, r->graph, &open, r->err->hint_bytes, what);
    }
}

/* If the step was not traced in tiles, real budgets may be smaller still. */
static void suggest_tiling(refusal *r)
{
    ms_config open = *r->config;
    open.enable_tiling = true;
    if (!r->config->enable_tiling) {
        (void)suggest_name(r, r->graph, &open, r->err->hint_bytes, "enable_tiling=True");
    }
}

/* ---- the optimizer -------------------------------------------------------------------------- */

typedef struct state_bytes {
    uint64_t full, streamed;       /* two fp32 moments; the part of them that can be on disk */
    uint64_t in_8bit, in_8bit_streamed;
} state_bytes;

/* Of the parameters with gradients, all fp32. */
static state_bytes measure_state(const ms_graph *graph)
{
    state_bytes bytes = {0};
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        if (graph->storages[i].role != MS_STORAGE_GRADIENT) {
            continue;
        }
        uint64_t elements = graph->storages[i].bytes / ELEMENT_BYTES;
        uint64_t full = ms_adamw_state_bytes(elements, 32, false);
        uint64_t small = ms_adamw_state_bytes(elements, 8, false);
        bool streams = ms_optimizer_stream_takes(elements);
        bytes.full = ms__add_sat(bytes.full, full);
        bytes.in_8bit = ms__add_sat(bytes.in_8bit, small);
        bytes.streamed = ms__add_sat(bytes.streamed, streams ? full : 0);
        bytes.in_8bit_streamed = ms__add_sat(bytes.in_8bit_streamed, streams ? small : 0);
    }
    return bytes;
}

/* Whether the counted state is that of an Adam with fp32 moments. */
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

static void suggest_optimizers(refusal *r)
{
    const ms_loop *loop = &r->graph->loop;
    uint64_t least = r->err->hint_bytes;
    state_bytes bytes = measure_state(r->graph);
    if (is_adam(r->graph, &bytes) && !loop->gradients_releasable) {
        ms_graph own = with_optimizer(r->graph, bytes.full, bytes.streamed);
        least = suggest_name(r, &own, r->config, least,
                             ms_hardware_host_is_device(r->hardware) ? "memscale.optim.AdamW (state on disk)"
                                                                     : "memscale.optim.AdamW (state in host memory)");
    }
    if (is_adam(r->graph, &bytes) && !r->config->use_8bit_optimizer) { /* it rounds, so only if it needs less */
        ms_graph smaller = with_optimizer(r->graph, bytes.in_8bit, bytes.in_8bit_streamed);
        (void)suggest_name(r, &smaller, r->config, least, "use_8bit_optimizer=True");
    }
    if (loop->gradients_releasable && !loop->gradients_released && !loop->gradients_needed &&
        r->config->mode != MS_MODE_AGGRESSIVE) {
        ms_config far = *r->config;
        far.mode = MS_MODE_AGGRESSIVE;
        (void)suggest_name(r, r->graph, &far, r->err->hint_bytes, "mode=\"aggressive\" (gradients released)");
    }
}

/* If no single suggestion suffices. */
static void suggest_all(refusal *r)
{
    state_bytes bytes = measure_state(r->graph);
    ms_config open = *r->config;
    ms_graph own = *r->graph;
    if (r->named_count == 0 || r->smallest_bytes <= r->config->memory_budget_bytes) {
        return;
    }
    open.mode = MS_MODE_AGGRESSIVE;
    open.enable_checkpointing = open.enable_offloading = open.enable_tiling = true;
    if (is_adam(&own, &bytes) && !own.loop.gradients_releasable) {
        own = with_optimizer(r->graph, bytes.full, bytes.streamed);
    }
    (void)suggest_name(r, &own, &open, r->smallest_bytes, "mode=\"aggressive\" and every option but 8-bit state");
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The smallest budget is that of the loop that holds least. Most loops hold more, so the reader is told of both. */
static void suggest_loop(refusal *r)
{
    ms_graph holding = *r->graph;
    uint64_t bytes = 0;
    char text[240];
    if (r->graph->loop.observed) {
        return;
    }
    holding.loop.observed = holding.loop.outputs_held = true;
    holding.loop.gradients_live_in_forward = holding.loop.gradients_cleared = true;
    if (ms__pipeline_smallest(&holding, r->hardware, r->config, &bytes, NULL) == MS_OK &&
        bytes > r->err->hint_bytes + ms__mul_div(r->err->hint_bytes, LOOP_PERMILLE, 1000)) {
        snprintf(text, sizeof text,
                 "; if the loop holds outputs in backward and gradients in the next forward, the smallest is %s",
                 ms__text_bytes_up(bytes).text);
        (void)suggest_append(r->err, text);
    }
}

void ms__pipeline_suggest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_error *err)
{
    refusal r = {.graph = graph, .hardware = hardware, .config = config, .err = err, .smallest_bytes = err->hint_bytes};
    suggest_techniques(&r);
    suggest_tiling(&r);
    suggest_optimizers(&r);
    suggest_all(&r);
    suggest_loop(&r);
    bool moves = config->enable_offloading && config->mode != MS_MODE_CONSERVATIVE;
    if (moves && ms_rules_disk_cap(hardware, config) == 0) {
        (void)suggest_append(err, "; this run has no disk tier (disk_offload_dir)");
    }
}
