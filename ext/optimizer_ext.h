/*
 * Shared by the optimizer's files: reads a tensor of an update, or the form of a state, from Python.
 */
#ifndef MS_EXT_OPTIMIZER_H
#define MS_EXT_OPTIMIZER_H

#include "common.h"
#include "memscale/optimizer_stream.h"

/* Reads the tuple (weights, moments, count, step, parameter, gradient, extra, exp_avg, exp_avg_sq, max_exp_avg_sq,
 * exp_avg_absmax, exp_avg_sq_absmax) of int. From `parameter` on they are addresses (0: none). */
int ms_ext_read_adamw_tensor(PyObject *fields, ms_adamw_tensor *tensor);

/* Reads the tuple (weights, moments, has_max_exp_avg_sq, count). */
int ms_ext_read_optimizer_form(PyObject *fields, ms_optimizer_form *form);

#endif
