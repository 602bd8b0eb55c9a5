/*
 * Execution: the library's executor for Python. This file has plans, counters and queries;
 * execute_hooks.c enters and leaves calls. memscale.execution.executor makes one for each model;
 * handles of saved tensors keep it alive until autograd frees the last graph. Everything runs
 * under the interpreter lock.
 */
#include "execute_pack.h"
#include "rooms.h"

/* ---- making and freeing ------------------------------------------------------ */

static PyObject *execution_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    PyObject *replay;
    unsigned long long model = 0;
    ms_error err;
    if (!PyArg_ParseTuple(args, "O|K:Execution", &replay, &model) || ms_ext_torch() == NULL) {
        return NULL;
    }
    ms_execution *self = (ms_execution *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(replay);
    self->replay = replay;
    self->model = model;
    ms_execute_host host = ms_ext_host;
    host.context = self;
    ms_ext_bits_callbacks(&host);
    if (ms_ext_check(ms_execute_open(&host, NULL, &self->execute, &err), &err) != 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void execution_dealloc(PyObject *object)
{
    ms_execution *self = ms_ext_execution_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject *error_type, *error_value, *error_traceback;
    PyErr_Fetch(&error_type, &error_value, &error_traceback);
    ms_execute_close(self->execute);
    ms_ext_device_close(self);
    Py_XDECREF(self->replay);
    Py_XDECREF(self->began);
    Py_XDECREF(self->observer);
    ms_free(self->residents.items);
    PyObject_Free(self);
    Py_DECREF(type);
    PyErr_Restore(error_type, error_value, error_traceback);
}

/* ---- tier and plan ------------------------------------------------------------- */

static PyObject *open_tier(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"host_cap_bytes",
                            (char *)"disk_cap_bytes",
                            (char *)"dir",
                            (char *)"slab_bytes",
                            (char *)"pinned_gb",
                            (char *)"stream_count",
                            (char *)"write_bytes_per_s",
                            (char *)"read_bytes_per_s",
                            (char *)"pageable_bytes_per_s",
                            NULL};
    const char *dir = NULL;
    unsigned long long host_cap_bytes, disk_cap_bytes, slab_bytes = 0, write_rate = 0, read_rate = 0;
    unsigned long long pageable_rates[2] = {0}; /* down, back */
    double pinned_gb = 0;
    unsigned int stream_count = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KK|zKdIKK(KK):open_tier", names, &host_cap_bytes, &disk_cap_bytes,
                                     &dir, &slab_bytes, &pinned_gb, &stream_count, &write_rate, &read_rate,
                                     &pageable_rates[0], &pageable_rates[1])) {
        return NULL;
    }
    ms_execution *execution = ms_ext_execution_of(self);
    bool on_gpu = !ms_execute_host_is_device(execution->execute);
    ms_offload_options options = {.dir = dir,
                                  .slab_bytes = slab_bytes,
                                  .from_device = on_gpu,
                                  .device_kind = on_gpu ? execution->device.kind->id : MS_DEVICE_CPU,
                                  .device = on_gpu ? (uint32_t)ms_execute_device(execution->execute) : 0,
                                  .pinned_bytes = (uint64_t)(pinned_gb * 1e9), /* a checked field of the config */
                                  .stream_count = stream_count,
                                  .write_bytes_per_s = write_rate,
                                  .read_bytes_per_s = read_rate,
                                  .pageable_write_bytes_per_s = pageable_rates[0],
                                  .pageable_read_bytes_per_s = pageable_rates[1]};
    ms_error err;
    if (!ms_execute_first_tier(host_cap_bytes, disk_cap_bytes, &options)) {
        Py_RETURN_NONE;
    }
    return ms_ext_none_or_raise(ms_execute_open_tier(execution->execute, &options, &err), &err);
}

static PyObject *set_overlap(PyObject *self, PyObject *wanted)
{
    int overlaps = PyObject_IsTrue(wanted);
    if (overlaps < 0) {
        return NULL;
    }
    ms_execute_set_overlap(ms_ext_execution_of(self)->execute, overlaps != 0);
    Py_RETURN_NONE;
}

static PyObject *tier(PyObject *self, PyObject *args)
{
    (void)args;
    const ms_execute *execute = ms_ext_execution_of(self)->execute;
    if (!ms_execute_has_tier(execute)) {
        Py_RETURN_NONE;
    }
    return ms_ext_text_or_none(ms_execute_tier_description(execute));
}

