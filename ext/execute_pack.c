/*
 * The pack and unpack callables that autograd calls for each saved tensor. No Python bytecode runs for a kept
 * tensor. The frame says which callable a layer needs; each kind of handle is made in its own file.
 */
#include "execute_pack.h"

/* Shows a saved tensor to the observer, the profiler of real steps. It returns a token, which lives as long as the
 * handle; every unpack calls the token's unpacked() and then its given(). Takes over `handle`. */
static PyObject *observed(ms_execution *execution, PyObject *tensor, PyObject *handle)
{
    if (handle == NULL || execution->observer == NULL) {
        return handle;
    }
    PyObject *token = PyObject_CallFunctionObjArgs(execution->observer, tensor, NULL);
    if (token == NULL) {
        Py_DECREF(handle);
        return NULL;
    }
    ((ms_saved *)handle)->token = token;
    return handle;
}

static int tell_unpacked(ms_saved *saved)
{
    PyObject *done = saved->token != NULL ? PyObject_CallMethod(saved->token, "unpacked", NULL) : NULL;
    Py_XDECREF(done);
    return saved->token == NULL || done != NULL ? 0 : -1;
}

/* Passes the unpacked tensor to the token, or None if there is an exception instead. Returns `tensor`. */
static PyObject *told_given(ms_saved *saved, PyObject *tensor)
{
    if (saved->token == NULL) {
        return tensor;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *done = PyObject_CallMethod(saved->token, "given", "O", tensor != NULL ? tensor : Py_None);
    if (done == NULL) {
        PyErr_WriteUnraisable(saved->token); /* the step goes on without a profile */
    }
    Py_XDECREF(done);
    PyErr_Restore(type, value, traceback);
    return tensor;
}

static PyObject *pack_slot(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, ms_ext_save_slot(region, tensor));
}

static PyObject *pack_extent(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, ms_ext_save_extent(region, tensor));
}

/* For kept calls. They have hooks only if calls are watched or two-valued storages may become bits. */
static PyObject *pack_kept(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    if (ms_frame_packs(region->frame)) {
        return observed(region->execution, tensor, ms_ext_save_extent(region, tensor));
    }
    ms_execute_kept(region->execution->execute);
    return observed(region->execution, tensor, ms_ext_keep(region->execution, tensor));
}

static void tell_backward_began(ms_execution *execution)
{
    if (execution->backward_told || execution->began == NULL) {
        return;
    }
    execution->backward_told = true;
    PyObject *done = PyObject_CallFunctionObjArgs(execution->began, NULL);
    if (done == NULL) {
        PyErr_WriteUnraisable(execution->began);
    }
    Py_XDECREF(done);
}

static PyObject *unpack(PyObject *self, PyObject *handle)
{
    (void)self;
    if (!ms_ext_is_saved(handle)) {
        return ms_ext_saved_unpack(handle);
    }
    ms_saved *saved = (ms_saved *)handle;
    tell_backward_began(saved->execution);
    if (tell_unpacked(saved) != 0) {
        return NULL;
    }
    Py_INCREF(handle);
    PyObject *tensor = told_given(saved, ms_ext_saved_unpack(handle));
    Py_DECREF(handle);
    return tensor;
}

/* Unpack in a replay's own graph. It does not begin the backward of the step. */
static PyObject *unpack_inner(PyObject *self, PyObject *handle)
{
    (void)self;
    return ms_ext_saved_unpack(handle);
}

static PyObject *pack_selective(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, ms_ext_save_selective(region, tensor));
}

static PyObject *pack_capture(PyObject *self, PyObject *tensor)
{
    return ms_ext_capture_slot((ms_region *)self, tensor);
}

static PyMethodDef pack_selective_def = {"pack_selective", pack_selective, METH_O, NULL};
static PyMethodDef pack_slot_def = {"pack_recompute", pack_slot, METH_O, NULL};
static PyMethodDef pack_extent_def = {"pack_offload", pack_extent, METH_O, NULL};
static PyMethodDef pack_kept_def = {"pack_kept", pack_kept, METH_O, NULL};
static PyMethodDef pack_capture_def = {"pack_replay", pack_capture, METH_O, NULL};
static PyMethodDef unpack_def = {"unpack", unpack, METH_O, NULL};
static PyMethodDef unpack_inner_def = {"unpack_replay", unpack_inner, METH_O, NULL};

static PyMethodDef *pack_of(const ms_region *region, bool is_capture)
{
    static PyMethodDef *const packs[MS_FRAME_HOOK_COUNT] = {
        [MS_FRAME_KEEPS] = &pack_kept_def,
        [MS_FRAME_MOVES] = &pack_extent_def,
        [MS_FRAME_CHOOSES] = &pack_selective_def,
        [MS_FRAME_REPLAYS] = &pack_slot_def,
    };
    return is_capture ? &pack_capture_def : packs[ms_frame_hook_of(region->frame)];
}

int ms_ext_push_hooks(ms_region *region, bool is_capture)
{
    PyObject *pack = PyCFunction_NewEx(pack_of(region, is_capture), (PyObject *)region, NULL);
    PyObject *back = PyCFunction_NewEx(is_capture ? &unpack_inner_def : &unpack_def, (PyObject *)region, NULL);
    PyObject *done = NULL;
    if (pack != NULL && back != NULL) {
        done = PyObject_CallFunctionObjArgs(ms_ext_torch()->push_hooks, pack, back, NULL);
    }
    Py_XDECREF(pack);
    Py_XDECREF(back);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

int ms_ext_pop_hooks(void)
{
    PyObject *done = PyObject_CallFunctionObjArgs(ms_ext_torch()->pop_hooks, NULL);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}
