/*
 * The number of random numbers that a torch operator draws, from its name and the shapes of its results. Used by the
 * tracer for WORK events: a CPU draws them one by one, so their time does not depend on operations or bytes.
 * Tests: tests/c/trace/test_flops.c.
 */
#ifndef MS_TRACE_DRAWS_H
#define MS_TRACE_DRAWS_H

#include "memscale/trace.h"

/* `name` as torch prints it ("aten.bernoulli_.float") or bare. One number for each element
 * of the first output; 0 if the operator is not random. */
uint64_t ms__draws(const char *name, const ms_operand *outputs, size_t output_count);

#endif
