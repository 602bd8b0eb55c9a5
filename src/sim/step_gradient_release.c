/*
 * Gradient release as an option of the step (memscale.optim executes it): a gradient is freed when it is final (an event
 * of the trace), else at the end of the backward of the last node that adds to it, and the optimizer's temporaries are
 * live during backward. It limits what a training loop may do with gradients, so only the aggressive mode admits it. A
 * release that the optimizer's caller asked for (gradients_released) is part of every step and not an option.
 */
#include "base/units.h"
#include "sim/step_options.h"

/* Before the training loop has been observed, it may accumulate the gradients of several backwards: an
 * update in the first can't be undone. */
static bool needs_all_gradients(const ms_loop *loop)
{
    return loop->gradients_needed || (!loop->observed && loop->gradients_live_in_forward);
}

static uint32_t gradient_release_judge(const ms__step_case *facts)
{
    if (!facts->graph->loop.gradients_releasable || facts->graph->loop.gradients_released) {
        return MS_RULE_OTHER_OPTIMIZER;
    }
    if (facts->config->mode != MS_MODE_AGGRESSIVE) {
        return MS_RULE_MODE;
    }
    return needs_all_gradients(&facts->graph->loop) ? MS_RULE_GRADIENTS_NEEDED : MS__STEP_ADMITTED;
}

/* Whether each node of the profile binds a gradient here that is final in that node. */
static bool ends_in_every_node(const ms_graph *graph, uint32_t profile, uint32_t local)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const ms_node *node = &graph->nodes[i];
        if (node->profile == profile) {
            const ms_storage *storage = &graph->storages[node->externals[local]];
            if (storage->role != MS_STORAGE_GRADIENT || storage->last_node != i) {
                return false;
            }
        }
    }
    return true;
}

/* The FREE of a gradient takes the place of its mark, or is added at the end. */
static void free_when_final(ms_profile *profile, uint32_t local)
{
    ms_event freed = {.kind = MS_EVENT_FREE, .storage = local};
    for (uint32_t i = 0; i < profile->backward_count; i++) {
        ms_event *event = &profile->backward[i];
        if (event->kind == MS_EVENT_FINAL && event->storage == local) {
            *event = freed;
            return;
        }
    }
    profile->backward[profile->backward_count++] = freed;
}

/* Extends the profile's backward by a FREE of each external storage. */
static int reserve_frees(ms_profile *profile)
{
    ms_event *events =
        ms_realloc_array(profile->backward, (size_t)profile->backward_count + profile->external_count, sizeof *events);
    if (events == NULL) {
        return MS_ENOMEM;
    }
    profile->backward = events;
    return MS_OK;
}

static int release_in_profile(ms_graph *graph, uint32_t index, uint8_t *freed)
{
    ms_profile *profile = &graph->profiles[index];
    int rc = profile->external_count > 0 ? reserve_frees(profile) : MS_OK;
    for (uint32_t local = 0; rc == MS_OK && local < profile->external_count; local++) {
        if (ends_in_every_node(graph, index, local)) {
            free_when_final(profile, local);
            for (uint32_t i = 0; i < graph->node_count; i++) {
                if (graph->nodes[i].profile == index) {
                    freed[graph->nodes[i].externals[local]] = 1;
                }
            }
        }
    }
    return rc;
}

static int gradient_release_apply(const ms_hardware *hardware, ms__step *step)
{
    (void)hardware;
    ms_graph *graph = step->graph;
    uint8_t *freed = ms_calloc((size_t)graph->storage_count + 1, 1);
    int rc = freed != NULL ? MS_OK : MS_ENOMEM;
    for (uint32_t i = 0; rc == MS_OK && i < graph->profile_count; i++) {
        rc = release_in_profile(graph, i, freed);
    }
    for (uint32_t i = 0; rc == MS_OK && i < graph->storage_count; i++) {
        graph->storages[i].role = freed[i] ? MS_STORAGE_ACTIVATION : graph->storages[i].role;
    }
    step->released = freed;
    step->resident_bytes = ms__add_sat(step->resident_bytes, graph->loop.optimizer_transient_bytes);
    graph->loop.optimizer_transient_bytes = 0;
    return rc;
}

const ms__step_option ms__step_gradient_release = {.judge = gradient_release_judge, .apply = gradient_release_apply};
