/*
 * The loss head's kernels for aarch64. Compiles loss_kernels.h and nothing else, since the build's
 * flags apply to the whole file.
 */
#define MS_LOSS_TABLE ms__loss_neon
#define MS_LOSS_NAME "neon"
#include "techniques/loss_kernels.h"
