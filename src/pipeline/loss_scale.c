/* The scale of a loss with gradients in FP16, step by step. */
#include "memscale/precision.h"

enum { FINITE_STEPS_TO_GROW = 2000 };
static const double FIRST_SCALE = 0x1p16, LEAST_SCALE = 1, MOST_SCALE = 0x1p40;

void ms_loss_scale_default(ms_loss_scale *scale)
{
    *scale = (ms_loss_scale){.scale = FIRST_SCALE};
}

static double within_bounds(double scale)
{
    return scale < LEAST_SCALE ? LEAST_SCALE : scale > MOST_SCALE ? MOST_SCALE : scale;
}

void ms_loss_scale_update(ms_loss_scale *scale, bool is_finite)
{
    if (!is_finite) {
        *scale = (ms_loss_scale){.scale = within_bounds(scale->scale / 2)};
    } else if (++scale->finite_steps == FINITE_STEPS_TO_GROW) {
        *scale = (ms_loss_scale){.scale = within_bounds(scale->scale * 2)};
    }
}
