/*
 * The plain state of a layer's modules around a replay: names and scalars of their attributes, names of their buffers,
 * and their parameters. execution/module_state.py takes a Snapshot before each recomputed call and puts it back before
 * the replay; it gets a list of the other values, which it sorts. A block of a transformer has a dozen modules with
 * thirty attributes each: in Python the two walks took most of the host's time around a recomputed layer.
 *
 * A Snapshot holds scalars, names and parameters, never another value: an attribute may be a tensor of a graph, which
 * a record must not keep alive. It holds the version of each parameter, and none of it is trusted from call to call.
 * Everything runs under the interpreter lock. Tests: tests/python/test_snapshot.py.
 */
#include "snapshot.h"
#include "execute_ext.h"
#include "rooms.h"
#include "undo.h"

static PyTypeObject *snapshot_type;
static PyObject *n_parameters, *n_buffers;
/* ---- taking ------------------------------------------------------------------------------------- */

/* Makes room for `more` entries of `size` bytes. */
static int reserve(void *array, size_t size, size_t count, size_t *room, size_t more)
{
    void **place = array;
    if (count + more <= *room) {
        return 0;
    }
    size_t wanted = 2 * *room > count + more ? 2 * *room : count + more;
    void *grown = ms_realloc_array(*place, wanted, size);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *place = grown;
    *room = wanted;
    return 0;
}

/* Adds (index, name, value) to a list. */
static int report(PyObject *list, Py_ssize_t index, PyObject *name, PyObject *value)
{
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *row = number != NULL ? PyTuple_Pack(3, number, name, value) : NULL;
    int rc = row != NULL ? PyList_Append(list, row) : -1;
    Py_XDECREF(row);
    Py_XDECREF(number);
    return rc;
}

static int add_item(ms_snapshot *self, PyObject *name, PyObject *scalar)
{
    if (reserve(&self->items, sizeof *self->items, self->item_count, &self->item_room, 1) != 0) {
        return -1;
    }
    Py_INCREF(name);
    Py_XINCREF(scalar);
    self->items[self->item_count++] = (ms_snapshot_item){name, scalar};
    return 0;
}

static ms_snapshot_table *begin_table(ms_snapshot *self, PyObject *dict)
{
    ms_snapshot_table *t = &self->tables[self->table_count++];
    Py_INCREF(dict);
    *t = (ms_snapshot_table){dict, self->item_count, 0};
    return t;
}

typedef struct taking {
    PyObject *inert; /* set: types whose values are never state */
    PyObject *others, *buffers;
    PyTypeObject *sharded; /* of FSDP's parameters, or NULL */
} taking;

/* A short tuple of scalars, such as a shape. */
static bool is_plain_tuple(PyObject *value)
{
    if (!PyTuple_CheckExact(value)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(value); i++) {
        if (!ms_ext_is_scalar(PyTuple_GetItem(value, i))) {
            return false;
        }
    }
    return true;
}

/* 1 if the caller must look at a value that is not one of every module's. */
static int is_other(const taking *how, PyObject *value)
{
    if (ms_ext_is_inert(value) || is_plain_tuple(value)) {
        return 0;
    }
    int known = PySet_Contains(how->inert, (PyObject *)Py_TYPE(value));
    return known < 0 ? -1 : known == 0;
}

static int take_attributes(ms_snapshot *self, const taking *how, Py_ssize_t index, PyObject *attributes)
{
    PyObject *name, *value;
    Py_ssize_t own = 0;
    ms_snapshot_table *t = begin_table(self, attributes);
    for (Py_ssize_t at = 0; PyDict_Next(attributes, &at, &name, &value);) {
        bool is_scalar = ms_ext_is_scalar(value);
        int is_own = ms_ext_is_own(name, &own);
        int other = is_own < 0 ? -1 : is_own > 0 || is_scalar ? 0 : is_other(how, value);
        if (other < 0 || add_item(self, name, is_scalar ? value : NULL) != 0 ||
            (other > 0 && report(how->others, index, name, value) != 0)) {
            return -1;
        }
    }
    t->count = self->item_count - t->first;
    return 0;
}

/* The names and values of a dictionary, or of what a scripted module has in its place: a new list of pairs. NULL
 * without an exception for a plain dictionary, which PyDict_Next() walks faster. */
static PyObject *foreign_items(PyObject *dict)
{
    PyObject *items = PyObject_CallMethod(dict, "items", NULL);
    PyObject *list = items != NULL ? PySequence_List(items) : NULL;
    Py_XDECREF(items);
    return list;
}

/* Walks (name, value) of a module's table. Returns 1 for a pair, 0 at the end; both are borrowed. */
static int next_pair(PyObject *dict, PyObject *items, Py_ssize_t *at, PyObject **name, PyObject **value)
{
    if (items == NULL) {
        return PyDict_Next(dict, at, name, value);
    }
    if (*at >= PyList_Size(items)) {
        return 0;
    }
    PyObject *pair = PyList_GetItem(items, (*at)++);
    *name = PyTuple_GetItem(pair, 0);
    *value = PyTuple_GetItem(pair, 1);
    return *name != NULL && *value != NULL;
}

