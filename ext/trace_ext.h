/*
 * Shared by the tracer's files: the object, and the methods in trace_operators.c and trace_optimizer.c,
 * which the table in trace.c lists.
 */
#ifndef MS_EXT_TRACE_EXT_H
#define MS_EXT_TRACE_EXT_H

#include "common.h"

#include "memscale/trace.h"

typedef struct trace_object {
    PyObject_HEAD ms_trace *trace;
} trace_object;

static inline ms_trace *trace_of(PyObject *self)
{
    return ((trace_object *)self)->trace;
}

/* A method that passes one number on and returns None. `what` is for the error message. */
PyObject *ms_ext_trace_tell_one(PyObject *self, PyObject *given, const char *what,
                                int (*told)(ms_trace *, uint64_t, ms_error *));
PyObject *ms_ext_trace_op(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ms_ext_trace_moves(PyObject *self, PyObject *bytes);
PyObject *ms_ext_trace_made(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *ms_ext_trace_wrote(PyObject *self, PyObject *key);
PyObject *ms_ext_trace_own_optimizer(PyObject *self, PyObject *args);
PyObject *ms_ext_trace_final_gradient(PyObject *self, PyObject *key);
PyObject *ms_ext_trace_gradients_needed(PyObject *self, PyObject *args);
PyObject *ms_ext_trace_expect_adamw(PyObject *self, PyObject *args);
PyObject *ms_ext_trace_made_state(PyObject *self, PyObject *bytes);

PyObject *ms_ext_trace_optimizer_unknown(PyObject *self, PyObject *unused);
PyObject *ms_ext_trace_input(PyObject *self, PyObject *key);

#endif
