/*
 * The logistic function of many fp32 numbers, one kernel per instruction set. Like most functions of neural networks it
 * takes an exponential (reduction, polynomial, scaling) and a division. rates.c times it; its results are not used.
 */
#include "hardware/evaluate_kernel.h"

#include "hardware/isa.h"

#if defined(__GNUC__) && !defined(__clang__)
/* The analyzer of GCC 12 takes the width of a vector's shift for that of an int. */
#pragma GCC diagnostic ignored "-Wanalyzer-shift-count-overflow"
#endif

#define DEFINE_KERNEL(NAME, TARGET, LANES) \
    typedef float NAME##_floats __attribute__((vector_size((LANES) * 4))); \
    typedef int32_t NAME##_ints __attribute__((vector_size((LANES) * 4))); \
    TARGET static void NAME(float *values) \
    { \
        NAME##_floats *x = (NAME##_floats *)values; \
        for (int i = 0; i < MS__EVALUATE_FLOATS / (LANES); i++) { \
            NAME##_floats scaled = x[i] * -1.4426950f; \
            NAME##_ints whole = __builtin_convertvector(scaled, NAME##_ints); \
            NAME##_floats rest = scaled - __builtin_convertvector(whole, NAME##_floats); \
            NAME##_floats power = rest * 0.0013333558f + 0.0096181291f; \
            power = power * rest + 0.0555041087f; \
            power = power * rest + 0.2402265070f; \
            power = power * rest + 0.6931471806f; \
            power = power * rest + 1.0f; \
            NAME##_floats scale = (NAME##_floats)((whole + 127) << 23); \
            x[i] = 1.0f / (1.0f + power * scale); \
        } \
    }

#if defined(__x86_64__)
DEFINE_KERNEL(evaluate_avx512, __attribute__((target("avx512f"))), 16)
DEFINE_KERNEL(evaluate_avx2, __attribute__((target("avx2,fma"))), 8)
#endif
/* SSE2, which every x86-64 has; NEON; any other target of GCC. */
DEFINE_KERNEL(evaluate_plain, , 4)

void (*ms__evaluate_kernel_for(uint32_t isa))(float *values)
{
    (void)isa;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX512F) {
        return evaluate_avx512;
    }
    if (isa & MS_ISA_AVX2) {
        return evaluate_avx2;
    }
#endif
    return evaluate_plain;
}
