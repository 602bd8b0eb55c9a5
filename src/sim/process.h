/*
 * The memory of a training process beside its tensors. The simulator reads it; finished steps correct it.
 * Tests: tests/c/sim/test_process.c.
 */
#ifndef MS_SIM_PROCESS_H
#define MS_SIM_PROCESS_H

#include "memscale/graph.h"
#include "memscale/hardware.h"

/* The most bytes beside tensors that a step of this graph may use. This grows with the bytes that the step allocates:
 * up to process->scratch_bytes before a step was measured, and from there on afterwards. */
uint64_t ms__process_scratch(const ms_process *process, const ms_graph *graph);

/* The part of ms__process_scratch() that a step of this graph is not expected to use. */
uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph);

/* Corrects the scratch after a step of this graph: what it may use, and the part that it is expected to use, at most all
 * of it. MS_UNSET: that part is unknown. */
void ms__process_measured(ms_process *process, const ms_graph *graph, uint64_t scratch_bytes, uint64_t expected_bytes);

#endif
