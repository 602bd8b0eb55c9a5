/*
 * optimizer.h - the update of an optimizer on the CPU: AdamW over fp32 and bf16
 * parameters, with moments in fp32 or in 8 bits, one pass over memory.
 *
 * The same inputs give the same bits on every instruction set, with any number of threads and at
 * every place of a tensor: each element is computed by the same correctly rounded operations in
 * the same order, products and sums fused as in torch's for-loop AdamW. Only the sign and payload
 * of NaNs are unspecified.
 *
 * Compared with torch.optim.AdamW (not fused, AVX2 or wider), with fp32 moments: exp_avg,
 * exp_avg_sq and max_exp_avg_sq have the same bits. A parameter differs by at most one unit in its
 * own last place plus five in the last place of the step's change to it, because torch's square
 * root may be one unit off, and torch divides instead of multiplying by the reciprocal.
 *
 * Tests: tests/c/techniques/test_adamw.c, test_quantize8.c.
 */
#ifndef MEMSCALE_OPTIMIZER_H
#define MEMSCALE_OPTIMIZER_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The representation of a parameter. */
typedef enum ms_adamw_weights {
    MS_ADAMW_FP32,        /* float */
    MS_ADAMW_BF16_MASTER, /* bf16, rounded to nearest even from a float master. If other code has
                             changed an element, the master takes over its value. */
    MS_ADAMW_BF16_SPLIT,  /* a float's bits = (bf16 << 16) + low, with 16 signed bits `low`: the
                             bf16 is the float rounded to nearest, ties away from zero. If other code
                             has set an element to zero or infinity, low bits that would make it NaN
                             are ignored. */
    MS_ADAMW_WEIGHTS_COUNT
} ms_adamw_weights;

/* The representation of the moments. */
typedef enum ms_adamw_moments {
    MS_ADAMW_MOMENTS_FP32, /* float */
    MS_ADAMW_MOMENTS_8BIT, /* an 8-bit code per element, and a float per block of MS_ADAMW_BLOCK
                              elements: the block's largest magnitude */
    MS_ADAMW_MOMENTS_COUNT
} ms_adamw_moments;

enum {
    MS_ADAMW_BLOCK = 256,
    /* Smaller tensors keep fp32 moments, as in bitsandbytes: their bytes hardly matter, and biases
     * and norms suffer most from rounding. */
    MS_ADAMW_8BIT_LEAST_ELEMENTS = 4096,
};

/* The settings of one group of parameters. Doubles become floats at the same points as in torch. */
typedef struct ms_adamw_group {
    double lr;           /* >= 0 */
    double beta1, beta2; /* [0, 1) */
    double eps;          /* >= 0 */
    double weight_decay; /* >= 0, decoupled */
    double grad_scale;   /* gradients are divided by it and written back; 1: unchanged */
    bool maximize;
} ms_adamw_group;

/* One tensor of the update. The caller owns the arrays. They do not overlap, and hold `count`
 * elements unless said otherwise. */
typedef struct ms_adamw_tensor {
    ms_adamw_weights weights;
    ms_adamw_moments moments;
    uint64_t count; /* 0 is allowed */
    uint64_t step;  /* number of this update, from 1 */
    void *parameter; /* float or bf16 */
    void *gradient;  /* same type as the parameter; written only if grad_scale is not 1 */
    void *extra;     /* float master or int16_t low bits; NULL for MS_ADAMW_FP32 */
    void *exp_avg;   /* float, or uint8_t codes of the signed map */
    void *exp_avg_sq; /* float, or uint8_t codes of the unsigned map */
    float *max_exp_avg_sq;    /* for amsgrad, else NULL; not with 8 bits */
    float *exp_avg_absmax;    /* with 8 bits: one per block, the last one may be short */
    float *exp_avg_sq_absmax; /* the same */
} ms_adamw_tensor;

/*
 * One AdamW update of all the tensors. During the call up to `threads` - 1 other threads help (0
 * counts as 1); fewer if the work is small or threads can't be started. All checks and
 * allocations come before the first write: MS_EINVAL names the tensor by its index, MS_ENOMEM.
 *
 * NaN and infinite gradients go through the formula as in torch. With 8-bit moments they spoil
 * their block of 256, not only their element.
 */
MS_API int ms_adamw_step(const ms_adamw_group *group, const ms_adamw_tensor *tensors, size_t count, uint32_t threads,
                         ms_error *err);

/* The moments of a tensor of `elements` if moments of `bits` were requested. MS_EINVAL if `bits` is
 * neither 8 nor 32. */
MS_API int ms_adamw_choose_moments(uint64_t elements, uint32_t bits, ms_adamw_moments *out, ms_error *err);

/* Bytes of a tensor's state with moments of `bits` (8 or 32); with `is_split`, also the 16 low bits of each element of
 * a bf16 parameter. */
MS_API uint64_t ms_adamw_state_bytes(uint64_t elements, uint32_t bits, bool is_split);

/*
 * Convert between values and 8-bit codes, for converting states. `is_signed` chooses the map: signed
 * for the first moment, unsigned for the second. A code is the map's nearest value, ties towards
 * zero. But a positive second moment never becomes zero: a step would then divide by eps alone.
 */
MS_API int ms_adamw_quantize(const float *values, uint64_t count, bool is_signed, uint8_t *codes, float *absmax,
                             ms_error *err);
MS_API int ms_adamw_dequantize(const uint8_t *codes, const float *absmax, uint64_t count, bool is_signed, float *values,
                               ms_error *err);

/* The 256 values of a map, ascending; never freed. */
MS_API const float *ms_adamw_map(bool is_signed);

#ifdef __cplusplus
}
#endif

#endif
