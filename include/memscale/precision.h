/*
 * precision.h - the precision of forwards under `use_mixed_precision`, and the scale of a loss with gradients
 * in FP16. Pure functions; any thread. Tests: tests/c/pipeline/test_precision.c.
 */
#ifndef MEMSCALE_PRECISION_H
#define MEMSCALE_PRECISION_H

#include "memscale/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "", "bfloat16" or "float16": torch's name of the dtype. */
MS_API const char *ms_precision_name(ms_precision precision);

/*
 * FP16 has no numbers below 6e-8 or above 65504. So backward begins with `scale` instead of 1, and gradients
 * are divided by it before they are used. The scale is a power of two, so both are exact unless a number
 * under- or overflows. As in torch.amp.GradScaler, it halves after a step with non-finite gradients and
 * doubles after 2000 finite steps in a row. Unlike there, it stays between 1, below which scaling does not
 * help, and 2^40, which keeps every scaled FP32 loss finite.
 */
typedef struct ms_loss_scale {
    double scale;
    uint32_t finite_steps; /* since it changed */
} ms_loss_scale;

/* Sets scale 65536 and 0 steps. */
MS_API void ms_loss_scale_default(ms_loss_scale *scale);

/* Call it after a step of the optimizer, or a step skipped because of a non-finite gradient. */
MS_API void ms_loss_scale_update(ms_loss_scale *scale, bool is_finite);

#ifdef __cplusplus
}
#endif

#endif /* MEMSCALE_PRECISION_H */
