/*
 * Workspace of operators on a CPU: convolutions, which oneDNN computes in its own layouts. Used by the tracer; other
 * operators count 0.
 * Tests: tests/c/trace/test_workspace.c.
 */
#ifndef MS_TRACE_WORKSPACE_H
#define MS_TRACE_WORKSPACE_H

#include "memscale/trace.h"

/* Peak bytes beyond operands and results. `name` as for ms__flops(); operands are in torch's default layout (in
 * channels_last nothing is reordered). Saturates. */
uint64_t ms__workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                             size_t output_count);

#endif
