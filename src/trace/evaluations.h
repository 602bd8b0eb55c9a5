/*
 * What torch operators compute beside matrix products, from their name and the shapes of
 * their operands, in evaluations of an elementary function (rates.c measures how many of
 * those a CPU does). Used by the tracer for WORK events: most operators take as long as
 * their bytes need to move, and count 0; these take longer.
 */
#ifndef MS_TRACE_EVALUATIONS_H
#define MS_TRACE_EVALUATIONS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.gelu.default") or bare. `flops` are the operator's of
 * ms__flops(). Saturates; 0 for operators that are not in the table. */
uint64_t ms__evaluations(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                         size_t output_count, uint64_t flops);

#endif
