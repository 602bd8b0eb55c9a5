/*
 * evaluate_kernel.h - an elementary function of many numbers, only for measuring a CPU's rate.
 * Tests: tests/c/hardware/test_hardware.c.
 */
#ifndef MS_HARDWARE_EVALUATE_KERNEL_H
#define MS_HARDWARE_EVALUATE_KERNEL_H

#include <stdint.h>

/* The number of values that one call replaces, in a 64-byte aligned array. They fit the first-level cache. */
enum { MS__EVALUATE_FLOATS = 2048 };

/* The fastest kernel for these MS_ISA_... bits. */
void (*ms__evaluate_kernel_for(uint32_t isa))(float *values);

#endif
