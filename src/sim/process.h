/*
 * The memory of a training process besides its tensors: the simulator reads it, and finished steps correct
 * it. Tests: tests/c/sim/test_process.c.
 */
#ifndef MS_SIM_PROCESS_H
#define MS_SIM_PROCESS_H

#include "memscale/graph.h"
#include "memscale/hardware.h"

/* The part of process->scratch_bytes that a step of this graph is not expected to use. */
uint64_t ms__process_reserve(const ms_process *process, const ms_graph *graph);

/* Sets the expected scratch to `measured_bytes`, at most all of it. */
void ms__process_expect(ms_process *process, uint64_t measured_bytes);

#endif
