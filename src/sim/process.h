/*
 * What of the memory beside tensors is expected of a step: read by the simulator, corrected by
 * what a finished step teaches.
 */
#ifndef MS_SIM_PROCESS_H
#define MS_SIM_PROCESS_H

#include "memscale/graph.h"
#include "memscale/hardware.h"

/* The part of process->scratch_bytes that a step of this graph is not expected to take. */
uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph);

/* From now on `measured_bytes` of the scratch are expected, or all of it where they are more. */
void ms__process_expect(ms_process *process, uint64_t measured_bytes);

#endif
