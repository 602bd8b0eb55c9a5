/*
 * Handles of saved tensors whose storages go to the lower tier: sent when autograd saves
 * them, or once they are written (execute_waiting.c), brought back at unpack. Called by
 * the pack and unpack callables of execute_saved.c.
 */
#include "execute_saved.h"

/* An extent that holds these very bytes already, with one more handle. */
static ms_extent *find_same(ms_region *region, const ms_movable *what, uint64_t version)
{
    ms_execute *execute = region->execution->execute;
    ms_extent *extent = ms_extent_find(execute, region->frame, what->identity, version);
    if (extent == NULL) {
        return NULL;
    }
    const ms_memory *memory = ms_extent_source(extent);
    uint64_t now;
    if (memory->bytes == what->bytes && ms_ext_version_of(memory->probe, &now) == 0 && now == memory->version) {
        return extent;
    }
    PyErr_Clear();
    ms_extent_drop(execute, extent, 0);
    return NULL;
}

static ms_extent *store_new(ms_region *region, const ms_movable *what, PyObject *probe, uint64_t version)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->data_ptr, what->storage, NULL);
    void *address = number != NULL ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    if (address == NULL) {
        return NULL;
    }
    ms_memory *memory = ms_ext_memory_of_storage(what->storage, what->bytes);
    if (memory == NULL) {
        return NULL;
    }
    Py_INCREF(probe);
    memory->probe = probe;
    memory->version = version;
    ms_error err;
    ms_extent *extent;
    int rc = ms_extent_store(region->execution->execute, region->frame, what->identity, version, address, what->bytes,
                             ms_ext_capacity_behind(address, what->bytes), memory, &extent, &err);
    if (ms_ext_check(rc, &err) != 0 || extent == NULL) {
        ms_ext_memory_free(memory);
        return NULL;
    }
    return extent;
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

static bool is_kept(const ms_region *region)
{
    return ms_frame_rest_stays(region->frame);
}

/* `source` is the tensor, or a copy of it; its storage is sent. NULL without an exception:
 * keep the tensor. */
static PyObject *offload_as(ms_region *region, PyObject *tensor, PyObject *source, const ms_movable *what)
{
    ms_execution *execution = region->execution;
    ms_saved *saved = ms_ext_saved_new(SAVED_EXTENT, execution);
    if (saved == NULL) {
        return NULL;
    }
    saved->tensor = ms_ext_probe_of(execution, tensor);
    if (saved->tensor == NULL || ms_ext_version_of(saved->tensor, &saved->version) != 0 ||
        ms_ext_remember_view(saved, source) != 0) {
        Py_DECREF((PyObject *)saved);
        return NULL;
    }
    saved->extent = find_same(region, what, saved->version);
    if (saved->extent != NULL && is_kept(region) && !ms_extent_is_packed(saved->extent)) {
        /* Another layer sent it away; here it is to stay. */
        ms_extent_drop(execution->execute, saved->extent, 0);
        saved->extent = NULL;
    }
    if (saved->extent == NULL) {
        saved->extent = store_new(region, what, saved->tensor, saved->version);
    }
    if (saved->extent == NULL) {
        Py_CLEAR(saved);
    }
    return (PyObject *)saved;
}

/* As offload_as(); takes over the reference to the storage. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what)
{
    PyObject *source = tensor;
    Py_INCREF(source);
    int piece = ms_ext_is_piece(tensor, what);
    if (piece == 1) {
        Py_DECREF(source);
        /* Not to be copied only to see whether it is a mask. */
        source = is_kept(region) ? NULL : ms_ext_copy_of_piece(tensor, what);
    }
    PyObject *saved = piece >= 0 && source != NULL ? offload_as(region, tensor, source, what) : NULL;
    Py_XDECREF(source);
    Py_XDECREF(what->storage);
    return saved;
}

/* Selective frames have asked already; in the others nothing is dropped, but the plan may say
 * what becomes bits. */
static int tell_choice(ms_region *region, const ms_movable *what)
{
    ms_error err;
    bool is_dropped;
    return ms_ext_check(
        ms_frame_choose(region->execution->execute, region->frame, what->identity, what->bytes, &is_dropped, &err),
        &err);
}

PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor)
{
    ms_movable what;
    PyObject *saved = NULL;
    ms_ext_send_settled(region);
    if (ms_ext_region_is_running(region) && ms_ext_is_movable(region->execution, tensor, &what)) {
        if (tell_choice(region, &what) != 0) {
            Py_DECREF(what.storage);
            return NULL;
        }
        if (ms_ext_must_wait(region, tensor)) {
            Py_DECREF(what.storage);
            return ms_ext_save_waiting(region, tensor);
        }
        saved = ms_ext_offload(region, tensor, &what);
        if (saved == NULL && PyErr_Occurred() != NULL) {
            return NULL;
        }
    }
    if (saved != NULL) {
        return saved;
    }
    ms_execute_kept(region->execution->execute);
    return ms_ext_keep(region->execution, tensor);
}

PyObject *ms_ext_saved_of_input(ms_region *region, PyObject *tensor)
{
    ms_movable what;
    if (!ms_ext_is_movable(region->execution, tensor, &what)) {
        return NULL;
    }
    return ms_ext_offload(region, tensor, &what);
}

/* A tensor of this dtype without elements. */
static PyObject *empty_of(const ms_execution *execution, PyObject *dtype)
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
    PyObject *tensor = empty_of(saved->execution, saved->dtype);
    PyObject *name = tensor != NULL ? ms_ext_type_name_of(tensor) : NULL;
    if (name != NULL) {
        ms_ext_raise_version(name, saved->size, now, saved->version);
    }
    Py_XDECREF(name);
    Py_XDECREF(tensor);
    return -1;
}

PyObject *ms_ext_unpack_extent(ms_saved *saved)
{
    const ms_torch *t = ms_ext_torch();
    ms_execute *execute = saved->execution->execute;
    ms_error err;
    void *reference;
    if (ms_ext_check_probe(saved) != 0 ||
        ms_ext_check(ms_extent_take(execute, saved->extent, &reference, &err), &err) != 0) {
        return NULL;
    }
    PyObject *storage = ((ms_memory *)reference)->strong;
    Py_INCREF(storage);
    PyObject *tensor = empty_of(saved->execution, saved->dtype);
    PyObject *view = tensor != NULL ? PyObject_CallFunctionObjArgs(t->set_, tensor, storage, saved->offset, saved->size,
                                                                   saved->stride, NULL)
                                    : NULL;
    Py_XDECREF(tensor);
    Py_DECREF(storage);
    bool is_fetched = reference != ms_extent_source(saved->extent);
    if (view != NULL && is_fetched && ms_execute_device(execute) >= 0 &&
        ms_ext_device_lend(saved->execution, reference, view) != 0) {
        Py_CLEAR(view);
    }
    ms_extent_taken(execute, saved->extent, &saved->mark);
    return view;
}
