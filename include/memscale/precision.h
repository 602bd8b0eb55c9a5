/*
 * precision.h - the precision of forwards under `use_mixed_precision`, and the scale of a loss with gradients
 * in FP16. Pure functions; any thread. Tests: tests/c/pipeline/test_precision.c.
 */
#ifndef MEMSCALE_PRECISION_H
#define MEMSCALE_PRECISION_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What forwards compute in. */
typedef enum ms_precision {
    MS_PRECISION_AS_IS, /* no autocast */
    MS_PRECISION_BF16,
    MS_PRECISION_FP16, /* with a scaled loss */
} ms_precision;

/* "", "bfloat16" or "float16": torch's name of the dtype. */
MS_API const char *ms_precision_name(ms_precision precision);

/*
 * FP16 has no numbers below 6e-8 nor above 65504. So backward begins with `scale` instead of 1, and gradients
 * are divided by it before they are used. It is always a power of two, so both are exact unless a number
 * under- or overflows. The rule is that of torch.amp.GradScaler: half after a step with non-finite gradients,
 * twice after 2000 finite steps in a row. Unlike there, the scale stays between 1, below which scaling does
 * not help, and 2^40, which keeps every scaled FP32 loss finite.
 */
typedef struct ms_loss_scale {
    double scale;
    uint32_t finite_steps; /* since it changed */
} ms_loss_scale;

/* 65536, and no steps. */
MS_API void ms_loss_scale_default(ms_loss_scale *scale);

/* After a step of the optimizer, or one skipped for a non-finite gradient. */
MS_API void ms_loss_scale_update(ms_loss_scale *scale, bool is_finite);

#ifdef __cplusplus
}
#endif

#endif /* MEMSCALE_PRECISION_H */
