/*
 * The kernels of the loss head for aarch64.
 * Only loss_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_LOSS_TABLE ms__loss_neon
#define MS_LOSS_NAME "neon"
#include "techniques/loss_kernels.h"
