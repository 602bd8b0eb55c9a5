/*
 * Whether the bytes of a saved tensor can go to a lower tier, and how: the storage behind it,
 * pieces of storages that operators finish one after another, and a probe of its version. Called
 * when autograd saves a tensor; changes no handle.
 */
#include "execute_movable.h"

/* The storage behind a tensor and its bytes; -1 with no exception set if it has none. */
int ms_ext_look_behind(PyObject *tensor, ms_movable *what)
{
    if (ms_ext_storage_of(tensor, &what->storage, &what->identity) != 0) {
        return -1;
    }
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->nbytes, what->storage, NULL);
    what->bytes = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    what->is_final = false;
    Py_XDECREF(number);
    if (PyErr_Occurred() != NULL) {
        PyErr_Clear();
        Py_CLEAR(what->storage);
        return -1;
    }
    return 0;
}

bool ms_ext_is_here(const ms_execution *execution, PyObject *tensor)
{
    return ms_execute_host_is_device(execution->execute) ? ms_ext_flag(tensor, ms_ext_torch()->n_is_cpu) == 1
                                                         : ms_ext_device_has(execution, tensor);
}

/* Whether a tensor's storage can be sent and the tensor rebuilt from its bytes. No exception is left set; if true,
 * what->storage is a new reference. */
bool ms_ext_is_movable(ms_execution *execution, PyObject *tensor, ms_movable *what)
{
    const ms_torch *t = ms_ext_torch();
    PyTypeObject *type = Py_TYPE(tensor);
    if ((PyObject *)type != t->tensor_type && (PyObject *)type != t->parameter_type) {
        return false;
    }
    if (ms_ext_look_behind(tensor, what) != 0) {
        return false;
    }
    bool can_move = what->bytes > 0 && what->bytes >= ms_execute_min_bytes(execution->execute) &&
                    !ms_ext_identity_has(&execution->residents, what->identity) && ms_ext_is_here(execution, tensor) &&
                    ms_ext_flag(tensor, t->n_is_quantized) == 0 && ms_ext_flag(tensor, t->n_is_nested) == 0 &&
                    /* lazy conjugation and negation are not in the bytes */
                    ms_ext_ask(t->is_conj, tensor) == 0 && ms_ext_ask(t->is_neg, tensor) == 0 &&
                    !(ms_ext_flag(tensor, t->n_is_leaf) == 1 && ms_ext_flag(tensor, t->n_requires_grad) == 1);
    PyErr_Clear();
    if (!can_move) {
        Py_CLEAR(what->storage);
    }
    return can_move;
}

/* Whether other tensors with their own version counters may lie in the same storage: 1, 0, or -1 with an exception.
 * For example, a recurrent cell's gates are chunks of one storage. The cell finishes each in place after it saved the
 * one before, so no version describes the whole storage. A tensor that isn't a view but is smaller than its storage is
 * such a piece, and so are its views. */
int ms_ext_is_piece(PyObject *tensor, const ms_movable *what)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *base = PyObject_GetAttr(tensor, t->n_base);
    PyObject *number = base != NULL ? PyObject_GetAttr(base != Py_None ? base : tensor, t->n_nbytes) : NULL;
    uint64_t bytes = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(base);
    Py_XDECREF(number);
    return PyErr_Occurred() != NULL ? -1 : bytes < what->bytes;
}

uint64_t ms_ext_owners_of(PyObject *storage)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *address = t->use_count != NULL ? PyObject_GetAttr(storage, t->n_cdata) : NULL;
    PyObject *count = address != NULL ? PyObject_CallFunctionObjArgs(t->use_count, address, NULL) : NULL;
    uint64_t owners = count != NULL ? PyLong_AsUnsignedLongLong(count) : UINT64_MAX;
    Py_XDECREF(address);
    Py_XDECREF(count);
    owners = PyErr_Occurred() != NULL ? UINT64_MAX : owners;
    PyErr_Clear();
    return owners;
}

/* A copy with the same strides in its own storage, which replaces the one in `what`; NULL with an exception. */
PyObject *ms_ext_copy_of_piece(PyObject *tensor, ms_movable *what)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *copy = NULL;
    PyObject *bare = PyObject_CallFunctionObjArgs(t->detach, tensor, NULL);
    PyObject *size = PyObject_GetAttr(tensor, t->n_shape);
    PyObject *stride = PyObject_CallFunctionObjArgs(t->stride, tensor, NULL);
    PyObject *empty = bare != NULL && size != NULL && stride != NULL
                          ? PyObject_CallFunctionObjArgs(t->new_empty_strided, bare, size, stride, NULL)
                          : NULL;
    if (empty != NULL) {
        copy = PyObject_CallFunctionObjArgs(t->copy_, empty, bare, NULL);
    }
    Py_XDECREF(empty);
    Py_XDECREF(bare);
    Py_XDECREF(size);
    Py_XDECREF(stride);
    ms_movable own;
    if (copy != NULL && ms_ext_look_behind(copy, &own) == 0) {
        Py_DECREF(what->storage);
        *what = own;
    } else {
        Py_CLEAR(copy);
    }
    return copy;
}

/* An empty tensor that shares the tensor's version counter: it shows changes in place without holding the bytes. */
PyObject *ms_ext_probe_of(const ms_execution *execution, PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *on_device = execution->device.empty_tensor;
    PyObject *empty = on_device != NULL ? on_device : t->empty_tensor;
    PyObject *probe = PyObject_CallFunctionObjArgs(t->detach, tensor, NULL);
    if (probe != NULL && PyObject_SetAttr(probe, t->n_data, empty) != 0) {
        Py_CLEAR(probe);
    }
    return probe;
}
