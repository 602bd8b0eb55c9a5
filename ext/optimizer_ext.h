/*
 * What the files of the optimizer share: reading a tensor of an update from Python.
 */
#ifndef MS_EXT_OPTIMIZER_H
#define MS_EXT_OPTIMIZER_H

#include "common.h"
#include "memscale/optimizer.h"

/* (weights, moments, count, step, parameter, gradient, extra, exp_avg, exp_avg_sq,
 * max_exp_avg_sq, exp_avg_absmax, exp_avg_sq_absmax), all int, from `parameter` on
 * addresses (0: none). */
int ms_ext_read_adamw_tensor(PyObject *fields, ms_adamw_tensor *tensor);

#endif