static int take_buffers(ms_snapshot *self, const taking *how, Py_ssize_t index, PyObject *buffers)
{
    PyObject *name, *value;
    PyObject *items = PyDict_Check(buffers) ? NULL : foreign_items(buffers);
    int rc = items == NULL && PyErr_Occurred() ? -1 : 0;
    ms_snapshot_table *t = begin_table(self, buffers);
    for (Py_ssize_t at = 0; rc == 0 && next_pair(buffers, items, &at, &name, &value) != 0;) {
        rc = add_item(self, name, NULL);
        if (rc == 0 && value != Py_None) {
            rc = report(how->buffers, index, name, value);
        }
    }
    t->count = self->item_count - t->first;
    Py_XDECREF(items);
    return rc;
}

static int add_parameter(ms_snapshot *self, PyObject *dict, PyObject *name, PyObject *tensor)
{
    if (reserve(&self->parameters, sizeof *self->parameters, self->parameter_count, &self->parameter_room, 1) != 0) {
        return -1;
    }
    Py_INCREF(dict);
    Py_INCREF(name);
    Py_INCREF(tensor);
    self->parameters[self->parameter_count++] = (ms_snapshot_parameter){dict, name, tensor, 0, false};
    return 0;
}

static int take_parameters(ms_snapshot *self, const taking *how, PyObject *dict)
{
    PyObject *name, *value;
    PyObject *items = PyDict_Check(dict) ? NULL : foreign_items(dict);
    int rc = items == NULL && PyErr_Occurred() ? -1 : 0;
    size_t before = self->parameter_count;
    bool is_sharded = false;
    for (Py_ssize_t at = 0; rc == 0 && next_pair(dict, items, &at, &name, &value) != 0;) {
        if (value != Py_None) {
            rc = add_parameter(self, dict, name, value);
            is_sharded = is_sharded || (how->sharded != NULL && PyType_IsSubtype(Py_TYPE(value), how->sharded));
        }
    }
    Py_XDECREF(items);
    while (is_sharded && self->parameter_count > before) { /* FSDP has the full ones in place for the replay */
        ms_snapshot_parameter *p = &self->parameters[--self->parameter_count];
        Py_DECREF(p->table);
        Py_DECREF(p->name);
        Py_DECREF(p->tensor);
    }
    return rc;
}

/* A tensor that an operator returned is held without the caller's graph. */
static int leave_graph(ms_snapshot_parameter *p)
{
    int needs_gradient = ms_ext_flag(p->tensor, ms_ext_torch()->n_requires_grad);
    PyObject *apart = needs_gradient >= 0 ? PyObject_CallMethod(p->tensor, "detach", NULL) : NULL;
    PyObject *done = apart != NULL
                         ? PyObject_CallMethod(apart, "requires_grad_", "O", needs_gradient > 0 ? Py_True : Py_False)
                         : NULL;
    if (done != NULL) {
        PyObject *before = p->tensor;
        p->tensor = done;
        Py_DECREF(before);
    }
    Py_XDECREF(apart);
    return done != NULL ? 0 : -1;
}

/* Asks torch about the parameters, once all dictionaries have been walked: a subclass of Tensor may run Python. */
static int look_at_parameters(ms_snapshot *self)
{
    for (size_t i = 0; i < self->parameter_count; i++) {
        ms_snapshot_parameter *p = &self->parameters[i];
        p->has_version = ms_ext_version_of(p->tensor, &p->version) == 0;
        if (!p->has_version) { /* an inference tensor */
            if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_AttributeError)) {
                return -1;
            }
            PyErr_Clear();
        }
        int is_leaf = ms_ext_flag(p->tensor, ms_ext_torch()->n_is_leaf);
        if (is_leaf < 0 || (is_leaf == 0 && leave_graph(p) != 0)) {
            return -1;
        }
    }
    return 0;
}

/* A module's table, a new reference. */
static PyObject *table_of(PyObject *module, PyObject *attributes, PyObject *name)
{
    PyObject *found = PyDict_GetItemWithError(attributes, name);
    if (found != NULL) {
        Py_INCREF(found);
        return found;
    }
    return PyErr_Occurred() ? NULL : PyObject_GetAttr(module, name);
}

static int take_module(ms_snapshot *self, const taking *how, Py_ssize_t index, PyObject *module, bool with_parameters)
{
    PyObject *attributes = ms_ext_attributes_of(module);
    PyObject *buffers = attributes != NULL ? table_of(module, attributes, n_buffers) : NULL;
    int rc = buffers != NULL ? take_attributes(self, how, index, attributes) : -1;
    if (rc == 0) {
        rc = take_buffers(self, how, index, buffers);
    }
    if (rc == 0 && with_parameters) {
        PyObject *parameters = table_of(module, attributes, n_parameters);
        rc = parameters != NULL ? take_parameters(self, how, parameters) : -1;
        Py_XDECREF(parameters);
    }
    Py_XDECREF(buffers);
    Py_XDECREF(attributes);
    return rc;
}

