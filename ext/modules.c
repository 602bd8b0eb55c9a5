/*
 * Walks a tree of modules. torch's `parameters()` and `buffers()` are generators in Python; they take 2 to 3 us for each
 * module, and the executor needs the tensors several times in every step.
 */
#include "common.h"
#include "rooms.h"

typedef struct walk {
    PyObject *seen;  /* set of addresses: modules and tensors that several names share come once */
    PyObject *found; /* list */
    const char *tables[2];
} walk;

/* 1 if the object was met before, 0 if not, -1 with an exception. */
static int meet(const walk *w, PyObject *object)
{
    PyObject *address = PyLong_FromVoidPtr(object);
    int known = address != NULL ? PySet_Contains(w->seen, address) : -1;
    if (known == 0 && PySet_Add(w->seen, address) != 0) {
        known = -1;
    }
    Py_XDECREF(address);
    return known;
}

static int add_tensors(const walk *w, PyObject *table)
{
    PyObject *name, *tensor;
    for (Py_ssize_t at = 0; PyDict_Next(table, &at, &name, &tensor);) {
        int known = tensor != Py_None ? meet(w, tensor) : 1;
        if (known < 0 || (known == 0 && PyList_Append(w->found, tensor) != 0)) {
            return -1;
        }
    }
    return 0;
}

/* An attribute that torch makes a dict. A new reference; NULL with TypeError if it is anything else. */
static PyObject *dict_of(PyObject *module, const char *name)
{
    PyObject *table = PyObject_GetAttrString(module, name);
    if (table != NULL && !PyDict_Check(table)) {
        PyErr_Format(PyExc_TypeError, "module_tensors: %s is no dict", name);
        Py_CLEAR(table);
    }
    return table;
}

static int walk_module(const walk *w, PyObject *module);

static int walk_children(const walk *w, PyObject *module)
{
    PyObject *children = dict_of(module, "_modules"), *name, *child;
    int rc = children != NULL ? 0 : -1;
    for (Py_ssize_t at = 0; rc == 0 && PyDict_Next(children, &at, &name, &child);) {
        rc = child != Py_None ? walk_module(w, child) : 0;
    }
    Py_XDECREF(children);
    return rc;
}

static int walk_module(const walk *w, PyObject *module)
{
    int known = meet(w, module);
    int rc = known < 0 ? -1 : 0;
    for (int i = 0; known == 0 && rc == 0 && i < 2 && w->tables[i] != NULL; i++) {
        PyObject *table = dict_of(module, w->tables[i]);
        rc = table != NULL ? add_tensors(w, table) : -1;
        Py_XDECREF(table);
    }
    if (known != 0 || rc != 0 || Py_EnterRecursiveCall(" in module_tensors") != 0) {
        return known == 1 ? 0 : -1;
    }
    rc = walk_children(w, module);
    Py_LeaveRecursiveCall();
    return rc;
}

static PyObject *module_tensors(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *root;
    int with_buffers;
    if (!PyArg_ParseTuple(args, "Op:module_tensors", &root, &with_buffers)) {
        return NULL;
    }
    walk w = {PySet_New(NULL), PyList_New(0), {"_parameters", with_buffers ? "_buffers" : NULL}};
    if (w.seen == NULL || w.found == NULL || walk_module(&w, root) != 0) {
        Py_CLEAR(w.found);
    }
    Py_XDECREF(w.seen);
    return w.found;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "module_tensors", module_tensors, METH_VARARGS, "root, with_buffers, /", "(Any, bool) -> list[Any]",
        "The parameters of the module `root` and of those below it, in torch's order, each once; with their buffers, "
        "if asked for. TypeError if one keeps them in anything but dicts."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_modules(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
