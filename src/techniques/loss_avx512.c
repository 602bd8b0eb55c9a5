/*
 * The loss head's kernels for processors with AVX-512. Compiles loss_kernels.h and nothing else,
 * since the build's flags apply to the whole file.
 */
#define MS_LOSS_TABLE ms__loss_avx512
#define MS_LOSS_NAME "avx512"
#include "techniques/loss_kernels.h"
