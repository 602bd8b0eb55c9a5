/*
 * Functions that only the files of this room share. Tests: tests/c/pipeline/test_pipeline.c.
 */
#ifndef MS_PIPELINE_PIPELINE_INTERNAL_H
#define MS_PIPELINE_PIPELINE_INTERNAL_H

#include "memscale/pipeline.h"

/* The pressure in the observed loop; before it is observed, in the loop that holds most. */
int ms__pipeline_pressure(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          ms_pressure *pressure, ms_error *err);

/* Stage 1's input, the features that take replays included. MS_ENOMEM. */
int ms__pipeline_context(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                         const ms_pressure *pressure, ms_strategy_context *context, ms_error *err);

/* ms_pipeline_plan() without suggestions in its refusal, for callers that need only the number. */
int ms__pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                      ms_error *err);

/* The baseline of the process once it has made the model; without a process, of one that holds torch and the model. */
uint64_t ms__baseline_with_model(const ms_hardware *hardware, const ms_graph *graph);

/* Tells the reader of a skipped plan what force_optimize would give. If that can't be planned, nothing is told. */
void ms__pipeline_add_forced(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                             ms_plan *plan);

/* The smallest accepted budget, for any budget in the configuration. Takes one search. */
int ms__pipeline_smallest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint64_t *bytes,
                          ms_error *err);

/* Adds suggestions to a refusal: unused techniques, options and optimizers, and the smallest budget with
 * each. err->hint_bytes is the smallest budget without them. */
void ms__pipeline_suggest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_error *err);

#endif
