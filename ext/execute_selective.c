/*
 * Saved tensors of a selective technique. The library says which storages to drop; they stay until
 * their call ends. Then the tape of the call's operators (Python's execution/tape.py, the region's
 * payload) drops the storages that it can recompute, and gives each of their handles a ticket that
 * recomputes the tensor. The other storages stay.
 */
#include "execute_selective.h"

#include "undo.h"

/* Whether the tensor can be rebuilt as a view of its storage. No exception is left set. */
static bool is_plain(PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    PyTypeObject *type = Py_TYPE(tensor);
    bool is_tensor = (PyObject *)type == t->tensor_type || (PyObject *)type == t->parameter_type;
    bool plain = is_tensor && ms_ext_flag(tensor, t->n_is_quantized) == 0 && ms_ext_ask(t->is_conj, tensor) == 0 &&
                 ms_ext_ask(t->is_neg, tensor) == 0;
    PyErr_Clear();
    return plain;
}

static PyObject *unpack_dropped(ms_saved *saved)
{
    if (saved->ticket == NULL) {
        return ms_ext_unpack_kept(saved);
    }
    if (ms_ext_check_probe(saved) != 0) {
        return NULL;
    }
    ms_counter_add(ms_execute_counters(saved->execution->execute), MS_COUNTER_REMADE_TENSORS, 1);
    PyObject *give = PyObject_GetAttrString(saved->ticket, "give");
    PyObject *args = PyTuple_Pack(4, saved->dtype, saved->size, saved->stride, saved->offset);
    PyObject *tensor = give != NULL && args != NULL ? ms_ext_guarded(give, args) : NULL;
    Py_XDECREF(give);
    Py_XDECREF(args);
    return tensor;
}

/* Releases the bytes; the probe that replaces the tensor still shows its version. */
static int drop_bytes(ms_saved *saved, PyObject *ticket)
{
    PyObject *probe = saved->ticket == NULL ? ms_ext_probe_of(saved->execution, saved->tensor) : NULL;
    if (probe == NULL) {
        return -1;
    }
    PyObject *tensor = saved->tensor;
    saved->tensor = probe;
    saved->ticket = Py_NewRef(ticket);
    Py_DECREF(tensor);
    return 0;
}

static const ms_saved_kind selective_kind = {.unpack = unpack_dropped, .drop = drop_bytes};

static int tell_tape(ms_region *region, const char *method, PyObject *handle, PyObject *storage)
{
    PyObject *done = PyObject_CallMethod(region->payload, method, "OO", handle, storage);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

static PyObject *drop_later(ms_region *region, PyObject *tensor, const ms_movable *what)
{
    ms_saved *saved = ms_ext_saved_new(&selective_kind, region->execution);
    if (saved == NULL) {
        return NULL;
    }
    saved->tensor = ms_ext_alias_of(tensor);
    saved->version = ms_ext_version_or_none(saved->tensor);
    if (ms_ext_remember_view(saved, tensor) != 0 || tell_tape(region, "dropped", (PyObject *)saved, what->storage)) {
        Py_CLEAR(saved);
    }
    return (PyObject *)saved;
}

/* Keeps or moves the tensor, and tells the tape that others may be recomputed from it. Copied pieces are left out:
 * operators do not read their storages. */
static PyObject *hold(ms_region *region, PyObject *tensor, const ms_movable *what)
{
    bool moves = !ms_frame_rest_stays(region->frame) || ms_frame_packs(region->frame);
    if (!moves) {
        ms_execute_kept(region->execution->execute);
    }
    PyObject *handle = moves ? ms_ext_save_extent(region, tensor) : ms_ext_keep(region->execution, tensor);
    if (handle == NULL) {
        return NULL;
    }
    int piece = moves ? ms_ext_is_piece(tensor, what) : 0;
    if (piece < 0 || (piece == 0 && tell_tape(region, "held", handle, what->storage) != 0)) {
        Py_CLEAR(handle);
    }
    return handle;
}

PyObject *ms_ext_save_selective(ms_region *region, PyObject *tensor)
{
    ms_execution *execution = region->execution;
    ms_movable what;
    ms_error err;
    bool is_dropped = false;
    /* If the model lies on several devices, the plan knows the tensors of one of them. */
    bool is_counted = execution->model == 0 || ms_ext_is_here(execution, tensor);
    bool known = is_counted && region->payload != NULL && ms_ext_region_is_running(region) &&
                 !ms_ext_stays(execution, tensor) && is_plain(tensor) && ms_ext_look_behind(tensor, &what) == 0;
    if (!known) {
        ms_execute_kept(execution->execute);
        return ms_ext_keep(execution, tensor);
    }
    PyObject *handle = NULL;
    int rc = MS_OK;
    if (what.bytes > 0) {
        rc = ms_frame_choose(execution->execute, region->frame, what.identity, what.bytes, &is_dropped, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        handle = is_dropped ? drop_later(region, tensor, &what) : hold(region, tensor, &what);
    }
    Py_DECREF(what.storage);
    return handle;
}
