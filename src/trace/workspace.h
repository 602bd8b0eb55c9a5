/*
 * Memory that operators take on a CPU beside operands and results: convolutions, which oneDNN computes in its own layouts,
 * and the operators of a table (recurrent layers, sorting, linear algebra, arithmetic of two types). Others count 0. Used by the
 * tracer, and by bench/workspaces.py, which measures them.
 * Tests: tests/c/trace/test_workspace.c.
 */
#ifndef MS_TRACE_WORKSPACE_H
#define MS_TRACE_WORKSPACE_H

#include "memscale/trace.h"

/* ms_workspace_bytes() on a CPU, without copies of operands: of `copied`, only the bits about convolutions count. */
uint64_t ms__workspace_bytes(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                             size_t output_count, uint32_t copied);

#endif
