/*
 * Floating-point operations of torch operators, from their name and the shapes of their operands: matrix products,
 * convolutions, attention, recurrent layers. Used by the tracer for WORK events; other operators count 0, and their
 * time follows from their bytes.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_FLOPS_H
#define MS_TRACE_FLOPS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.addmm.default") or bare ("addmm"). A multiply and an add are two
 * operations. Saturates; 0 for operators outside the table or with unexpected operands. */
uint64_t ms__flops(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                   size_t output_count);

/* True if the operator is a convolution, which has no packing buffers of a matrix product. */
bool ms__is_convolution(const char *name);

#endif
