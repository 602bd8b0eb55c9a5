/*
 * The pipeline: graph, hardware and config in, plan out; and what a finished step
 * teaches. The file to open first: each stage is one call below. Stages run one way
 * and pass plain values on; nothing is remembered here between calls.
 */
#include "memscale/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "base/units.h"

/* ---- planning ----------------------------------------------------------------- */

static int need_of(const ms_graph *graph, const ms_hardware *hardware, uint64_t *need_bytes, ms_error *err)
{
    uint8_t *kept = ms_calloc(graph->node_count, 1);
    if (kept == NULL) {
        return ms_fail(err, MS_ENOMEM, "pipeline: out of memory for %u nodes", graph->node_count);
    }
    ms_choices choices = {.technique = kept, .offload_min_bytes = MS_OFFLOAD_MIN_BYTES};
    ms_replay replay;
    int rc = ms_simulate(graph, hardware, &choices, &replay, NULL, err);
    ms_free(kept);
    if (rc == MS_OK) {
        *need_bytes = replay.peak_bytes;
    }
    return rc;
}

/* pressure -> rules -> solver, for one assumption about the loop. */
static int plan_in_loop(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                        ms_plan **plan, ms_error *err)
{
    uint64_t need_bytes = 0;
    ms_pressure pressure;
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    int rc = admissions == NULL ? ms_fail(err, MS_ENOMEM, "pipeline: out of memory for %u nodes", graph->node_count)
                                : need_of(graph, hardware, &need_bytes, err);
    if (rc == MS_OK) {
        ms_pressure_of(need_bytes, hardware, config, &pressure);
        rc = ms_engine_admit(graph, hardware, config, &pressure, admissions, err);
    }
    if (rc == MS_OK) {
        rc = ms_plan_solve(graph, hardware, config, &pressure, admissions, plan, err);
    }
    ms_free(admissions);
    return rc;
}

/* Loops from the one that holds most to the one that holds least. */
typedef struct assumption {
    bool outputs_held, gradients_live;
} assumption;

static const assumption assumptions[] = {{true, true}, {true, false}, {false, false}};

/* Nobody has seen the loop yet: the plan is made for one that holds more than most
 * do, and for less only where nothing fits. What is true is seen after two steps. */
static int plan_unobserved(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                           ms_plan **plan, ms_error *err)
{
    const size_t count = sizeof assumptions / sizeof assumptions[0];
    ms_graph assumed = *graph; /* shares everything but the loop */
    int rc = MS_EINFEASIBLE;
    ms_plan *made = NULL;
    for (size_t i = 0; i < count && rc == MS_EINFEASIBLE; i++) {
        assumed.loop.outputs_held = assumptions[i].outputs_held;
        assumed.loop.gradients_live_in_forward = assumptions[i].gradients_live;
        rc = plan_in_loop(&assumed, hardware, config, &made, err);
        if (rc == MS_OK && made->over_target && i + 1 < count) {
            ms_plan_free(made);
            rc = MS_EINFEASIBLE;
        }
    }
    if (rc == MS_OK) {
        *plan = made;
    }
    return rc;
}

int ms_pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                     ms_plan **plan, ms_error *err)
{
    if (graph->node_count == 0) {
        return ms_fail(err, MS_EINVAL, "pipeline: the graph has no nodes");
    }
    return graph->loop.observed ? plan_in_loop(graph, hardware, config, plan, err)
                                : plan_unobserved(graph, hardware, config, plan, err);
}
