/*
 * The loss head's kernels without vector instructions, the reference for the others. Compiles
 * loss_kernels.h and nothing else, since the build's flags apply to the whole file.
 */
#define MS_LOSS_TABLE ms__loss_plain
#define MS_LOSS_NAME "plain"
#include "techniques/loss_kernels.h"
