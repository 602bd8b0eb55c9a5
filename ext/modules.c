/*
 * Walks a tree of modules. torch's `parameters()` and `buffers()` are generators in Python; they take 2 to 3 us for each
 * module, and the executor needs the tensors several times in every step.
 */
#include "common.h"
#include "rooms.h"

typedef struct walk {
    uintptr_t *seen; /* a hash table of addresses: modules and tensors that several names share come once; 0: free */
    size_t room, count;
    PyObject *found; /* list */
    PyObject *tables[2];
} walk;

static PyObject *n_dict, *n_parameters, *n_buffers, *n_modules;

/* The address's place, or the free one that it would take. */
static size_t place_of(const uintptr_t *seen, size_t room, uintptr_t address)
{
    size_t at = (size_t)(((uint64_t)address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32) % room;
    while (seen[at] != 0 && seen[at] != address) {
        at = (at + 1) % room;
    }
    return at;
}

static int make_room(walk *w)
{
    size_t room = w->room > 0 ? 4 * w->room : 1024;
    uintptr_t *seen = ms_calloc(room, sizeof *seen);
    if (seen == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < w->room; i++) {
        if (w->seen[i] != 0) {
            seen[place_of(seen, room, w->seen[i])] = w->seen[i];
        }
    }
    ms_free(w->seen);
    w->seen = seen;
    w->room = room;
    return 0;
}

/* 1 if the object was met before, 0 if not, -1 with an exception. */
static int meet(walk *w, PyObject *object)
{
    if (2 * w->count >= w->room && make_room(w) != 0) {
        return -1;
    }
    uintptr_t *place = &w->seen[place_of(w->seen, w->room, (uintptr_t)object)];
    if (*place != 0) {
        return 1;
    }
    *place = (uintptr_t)object;
    w->count++;
    return 0;
}

static int add_tensors(walk *w, PyObject *table)
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
static PyObject *dict_of(PyObject *module, PyObject *name)
{
    PyObject *attributes = PyObject_GetAttr(module, n_dict); /* a look-up through the class takes four times as long */
    PyObject *table = attributes != NULL ? PyDict_GetItemWithError(attributes, name) : NULL;
    Py_XINCREF(table);
    Py_XDECREF(attributes);
    if (table == NULL && !PyErr_Occurred()) {
        table = PyObject_GetAttr(module, name);
    }
    if (table != NULL && !PyDict_Check(table)) {
        PyErr_Format(PyExc_TypeError, "a module's %U is not a dict", name);
        Py_CLEAR(table);
    }
    return table;
}

static int walk_module(walk *w, PyObject *module);

static int walk_children(walk *w, PyObject *module)
{
    PyObject *children = dict_of(module, n_modules), *name, *child;
    int rc = children != NULL ? 0 : -1;
    for (Py_ssize_t at = 0; rc == 0 && PyDict_Next(children, &at, &name, &child);) {
        rc = child != Py_None ? walk_module(w, child) : 0;
    }
    Py_XDECREF(children);
    return rc;
}

static int walk_module(walk *w, PyObject *module)
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

/* As walk_module(), for the modules themselves. */
static int list_modules(walk *w, PyObject *module)
{
    int known = meet(w, module);
    if (known != 0 || PyList_Append(w->found, module) != 0) {
        return known > 0 ? 0 : -1;
    }
    PyObject *children = dict_of(module, n_modules), *name, *child;
    int rc = children != NULL && Py_EnterRecursiveCall(" in module_list") == 0 ? 0 : -1;
    bool has_entered = rc == 0;
    for (Py_ssize_t at = 0; rc == 0 && PyDict_Next(children, &at, &name, &child);) {
        rc = child != Py_None ? list_modules(w, child) : 0;
    }
    if (has_entered) {
        Py_LeaveRecursiveCall();
    }
    Py_XDECREF(children);
    return rc;
}

static PyObject *module_list(PyObject *module, PyObject *root)
{
    (void)module;
    walk w = {.found = PyList_New(0)};
    if (w.found == NULL || list_modules(&w, root) != 0) {
        Py_CLEAR(w.found);
    }
    ms_free(w.seen);
    return w.found;
}

static PyObject *module_tensors(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *root;
    int with_buffers;
    if (!PyArg_ParseTuple(args, "Op:module_tensors", &root, &with_buffers)) {
        return NULL;
    }
    walk w = {.found = PyList_New(0), .tables = {n_parameters, with_buffers ? n_buffers : NULL}};
    if (w.found == NULL || walk_module(&w, root) != 0) {
        Py_CLEAR(w.found);
    }
    ms_free(w.seen);
    return w.found;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("module_list", module_list, METH_O, "root, /", "(Any) -> list[Any]",
                    "The module `root` and those below it, in torch's order, each once. TypeError if one keeps its "
                    "children in anything but a dict."),
    MS_EXT_FUNCTION(
        "module_tensors", module_tensors, METH_VARARGS, "root, with_buffers, /", "(Any, bool) -> list[Any]",
        "The parameters of the module `root` and of those below it, in torch's order, each once; with their buffers, "
        "if asked for. TypeError if one keeps them in anything but dicts."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_modules(PyObject *module)
{
    n_dict = PyUnicode_InternFromString("__dict__");
    n_parameters = PyUnicode_InternFromString("_parameters");
    n_buffers = PyUnicode_InternFromString("_buffers");
    n_modules = PyUnicode_InternFromString("_modules");
    if (n_dict == NULL || n_parameters == NULL || n_buffers == NULL || n_modules == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
