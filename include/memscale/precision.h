/*
 * precision.h - what forwards under `use_mixed_precision` compute in, and the scale of a
 * loss whose gradients pass through FP16. Pure functions; any thread.
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
 * FP16 has nothing below 6e-8 and nothing above 65504. Backward begins with `scale` instead
 * of 1, and gradients are divided by it before anyone sees them. It is a power of two at all
 * times, so that both are exact wherever nothing under- or overflows. The rule is that of
 * torch.amp.GradScaler: half after a step whose gradients were not finite, twice after 2000
 * in a row that were. Unlike there it stays between 1, where scaling is no help any more, and
 * 2^40, which keeps every scaled FP32 loss finite.
 */
typedef struct ms_loss_scale {
    double scale;
    uint32_t finite_steps; /* since it changed */
} ms_loss_scale;

/* 65536, and no steps. */
MS_API void ms_loss_scale_default(ms_loss_scale *scale);

/* After a step of the optimizer, or one that was left out because a gradient was not finite. */
MS_API void ms_loss_scale_update(ms_loss_scale *scale, bool is_finite);

#ifdef __cplusplus
}
#endif

#endif /* MEMSCALE_PRECISION_H */
