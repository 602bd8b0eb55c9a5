/*
 * The tracer's methods that report the optimizer. The table in trace.c lists them.
 */
#include "memscale/optimizer.h"
#include "trace_ext.h"

PyObject *ms_ext_trace_own_optimizer(PyObject *self, PyObject *args)
{
    unsigned long long stream_bytes;
    int released, streamed, needed;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Kppp:own_optimizer", &stream_bytes, &released, &streamed, &needed)) {
        return NULL;
    }
    int rc = ms_trace_own_optimizer(trace_of(self), stream_bytes, released != 0, streamed != 0, needed != 0, &err);
    return ms_ext_none_or_raise(rc, &err);
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
