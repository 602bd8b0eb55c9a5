/*
 * A wrapped process with its plan and a step that went as planned, for the tests of the
 * pipeline and of what it learns.
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

/* Live and cached maps at their most in a step that takes what its plan expects. */
uint64_t pipeline_held(const pipeline *f);
/* Outputs that matter: the logits are returned. */
void pipeline_return_logits(pipeline *f);

#endif
