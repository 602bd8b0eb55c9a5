/*
 * The masks of a GPU as bits: the callbacks of ms_execute_host that pack and unpack them. Python has the operators
 * (memscale/execution/bits.py). Only storages are packed that the trace knows to have two values, and that are saved
 * as truth values: so no value is read.
 */
#include "execute_ext.h"

bool ms_ext_holds_truths(PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, ms_ext_torch()->n_dtype);
    bool are_truths = dtype == ms_ext_torch()->truth;
    PyErr_Clear();
    Py_XDECREF(dtype);
    return are_truths;
}

static void *bits_pack(void *context, void *reference)
{
    const ms_execution *execution = context;
    const ms_memory *memory = reference;
    PyObject *type, *value, *traceback;
    if (!memory->holds_truths) {
        return NULL;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *bits = PyObject_CallFunctionObjArgs(execution->device.bits, memory->strong, NULL);
    PyErr_Clear(); /* such as no memory for the bits: the mask stays */
    PyErr_Restore(type, value, traceback);
    return bits;
}

/* Calls a method of the bits; its exception becomes the error. */
static int bits_call(void *bits, const char *method, PyObject *argument, ms_error *err)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done =
        argument != NULL ? PyObject_CallMethod(bits, method, "O", argument) : PyObject_CallMethod(bits, method, NULL);
    int rc = done != NULL ? MS_OK : ms_ext_fail_with_exception("a mask can't be unpacked", err);
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
    return rc;
}

static int bits_unpack(void *context, void *bits, void *reference, ms_error *err)
{
    (void)context;
    return bits_call(bits, "unpack", ((const ms_memory *)reference)->strong, err);
}

static int bits_order(void *context, void *bits, ms_error *err)
{
    (void)context;
    return bits_call(bits, "order", NULL, err);
}

static void bits_forget(void *context, void *bits)
{
    (void)context;
    Py_DECREF((PyObject *)bits);
}

void ms_ext_bits_callbacks(ms_execute_host *host)
{
    host->pack = bits_pack;
    host->unpack = bits_unpack;
    host->order = bits_order;
    host->forget = bits_forget;
}
