/*
 * The tracer's methods that report the optimizer and when it may use gradients. The table in trace.c lists them.
 */
#include "memscale/optimizer.h"
#include "trace_ext.h"

PyObject *ms_ext_trace_own_optimizer(PyObject *self, PyObject *args)
{
    unsigned long long stream_bytes;
    int released, streamed;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Kpp:own_optimizer", &stream_bytes, &released, &streamed)) {
        return NULL;
    }
    int rc = ms_trace_own_optimizer(trace_of(self), stream_bytes, released != 0, streamed != 0, &err);
    return ms_ext_none_or_raise(rc, &err);
}

PyObject *ms_ext_trace_final_gradient(PyObject *self, PyObject *key)
{
    return ms_ext_trace_tell_one(self, key, "key", ms_trace_final);
}

PyObject *ms_ext_trace_gradients_needed(PyObject *self, PyObject *args)
{
    (void)args;
    ms_error err;
    return ms_ext_none_or_raise(ms_trace_gradients_needed(trace_of(self), &err), &err);
}

PyObject *ms_ext_trace_expect_adamw(PyObject *self, PyObject *args)
{
    unsigned long long elements;
    unsigned int bits;
    int is_split;
    ms_error err;
    if (!PyArg_ParseTuple(args, "KIp:expect_adamw", &elements, &bits, &is_split)) {
        return NULL;
    }
    uint64_t bytes = ms_adamw_state_bytes(elements, bits, is_split != 0);
    return ms_ext_none_or_raise(ms_trace_expect_state(trace_of(self), bytes, &err), &err);
}

PyObject *ms_ext_trace_made_state(PyObject *self, PyObject *bytes)
{
    unsigned long long made_bytes = PyLong_AsUnsignedLongLong(bytes);
    ms_error err;
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    return ms_ext_none_or_raise(ms_trace_made_state(trace_of(self), made_bytes, &err), &err);
}

PyObject *ms_ext_trace_optimizer_unknown(PyObject *self, PyObject *unused)
{
    ms_error err;
    (void)unused;
    return ms_ext_none_or_raise(ms_trace_optimizer_unknown(trace_of(self), &err), &err);
}
