/*
 * Work of torch operators beside matrix products, from their name and the shapes of their operands, in evaluations of
 * an elementary function (rates.c measures a CPU's rate). Used by the tracer for WORK events. Most operators take as
 * long as their bytes need to move, and count 0; those of the table take longer.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_EVALUATIONS_H
#define MS_TRACE_EVALUATIONS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.gelu.default") or bare. `flops` is the operator's ms__flops(). Saturates; 0 for
 * operators outside the table. */
uint64_t ms__evaluations(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                         size_t output_count, uint64_t flops);

#endif
