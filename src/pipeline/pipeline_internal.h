/*
 * What the files above all rooms share beside their public headers.
 */
#ifndef MS_PIPELINE_PIPELINE_INTERNAL_H
#define MS_PIPELINE_PIPELINE_INTERNAL_H

#include "memscale/pipeline.h"

/* The pressure of the loop that holds most, or of the one that was seen. */
int ms__pipeline_pressure(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          ms_pressure *pressure, ms_error *err);

/* ms_pipeline_plan(), whose refusal says what fits and not what would help: for callers that
 * ask for a number. */
int ms__pipeline_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                      ms_error *err);

/* The smallest budget that is accepted, whatever the configuration's; one search of the solver. */
int ms__pipeline_smallest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint64_t *bytes,
                          ms_error *err);

/* Adds to a refusal what the user leaves unused and the smallest budget that it would allow;
 * err->hint_bytes is the smallest without. */
void ms__pipeline_suggest(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_error *err);

#endif
