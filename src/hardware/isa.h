/*
 * isa.h - the instruction sets of MS_ISA_TABLE that this processor and its operating system can run. Used by every
 * room that picks a kernel at run time.
 * Tests: tests/c/hardware/test_hardware.c.
 */
#ifndef MS_HARDWARE_ISA_H
#define MS_HARDWARE_ISA_H

#include "memscale/hardware.h"

/* MS_ISA_... bits. A bit is set only if the operating system also saves the registers. AVX2 means AVX2 with FMA.
 * AMX may still need a request (arch_prctl). Thread-safe; takes a few hundred nanoseconds, so keep the answer. */
uint32_t ms__isa_detect(void);

/* Those of `isa` that fp32 matrix products use. torch's packages for x86 multiply by MKL, which takes AVX-512 on
 * Intel's processors alone: on an AMD EPYC of Zen 5, MKL 2024.0 reaches 115 GFLOP/s a core, half of what AVX-512 would. */
uint32_t ms__isa_of_products(uint32_t isa);

/* The name of one bit ("avx2"), NULL for anything else; the bit of a name, 0 if unknown. */
const char *ms__isa_name(uint32_t bit);
uint32_t ms__isa_from_name(const char *name);

#endif
