/*
 * The AdamW kernels for processors with AVX2 and FMA. Only
 * adamw_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_ADAMW_TABLE ms__adamw_avx2
#define MS_ADAMW_NAME "avx2"
#include "techniques/adamw_kernels.h"
