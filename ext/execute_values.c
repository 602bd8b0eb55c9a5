/*
 * The values of saved tensors of replayed layers, read in place in host memory. Values on a GPU are not compared:
 * reading them would wait for the device.
 */
#include "execute_values.h"

/* The address and strides of a tensor's values. False if they can't be read. */
static bool find_contents(PyObject *tensor, ms_contents *contents, int64_t *strides)
{
    const ms_torch *t = ms_ext_torch();
    bool is_plain = (PyObject *)Py_TYPE(tensor) == t->tensor_type || (PyObject *)Py_TYPE(tensor) == t->parameter_type;
    PyObject *address = NULL, *stride = NULL;
    if (is_plain && ms_ext_flag(tensor, t->n_is_cpu) == 1) {
        address = PyObject_CallFunctionObjArgs(t->tensor_data_ptr, tensor, NULL);
        stride = address != NULL ? PyObject_CallFunctionObjArgs(t->stride, tensor, NULL) : NULL;
    }
    Py_ssize_t rank = stride != NULL && PyTuple_Check(stride) ? PyTuple_Size(stride) : -1;
    for (Py_ssize_t i = 0; i < rank && rank <= MS_RECORD_RANK_MAX; i++) {
        strides[i] = PyLong_AsLongLong(PyTuple_GetItem(stride, i));
    }
    *contents = (ms_contents){.address = address != NULL ? PyLong_AsVoidPtr(address) : NULL, .stride = strides};
    Py_XDECREF(address);
    Py_XDECREF(stride);
    bool is_found = rank >= 0 && rank <= MS_RECORD_RANK_MAX && PyErr_Occurred() == NULL;
    PyErr_Clear(); /* sparse tensors and tensors of torch.func have no address */
    return is_found && contents->address != NULL;
}

static int read_values(ms_region *region, uint32_t slot, PyObject *tensor, bool is_late)
{
    int64_t strides[MS_RECORD_RANK_MAX];
    ms_contents contents;
    if (!find_contents(tensor, &contents, strides)) {
        return 0;
    }
    contents.is_late = is_late;
    ms_execute *execute = region->execution->execute;
    if (!region->is_capturing) {
        ms_frame_mark(execute, region->frame, slot, &contents);
        return 0;
    }
    ms_error err;
    return ms_ext_check(ms_frame_compare(execute, region->frame, slot, &contents, &err), &err);
}

void ms_ext_values_forget(ms_region *region)
{
    while (region->unread_count > 0) {
        Py_DECREF(region->unread[--region->unread_count]);
    }
}

int ms_ext_values_settle(ms_region *region, bool all)
{
    if (region->unread_count == 0 || (!all && ms_ext_operator_now() == region->unread_since)) {
        return 0;
    }
    int rc = 0;
    for (size_t i = 0; i < region->unread_count && rc == 0; i++) {
        /* In forward, a tensor with another version has been written to since it was saved. */
        if (region->is_capturing || ms_ext_version_or_none(region->unread[i]) == 0) {
            rc = read_values(region, region->unread_slots[i], region->unread[i], true);
        }
    }
    ms_ext_values_forget(region);
    return rc;
}

static bool has_dtype(PyObject *tensor, PyObject *wanted)
{
    PyObject *dtype = PyObject_GetAttr(tensor, ms_ext_torch()->n_dtype);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return dtype == wanted;
}

static bool is_scalar(PyObject *tensor)
{
    PyObject *shape = PyObject_GetAttr(tensor, ms_ext_torch()->n_shape);
    bool is_one = shape != NULL && PyTuple_Check(shape) && PyTuple_Size(shape) == 0;
    Py_XDECREF(shape);
    PyErr_Clear();
    return is_one;
}

/* Whether an operator may leave bytes of the tensor unwritten, so that its values can't be compared: workspaces for the
 * backward, of uint8, have gaps; attention on a GPU saves seed and offset, int64 scalars on the host, and sets them only
 * if it drops elements. */
static bool may_have_gaps(const ms_region *region, PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    return has_dtype(tensor, t->uint8) ||
           (region->execution->device.name != NULL && has_dtype(tensor, t->int64) && is_scalar(tensor));
}

static int read_later(ms_region *region, uint32_t slot, PyObject *tensor)
{
    if (region->unread_count < MS_EXT_UNREAD_MAX) {
        region->unread_since = ms_ext_operator_now();
        Py_INCREF(tensor);
        region->unread_slots[region->unread_count] = slot;
        region->unread[region->unread_count++] = tensor;
    }
    return 0;
}

int ms_ext_values_saved(ms_region *region, uint32_t slot, PyObject *tensor)
{
    bool is_late;
    if (region->is_capturing) {
        bool is_marked = ms_frame_is_marked(region->frame, slot, &is_late);
        return !is_marked ? 0 : is_late ? read_later(region, slot, tensor) : read_values(region, slot, tensor, false);
    }
    is_late = ms_ext_may_be_unwritten(tensor);
    if (is_late && may_have_gaps(region, tensor)) {
        return 0;
    }
    return is_late ? read_later(region, slot, tensor) : read_values(region, slot, tensor, false);
}
