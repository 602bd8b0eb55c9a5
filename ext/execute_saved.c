/*
 * Handles of saved tensors that are kept or made again by a replay, and the pack and
 * unpack callables that autograd calls for each tensor: no Python bytecode runs for one
 * that is kept. What happens to a tensor is the library's choice; here it is carried out
 * on torch objects.
 *
 * A handle never holds a tensor that has a grad_fn: that node would own the handle,
 * and neither would ever be freed. It holds aliases made by detach(), which share
 * storage and version counter.
 */
#include "execute_saved.h"

/* What a version can't be: the tensor has no counter. */
#define NO_VERSION UINT64_MAX

static PyTypeObject *saved_type;
PyObject *ms_ext_replay_stop;

ms_saved *ms_ext_saved_new(ms_saved_kind kind, ms_execution *execution)
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
    if (saved->kind == SAVED_SLOT && saved->region != NULL) {
        ms_frame_drop(saved->execution->execute, saved->region->frame, saved->slot);
    } else if (saved->extent != NULL) {
        ms_extent_drop(saved->execution->execute, saved->extent, saved->mark);
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

/* ---- kept ---------------------------------------------------------------------- */

/* The tensor itself where it is a leaf, else an alias without a graph. */
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

uint64_t ms_ext_version_or_none(PyObject *tensor)
{
    uint64_t version;
    if (ms_ext_version_of(tensor, &version) != 0) {
        PyErr_Clear();
        return NO_VERSION;
    }
    return version;
}

PyObject *ms_ext_keep(ms_execution *execution, PyObject *tensor)
{
    ms_saved *saved = ms_ext_saved_new(SAVED_KEPT, execution);
    if (saved == NULL) {
        return NULL;
    }
    saved->tensor = ms_ext_alias_of(tensor);
    saved->version = ms_ext_version_or_none(saved->tensor);
    return (PyObject *)saved;
}

PyObject *ms_ext_type_name_of(PyObject *tensor)
{
    return PyObject_CallMethod(tensor, "type", NULL);
}

static int check_tensor(PyObject *tensor, uint64_t version)
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

PyObject *ms_ext_unpack_kept(ms_saved *saved)
{
    if (check_tensor(saved->tensor, saved->version) != 0) {
        return NULL;
    }
    Py_INCREF(saved->tensor);
    return saved->tensor;
}

/* ---- slots: recompute --------------------------------------------------------------- */

/* Parameters, buffers, the caller's batch: they stay whatever happens. */
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

static PyObject *save_slot(ms_region *region, PyObject *tensor)
{
    ms_execution *execution = region->execution;
    int64_t sizes[MS_RECORD_RANK_MAX];
    ms_record record;
    ms_error err;
    uint32_t slot;
    if (!ms_ext_region_is_running(region)) {
        ms_execute_kept(execution->execute);
        return ms_ext_keep(execution, tensor);
    }
    bool is_kept = ms_ext_stays(execution, tensor);
    if (ms_ext_record_of(tensor, sizes, &record) != 0 ||
        ms_ext_check(ms_frame_save(execution->execute, region->frame, &record, is_kept, &slot, &err), &err)) {
        return NULL;
    }
    if (is_kept) {
        return ms_ext_keep(execution, tensor);
    }
    ms_saved *saved = ms_ext_saved_new(SAVED_SLOT, execution);
    if (saved == NULL) {
        ms_frame_drop(execution->execute, region->frame, slot);
        return NULL;
    }
    saved->slot = slot;
    Py_INCREF((PyObject *)region);
    saved->region = region;
    return (PyObject *)saved;
}

/* The memory in the slot, made by a replay if need be. */
static ms_memory *take_slot(ms_saved *saved)
{
    ms_execution *execution = saved->execution;
    ms_frame *frame = saved->region->frame;
    ms_memory *memory = ms_frame_take(execution->execute, frame, saved->slot);
    if (memory != NULL) {
        return memory;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(execution->replay, saved->region, NULL);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    memory = ms_frame_take(execution->execute, frame, saved->slot);
    if (memory == NULL) {
        ms_error err;
        ms_fail(&err, MS_EREPLAY, "layer %s: its replay did not give a saved tensor back",
                ms_execute_layer_name(execution->execute, ms_frame_layer(frame)));
        ms_ext_raise(&err);
    }
    return memory;
}

static PyObject *unpack_slot(ms_saved *saved)
{
    ms_frame *frame = saved->region->frame;
    PyObject *tensor = NULL;
    ms_frame_pin(frame);
    ms_memory *memory = take_slot(saved);
    if (memory != NULL) {
        tensor = memory->strong;
        Py_INCREF(tensor);
        if (check_tensor(tensor, memory->version) != 0) {
            Py_CLEAR(tensor);
        }
    }
    ms_frame_unpin(saved->execution->execute, frame);
    return tensor;
}

/* Puts the tensor of a replay into its slot; -1 with an exception. */
static int capture(ms_region *region, uint32_t slot, PyObject *tensor, uint64_t version)
{
    ms_memory *memory = ms_ext_memory_of_tensor(tensor, version);
    if (memory == NULL) {
        return -1;
    }
    ms_frame_put(region->execution->execute, region->frame, slot, memory);
    return 0;
}

static PyObject *stop_replay(void)
{
    PyErr_SetString(ms_ext_replay_stop, "everything that backward needs has been recomputed");
    return NULL;
}

static PyObject *pack_capture(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    int64_t sizes[MS_RECORD_RANK_MAX];
    ms_record record;
    ms_error err;
    ms_capture what;
    uint32_t slot;
    if (region->last_operator != 0 && region->last_operator != ms_ext_operator_now() + 1) {
        return stop_replay();
    }
    if (ms_ext_record_of(tensor, sizes, &record) != 0 ||
        ms_ext_check(ms_frame_replay_save(region->execution->execute, region->frame, &record, &slot, &what, &err),
                     &err)) {
        return NULL;
    }
    /* The replay's own graph has to work too: a layer may differentiate inside itself. */
    PyObject *kept = ms_ext_keep(region->execution, tensor);
    if (kept == NULL || what == MS_CAPTURE_IGNORE) {
        return kept;
    }
    ms_saved *saved = (ms_saved *)kept;
    if (what == MS_CAPTURE_LAST && ms_ext_may_be_unwritten(saved->tensor)) {
        region->last_operator = ms_ext_operator_now() + 1; /* which has to run: it may fill the tensor */
        what = MS_CAPTURE_PUT;
    }
    if (capture(region, slot, saved->tensor, saved->version) != 0) {
        Py_DECREF(kept);
        return NULL;
    }
    if (what == MS_CAPTURE_LAST) {
        Py_DECREF(kept);
        return stop_replay();
    }
    return kept;
}

/* ---- the callables --------------------------------------------------------------------------- */

/* Lets the profiler of real steps see a saved tensor: it gives a token, whose
 * unpacked() is called at every unpack and which dies with the handle. */
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

static PyObject *pack_slot(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, save_slot(region, tensor));
}

static PyObject *pack_extent(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, ms_ext_save_extent(region, tensor));
}

