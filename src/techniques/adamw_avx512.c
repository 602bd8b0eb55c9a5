/*
 * The AdamW kernels for processors with AVX-512. Compiles adamw_kernels.h and nothing else, since
 * the build's flags apply to the whole file.
 */
#define MS_ADAMW_TABLE ms__adamw_avx512
#define MS_ADAMW_NAME "avx512"
#include "techniques/adamw_kernels.h"
