/*
 * The kernels of the loss head without vector instructions, the reference of the others.
 * Only loss_kernels.h is compiled here: the build's flags would reach anything else.
 */
#define MS_LOSS_TABLE ms__loss_plain
#define MS_LOSS_NAME "plain"
#include "techniques/loss_kernels.h"
