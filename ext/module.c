/*
 * Entry of the extension `memscale._core`.
 */
#include <Python.h>

#include "memscale/base.h"

static PyObject *version(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyUnicode_FromString(ms_version());
}

static PyMethodDef methods[] = {
    {"version", version, METH_NOARGS, "Version of the library."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "memscale._core", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModule_Create(&definition);
}
