/*
 * The public simulator: one replay of one graph. The search, which replays a graph many times, uses sim.h
 * directly.
 */
#include "sim/step_options.h"

int ms_simulate(const ms_graph *graph, const ms_hardware *hardware, const ms_choices *choices, ms_replay *replay,
                ms_sample *samples, ms_error *err)
{
    ms__sim *sim;
    int rc = ms__step_sim_new(graph, hardware, choices->step_options, choices->state_moved_bytes, &sim, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__outcome outcome;
    ms__sim_run(sim, choices, &outcome, samples);
    *replay = outcome.replay;
    ms__sim_free(sim);
    return MS_OK;
}

int ms__simulate_kept(const ms_graph *graph, const ms_hardware *hardware, ms_replay *replay, ms_error *err)
{
    uint8_t *kept = ms_calloc((size_t)graph->node_count + 1, 1);
    if (kept == NULL) {
        return ms_fail(err, MS_ENOMEM, "simulator: out of memory for %u nodes", graph->node_count);
    }
    ms_choices choices = {.technique = kept, .offload_min_bytes = MS_OFFLOAD_MIN_BYTES};
    int rc = ms_simulate(graph, hardware, &choices, replay, NULL, err);
    ms_free(kept);
    return rc;
}
