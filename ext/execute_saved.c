/*
 * Handles of saved tensors, and the pack and unpack callables that autograd calls
 * for each of them: no Python bytecode runs for a tensor that is kept. What happens
 * to a tensor is the library's choice; here it is carried out on torch objects.
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

static PyObject *type_name_of(PyObject *tensor)
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
    PyObject *name = type_name_of(tensor);
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

static bool is_resident(ms_execution *execution, PyObject *tensor)
{
    PyObject *storage;
    uintptr_t identity;
    if (ms_ext_storage_of(tensor, &storage, &identity) != 0) {
        return false;
    }
    Py_DECREF(storage);
    return ms_ext_identity_has(&execution->residents, identity);
}

/* Parameters, buffers, the caller's batch: they stay whatever happens. */
bool ms_ext_stays(ms_execution *execution, PyObject *tensor)
{
    const ms_torch *t = ms_ext_torch();
    if (is_resident(execution, tensor)) {
        return true;
    }
    bool is_leaf_with_gradient =
        ms_ext_flag(tensor, t->n_is_leaf) == 1 && ms_ext_flag(tensor, t->n_requires_grad) == 1;
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

static PyObject *pack_capture(PyObject *self, PyObject *tensor)
{
    ms_region *region = (ms_region *)self;
    int64_t sizes[MS_RECORD_RANK_MAX];
    ms_record record;
    ms_error err;
    ms_capture what;
    uint32_t slot;
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
    if (capture(region, slot, saved->tensor, saved->version) != 0) {
        Py_DECREF(kept);
        return NULL;
    }
    if (what == MS_CAPTURE_LAST) {
        Py_DECREF(kept);
        PyErr_SetString(ms_ext_replay_stop, "everything that backward needs has been recomputed");
        return NULL;
    }
    return kept;
}

/* ---- extents: offload --------------------------------------------------------------------- */

/* An extent that holds these very bytes already, with one more handle. */
static ms_extent *find_same(ms_execution *execution, const ms_movable *what, uint64_t version)
{
    ms_extent *extent = ms_extent_find(execution->execute, what->identity, version);
    if (extent == NULL) {
        return NULL;
    }
    const ms_memory *memory = ms_extent_source(extent);
    uint64_t now;
    if (memory->bytes == what->bytes && ms_ext_version_of(memory->probe, &now) == 0 && now == memory->version) {
        return extent;
    }
    PyErr_Clear();
    ms_extent_drop(execution->execute, extent, 0);
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
    int rc = ms_extent_store(region->execution->execute, region->frame, what->identity, version, address,
                             what->bytes, ms_ext_capacity_behind(address, what->bytes), memory, &extent, &err);
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
    bool is_complete =
        saved->dtype != NULL && saved->size != NULL && saved->stride != NULL && saved->offset != NULL;
    return is_complete ? 0 : -1;
}

static bool is_kept(const ms_region *region)
{
    return ms_technique_rest(ms_frame_technique(region->frame)) == MS_TECHNIQUE_KEEP;
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
    saved->extent = find_same(execution, what, saved->version);
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
static PyObject *offload(ms_region *region, PyObject *tensor, ms_movable *what)
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

/* ---- waiting for the bytes ------------------------------------------------------------- */

/* The number of the operator that autograd is recording. */
static uint64_t operator_now(void)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->sequence_number, NULL);
    uint64_t now = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    PyErr_Clear();
    return now;
}

/* Whether an operator may save this tensor now and fill it afterwards, as the one behind
 * RReLU does with its noise: nobody computed it under autograd, and nobody wrote to it. */
static bool may_be_unwritten(PyObject *tensor)
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
        sent = offload(region, saved->tensor, &what);
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

/* A handle that holds the tensor until it can be sent. */
static PyObject *save_waiting(ms_region *region, PyObject *tensor)
{
    PyObject *saved = ms_ext_keep(region->execution, tensor);
    if (saved != NULL) {
        region->waiting_since = operator_now();
        region->waiting[region->waiting_count++] = saved;
        Py_INCREF(saved);
    }
    return saved;
}

PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor)
{
    ms_movable what;
    PyObject *saved = NULL;
    if (region->waiting_count > 0 && operator_now() != region->waiting_since) {
        ms_ext_send_waiting(region);
    }
    if (ms_ext_region_is_running(region) && ms_ext_is_movable(region->execution, tensor, &what)) {
        if (region->waiting_count < MS_EXT_WAITING_MAX && may_be_unwritten(tensor)) {
            Py_DECREF(what.storage);
            return save_waiting(region, tensor);
        }
        saved = offload(region, tensor, &what);
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
    return offload(region, tensor, &what);
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
    PyObject *name = tensor != NULL ? type_name_of(tensor) : NULL;
    if (name != NULL) {
        ms_ext_raise_version(name, saved->size, now, saved->version);
    }
    Py_XDECREF(name);
    Py_XDECREF(tensor);
    return -1;
}

static PyObject *unpack_extent(ms_saved *saved)
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
    PyObject *view = tensor != NULL ? PyObject_CallFunctionObjArgs(t->set_, tensor, storage, saved->offset,
                                                                   saved->size, saved->stride, NULL)
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
    if (ms_execute_packs_kept(region->execution->execute)) {
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
        return unpack_extent(saved);
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
    if (is_capture) {
        return &pack_capture_def;
    }
    switch (ms_frame_technique(region->frame)) {
    case MS_TECHNIQUE_RECOMPUTE:
    case MS_TECHNIQUE_RECOMPUTE_OFFLOAD_INPUT:
        return &pack_slot_def;
    case MS_TECHNIQUE_KEEP:
        return &pack_kept_def;
    case MS_TECHNIQUE_OFFLOAD_HOST:
    case MS_TECHNIQUE_OFFLOAD_DISK:
        return &pack_extent_def;
    default:
        return &pack_chosen_def;
    }
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
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL || PyModule_AddObjectRef(module, "Saved", type) != 0) {
        Py_XDECREF(type);
        return -1;
    }
    saved_type = (PyTypeObject *)type;
    ms_ext_replay_stop = PyErr_NewExceptionWithDoc(
        "memscale._core.ReplayStop", "Ends a replay early: everything that backward needs exists.", NULL, NULL);
    return ms_ext_replay_stop != NULL && PyModule_AddObjectRef(module, "ReplayStop", ms_ext_replay_stop) == 0
               ? 0
               : -1;
}