static PyObject *add_layer(PyObject *self, PyObject *name)
{
    const char *text = ms_ext_utf8(name, "name", NULL);
    uint32_t layer;
    ms_error err;
    if (text == NULL ||
        ms_ext_check(ms_execute_add_layer(ms_ext_execution_of(self)->execute, text, &layer, &err), &err) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(layer);
}

static PyObject *set_plan(PyObject *self, PyObject *json)
{
    const char *text;
    ms_error err;
    ms_plan *plan = NULL;
    if (ms_ext_utf8_or_none(json, "plan", &text) != 0) {
        return NULL;
    }
    int rc = text != NULL ? ms_plan_parse(text, &plan, &err) : MS_OK;
    if (rc == MS_OK) {
        rc = ms_execute_set_plan(ms_ext_execution_of(self)->execute, plan, &err);
    }
    ms_plan_free(plan);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *is_active(PyObject *self, PyObject *args)
{
    (void)args;
    return PyBool_FromLong(ms_execute_is_active(ms_ext_execution_of(self)->execute));
}

/* ---- between steps ------------------------------------------------------------------------ */

static PyObject *backward_ended(PyObject *object, PyObject *args)
{
    (void)args;
    ms_ext_execution_of(object)->backward_told = false;
    ms_execute_backward_ended(ms_ext_execution_of(object)->execute);
    Py_RETURN_NONE;
}

static PyObject *expect_backward(PyObject *self, PyObject *args)
{
    (void)args;
    return PyBool_FromLong(ms_execute_expect_backward(ms_ext_execution_of(self)->execute));
}

static PyObject *backward_begins(PyObject *self, PyObject *args)
{
    (void)args;
    ms_execute_backward_begins(ms_ext_execution_of(self)->execute);
    Py_RETURN_NONE;
}

static PyObject *backward_reached(PyObject *self, PyObject *parameters)
{
    ms_execute_backward_reached(ms_ext_execution_of(self)->execute, parameters == Py_True);
    Py_RETURN_NONE;
}

static int add_number(PyObject *dict, const char *name, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int rc = number != NULL ? PyDict_SetItemString(dict, name, number) : -1;
    Py_XDECREF(number);
    return rc;
}

static PyObject *boundary(PyObject *object, PyObject *args)
{
    ms_execution *self = ms_ext_execution_of(object);
    uint64_t step, step_ns;
    int is_optimizer, is_another = 0;
    if (!PyArg_ParseTuple(args, "p|p:boundary", &is_optimizer, &is_another)) {
        return NULL;
    }
    self->backward_told = false;
    ms_boundary kind = !is_optimizer ? MS_BOUNDARY_FORWARD
                       : is_another  ? MS_BOUNDARY_ANOTHER_OPTIMIZER
                                     : MS_BOUNDARY_OPTIMIZER;
    if (!ms_execute_boundary(self->execute, kind, &step, &step_ns)) {
        Py_RETURN_NONE;
    }
    ms_step_memory memory = ms_execute_step_memory(self->execute);
    PyObject *ended =
        Py_BuildValue("{s:K,s:K,s:K}", "step", (unsigned long long)step, "step_ns", (unsigned long long)step_ns,
                      "plan_steps", (unsigned long long)ms_execute_plan_steps(self->execute));
    const char *const names[] = {"peak_bytes", "peak_held_bytes", "resident_bytes", "held_bytes"};
    const uint64_t bytes[] = {memory.peak_bytes, memory.peak_held_bytes, memory.resident_bytes, memory.held_bytes};
    for (size_t i = 0; ended != NULL && i < sizeof bytes / sizeof bytes[0]; i++) {
        if (bytes[i] != UINT64_MAX && add_number(ended, names[i], bytes[i]) != 0) {
            Py_CLEAR(ended);
        }
    }
    return ended;
}

static PyObject *evaluation_begins(PyObject *self, PyObject *args)
{
    (void)args;
    ms_execute_evaluation_begins(ms_ext_execution_of(self)->execute);
    Py_RETURN_NONE;
}

static PyObject *evaluation_ends(PyObject *self, PyObject *args)
{
    (void)args;
    ms_evaluation_memory memory;
    if (!ms_execute_evaluation_ends(ms_ext_execution_of(self)->execute, &memory)) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(KK)", (unsigned long long)memory.before_bytes, (unsigned long long)memory.peak_bytes);
}

static PyObject *device_peak(PyObject *self, PyObject *mark)
{
    uint64_t mark_bytes = UINT64_MAX;
    if (mark != Py_None) {
        mark_bytes = PyLong_AsUnsignedLongLong(mark);
        if (mark_bytes == UINT64_MAX && PyErr_Occurred()) {
            return NULL;
        }
    }
    ms_execute_device_peak(ms_ext_execution_of(self)->execute, mark_bytes);
    Py_RETURN_NONE;
}

static PyObject *poll(PyObject *self, PyObject *args)
{
    (void)args;
    ms_execute_poll(ms_ext_execution_of(self)->execute);
    Py_RETURN_NONE;
}

static PyObject *counters(PyObject *self, PyObject *args)
{
    (void)args;
    const ms_counters *set = ms_execute_counters(ms_ext_execution_of(self)->execute);
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < MS_COUNTER_COUNT; i++) {
        if (add_number(dict, ms_counter_name((ms_counter)i), ms_counter_get(set, (ms_counter)i)) != 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *hold(PyObject *self, PyObject *number)
{
    uint32_t layer;
    if (ms_ext_u32(number, "layer", &layer) != 0) {
        return NULL;
    }
    ms_execute_hold(ms_ext_execution_of(self)->execute, layer);
    Py_RETURN_NONE;
}

enum { HELD_MOST = 4096 };

static PyObject *held_layers(PyObject *self, PyObject *args)
{
    (void)args;
    static uint32_t layers[HELD_MOST]; /* under the interpreter lock */
    const ms_execute *execute = ms_ext_execution_of(self)->execute;
    size_t count = ms_execute_held_layers(execute, layers, HELD_MOST);
    PyObject *names = PyList_New(0);
    for (size_t i = 0; i < count && i < HELD_MOST && names != NULL; i++) {
        PyObject *name = PyUnicode_FromString(ms_execute_layer_name(execute, layers[i]));
        if (name == NULL || PyList_Append(names, name) != 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *count_replan(PyObject *self, PyObject *args)
{
    (void)args;
    ms_counter_add(ms_execute_counters(ms_ext_execution_of(self)->execute), MS_COUNTER_REPLANS, 1);
    Py_RETURN_NONE;
}

static PyObject *stats(PyObject *self, PyObject *args)
{
    (void)args;
    ms_execute_stats found;
    ms_execute_get_stats(ms_ext_execution_of(self)->execute, &found);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:N}", "open_frames", (unsigned long long)found.open_frames,
                         "live_frames", (unsigned long long)found.live_frames, "live_slots",
                         (unsigned long long)found.live_slots, "live_extents", (unsigned long long)found.live_extents,
                         "storing_bytes", (unsigned long long)found.storing_bytes, "fetched_bytes",
                         (unsigned long long)found.fetched_bytes, "tier_bytes", (unsigned long long)found.tier_bytes,
                         "backward_begun", PyBool_FromLong(found.backward_begun), "optimizer_seen",
                         PyBool_FromLong(found.optimizer_seen));
}

/* Sets a field to a callable, or to NULL for None. */
static PyObject *set_callable(PyObject **field, PyObject *callable)
{
    PyObject *old = *field;
    *field = callable != Py_None ? Py_NewRef(callable) : NULL;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyObject *set_began(PyObject *object, PyObject *callable)
{
    return set_callable(&ms_ext_execution_of(object)->began, callable);
}

static PyObject *set_observer(PyObject *object, PyObject *callable)
{
    ms_execute_set_watched(ms_ext_execution_of(object)->execute, callable != Py_None);
    return set_callable(&ms_ext_execution_of(object)->observer, callable);
}

static PyObject *set_packing(PyObject *object, PyObject *flag)
{
    int is_packing = PyObject_IsTrue(flag);
    if (is_packing < 0) {
        return NULL;
    }
    ms_execute_set_packing(ms_ext_execution_of(object)->execute, is_packing == 1);
    Py_RETURN_NONE;
}

/* ---- type ------------------------------------------------------------------------------------ */

static PyMethodDef methods[] = {
    MS_EXT_METHOD(
        "open_tier", MS_EXT_FAST(open_tier), METH_VARARGS | METH_KEYWORDS,
        "host_cap_bytes, disk_cap_bytes, dir=None, slab_bytes=0, pinned_gb=0.0, stream_count=0, write_bytes_per_s=0, "
        "read_bytes_per_s=0, pageable_bytes_per_s=(0, 0)",
        "(int, int, str | None, int, float, int, int, int, tuple[int, int]) -> None",
        "Opens the lower tier of set_device()'s device with a plan's caps. Opens nothing if both caps are 0. Raises "
        "OffloadError."),
    MS_EXT_METHOD(
        "set_device", ms_ext_set_device, METH_VARARGS, "kind, index, bits, /",
        "(str, int, Callable[[torch.UntypedStorage], Any]) -> None",
        "Says which device the model is on (initially the CPU), before open_tier(). `bits` makes bits of a mask."),
    MS_EXT_METHOD("device_peak", device_peak, METH_O, "mark_bytes, /", "(int | None) -> None",
                  "Reports the peak of the training GPU's allocator, before a boundary; None on the CPU."),
    MS_EXT_METHOD("set_overlap", set_overlap, METH_O, "wanted, /", "(bool) -> None",
                  "Sets whether a GPU's transfers overlap the computation."),
    MS_EXT_METHOD("tier", tier, METH_NOARGS, "/", "() -> str | None",
                  "One line about the lower tier; None if it is not open."),
    MS_EXT_METHOD("add_layer", add_layer, METH_O, "name, /", "(str) -> int", "Adds a layer; returns its number."),
    MS_EXT_METHOD(
        "set_plan", set_plan, METH_O, "json, /", "(str | None) -> None",
        "Follows this plan from the next forward on; None keeps everything. MemScaleError if it is malformed."),
    MS_EXT_METHOD("is_active", is_active, METH_NOARGS, "/", "() -> bool", "Whether the plan does anything."),
    MS_EXT_METHOD("set_residents", ms_ext_set_residents, METH_O, "tensors, /", "(list[torch.Tensor]) -> None",
                  "Sets the tensors whose storages never move."),
    MS_EXT_METHOD("add_residents", ms_ext_add_residents, METH_O, "tensors, /", "(list[torch.Tensor]) -> None",
                  "Adds to what set_residents() set: parameters that FSDP has gathered for a layer."),
    MS_EXT_METHOD("is_resident", ms_ext_is_resident, METH_O, "tensor, /", "(torch.Tensor) -> bool",
                  "Whether the tensor's storage is one that set_residents() set."),
    MS_EXT_METHOD(
        "hooks_in_the_way", ms_ext_hooks_in_the_way, METH_NOARGS, "/", "() -> str | None",
        "Removes our stale hooks and returns None if hooks can be pushed, else why not: \"foreign\", \"wrapped\" (an "
        "execution around this one has hooks) or \"disabled\"."),
    MS_EXT_METHOD("enter_root", ms_ext_enter_root, METH_O, "caller, /", "(FrameType | list[int] | None) -> bool",
                  "Begins a forward, called by this Python frame or that at this address. True if an earlier one was "
                  "interrupted."),
    MS_EXT_METHOD("leave_root", ms_ext_leave_root, METH_O, "failed, /", "(bool) -> None", "Ends the forward."),
    MS_EXT_METHOD("in_root", ms_ext_in_root, METH_NOARGS, "/", "() -> bool", "Whether this thread is in a forward."),
    MS_EXT_METHOD("peek", ms_ext_peek, METH_O, "layer, /", "(int) -> Technique",
                  "The technique of the layer's next call."),
    MS_EXT_METHOD("enter", ms_ext_enter, METH_VARARGS, "layer, is_replayable, caller, /",
                  "(int, bool, FrameType | list[int] | None) -> Region | str | None",
                  "Begins a call of a layer. None: the call needs no hooks. A str of hooks_in_the_way(): none can be "
                  "pushed."),
    MS_EXT_METHOD("leave", ms_ext_leave, METH_O, "caller, /", "(FrameType | list[int] | None) -> None",
                  "Ends the call; `caller` is the root's frame, or None."),
    MS_EXT_METHOD("forward_begins", ms_ext_forward_begins, METH_VARARGS, "known_bytes, state_bytes, /",
                  "(int, int) -> tuple[int, int]", "Bytes of maps beyond those of earlier steps; waiting forwards."),
    MS_EXT_METHOD("backward_ended", backward_ended, METH_NOARGS, "/", "() -> None", "Reports the end of a backward."),
    MS_EXT_METHOD("expect_backward", expect_backward, METH_NOARGS, "/", "() -> bool",
                  "Announces a backward_begins() for the forward that just ended. False: that call is not needed."),
    MS_EXT_METHOD("backward_begins", backward_begins, METH_NOARGS, "/", "() -> None",
                  "Reports the start of a backward, if hooks of layers can't see it."),
    MS_EXT_METHOD("backward_reached", backward_reached, METH_O, "parameters, /", "(bool) -> None",
                  "Reports whether the backward that ended changed gradients or followed a change of parameters."),
    MS_EXT_METHOD("boundary", boundary, METH_VARARGS, "is_optimizer, is_another=False, /",
                  "(bool, bool) -> dict[str, int] | None",
                  "Measurements of the step, if one ended: step, step_ns, plan_steps, and those known of peak_bytes, "
                  "peak_held_bytes, resident_bytes and held_bytes of the process."),
    MS_EXT_METHOD("evaluation_begins", evaluation_begins, METH_NOARGS, "/", "() -> None",
                  "Begins forwards without gradients; their peak does not count for the step."),
    MS_EXT_METHOD("evaluation_ends", evaluation_ends, METH_NOARGS, "/", "() -> tuple[int, int] | None",
                  "Resident bytes before the evaluation and at its peak; None if no evaluation has begun."),
    MS_EXT_METHOD("poll", poll, METH_NOARGS, "/", "() -> None",
                  "Releases storages and transfers that nothing needs any more; never waits."),
    MS_EXT_METHOD("counters", counters, METH_NOARGS, "/", "() -> dict[str, int]", "Counters by name."),
    MS_EXT_METHOD("hold", hold, METH_O, "layer, /", "(int) -> None", "Stops recomputing the layer."),
    MS_EXT_METHOD("held_layers", held_layers, METH_NOARGS, "/", "() -> list[str]",
                  "Layers that hold() or a failed comparison stopped recomputing."),
    MS_EXT_METHOD("count_replan", count_replan, METH_NOARGS, "/", "() -> None",
                  "Counts one more plan after the first."),
    MS_EXT_METHOD("stats", stats, METH_NOARGS, "/", "() -> dict[str, Any]",
                  "Counts and bytes of the objects that are live now."),
    MS_EXT_METHOD("set_began", set_began, METH_O, "call, /", "(Callable[[], None] | None) -> None",
                  "Sets the function to call at the first unpack of a backward."),
    MS_EXT_METHOD("set_packing", set_packing, METH_O, "wanted, /", "(bool) -> None",
                  "Sets whether two-valued saved tensors become bits in memory; initially true."),
    MS_EXT_METHOD(
        "set_observer", set_observer, METH_O, "call, /", "(Callable[[torch.Tensor], Any] | None) -> None",
        "Sets the function to call with each tensor saved in a region. It returns a token, which lives as long as the "
        "handle; every unpack calls the token's unpacked(), and its given() with the tensor or None."),
    {NULL, NULL, 0, NULL},
};

static PyObject *unpack_input(PyObject *module, PyObject *handle)
{
    (void)module;
    return ms_ext_saved_unpack(handle);
}

static PyMethodDef functions[] = {
    MS_EXT_FUNCTION("storage_bytes", ms_ext_storage_bytes, METH_O, "tensors, /", "(list[torch.Tensor]) -> int",
                    "Bytes of the tensors' distinct storages."),
    MS_EXT_FUNCTION("map_bytes", ms_ext_map_bytes, METH_O, "tensors, /", "(list[torch.Tensor]) -> int",
                    "Bytes of hostmem's maps that hold the tensors."),
    MS_EXT_FUNCTION("unpack_input", unpack_input, METH_O, "handle, /", "(Saved) -> torch.Tensor",
                    "The tensor behind a handle of Region.offload_input()."),
    {NULL, NULL, 0, NULL},
};

static int add_execution_type(PyObject *module)
{
    static char doc[] =
        MS_EXT_TYPE_DOC("Execution", "replay, model=0, /", "(Callable[[Undo, Region], None], int) -> None",
                        "Executes plans on one model; `replay` replays a layer for the saved tensors "
                        "that its region is missing. If the model lies on several devices, `model` is "
                        "a number that its executions share, one for each device.");
    static PyType_Slot slots[] = {
        {Py_tp_doc, doc},
        {Py_tp_new, MS_EXT_SLOT(execution_new)},
        {Py_tp_dealloc, MS_EXT_SLOT(execution_dealloc)},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "memscale._core.Execution",
        .basicsize = sizeof(ms_execution),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    return ms_ext_add_type(module, &spec, NULL);
}

int ms_ext_add_execute(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) != 0 || ms_ext_saved_init_type(module) != 0 ||
                   ms_ext_slot_init(module) != 0 || ms_ext_region_init_type(module) != 0 ||
                   add_execution_type(module) != 0
               ? -1
               : 0;
}
