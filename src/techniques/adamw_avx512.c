/*
 * The AdamW kernels for processors with AVX-512. Only
 * adamw_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_ADAMW_TABLE ms__adamw_avx512
#define MS_ADAMW_NAME "avx512"
#include "techniques/adamw_kernels.h"
