/*
 * isa.h - which instruction sets of MS_ISA_TABLE this processor and its
 * operating system can run. Every room that picks a kernel at run time asks here.
 */
#ifndef MS_HARDWARE_ISA_H
#define MS_HARDWARE_ISA_H

#include "memscale/hardware.h"

/* MS_ISA_... bits. A bit is set only where the operating system saves the
 * registers too. AVX2 stands for AVX2 with FMA. AMX may still have to be asked
 * for (arch_prctl). Thread-safe; a few hundred nanoseconds: keep the answer. */
uint32_t ms__isa_detect(void);

/* Name of one bit ("avx2"), NULL for anything else; and back, 0 if unknown. */
const char *ms__isa_name(uint32_t bit);
uint32_t ms__isa_from_name(const char *name);

#endif