static int take_all(ms_snapshot *self, const taking *how, PyObject *modules, Py_ssize_t owned)
{
    Py_ssize_t count = PyList_Size(modules);
    self->tables = ms_calloc((size_t)(2 * count + 1), sizeof *self->tables);
    int rc = self->tables != NULL ? 0 : -1;
    if (rc != 0) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        rc = take_module(self, how, i, PyList_GetItem(modules, i), i < owned);
    }
    return rc == 0 ? look_at_parameters(self) : -1;
}

static PyObject *take_snapshot(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *modules, *inert, *sharded;
    Py_ssize_t owned;
    if (!PyArg_ParseTuple(args, "O!nOO:take_snapshot", &PyList_Type, &modules, &owned, &inert, &sharded) ||
        ms_ext_torch() == NULL || ms_ext_find_own() != 0) {
        return NULL;
    }
    taking how = {inert, PyList_New(0), PyList_New(0), sharded != Py_None ? (PyTypeObject *)sharded : NULL};
    ms_snapshot *self = how.others != NULL && how.buffers != NULL ? PyObject_GC_New(ms_snapshot, snapshot_type) : NULL;
    PyObject *result = NULL;
    if (self != NULL) {
        memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
        result = take_all(self, &how, modules, owned) == 0 ? PyTuple_Pack(3, self, how.buffers, how.others) : NULL;
        PyObject_GC_Track(self);
    }
    Py_XDECREF((PyObject *)self);
    Py_XDECREF(how.others);
    Py_XDECREF(how.buffers);
    return result;
}

/* ---- type ------------------------------------------------------------------------------------- */

static int snapshot_traverse(PyObject *object, visitproc visit, void *arg)
{
    const ms_snapshot *self = (const ms_snapshot *)object;
    Py_VISIT(Py_TYPE(object));
    for (size_t i = 0; i < self->table_count; i++) {
        Py_VISIT(self->tables[i].dict);
    }
    for (size_t i = 0; i < self->parameter_count; i++) {
        Py_VISIT(self->parameters[i].table);
        Py_VISIT(self->parameters[i].tensor);
    }
    return 0;
}

static int snapshot_clear(PyObject *object)
{
    ms_snapshot *self = (ms_snapshot *)object;
    size_t tables = self->table_count, items = self->item_count, parameters = self->parameter_count;
    self->table_count = self->item_count = self->parameter_count = 0; /* a finalizer may run Python */
    for (size_t i = 0; i < tables; i++) {
        Py_CLEAR(self->tables[i].dict);
    }
    for (size_t i = 0; i < items; i++) {
        Py_CLEAR(self->items[i].name);
        Py_CLEAR(self->items[i].value);
    }
    for (size_t i = 0; i < parameters; i++) {
        Py_CLEAR(self->parameters[i].table);
        Py_CLEAR(self->parameters[i].name);
        Py_CLEAR(self->parameters[i].tensor);
    }
    return 0;
}

static void snapshot_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ms_snapshot *self = (ms_snapshot *)object;
    PyObject_GC_UnTrack(object);
    snapshot_clear(object);
    ms_free(self->tables);
    ms_free(self->items);
    ms_free(self->parameters);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyMethodDef snapshot_methods[] = {
    MS_EXT_METHOD(
        "put_attributes", ms_ext_put_attributes, METH_NOARGS, "/", "() -> None",
        "Sets the scalars that differ, and removes attributes and buffers that came later. The Undo must have "
        "a note of the modules."),
    MS_EXT_METHOD("bind_parameters", ms_ext_bind_parameters, METH_O, "undo, /", "(Undo) -> str | None",
                  "Binds the parameters of the call again; the undo restores the present ones. The name of the first "
                  "that was written since, None if none was."),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "take_snapshot", take_snapshot, METH_VARARGS, "modules, owned, inert, sharded, /",
        "(list[Any], int, set[type], type | None) -> tuple[Snapshot, list[tuple[int, str, "
        "Any]], list[tuple[int, str, Any]]]",
        "The scalars and names of the modules' attributes and the names of their buffers, and the "
        "parameters of the first `owned` of them, unless those are of the class `sharded`. Then the buffers, "
        "and the attributes that are neither scalars, nor those that every module has, nor of types in `inert`: "
        "module's "
        "number, name and value."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_snapshot(PyObject *module)
{
    static char doc[] = "The plain state of modules before one call; see take_snapshot().";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(snapshot_dealloc)},
        {Py_tp_traverse, MS_EXT_SLOT(snapshot_traverse)},
        {Py_tp_clear, MS_EXT_SLOT(snapshot_clear)},
        {Py_tp_methods, snapshot_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Snapshot",
        .basicsize = sizeof(ms_snapshot),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    n_parameters = PyUnicode_InternFromString("_parameters");
    n_buffers = PyUnicode_InternFromString("_buffers");
    if (n_parameters == NULL || n_buffers == NULL || ms_ext_add_type(module, &spec, &snapshot_type) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
