/*
 * The public simulator: one replay of one graph. The solver, which replays a graph many times, uses sim.h
 * directly.
 */
#include "sim/step_options.h"

int ms__sim_need(ms__sim *sim, uint64_t *need_bytes, ms_error *err)
{
    uint8_t *kept = ms_calloc(sim->node_count, 1);
    if (kept == NULL) {
        return ms_fail(err, MS_ENOMEM, "simulator: out of memory");
    }
    ms_choices choices = {.technique = kept, .offload_min_bytes = MS_OFFLOAD_MIN_BYTES};
    ms__outcome outcome;
    ms__sim_run(sim, &choices, &outcome, NULL);
    *need_bytes = outcome.replay.peak_bytes;
    ms_free(kept);
    return MS_OK;
}

int ms_simulate(const ms_graph *graph, const ms_hardware *hardware, const ms_choices *choices, ms_replay *replay,
                ms_sample *samples, ms_error *err)
{
    ms__sim *sim;
    int rc = ms__step_sim_new(graph, hardware, choices->step_options, &sim, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__outcome outcome;
    ms__sim_run(sim, choices, &outcome, samples);
    *replay = outcome.replay;
    ms__sim_free(sim);
    return MS_OK;
}
