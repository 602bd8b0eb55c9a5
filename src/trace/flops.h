/*
 * Floating-point operations of torch operators, from name and operand shapes: matrix products, convolutions,
 * attention, recurrent layers. Used by the tracer for WORK events. Other operators count 0; their time depends on
 * their bytes.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_FLOPS_H
#define MS_TRACE_FLOPS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.addmm.default") or bare ("addmm"). A multiply and an add are two
 * operations. Saturates; 0 if the operator is not in the table or has unexpected operands. */
uint64_t ms__flops(const char *name, const ms_operand *inputs, size_t input_count, const ms_operand *outputs,
                   size_t output_count);

/* True if the operator is a convolution: it takes none of a matrix product's packing buffers. */
bool ms__is_convolution(const char *name);

#endif