/* Where calls are watched, or storages of two values become bits in them too: one that is
 * kept has no hooks otherwise. */
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

PyObject *ms_ext_saved_unpack(PyObject *handle)
{
    if (Py_TYPE(handle) != saved_type) {
        PyErr_SetString(PyExc_TypeError, "not a saved tensor of memscale");
        return NULL;
    }
    ms_saved *saved = (ms_saved *)handle;
    switch (saved->kind) {
    case SAVED_SLOT:
        return unpack_slot(saved);
    case SAVED_EXTENT:
        return ms_ext_unpack_extent(saved);
    case SAVED_DROPPED:
        return ms_ext_unpack_dropped(saved);
    default:
        return ms_ext_unpack_kept(saved);
    }
}

static PyObject *unpack(PyObject *self, PyObject *handle)
{
    (void)self;
    if (Py_TYPE(handle) == saved_type) {
        tell_backward_began(((ms_saved *)handle)->execution);
        if (tell_unpacked((ms_saved *)handle) != 0) {
            return NULL;
        }
    }
    return ms_ext_saved_unpack(handle);
}

/* Unpack of a replay's own graph: not the backward of the step. */
static PyObject *unpack_inner(PyObject *self, PyObject *handle)
{
    (void)self;
    return ms_ext_saved_unpack(handle);
}

static PyObject *pack_chosen(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    return observed(region->execution, tensor, ms_ext_save_chosen(region, tensor));
}

static PyMethodDef pack_chosen_def = {"pack_selective", pack_chosen, METH_O, NULL};
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
        [MS_FRAME_CHOOSES] = &pack_chosen_def,
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

/* ---- type -------------------------------------------------------------------------------------- */

int ms_ext_saved_init_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, MS_EXT_SLOT(saved_dealloc)},
        {Py_tp_methods, ms_ext_saved_methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Saved",
        .basicsize = sizeof(ms_saved),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    if (ms_ext_add_type(module, &spec, &saved_type) != 0) {
        return -1;
    }
    ms_ext_replay_stop = PyErr_NewExceptionWithDoc(
        "memscale._core.ReplayStop", "Ends a replay early: everything that backward needs exists.", NULL, NULL);
    return ms_ext_replay_stop != NULL && PyModule_AddObjectRef(module, "ReplayStop", ms_ext_replay_stop) == 0 ? 0 : -1;
}
