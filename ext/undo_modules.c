/*
 * Notes all that a replay may change in the attributes of modules: which values they have, and what plain containers
 * and objects among them hold. See note_modules() below; execution/module_state.py says why.
 *
 * The walk passes some hundreds of values for a block of a transformer, nearly all of which are scalars, empty
 * containers of torch's own, or objects of closed packages. Python is asked only about classes that are none of these.
 */
#include "rooms.h"
#include "snapshot.h"
#include "undo.h"

enum { LARGE = 4096 }; /* items: as _LARGE of module_state.py */

static PyTypeObject *container_types[4]; /* OrderedDict, defaultdict, Counter, deque */

typedef struct noting {
    PyObject *undo;
    PyObject *quiet; /* set: types whose objects are not searched */
    PyObject *is_container, *is_open;
    PyObject *empty; /* list: the containers that were empty; NULL at first */
    PyObject *seen;  /* set: addresses of objects that were noted, which several modules share; NULL at first */
} noting;

static int truth_of(PyObject *answer)
{
    int is_true = answer != NULL ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return is_true;
}

static int is_container(const noting *how, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyDict_Type || type == &PyList_Type || type == &PySet_Type) {
        return 1;
    }
    for (size_t i = 0; i < sizeof container_types / sizeof container_types[0]; i++) {
        if (type == container_types[i]) {
            return 1;
        }
    }
    bool may_be = PyDict_Check(value) || PyList_Check(value) || PyAnySet_Check(value) ||
                  PyType_IsSubtype(type, container_types[3]) != 0;
    return may_be ? truth_of(PyObject_CallFunctionObjArgs(how->is_container, value, NULL)) : 0;
}

static int note_container(noting *how, PyObject *container, int depth);

/* Notes the containers among a container's items. `content` is a copy that nobody else writes. */
static int note_items(noting *how, PyObject *content, int depth)
{
    PyObject *name, *value;
    int rc = 0;
    if (PyDict_Check(content)) {
        for (Py_ssize_t at = 0; rc == 0 && PyDict_Next(content, &at, &name, &value);) {
            int is_one = ms_ext_is_scalar(value) ? 0 : is_container(how, value);
            rc = is_one <= 0 ? is_one : note_container(how, value, depth);
        }
        return rc;
    }
    PyObject *items = PySequence_Fast(content, "a container has no items");
    for (Py_ssize_t i = 0; items != NULL && rc == 0 && i < PySequence_Size(items); i++) {
        value = PySequence_GetItem(items, i);
        int is_one = value == NULL ? -1 : ms_ext_is_scalar(value) ? 0 : is_container(how, value);
        rc = is_one <= 0 ? is_one : note_container(how, value, depth);
        Py_XDECREF(value);
    }
    Py_XDECREF(items);
    return items != NULL ? rc : -1;
}

static int note_empty(noting *how, PyObject *container)
{
    if (how->empty == NULL && (how->empty = ms_ext_note_empty(how->undo)) == NULL) {
        return -1;
    }
    return PyList_Append(how->empty, container);
}

/* Notes a container, and those in it down to `depth`. */
static int note_container(noting *how, PyObject *container, int depth)
{
    if (ms_ext_is_empty(container)) {
        return note_empty(how, container);
    }
    Py_ssize_t count = PyObject_Size(container);
    if (count < 0 || count > LARGE) {
        return count < 0 ? -1 : 0;
    }
    PyObject *content = ms_ext_content_of(container);
    int rc = content != NULL ? ms_ext_note_content(how->undo, container, content) : -1;
    if (rc == 0 && depth > 0 && !PyAnySet_Check(container)) {
        rc = note_items(how, content, depth - 1);
    }
    Py_XDECREF(content);
    return rc;
}

/* Whether the object was noted before for another module. */
static int is_again(noting *how, PyObject *value)
{
    if (how->seen == NULL && (how->seen = PySet_New(NULL)) == NULL) {
        return -1;
    }
    PyObject *address = PyLong_FromVoidPtr(value);
    int again = address != NULL ? PySet_Contains(how->seen, address) : -1;
    if (again == 0 && PySet_Add(how->seen, address) != 0) {
        again = -1;
    }
    Py_XDECREF(address);
    return again;
}

