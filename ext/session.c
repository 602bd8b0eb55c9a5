/*
 * What core/session.py asks of the library: the process's place in a hardware
 * description, and whether one plan serves other shapes.
 */
#include "common.h"
#include "memscale/hardware.h"
#include "memscale/graph.h"
#include "rooms.h"

static PyObject *hardware_set_process(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    int device;
    unsigned long long allocated_bytes;
    if (!PyArg_ParseTuple(args, "siK:hardware_set_process", &json, &device, &allocated_bytes)) {
        return NULL;
    }
    ms_error err;
    int rc = MS_OK;
    char *text = NULL;
    ms_hardware *hardware = ms_malloc(sizeof *hardware);
    if (hardware == NULL) {
        return PyErr_NoMemory();
    }
    rc = ms_hardware_parse(json, hardware, &err);
    if (rc == MS_OK) {
        rc = ms_hardware_set_process(hardware, device, allocated_bytes, &err);
    }
    if (rc == MS_OK) {
        text = ms_hardware_to_json(hardware);
    }
    ms_free(hardware);
    return rc == MS_OK ? ms_ext_take_text(text) : ms_ext_raise(&err);
}

static PyObject *signature_covers(PyObject *module, PyObject *args)
{
    (void)module;
    const char *larger, *smaller;
    if (!PyArg_ParseTuple(args, "ss:signature_covers", &larger, &smaller)) {
        return NULL;
    }
    return PyBool_FromLong(ms_signature_covers(larger, smaller));
}

static PyMethodDef methods[] = {
    {"hardware_set_process", hardware_set_process, METH_VARARGS,
     "hardware_set_process(hardware, device, allocated_bytes) -> str: the description with this "
     "process's baseline; device -1 is the CPU, whose resident memory is measured."},
    {"signature_covers", signature_covers, METH_VARARGS,
     "signature_covers(larger, smaller) -> bool: whether a plan for the one serves the other."},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_session(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
