/*
 * A wrapped process with its plan and a step as planned, for the tests of the pipeline and of its
 * corrections.
 */
#ifndef MS_TEST_PIPELINE_FIXTURE_H
#define MS_TEST_PIPELINE_FIXTURE_H

#include "plan_fixture.h"

typedef struct pipeline {
    ms_graph *graph;
    ms_hardware *hardware;
    ms_config config;
    ms_plan *plan;
    ms_observation seen;
} pipeline;

/* Set-up and tear-down: 1 GB before the first step, and a budget that binds. */
int pipeline_open(void **state);
int pipeline_close(void **state);

ms_plan *pipeline_plan(pipeline *f);
void pipeline_replan(pipeline *f);

/* The largest live + cached maps in a step that takes its plan's expected bytes. */
uint64_t pipeline_held(const pipeline *f);
/* Makes the outputs so large that they matter, as returned logits are. */
void pipeline_return_logits(pipeline *f);

#endif