/* Of an object that is no container: it may keep counters or averages. */
static int note_object(noting *how, PyObject *value)
{
    int quiet = ms_ext_is_inert(value) ? 1 : PySet_Contains(how->quiet, (PyObject *)Py_TYPE(value));
    int again = quiet == 0 ? is_again(how, value) : 1;
    if (quiet != 0 || again != 0) {
        return quiet < 0 || again < 0 ? -1 : 0;
    }
    int open = truth_of(PyObject_CallFunctionObjArgs(how->is_open, value, how->quiet, NULL));
    PyObject *attributes = open > 0 ? PyObject_GetAttrString(value, "__dict__") : NULL;
    if (open > 0 && attributes == NULL) {
        PyErr_Clear(); /* it has slots only */
    }
    int rc = open < 0 ? -1 : 0;
    if (attributes != NULL && PyDict_CheckExact(attributes)) {
        rc = note_container(how, attributes, 2);
    }
    Py_XDECREF(attributes);
    return rc;
}

/* One attribute. The module's own containers are not searched. */
static int note_attribute(noting *how, PyObject *value, int is_own)
{
    if (is_own < 0 || ms_ext_is_scalar(value)) {
        return is_own < 0 ? -1 : 0;
    }
    int is_one = is_container(how, value);
    if (is_one != 0) {
        return is_one < 0 ? -1 : note_container(how, value, is_own ? 0 : 2);
    }
    return is_own ? 0 : note_object(how, value);
}

/* The attributes themselves are noted last and so restored first: the containers are then in place. */
static int note_module(noting *how, PyObject *module)
{
    PyObject *attributes = ms_ext_attributes_of(module);
    PyObject *content = attributes != NULL ? ms_ext_content_of(attributes) : NULL, *name, *value;
    Py_ssize_t own = 0;
    int rc = content != NULL ? 0 : -1;
    for (Py_ssize_t at = 0; rc == 0 && PyDict_Next(content, &at, &name, &value);) {
        rc = note_attribute(how, value, ms_ext_is_own(name, &own));
    }
    if (rc == 0) {
        rc = ms_ext_note_content(how->undo, attributes, content);
    }
    Py_XDECREF(content);
    Py_XDECREF(attributes);
    return rc;
}

static PyObject *note_modules(PyObject *module, PyObject *args)
{
    (void)module;
    noting how = {NULL};
    PyObject *modules;
    if (!PyArg_ParseTuple(args, "OO!OOO:note_modules", &how.undo, &PyList_Type, &modules, &how.quiet, &how.is_container,
                          &how.is_open) ||
        ms_ext_is_undo(how.undo) != 0 || ms_ext_find_own() != 0) {
        return NULL;
    }
    int rc = 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(modules); i++) {
        rc = note_module(&how, PyList_GetItem(modules, i));
    }
    Py_XDECREF(how.empty);
    Py_XDECREF(how.seen);
    return rc == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("note_modules", note_modules, METH_VARARGS, "undo, modules, quiet, is_container, is_open, /",
                    "(Undo, list[Any], set[type], Callable[[Any], bool], Callable[[Any, set[type]], bool]) "
                    "-> None",
                    "Lets the Undo restore the attributes of modules, what containers among them hold, and what plain "
                    "objects among them hold; containers two deep, those that every module has not at all. Types in "
                    "`quiet` are no objects to search. `is_container` decides on subclasses of Python's containers, "
                    "`is_open` on objects; it may add a type to `quiet`."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_undo_modules(PyObject *module)
{
    static const char *const names[] = {"OrderedDict", "defaultdict", "Counter", "deque"};
    PyObject *collections = PyImport_ImportModule("collections");
    for (size_t i = 0; collections != NULL && i < sizeof names / sizeof names[0]; i++) {
        container_types[i] = (PyTypeObject *)PyObject_GetAttrString(collections, names[i]);
        if (container_types[i] == NULL) {
            Py_CLEAR(collections);
        }
    }
    Py_XDECREF(collections);
    return collections != NULL ? PyModule_AddFunctions(module, methods) : -1;
}
