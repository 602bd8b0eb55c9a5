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

/*
 * Bytes of the buffers that an operator takes from libc if its images are unfolded (MS_WORKSPACE_UNFOLDS), on `threads`
 * threads: each multiplies the columns of one image at a time, in a buffer of the image's type and one of fp32. With
 * channels_last images only the first exists, so this is a bound. Measured with torch 2.13. libc's heaps keep buffers below
 * 32 MiB. Saturates.
 */
uint64_t ms__libc_buffers(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                          size_t output_count, uint32_t copied, uint32_t threads);

/* The part of ms__workspace_bytes() that libc may keep after the operator: oneDNN takes the memory of recurrent layers
 * from libc. */
uint64_t ms__libc_share_bytes(const char *name, const ms_operand *inputs, size_t input_count);

#endif
