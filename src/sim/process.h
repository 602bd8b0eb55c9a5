/*
 * The memory of a training process beside its tensors. The simulator reads it; finished steps correct it.
 * Tests: tests/c/sim/test_process.c.
 */
#ifndef MS_SIM_PROCESS_H
#define MS_SIM_PROCESS_H

#include "memscale/graph.h"
#include "memscale/hardware.h"

/* The most bytes beside tensors that a step of this graph may use. Before a step was measured, this grows with the
 * bytes that the step allocates, up to process->scratch_bytes. */
uint64_t ms__process_scratch(const ms_process *process, const ms_graph *graph);

/* The part of ms__process_scratch() that a step of this graph is not expected to use. */
uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph);

/* Sets the expected scratch to `measured_bytes`, at most all scratch. */
void ms__process_expect(ms_process *process, uint64_t measured_bytes);

#endif
