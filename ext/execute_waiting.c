/*
 * Handles that wait for their bytes: an operator may save a tensor first and fill it
 * afterwards. They hold the tensor until the operator is over, and are sent then.
 */
#include "execute_saved.h"

/* The number of the operator that autograd is recording. */
uint64_t ms_ext_operator_now(void)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->sequence_number, NULL);
    uint64_t now = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    PyErr_Clear();
    return now;
}

/* Whether an operator may save this tensor now and fill it afterwards, as the one behind
 * RReLU does with its noise: nobody computed it under autograd, and nobody wrote to it. */
bool ms_ext_may_be_unwritten(PyObject *tensor)
{
    bool may_be = ms_ext_version_or_none(tensor) == 0 && ms_ext_flag(tensor, ms_ext_torch()->n_requires_grad) == 0;
    PyErr_Clear();
    return may_be;
}

/* A handle that holds its tensor takes over the extent of `sent`, which it replaces. */
static void become_extent(ms_saved *saved, ms_saved *sent)
{
    PyObject *held = saved->tensor;
    saved->kind = SAVED_EXTENT;
    saved->extent = sent->extent;
    saved->version = sent->version;
    saved->mark = sent->mark;
    saved->tensor = sent->tensor;
    saved->dtype = sent->dtype;
    saved->size = sent->size;
    saved->stride = sent->stride;
    saved->offset = sent->offset;
    sent->extent = NULL;
    sent->tensor = sent->dtype = sent->size = sent->stride = sent->offset = NULL;
    Py_DECREF((PyObject *)sent);
    Py_DECREF(held);
}

static void send_one(ms_region *region, ms_saved *saved)
{
    ms_movable what;
    PyObject *sent = NULL;
    bool is_same = ms_ext_version_or_none(saved->tensor) == saved->version;
    if (is_same && ms_ext_is_movable(region->execution, saved->tensor, &what)) {
        sent = ms_ext_offload(region, saved->tensor, &what);
        PyErr_Clear();
    }
    if (sent != NULL) {
        become_extent(saved, (ms_saved *)sent);
    } else {
        ms_execute_kept(region->execution->execute);
    }
}

void ms_ext_send_waiting(ms_region *region)
{
    PyObject *waiting[MS_EXT_WAITING_MAX];
    size_t count = region->waiting_count;
    memcpy(waiting, region->waiting, count * sizeof *waiting);
    region->waiting_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (Py_REFCNT(waiting[i]) > 1 && ms_frame_is_open(region->frame)) {
            send_one(region, (ms_saved *)waiting[i]);
        }
        Py_DECREF(waiting[i]);
    }
}

void ms_ext_send_settled(ms_region *region)
{
    if (region->waiting_count > 0 && ms_ext_operator_now() != region->waiting_since) {
        ms_ext_send_waiting(region);
    }
}

bool ms_ext_must_wait(const ms_region *region, PyObject *tensor)
{
    return region->waiting_count < MS_EXT_WAITING_MAX && ms_ext_may_be_unwritten(tensor);
}

PyObject *ms_ext_save_waiting(ms_region *region, PyObject *tensor)
{
    PyObject *saved = ms_ext_keep(region->execution, tensor);
    if (saved != NULL) {
        region->waiting_since = ms_ext_operator_now();
        region->waiting[region->waiting_count++] = saved;
        Py_INCREF(saved);
    }
    return saved;
}
