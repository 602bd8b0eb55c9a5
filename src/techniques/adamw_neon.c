/*
 * The AdamW kernels for aarch64. Compiles adamw_kernels.h and nothing else, since the build's flags
 * apply to the whole file.
 */
#define MS_ADAMW_TABLE ms__adamw_neon
#define MS_ADAMW_NAME "neon"
#include "techniques/adamw_kernels.h"
