/*
 * Attributes of modules: which are scalars, which every module has. And a Snapshot put back, before a layer's replay.
 * See snapshot.h.
 */
#include "snapshot.h"

#include "execute_ext.h"
#include "rooms.h"
#include "undo.h"

static PyObject *n_dict, *prefix;
/* Names of attributes that every module has, and the same in the order in which torch's constructor makes them. */
static PyObject *own_set, *own_order;
static PyTypeObject *inert_types[4]; /* functions, methods, builtins, modules: they hold no state of a forward */

bool ms_ext_is_scalar(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return value == Py_None || type == &PyBool_Type || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyUnicode_Type;
}

bool ms_ext_is_inert(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    for (size_t i = 0; i < sizeof inert_types / sizeof inert_types[0]; i++) {
        if (type == inert_types[i]) {
            return true;
        }
    }
    return false;
}

int ms_ext_is_own(PyObject *name, Py_ssize_t *at)
{
    if (*at == PyTuple_Size(own_order)) {
        return 0; /* all of them have come */
    }
    if (*at >= 0 && PyTuple_GetItem(own_order, *at) == name) {
        ++*at;
        return 1;
    }
    *at = -1;
    return PySet_Contains(own_set, name);
}

int ms_ext_find_own(void)
{
    if (own_order != NULL) {
        return 0;
    }
    PyObject *torch = PyImport_ImportModule("torch.nn");
    PyObject *module = torch != NULL ? PyObject_CallMethod(torch, "Module", NULL) : NULL;
    PyObject *attributes = module != NULL ? ms_ext_attributes_of(module) : NULL;
    PyObject *names = attributes != NULL ? PyDict_Keys(attributes) : NULL;
    own_set = names != NULL ? PyFrozenSet_New(names) : NULL;
    own_order = own_set != NULL ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    Py_XDECREF(attributes);
    Py_XDECREF(module);
    Py_XDECREF(torch);
    return own_order != NULL ? 0 : -1;
}

PyObject *ms_ext_attributes_of(PyObject *module)
{
    PyObject *attributes = PyObject_GetAttr(module, n_dict);
    if (attributes != NULL && !PyDict_Check(attributes)) {
        PyErr_SetString(PyExc_TypeError, "a module's __dict__ is not a dict");
        Py_CLEAR(attributes);
    }
    return attributes;
}

/* ---- putting back ----------------------------------------------------------------------------- */

static bool is_ours(PyObject *name)
{
    return PyUnicode_Check(name) && PyUnicode_Tailmatch(name, prefix, 0, PyUnicode_GetLength(name), -1) == 1;
}

/* Removes the names that the call, or a later one, has made. */
static int drop_later(const ms_snapshot *self, const ms_snapshot_table *t)
{
    PyObject *known = PySet_New(NULL), *names = PySequence_List(t->dict);
    int rc = known != NULL && names != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        rc = PySet_Add(known, self->items[t->first + i].name);
    }
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_Size(names); i++) {
        PyObject *name = PyList_GetItem(names, i);
        int is_known = PySet_Contains(known, name);
        rc = is_known < 0 ? -1 : is_known == 0 && !is_ours(name) ? PyObject_DelItem(t->dict, name) : 0;
    }
    Py_XDECREF(names);
    Py_XDECREF(known);
    return rc;
}

/* Sets the scalars that differ. As long as the names are the same objects in the same order, no look-up is needed. */
static int put_scalars(const ms_snapshot *self, const ms_snapshot_table *t)
{
    PyObject *name, *value;
    Py_ssize_t at = 0;
    bool in_step = true;
    for (size_t i = 0; i < t->count; i++) {
        const ms_snapshot_item *noted = &self->items[t->first + i];
        in_step = in_step && PyDict_Next(t->dict, &at, &name, &value) != 0 && name == noted->name;
        if (noted->value == NULL || (in_step && value == noted->value)) {
            continue;
        }
        PyObject *now = in_step ? value : PyDict_GetItemWithError(t->dict, noted->name);
        if (now == NULL && PyErr_Occurred()) {
            return -1;
        }
        if (now != noted->value && PyDict_SetItem(t->dict, noted->name, noted->value) != 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *ms_ext_put_attributes(PyObject *object, PyObject *none)
{
    (void)none;
    const ms_snapshot *self = (const ms_snapshot *)object;
    for (size_t i = 0; i < self->table_count; i++) {
        const ms_snapshot_table *t = &self->tables[i];
        Py_ssize_t count = PyObject_Size(t->dict);
        if (count < 0 || ((size_t)count != t->count && drop_later(self, t) != 0) ||
            (i % 2 == 0 && put_scalars(self, t) != 0)) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* 0 if the parameter is bound; 1 if it was written since the call. */
static int bind_parameter(const ms_snapshot_parameter *p, PyObject *undo)
{
    uint64_t version = 0;
    if (p->has_version && ms_ext_version_of(p->tensor, &version) != 0) {
        return -1;
    }
    if (p->has_version && version != p->version) {
        return 1;
    }
    bool is_plain = PyDict_Check(p->table);
    PyObject *now = is_plain ? PyDict_GetItemWithError(p->table, p->name) : PyObject_GetItem(p->table, p->name);
    bool is_bound = now == p->tensor;
    if (!is_plain) {
        Py_XDECREF(now);
    }
    PyErr_Clear(); /* a table without the name */
    if (is_bound) {
        return 0;
    }
    return ms_ext_note_slot(undo, p->table, p->name) == 0 ? PyObject_SetItem(p->table, p->name, p->tensor) : -1;
}

PyObject *ms_ext_bind_parameters(PyObject *object, PyObject *undo)
{
    const ms_snapshot *self = (const ms_snapshot *)object;
    for (size_t i = 0; i < self->parameter_count; i++) {
        int rc = bind_parameter(&self->parameters[i], undo);
        if (rc != 0) {
            return rc > 0 ? Py_NewRef(self->parameters[i].name) : NULL;
        }
    }
    Py_RETURN_NONE;
}

/* Types that the stable ABI has no names for. */
static int find_types(void)
{
    static const char *const names[] = {"FunctionType", "MethodType", "BuiltinFunctionType", "ModuleType"};
    PyObject *types = PyImport_ImportModule("types");
    for (size_t i = 0; types != NULL && i < sizeof names / sizeof names[0]; i++) {
        inert_types[i] = (PyTypeObject *)PyObject_GetAttrString(types, names[i]);
        if (inert_types[i] == NULL) {
            Py_CLEAR(types);
        }
    }
    Py_XDECREF(types);
    return types != NULL ? 0 : -1;
}

int ms_ext_add_snapshot_put(PyObject *module)
{
    (void)module;
    n_dict = PyUnicode_InternFromString("__dict__");
    prefix = PyUnicode_InternFromString("_memscale");
    return n_dict != NULL && prefix != NULL ? find_types() : -1;
}
