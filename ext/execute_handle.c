/*
 * Handles of saved tensors: autograd holds a handle in place of each tensor. A kind of handle has functions that
 * return the tensor and release the handle. This file has the kept kind, which holds the tensor.
 *
 * A handle never holds a tensor that has a grad_fn: that node would own the handle, and neither would ever be
 * freed. It holds an alias made by detach(), which shares storage and version counter.
 */
#include "execute_handle.h"

/* Means that the tensor has no version counter; no version has this value. */
#define NO_VERSION UINT64_MAX

static PyTypeObject *saved_type;

ms_saved *ms_ext_saved_new(const ms_saved_kind *kind, ms_execution *execution)
{
    ms_saved *saved = PyObject_New(ms_saved, saved_type);
    if (saved == NULL) {
        return NULL;
    }
    memset((char *)saved + sizeof(PyObject), 0, sizeof *saved - sizeof(PyObject));
    saved->kind = kind;
    Py_INCREF((PyObject *)execution);
    saved->execution = execution;
    return saved;
}

static void saved_dealloc(PyObject *self)
{
    ms_saved *saved = (ms_saved *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject *error_type, *error_value, *error_traceback;
    PyErr_Fetch(&error_type, &error_value, &error_traceback);
    if (saved->kind->end != NULL) {
        saved->kind->end(saved);
    }
    Py_XDECREF((PyObject *)saved->region);
    Py_XDECREF(saved->tensor);
    Py_XDECREF(saved->dtype);
    Py_XDECREF(saved->size);
    Py_XDECREF(saved->stride);
    Py_XDECREF(saved->offset);
    Py_XDECREF(saved->token);
    Py_XDECREF(saved->ticket);
    Py_XDECREF((PyObject *)saved->execution);
    PyObject_Free(saved);
    Py_DECREF(type);
    PyErr_Restore(error_type, error_value, error_traceback);
}

bool ms_ext_is_saved(PyObject *object)
{
    return Py_TYPE(object) == saved_type;
}

PyObject *ms_ext_saved_unpack(PyObject *handle)
{
    if (!ms_ext_is_saved(handle)) {
        PyErr_SetString(PyExc_TypeError, "not a saved tensor of memscale");
        return NULL;
    }
    return ((ms_saved *)handle)->kind->unpack((ms_saved *)handle);
}

/* ---- versions and views ---------------------------------------------------------- */

uint64_t ms_ext_version_or_none(PyObject *tensor)
{
    uint64_t version;
    if (ms_ext_version_of(tensor, &version) != 0) {
        PyErr_Clear();
        return NO_VERSION;
    }
    return version;
}

PyObject *ms_ext_type_name_of(PyObject *tensor)
{
    return PyObject_CallMethod(tensor, "type", NULL);
}

int ms_ext_check_version(PyObject *tensor, uint64_t version)
{
    if (version == NO_VERSION) {
        return 0;
    }
    uint64_t now;
    if (ms_ext_version_of(tensor, &now) != 0) {
        return -1;
    }
    if (now == version) {
        return 0;
    }
    PyObject *name = ms_ext_type_name_of(tensor);
    PyObject *shape = name != NULL ? PyObject_GetAttr(tensor, ms_ext_torch()->n_shape) : NULL;
    if (shape != NULL) {
        ms_ext_raise_version(name, shape, now, version);
    }
    Py_XDECREF(name);
    Py_XDECREF(shape);
    return -1;
}

/* Whether an operator may save this tensor now and fill it afterwards, as RReLU's does with its noise. True if no
 * operator has computed the tensor under autograd or written to it. */
bool ms_ext_may_be_unwritten(PyObject *tensor)
{
    bool may_be = ms_ext_version_or_none(tensor) == 0 && ms_ext_flag(tensor, ms_ext_torch()->n_requires_grad) == 0;
    PyErr_Clear();
    return may_be;
}

int ms_ext_remember_view(ms_saved *saved, PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    saved->dtype = PyObject_GetAttr(tensor, t->n_dtype);
    saved->size = PyObject_GetAttr(tensor, t->n_shape);
    saved->stride = PyObject_CallFunctionObjArgs(t->stride, tensor, NULL);
    saved->offset = PyObject_CallFunctionObjArgs(t->storage_offset, tensor, NULL);
    bool is_complete = saved->dtype != NULL && saved->size != NULL && saved->stride != NULL && saved->offset != NULL;
    return is_complete ? 0 : -1;
}

/* A tensor of this dtype without elements. */
PyObject *ms_ext_empty_of(const ms_execution *execution, PyObject *dtype)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *name = execution->device.name;
    PyObject *kwargs = name != NULL ? Py_BuildValue("{s:O,s:O}", "dtype", dtype, "device", name)
                                    : Py_BuildValue("{s:O,s:s}", "dtype", dtype, "device", "cpu");
    PyObject *tensor = kwargs != NULL ? PyObject_Call(t->empty, t->zero_args, kwargs) : NULL;
    Py_XDECREF(kwargs);
    return tensor;
}

