/*
 * Handles of saved tensors whose storages go to the lower tier and come back at unpack.
 */
#include "execute_extent.h"

static PyObject *unpack_extent(ms_saved *saved)
{
    const ms_torch *t = ms_ext_torch();
    ms_execute *execute = saved->execution->execute;
    ms_error err;
    void *reference;
    if (ms_ext_check_probe(saved) != 0 ||
        ms_ext_check_fetch(saved->execution, ms_extent_take(execute, saved->extent, &reference, &err), &err) != 0) {
        return NULL;
    }
    PyObject *storage = ((ms_memory *)reference)->strong;
    Py_INCREF(storage);
    PyObject *tensor = ms_ext_empty_of(saved->execution, saved->dtype);
    PyObject *view = tensor != NULL ? PyObject_CallFunctionObjArgs(t->set_, tensor, storage, saved->offset, saved->size,
                                                                   saved->stride, NULL)
                                    : NULL;
    Py_XDECREF(tensor);
    Py_DECREF(storage);
    bool is_fetched = reference != ms_extent_source(saved->extent);
    if (view != NULL && is_fetched && !ms_execute_host_is_device(execute) &&
        ms_ext_device_lend(saved->execution, reference, view) != 0) {
        Py_CLEAR(view);
    }
    ms_extent_taken(execute, saved->extent, &saved->mark);
    return view;
}

static void end_extent(ms_saved *saved)
{
    if (saved->extent != NULL) {
        ms_extent_drop(saved->execution->execute, saved->extent, saved->mark);
    }
}

static const ms_saved_kind extent_kind = {.unpack = unpack_extent, .end = end_extent};

/* An extent that already holds these bytes, with one more handle; NULL if there is none. */
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

static ms_extent *store_new(ms_region *region, const ms_movable *what, PyObject *source, PyObject *probe,
                            uint64_t version)
{
    void *address = ms_ext_address_of(what->storage);
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
    memory->holds_truths = !ms_execute_host_is_device(region->execution->execute) && ms_ext_holds_truths(source);
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

/* Sends the storage of `source`, the tensor or a copy of it. NULL without an exception: keep the tensor. */
static PyObject *offload_as(ms_region *region, PyObject *tensor, PyObject *source, const ms_movable *what)
{
    ms_execution *execution = region->execution;
    ms_saved *saved = ms_ext_saved_new(&extent_kind, execution);
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
    if (saved->extent != NULL && ms_frame_rest_stays(region->frame) && !ms_extent_is_packed(saved->extent)) {
        /* Another layer sent the storage; this frame's tensors stay. */
        ms_extent_drop(execution->execute, saved->extent, 0);
        saved->extent = NULL;
    }
    if (saved->extent == NULL) {
        saved->extent = store_new(region, what, source, saved->tensor, saved->version);
    }
    if (saved->extent == NULL) {
        Py_CLEAR(saved);
    }
    return (PyObject *)saved;
}

/* As offload_as(); takes over the reference what->storage. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what)
{
    PyObject *source = tensor;
    Py_INCREF(source);
    int piece = what->is_final ? 0 : ms_ext_is_piece(tensor, what);
    if (piece == 1) {
        Py_DECREF(source);
        /* A copy only to find out whether it is two-valued costs too much. */
        source = ms_frame_rest_stays(region->frame) ? NULL : ms_ext_copy_of_piece(tensor, what);
    }
    PyObject *saved = piece >= 0 && source != NULL ? offload_as(region, tensor, source, what) : NULL;
    Py_XDECREF(source);
    Py_XDECREF(what->storage);
    return saved;
}

PyObject *ms_ext_saved_of_input(ms_region *region, PyObject *tensor)
{
    ms_movable what;
    if (!ms_ext_is_movable(region->execution, tensor, &what)) {
        return NULL;
    }
    return ms_ext_offload(region, tensor, &what);
}

/* `saved`, a handle that holds its tensor, takes over the extent and view of `sent`, which it releases. */
void ms_ext_become_extent(ms_saved *saved, ms_saved *sent)
{
    PyObject *held = saved->tensor;
    saved->kind = sent->kind;
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
