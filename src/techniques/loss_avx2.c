/*
 * The kernels of the loss head for processors with AVX2 and FMA.
 * Only loss_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_LOSS_TABLE ms__loss_avx2
#define MS_LOSS_NAME "avx2"
#include "techniques/loss_kernels.h"
