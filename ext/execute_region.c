/*
 * Region: one hooked call of a layer, as Python sees it. It has the layer and the call's number,
 * Python's object for the replay (the payload), and the methods that begin and end a replay.
 * Execution.enter() makes it.
 */
#include "execute_pack.h"
#include "technique_ext.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *ms_ext_region_type;

ms_region *ms_ext_region_new(ms_execution *execution, ms_frame *frame)
{
    ms_region *region = PyObject_New(ms_region, ms_ext_region_type);
    if (region == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)execution);
    region->execution = execution;
    region->payload = NULL;
    region->caller = NULL;
    region->waiting_count = 0;
    region->unread_count = 0;
    region->last_operator = 0;
    region->is_capturing = false;
    region->weak_references = NULL;
    region->frame = frame;
    ms_frame_hold(frame);
    return region;
}

static void region_dealloc(PyObject *self)
{
    ms_region *region = (ms_region *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject *error_type, *error_value, *error_traceback;
    PyErr_Fetch(&error_type, &error_value, &error_traceback);
    if (region->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_CLEAR(region->payload);
    Py_CLEAR(region->caller);
    while (region->waiting_count > 0) {
        Py_DECREF(region->waiting[--region->waiting_count]);
    }
    ms_ext_values_forget(region);
    ms_frame_unhold(region->execution->execute, region->frame);
    Py_DECREF((PyObject *)region->execution);
    PyObject_Free(region);
    Py_DECREF(type);
    PyErr_Restore(error_type, error_value, error_traceback);
}

ms_region *ms_ext_region_of_hook(PyObject *pack)
{
    PyObject *self = PyCFunction_Check(pack) ? PyCFunction_GetSelf(pack) : NULL;
    return self != NULL && Py_TYPE(self) == ms_ext_region_type ? (ms_region *)self : NULL;
}

/* ---- attributes ---------------------------------------------------------------- */

static ms_region *region_of(PyObject *self)
{
    return (ms_region *)self;
}

static PyObject *get_layer(PyObject *self, void *closure)
{
    (void)closure;
    const ms_region *region = region_of(self);
    uint32_t layer = ms_frame_layer(region->frame);
    return PyUnicode_FromString(ms_execute_layer_name(region->execution->execute, layer));
}

static PyObject *get_call(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(ms_frame_call(region_of(self)->frame));
}

static PyObject *get_technique(PyObject *self, void *closure)
{
    (void)closure;
    return ms_ext_technique(ms_frame_technique(region_of(self)->frame));
}

static PyObject *get_missing(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(ms_frame_missing(region_of(self)->frame));
}

static PyObject *get_is_running(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(ms_ext_region_is_running(region_of(self)));
}

static PyObject *get_payload(PyObject *self, void *closure)
{
    (void)closure;
    PyObject *payload = region_of(self)->payload;
    payload = payload != NULL ? payload : Py_None;
    Py_INCREF(payload);
    return payload;
}

static int set_payload(PyObject *self, PyObject *value, void *closure)
{
    (void)closure;
    PyObject *old = region_of(self)->payload;
    Py_XINCREF(value);
    region_of(self)->payload = value;
    Py_XDECREF(old);
    return 0;
}

/* ---- replay ---------------------------------------------------------------------- */

static PyObject *begin_replay(PyObject *self, PyObject *whole)
{
    ms_region *region = region_of(self);
    int is_whole = PyObject_IsTrue(whole);
    if (is_whole < 0) {
        return NULL;
    }
    ms_execute *execute = region->execution->execute;
    ms_error err;
    if (ms_ext_check(ms_frame_replay_begin(execute, region->frame, is_whole != 0, &err), &err) != 0) {
        return NULL;
    }
    region->last_operator = 0;
    region->is_stopped = false;
    ms_ext_values_forget(region);
    if (ms_ext_push_hooks(region, true) != 0) {
        ms_frame_replay_end(execute, region->frame, true, NULL);
        return NULL;
    }
    region->is_capturing = true;
    Py_RETURN_NONE;
}

/* Pops the region's pair and any pairs that a replay stopped early left above it. */
static int pop_down_to(ms_region *region)
{
    for (;;) {
        PyObject *pack = ms_ext_top_pack();
        if (pack == NULL || pack == Py_None) {
            Py_XDECREF(pack);
            return pack != NULL ? 0 : -1;
        }
        bool is_ours = PyCFunction_Check(pack) && PyCFunction_GetSelf(pack) == (PyObject *)region;
        Py_DECREF(pack);
        if (ms_ext_pop_hooks() != 0) {
            return -1;
        }
        if (is_ours) {
            return 0;
        }
    }
}

static PyObject *end_replay(PyObject *self, PyObject *failed)
{
    ms_region *region = region_of(self);
    int has_failed = PyObject_IsTrue(failed);
    if (has_failed < 0) {
        return NULL;
    }
    int differs = has_failed ? 0 : ms_ext_values_settle(region, !region->is_stopped);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    region->is_capturing = false;
    ms_ext_values_forget(region);
    int popped = pop_down_to(region);
    ms_error err;
    bool is_lost = has_failed || differs != 0 || popped != 0;
    int rc = ms_frame_replay_end(region->execution->execute, region->frame, is_lost, &err);
    if (differs != 0) {
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    if (popped != 0 || ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *abandon_replay(PyObject *self, PyObject *none)
{
    (void)none;
    ms_region *region = region_of(self);
    if (region->is_capturing) {
        region->is_capturing = false;
        ms_ext_values_forget(region);
        int popped = pop_down_to(region);
        ms_frame_replay_end(region->execution->execute, region->frame, true, NULL);
        if (popped != 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *offload_input(PyObject *self, PyObject *tensor)
{
    PyObject *handle = ms_ext_saved_of_input(region_of(self), tensor);
    if (handle == NULL && PyErr_Occurred() == NULL) {
        Py_RETURN_NONE;
    }
    return handle;
}

/* ---- type --------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    MS_EXT_METHOD(
        "begin_replay", begin_replay, METH_O, "whole, /", "(bool) -> None",
        "Starts to capture the tensors that the layer saves; with `whole`, ReplayStop never ends the replay early."),
    MS_EXT_METHOD("end_replay", end_replay, METH_O, "failed, /", "(bool) -> None",
                  "Stops capturing; raises IntegrationError if the layer saved too little."),
    MS_EXT_METHOD("abandon_replay", abandon_replay, METH_NOARGS, "/", "() -> None",
                  "Stops capturing if end_replay() did not; discards the tensors captured."),
    MS_EXT_METHOD("offload_input", offload_input, METH_O, "tensor, /", "(torch.Tensor) -> Saved | None",
                  "Sends the tensor to the lower tier and returns a handle; None if the tensor must stay."),
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"layer", get_layer, NULL,
     MS_EXT_ATTRIBUTE_DOC("str", "Qualified name of the layer; \"\" for the root's own work."), NULL},
    {"call", get_call, NULL, MS_EXT_ATTRIBUTE_DOC("int", "Number of this call in its forward, from 0."), NULL},
    {"technique", get_technique, NULL, MS_EXT_ATTRIBUTE_DOC("Technique", "The technique of this call."), NULL},
    {"missing", get_missing, NULL,
     MS_EXT_ATTRIBUTE_DOC("int", "Number of saved tensors that a replay would have to recompute."), NULL},
    {"is_running", get_is_running, NULL, MS_EXT_ATTRIBUTE_DOC("bool", "Whether the layer's call is still under way."),
     NULL},
    {"payload", get_payload, set_payload, MS_EXT_ATTRIBUTE_DOC("Any", "Any object that the replay needs."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

int ms_ext_region_init_type(PyObject *module)
{
    static PyMemberDef members[] = {
        {"__weaklistoffset__", T_PYSSIZET, offsetof(ms_region, weak_references), READONLY, NULL},
        {NULL, 0, 0, 0, NULL},
    };
    static char doc[] = "One call of a layer, from its forward until its saved tensors are gone.";
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},           {Py_tp_dealloc, MS_EXT_SLOT(region_dealloc)},
        {Py_tp_members, members},   {Py_tp_methods, methods},
        {Py_tp_getset, attributes}, {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Region",
        .basicsize = sizeof(ms_region),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    return ms_ext_add_type(module, &spec, &ms_ext_region_type);
}