int ms_ext_check_probe(const ms_saved *saved)
{
    uint64_t now;
    if (ms_ext_version_of(saved->tensor, &now) != 0) {
        return -1;
    }
    if (now == saved->version) {
        return 0;
    }
    PyObject *tensor = ms_ext_empty_of(saved->execution, saved->dtype);
    PyObject *name = tensor != NULL ? ms_ext_type_name_of(tensor) : NULL;
    if (name != NULL) {
        ms_ext_raise_version(name, saved->size, now, saved->version);
    }
    Py_XDECREF(name);
    Py_XDECREF(tensor);
    return -1;
}

/* ---- kept ---------------------------------------------------------------------- */

/* The tensor itself if it is a leaf, else an alias without a graph. */
PyObject *ms_ext_alias_of(PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    if (ms_ext_flag(tensor, t->n_is_leaf) == 0) {
        PyObject *alias = PyObject_CallFunctionObjArgs(t->detach, tensor, NULL);
        if (alias != NULL) {
            return alias;
        }
    }
    PyErr_Clear();
    Py_INCREF(tensor);
    return tensor;
}

PyObject *ms_ext_unpack_kept(ms_saved *saved)
{
    if (ms_ext_check_version(saved->tensor, saved->version) != 0) {
        return NULL;
    }
    Py_INCREF(saved->tensor);
    return saved->tensor;
}

static const ms_saved_kind kept_kind = {.unpack = ms_ext_unpack_kept};

PyObject *ms_ext_keep(ms_execution *execution, PyObject *tensor)
{
    ms_saved *saved = ms_ext_saved_new(&kept_kind, execution);
    if (saved == NULL) {
        return NULL;
    }
    saved->tensor = ms_ext_alias_of(tensor);
    saved->version = ms_ext_version_or_none(saved->tensor);
    return (PyObject *)saved;
}

/* Whether the tensor stays whatever the plan says: parameters, buffers, the caller's batch. */
bool ms_ext_stays(ms_execution *execution, PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    if (ms_ext_identity_has_tensor(&execution->residents, tensor)) {
        return true;
    }
    bool is_leaf_with_gradient = ms_ext_flag(tensor, t->n_is_leaf) == 1 && ms_ext_flag(tensor, t->n_requires_grad) == 1;
    PyErr_Clear();
    return is_leaf_with_gradient;
}

/* ---- type ------------------------------------------------------------------------ */

static PyObject *saved_drop(PyObject *self, PyObject *ticket)
{
    ms_saved *saved = (ms_saved *)self;
    if (saved->kind->drop == NULL || saved->kind->drop(saved, ticket) != 0) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_RuntimeError, "this saved tensor is not one to be dropped");
        }
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *saved_unpack(PyObject *self, PyObject *args)
{
    (void)args;
    return ms_ext_saved_unpack(self);
}

static PyMethodDef saved_methods[] = {
    MS_EXT_METHOD("drop", saved_drop, METH_O, "ticket, /", "(Any) -> None",
                  "Releases the tensor's bytes; the ticket's give() recomputes them."),
    MS_EXT_METHOD("unpack", saved_unpack, METH_NOARGS, "/", "() -> torch.Tensor", "The saved tensor."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_saved_init_type(PyObject *module)
{
    static char doc[] = "A handle that autograd holds in place of one saved tensor.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_dealloc, MS_EXT_SLOT(saved_dealloc)},
        {Py_tp_methods, saved_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Saved",
        .basicsize = sizeof(ms_saved),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return ms_ext_add_type(module, &spec, &saved_type);
}
