/*
 * The AdamW kernels for processors with AVX2 and FMA. Compiles adamw_kernels.h and nothing else,
 * since the build's flags apply to the whole file.
 */
#define MS_ADAMW_TABLE ms__adamw_avx2
#define MS_ADAMW_NAME "avx2"
#include "techniques/adamw_kernels.h"
