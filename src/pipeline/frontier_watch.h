/*
 * frontier_watch.h - ms_frontier_make() for a caller that shows how far it is: memscale-server's jobs.
 */
#ifndef MS_PIPELINE_FRONTIER_WATCH_H
#define MS_PIPELINE_FRONTIER_WATCH_H

#include "memscale/frontier.h"

/* The same frontier as ms_frontier_make(); `planned(argument)` is called after each of its `count` points. */
MS_NODISCARD int ms__frontier_make(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                                   uint32_t count, void (*planned)(void *argument), void *argument,
                                   ms_frontier **frontier, ms_error *err);

#endif
