/*
 * Memory that operators take for themselves while they run, on a CPU: convolutions,
 * which oneDNN computes in layouts of its own. Used by the tracer; every other operator
 * counts 0.
 */
#ifndef MS_TRACE_WORKSPACE_H
#define MS_TRACE_WORKSPACE_H

#include "memscale/trace.h"

/* Bytes beyond operands and results, at their most. `name` as for ms__flops(); operands
 * lie in torch's default layout (in channels_last nothing is reordered). Saturates. */
uint64_t ms__workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                             size_t output_count);

#endif
