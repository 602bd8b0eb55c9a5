/*
 * The AdamW kernels without vector instructions, the reference of the others. Only
 * adamw_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_ADAMW_TABLE ms__adamw_plain
#define MS_ADAMW_NAME "plain"
#include "techniques/adamw_kernels.h"
