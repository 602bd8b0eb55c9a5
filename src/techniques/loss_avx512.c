/*
 * The kernels of the loss head for processors with AVX-512.
 * Only loss_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_LOSS_TABLE ms__loss_avx512
#define MS_LOSS_NAME "avx512"
#include "techniques/loss_kernels.h"
