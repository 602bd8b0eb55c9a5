/*
 * The AdamW kernels for aarch64. Only
 * adamw_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_ADAMW_TABLE ms__adamw_neon
#define MS_ADAMW_NAME "neon"
#include "techniques/adamw_kernels.h"
