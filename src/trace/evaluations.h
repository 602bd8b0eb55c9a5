/*
 * Work of torch operators beside matrix products, in evaluations of an elementary function (rates.c measures a CPU's
 * rate), from name and operand shapes. Used by the tracer for WORK events. Most operators take only the time to move
 * their bytes, and count 0; those in the table take longer.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_EVALUATIONS_H
#define MS_TRACE_EVALUATIONS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.gelu.default") or bare. `flops` is the operator's ms__flops(). Saturates; 0 if the
 * operator is not in the table. */
uint64_t ms__evaluations(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                         size_t output_count, uint64_t flops);

#endif
