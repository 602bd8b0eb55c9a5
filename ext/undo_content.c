/*
 * Copies of what containers and memory hold, and putting them back in place; for notes of an Undo (undo.h) and, through
 * content() and put_content(), for Python. Nothing here runs bytecode, except finalizers of removed items at the end.
 */
#include "undo.h"

#include "rooms.h"

/* Python 3.10's limited API has no newer functions for buffers. These are part of the stable ABI, but headers from 3.13
 * on no longer declare them. */
int PyObject_AsWriteBuffer(PyObject *object, void **bytes, Py_ssize_t *size);
int PyObject_CheckReadBuffer(PyObject *object);
int PyObject_AsReadBuffer(PyObject *object, const void **bytes, Py_ssize_t *size);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static PyObject *ordered_dict;

/* A copy of what a container, or memory, holds; of Python's own class where the user's might run code. */
PyObject *ms_ext_content_of(PyObject *container)
{
    if (PyDict_Check(container)) {
        return PyDict_Copy(container);
    }
    if (PyList_Check(container)) {
        return PyList_GetSlice(container, 0, PyList_Size(container));
    }
    if (PyAnySet_Check(container)) {
        return PySet_New(container);
    }
    if (PyObject_HasAttrString(container, "extend") && PyObject_CheckReadBuffer(container)) { /* bytearray, array */
        return PySequence_GetSlice(container, 0, PySequence_Size(container));
    }
    return PyObject_CheckReadBuffer(container) ? PyBytes_FromObject(container)
                                               : PyObject_CallMethod(container, "copy", NULL);
}

static bool is_same_dict(PyObject *a, PyObject *b)
{
    PyObject *key_a, *key_b, *value_a, *value_b;
    Py_ssize_t at_a = 0, at_b = 0;
    if (PyDict_Size(a) != PyDict_Size(b)) {
        return false;
    }
    while (PyDict_Next(a, &at_a, &key_a, &value_a)) {
        if (!PyDict_Next(b, &at_b, &key_b, &value_b) || key_a != key_b || value_a != value_b) {
            return false;
        }
    }
    return true;
}

static bool is_same_list(PyObject *a, PyObject *b)
{
    Py_ssize_t count = PyList_Size(a);
    if (count != PyList_Size(b)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyList_GetItem(a, i) != PyList_GetItem(b, i)) {
            return false;
        }
    }
    return true;
}

/* Whether the container holds what it held, as far as a glance at it tells. */
static bool is_same(PyObject *container, PyObject *content)
{
    if (PyDict_Check(container)) {
        return is_same_dict(container, content);
    }
    if (PyList_Check(container)) {
        return is_same_list(container, content);
    }
    return PyAnySet_Check(container) && PySet_Size(container) == 0 && PySet_Size(content) == 0;
}

static int call_method(PyObject *object, const char *name, PyObject *argument)
{
    PyObject *done =
        argument != NULL ? PyObject_CallMethod(object, name, "O", argument) : PyObject_CallMethod(object, name, NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

/* Puts back the bytes of a bytearray or an array, which may have another size now, or of a value of ctypes. */
static int refill_memory(PyObject *container, PyObject *content)
{
    void *to;
    const void *from;
    Py_ssize_t to_bytes, from_bytes;
    if (PyObject_AsWriteBuffer(container, &to, &to_bytes) != 0 ||
        PyObject_AsReadBuffer(content, &from, &from_bytes) != 0) {
        return -1;
    }
    if (to_bytes != from_bytes) {
        return PySequence_SetSlice(container, 0, PySequence_Size(container), content);
    }
    memcpy(to, from, (size_t)from_bytes);
    return 0;
}

/* Restores in place, so that every holder of the container sees its old content. */
static int refill(PyObject *container, PyObject *content)
{
    if (PyDict_Check(container)) {
        int is_ordered = PyDict_CheckExact(container) ? 0 : PyObject_IsInstance(container, ordered_dict);
        if (is_ordered < 0) {
            return -1;
        }
        if (is_ordered == 0) {
            PyDict_Clear(container);
            return PyDict_Update(container, content);
        }
        if (call_method(container, "clear", NULL) != 0) { /* it keeps an order of its own */
            return -1;
        }
        PyObject *items = PyDict_Items(content);
        int rc = items != NULL ? 0 : -1;
        for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(items); i++) {
            PyObject *pair = PyList_GetItem(items, i);
            rc = PyObject_SetItem(container, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1));
        }
        Py_XDECREF(items);
        return rc;
    }
    if (PyList_Check(container)) {
        return PyList_SetSlice(container, 0, PyList_Size(container), content);
    }
    if (PyAnySet_Check(container)) {
        int is_same = PyObject_RichCompareBool(container, content, Py_EQ);
        if (is_same != 0) {
            return is_same < 0 ? -1 : 0;
        }
        return call_method(container, "clear", NULL) == 0 ? call_method(container, "update", content) : -1;
    }
    if (PyObject_CheckReadBuffer(container)) {
        return refill_memory(container, content);
    }
    return call_method(container, "clear", NULL) == 0 ? call_method(container, "extend", content) : -1; /* deque */
}

int ms_ext_put_content(PyObject *container, PyObject *content)
{
    if (is_same(container, content)) {
        return 0;
    }
    /* Keeps the removed items until all is restored: finalizers may run Python. */
    PyObject *now = ms_ext_content_of(container);
    if (now == NULL) {
        PyErr_Clear(); /* without memory, they run earlier */
    }
    int rc = refill(container, content);
    Py_XDECREF(now);
    return rc;
}

static PyObject *content(PyObject *module, PyObject *container)
{
    (void)module;
    return ms_ext_content_of(container);
}

static PyObject *put_content(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *container, *content;
    if (!PyArg_ParseTuple(args, "OO:put_content", &container, &content) ||
        ms_ext_put_content(container, content) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("content", content, METH_O, "container, /", "(object) -> Any",
                    "A copy of what a list, dictionary, set, deque, bytearray, array or number of C's holds."),
    MS_EXT_FUNCTION("put_content", put_content, METH_VARARGS, "container, content, /", "(object, object) -> None",
                    "Puts what content() returned back in its place."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_undo_content(PyObject *module)
{
    PyObject *collections = PyImport_ImportModule("collections");
    ordered_dict = collections != NULL ? PyObject_GetAttrString(collections, "OrderedDict") : NULL;
    Py_XDECREF(collections);
    return ordered_dict != NULL ? PyModule_AddFunctions(module, methods) : -1;
}
