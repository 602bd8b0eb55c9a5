/*
 * The AdamW kernels without vector instructions, the reference for the others. Compiles
 * adamw_kernels.h and nothing else, since the build's flags apply to the whole file.
 */
#define MS_ADAMW_TABLE ms__adamw_plain
#define MS_ADAMW_NAME "plain"
#include "techniques/adamw_kernels.h"
