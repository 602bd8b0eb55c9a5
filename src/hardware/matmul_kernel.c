/*
 * The register-blocked inner loop of an fp32 matrix product, one function per instruction set. It has ROWS x VECTORS
 * accumulators; each step does one multiply-add in each. rates.c times it; its results are not used.
 */
#include "hardware/matmul_kernel.h"

#include "hardware/isa.h"

enum { DEPTH = 256 };

/* Accumulators stay in registers only if every loop over them is unrolled. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define DEFINE_KERNEL(NAME, TARGET, VECTOR, LANES, ROWS, VECTORS, LOAD, STORE, SPREAD, MULTIPLY_ADD) \
    enum { NAME##_flops = 2 * DEPTH * (ROWS) * (VECTORS) * (LANES) }; \
    TARGET static void NAME(const float *a, const float *b, float *tile) \
    { \
        VECTOR sum[ROWS][VECTORS]; \
        UNROLL for (int r = 0; r < (ROWS); r++) \
        { \
            UNROLL for (int v = 0; v < (VECTORS); v++) sum[r][v] = SPREAD(0.0f); \
        } \
        for (int k = 0; k < DEPTH; k++, a += (ROWS), b += (VECTORS) * (LANES)) { \
            VECTOR column[VECTORS]; \
            UNROLL for (int v = 0; v < (VECTORS); v++) column[v] = LOAD(b + v * (LANES)); \
            UNROLL for (int r = 0; r < (ROWS); r++) \
            { \
                VECTOR row = SPREAD(a[r]); \
                UNROLL for (int v = 0; v < (VECTORS); v++) sum[r][v] = MULTIPLY_ADD(row, column[v], sum[r][v]); \
            } \
        } \
        UNROLL for (int r = 0; r < (ROWS); r++) \
        { \
            UNROLL for (int v = 0; v < (VECTORS); v++) STORE(tile + (r * (VECTORS) + v) * (LANES), sum[r][v]); \
        } \
    }

#if defined(__x86_64__)
#include <immintrin.h>

DEFINE_KERNEL(kernel_avx512, __attribute__((target("avx512f"))), __m512, 16, 12, 2, _mm512_load_ps, _mm512_store_ps,
              _mm512_set1_ps, _mm512_fmadd_ps)
DEFINE_KERNEL(kernel_avx2, __attribute__((target("avx2,fma"))), __m256, 8, 6, 2, _mm256_load_ps, _mm256_store_ps,
              _mm256_set1_ps, _mm256_fmadd_ps)
#endif

#if defined(__aarch64__)
#include <arm_neon.h>

#define NEON_MULTIPLY_ADD(x, y, sum) vfmaq_f32(sum, x, y)
DEFINE_KERNEL(kernel_neon, , float32x4_t, 4, 8, 3, vld1q_f32, vst1q_f32, vdupq_n_f32, NEON_MULTIPLY_ADD)
#else

/* SSE2, which every x86-64 has, and any other target of GCC. */
typedef float vector4 __attribute__((vector_size(16)));
#define VECTOR4_LOAD(p) (*(const vector4 *)(p))
#define VECTOR4_STORE(p, x) (*(vector4 *)(p) = (x))
#define VECTOR4_SPREAD(x) ((vector4){(x), (x), (x), (x)})
#define VECTOR4_MULTIPLY_ADD(x, y, sum) ((x) * (y) + (sum))
DEFINE_KERNEL(kernel_plain, , vector4, 4, 6, 2, VECTOR4_LOAD, VECTOR4_STORE, VECTOR4_SPREAD, VECTOR4_MULTIPLY_ADD)
#endif

ms__matmul_kernel ms__matmul_kernel_for(uint32_t isa)
{
    (void)isa;
#if defined(__x86_64__)
    if (isa & MS_ISA_AVX512F) {
        return (ms__matmul_kernel){kernel_avx512, kernel_avx512_flops};
    }
    if (isa & MS_ISA_AVX2) {
        return (ms__matmul_kernel){kernel_avx2, kernel_avx2_flops};
    }
#endif
#if defined(__aarch64__)
    return (ms__matmul_kernel){kernel_neon, kernel_neon_flops};
#else
    return (ms__matmul_kernel){kernel_plain, kernel_plain_flops};
#endif
}
