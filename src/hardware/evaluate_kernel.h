/*
 * evaluate_kernel.h - an elementary function of many numbers, for measuring how many of
 * such a CPU computes. Not for computing anything.
 */
#ifndef MS_HARDWARE_EVALUATE_KERNEL_H
#define MS_HARDWARE_EVALUATE_KERNEL_H

#include <stdint.h>

/* Numbers that one call replaces by the function's values, 64-byte aligned. They fit the
 * first-level cache. */
enum { MS__EVALUATE_FLOATS = 2048 };

/* The fastest kernel for these MS_ISA_... bits. */
void (*ms__evaluate_kernel_for(uint32_t isa))(float *values);

#endif
