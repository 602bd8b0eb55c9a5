/*
 * What the files above all rooms share beside their public headers.
 */
#ifndef MS_PIPELINE_INTERNAL_H
#define MS_PIPELINE_INTERNAL_H

#include "memscale/pipeline.h"

/* The pressure of the loop that holds most, or of the one that was seen. */
int ms__pipeline_pressure(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                          ms_pressure *pressure, ms_error *err);

#endif
