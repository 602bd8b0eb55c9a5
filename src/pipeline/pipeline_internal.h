/*
 * Shared by the files of this room besides their public headers. Tests: tests/c/pipeline/test_pipeline.c.
 */
#ifndef MS_PIPELINE_PIPELINE_INTERNAL_H
#define MS_PIPELINE_PIPELINE_INTERNAL_H

#include "memscale/pipeline.h"

/* The pressure in the loop that holds most, or in the observed one. */
int ms__pipeline_pressure(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          ms_pressure *pressure, ms_error *err);

/* ms_pipeline_plan() without suggestions in its refusal, for callers that want a number. */
int ms__pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                      ms_error *err);

/* The smallest accepted budget, whatever the configuration's; one search of the solver. */
int ms__pipeline_smallest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint64_t *bytes,
                          ms_error *err);

/* Adds suggestions to a refusal: unused techniques, options and optimizers, with the smallest budget of
 * each. err->hint_bytes is the smallest without them. */
void ms__pipeline_suggest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_error *err);

#endif
