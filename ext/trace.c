/*
 * The tracer for Python: `_core.Trace`, a thin wrapper of ms_trace. memscale.tracing.profiler
 * calls it for every operator of a traced step, so each method only converts its arguments.
 */
#include "base/units.h"
#include "common.h"
#include "rooms.h"
#include "trace_ext.h"

/* ---- making and freeing --------------------------------------------------- */

static PyObject *trace_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    const char *model, *signature, *source;
    unsigned threads = 1;
    int on_several_devices = 0;
    if (!PyArg_ParseTuple(args, "sss|Ip:Trace", &model, &signature, &source, &threads, &on_several_devices)) {
        return NULL;
    }
    trace_object *self = (trace_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    ms_error err;
    int rc = ms_trace_new(model, signature, source, &self->trace, &err);
    if (ms_ext_check(rc, &err) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    ms_trace_set_threads(self->trace, threads);
    if (on_several_devices) {
        ms_trace_on_several_devices(self->trace);
    }
    return (PyObject *)self;
}

static void trace_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    ms_trace_free(trace_of(self));
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- arguments ------------------------------------------------------------ */

/* Reads exactly `count` integers. */
static int read_numbers(const char *function, PyObject *const *args, Py_ssize_t given, Py_ssize_t count,
                        uint64_t *numbers)
{
    if (ms_ext_arity(function, given, count, count) != 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (ms_ext_u64(args[i], function, &numbers[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

static int narrow(uint64_t wide, const char *what, uint32_t *out)
{
    if (wide > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%s: the number does not fit 32 bits", what);
        return -1;
    }
    *out = (uint32_t)wide;
    return 0;
}

/* ---- storages and phases -------------------------------------------------- */

static int find_name(const char *text, const char *const *names, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            return (int)i;
        }
    }
    PyErr_Format(PyExc_ValueError, "there is no %s \"%s\"", what, text);
    return -1;
}

static PyObject *resident(PyObject *self, PyObject *args)
{
    static const char *const roles[] = {
        [MS_RESIDENT_PARAMETER] = "parameter",
        [MS_RESIDENT_BUFFER] = "buffer",
        [MS_RESIDENT_BATCH] = "batch",
    };
    unsigned long long key;
    unsigned long long bytes;
    unsigned int item_bytes;
    const char *role;
    int trainable;
    if (!PyArg_ParseTuple(args, "KKIsp:resident", &key, &bytes, &item_bytes, &role, &trainable)) {
        return NULL;
    }
    int index = find_name(role, roles, sizeof roles / sizeof roles[0], "resident role");
    if (index < 0) {
        return NULL;
    }
    ms_error err;
    int rc = ms_trace_resident(trace_of(self), key, bytes, item_bytes, (ms_resident_role)index, trainable != 0, &err);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *phase(PyObject *self, PyObject *name)
{
    static const char *const names[] = {
        [MS_TRACE_FORWARD] = "forward",     [MS_TRACE_LOSS] = "loss", [MS_TRACE_BACKWARD] = "backward",
        [MS_TRACE_OPTIMIZER] = "optimizer", [MS_TRACE_DONE] = "done",
    };
    const char *text = ms_ext_utf8(name, "phase", NULL);
    int index = text != NULL ? find_name(text, names, sizeof names / sizeof names[0], "phase") : -1;
    if (index < 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(ms_trace_set_phase(trace_of(self), (ms_trace_phase)index, &err), &err);
}

/* Methods that return None and take no number, one or two. `what` and `name` are for the error message. */
static PyObject *tell(PyObject *self, int (*told)(ms_trace *, ms_error *))
{
    ms_error err;
    return ms_ext_none_or_raise(told(trace_of(self), &err), &err);
}

PyObject *ms_ext_trace_tell_one(PyObject *self, PyObject *given, const char *what,
                                int (*told)(ms_trace *, uint64_t, ms_error *))
{
    uint64_t number;
    if (ms_ext_u64(given, what, &number) != 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(told(trace_of(self), number, &err), &err);
}

static PyObject *tell_two(PyObject *self, PyObject *const *args, Py_ssize_t count, const char *name,
                          int (*told)(ms_trace *, uint64_t, uint64_t, ms_error *))
{
    uint64_t numbers[2];
    if (read_numbers(name, args, count, 2, numbers) != 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(told(trace_of(self), numbers[0], numbers[1], &err), &err);
}

static PyObject *born(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "born", ms_trace_born);
}

static PyObject *died(PyObject *self, PyObject *key)
{
    return ms_ext_trace_tell_one(self, key, "died", ms_trace_died);
}

static PyObject *adds(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "adds", ms_trace_adds);
}

static PyObject *untouched(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "untouched", ms_trace_untouched);
}

static PyObject *give_role(PyObject *self, PyObject *const *args, Py_ssize_t count, const char *function,
                           ms_storage_role role)
{
    uint64_t numbers[2];
    if (read_numbers(function, args, count, 2, numbers) != 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(ms_trace_role(trace_of(self), numbers[0], numbers[1], role, &err), &err);
}

static PyObject *output(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return give_role(self, args, count, "output", MS_STORAGE_OUTPUT);
}

static PyObject *gradient(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return give_role(self, args, count, "gradient", MS_STORAGE_GRADIENT);
}

static PyObject *loss_outside(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, ms_trace_loss_outside);
}

/* ---- the model's own cross entropy ------------------------------------------ */

/* The number that the library returns for an event of this storage. */
static PyObject *ask_one(PyObject *self, PyObject *key, int (*asked)(ms_trace *, uint64_t, uint64_t *, ms_error *))
{
    uint64_t storage, number;
    if (ms_ext_u64(key, "key", &storage) != 0) {
        return NULL;
    }
    ms_error err;
    int rc = asked(trace_of(self), storage, &number, &err);
    return ms_ext_check(rc, &err) != 0 ? NULL : PyLong_FromUnsignedLongLong(number);
}

static PyObject *loss(PyObject *self, PyObject *key)
{
    return ask_one(self, key, ms_trace_loss);
}

static PyObject *loss_end(PyObject *self, PyObject *number)
{
    return ms_ext_trace_tell_one(self, number, "head", ms_trace_loss_end);
}

static PyObject *loss_backward(PyObject *self, PyObject *number)
{
    return ms_ext_trace_tell_one(self, number, "head", ms_trace_loss_backward);
}

static PyObject *loss_backward_end(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "loss_backward_end", ms_trace_loss_backward_end);
}

static PyObject *head(PyObject *self, PyObject *key)
{
    return ask_one(self, key, ms_trace_head);
}

static PyObject *head_used(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "head_used", ms_trace_head_used);
}

static PyObject *head_backward(PyObject *self, PyObject *number)
{
    return ms_ext_trace_tell_one(self, number, "head", ms_trace_head_backward);
}

static PyObject *head_backward_end(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    return tell_two(self, args, count, "head_backward_end", ms_trace_head_backward_end);
}

/* ---- nodes ---------------------------------------------------------------- */

static PyObject *enter(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint32_t call;
    uint32_t node;
    if (ms_ext_arity("enter", count, 2, 2) != 0) {
        return NULL;
    }
    const char *name = ms_ext_utf8(args[0], "name", NULL);
    if (name == NULL || ms_ext_u32(args[1], "call", &call) != 0) {
        return NULL;
    }
    ms_error err;
    int rc = ms_trace_enter(trace_of(self), name, call, &node, &err);
    return ms_ext_check(rc, &err) == 0 ? PyLong_FromUnsignedLong(node) : NULL;
}

static PyObject *leave(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, ms_trace_leave);
}

static PyObject *current(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(ms_trace_current(trace_of(self)));
}

static int flag_bit(const char *name, uint32_t *bit)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } flags[] = {
#define FLAG(id, shift, text) {text, MS_NODE_##id},
        MS_NODE_FLAG_TABLE(FLAG)
#undef FLAG
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (strcmp(name, flags[i].name) == 0) {
            *bit = flags[i].bit;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "there is no node flag \"%s\"", name);
    return -1;
}

static PyObject *flag(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint32_t node;
    uint32_t bit;
    if (ms_ext_arity("flag", count, 2, 2) != 0 || ms_ext_u32(args[0], "node", &node) != 0) {
        return NULL;
    }
    const char *name = ms_ext_utf8(args[1], "flag", NULL);
    if (name == NULL || flag_bit(name, &bit) != 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(ms_trace_flag(trace_of(self), node, bit, &err), &err);
}

/* ---- saved tensors -------------------------------------------------------- */

static PyObject *saved(PyObject *self, PyObject *key)
{
    uint64_t number;
    uint64_t serial;
    uint32_t node;
    if (ms_ext_u64(key, "saved", &number) != 0) {
        return NULL;
    }
    ms_error err;
    int rc = ms_trace_saved(trace_of(self), number, &node, &serial, &err);
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    return Py_BuildValue("(kK)", (unsigned long)node, (unsigned long long)serial);
}

static PyObject *unpacked(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t numbers[3];
    uint32_t node;
    if (read_numbers("unpacked", args, count, 3, numbers) != 0 || narrow(numbers[0], "node", &node) != 0) {
        return NULL;
    }
    ms_error err;
    int rc = ms_trace_unpacked(trace_of(self), node, numbers[1], numbers[2], &err);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *dropped(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t numbers[2];
    uint32_t node;
    if (read_numbers("dropped", args, count, 2, numbers) != 0 || narrow(numbers[0], "node", &node) != 0) {
        return NULL;
    }
    ms_error err;
    return ms_ext_none_or_raise(ms_trace_dropped(trace_of(self), node, numbers[1], &err), &err);
}

/* ---- results -------------------------------------------------------------- */

static PyObject *live_bytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ms_trace_live_bytes(trace_of(self)));
}

static PyObject *peak_bytes(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(ms_trace_peak_bytes(trace_of(self)));
}

static PyObject *finish(PyObject *self, PyObject *unused)
{
    (void)unused;
    ms_graph *graph;
    ms_error err;
    int rc = ms_trace_finish(trace_of(self), &graph, &err);
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    char *text = ms_graph_to_json(graph);
    ms_graph_free(graph);
    return ms_ext_take_text(text);
}

/* ---- tables --------------------------------------------------------------- */

static PyMethodDef trace_methods[] = {
    MS_EXT_METHOD("resident", resident, METH_VARARGS, "key, bytes, item_bytes, role, trainable, /",
                  "(int, int, int, str, bool) -> None",
                  "Reports a storage that exists before the step; role: parameter, buffer or batch."),
    MS_EXT_METHOD("phase", phase, METH_O, "name, /", "(str) -> None",
                  "Begins a phase: forward, loss, backward, optimizer or done."),
    MS_EXT_METHOD("loss_outside", loss_outside, METH_NOARGS, "/", "() -> None",
                  "Reports that the caller computes the loss outside the model."),
    MS_EXT_METHOD("own_optimizer", ms_ext_trace_own_optimizer, METH_VARARGS, "stream_bytes, released, streamed, /",
                  "(int, bool, bool) -> None",
                  "Reports memscale's optimizer, by its owner's wish `released` in backward, `streamed` from disk."),
    MS_EXT_METHOD("gradients_needed", ms_ext_trace_gradients_needed, METH_NOARGS, "/", "() -> None",
                  "Reports that a step needs all gradients at once."),
    MS_EXT_METHOD("loss", loss, METH_O, "key, /", "(int) -> int",
                  "Begins a cross entropy of these logits; returns its number, 0 if it can't be marked."),
    MS_EXT_METHOD("loss_end", loss_end, METH_O, "head, /", "(int) -> None", "Ends the cross entropy of this number."),
    MS_EXT_METHOD("loss_backward", loss_backward, METH_O, "head, /", "(int) -> None", "Begins that loss's backward."),
    MS_EXT_METHOD("loss_backward_end", MS_EXT_FAST(loss_backward_end), METH_FASTCALL, "head, key, /",
                  "(int, int) -> None", "Ends the cross entropy's backward; `key` is the gradient of the logits."),
    MS_EXT_METHOD("final", ms_ext_trace_final_gradient, METH_O, "key, /", "(int) -> None",
                  "Reports in backward that this gradient is complete."),
    MS_EXT_METHOD("head", head, METH_O, "key, /", "(int) -> int",
                  "Marks a linear layer that just made possible logits; returns its number, 0 if it can't be marked."),
    MS_EXT_METHOD("head_used", MS_EXT_FAST(head_used), METH_FASTCALL, "head, loss, /", "(int, int) -> None",
                  "Confirms that only this cross entropy reads the linear layer's output."),
    MS_EXT_METHOD("head_backward", head_backward, METH_O, "head, /", "(int) -> None",
                  "Begins the linear layer's backward: the gradient of its output exists."),
    MS_EXT_METHOD("head_backward_end", MS_EXT_FAST(head_backward_end), METH_FASTCALL, "head, key, /",
                  "(int, int) -> None", "Ends the linear layer's backward; `key` is the gradient of its input."),
    MS_EXT_METHOD(
        "expect_adamw", ms_ext_trace_expect_adamw, METH_VARARGS, "elements, bits, is_split, /",
        "(int, int, bool) -> None",
        "Reports that memscale's AdamW, which is not traced, will have the state of a parameter, with moments "
        "of these bits, and its low bits if it is split."),
    MS_EXT_METHOD("made_state", ms_ext_trace_made_state, METH_O, "bytes, /", "(int) -> None",
                  "Reports that these bytes of the optimizer's state exist before the step."),
    MS_EXT_METHOD("optimizer_unknown", ms_ext_trace_optimizer_unknown, METH_NOARGS, "/", "() -> None",
                  "Discards the optimizer's step, which failed under the trace; begins the phase done."),
    MS_EXT_METHOD("enter", MS_EXT_FAST(enter), METH_FASTCALL, "name, call, /", "(str, int) -> int",
                  "Begins a layer's call; returns its node."),
    MS_EXT_METHOD("leave", leave, METH_NOARGS, "/", "() -> None", "Ends the layer's call."),
    MS_EXT_METHOD("current", current, METH_NOARGS, "/", "() -> int", "The node of the last event of forward."),
    MS_EXT_METHOD("input", ms_ext_trace_input, METH_O, "key, /", "(int) -> int",
                  "Reports a tensor argument of the open layer; its storage's place among the inputs, -1 if none."),
    MS_EXT_METHOD("flag", MS_EXT_FAST(flag), METH_FASTCALL, "node, name, /", "(int, str) -> None",
                  "Sets a flag of a node."),
    MS_EXT_METHOD("born", MS_EXT_FAST(born), METH_FASTCALL, "key, bytes, /", "(int, int) -> None",
                  "Reports a new storage."),
    MS_EXT_METHOD("died", died, METH_O, "key, /", "(int) -> None",
                  "Reports that a storage, or a copy given to unpacked(), was freed."),
    MS_EXT_METHOD("moves", ms_ext_trace_moves, METH_O, "bytes, /", "(int) -> None",
                  "Reports that the next operator copies these bytes from another device."),
    MS_EXT_METHOD("adds", MS_EXT_FAST(adds), METH_FASTCALL, "key, other, /", "(int, int) -> None",
                  "Reports that the storage born next is autograd's sum of these gradients."),
    MS_EXT_METHOD("untouched", MS_EXT_FAST(untouched), METH_FASTCALL, "key, bytes, /", "(int, int) -> None",
                  "Reports bytes of the storage that its operator allocated and never touched."),
    MS_EXT_METHOD("output", MS_EXT_FAST(output), METH_FASTCALL, "key, bytes, /", "(int, int) -> None",
                  "Reports a storage that the root returned."),
    MS_EXT_METHOD("gradient", MS_EXT_FAST(gradient), METH_FASTCALL, "key, bytes, /", "(int, int) -> None",
                  "Reports the gradient of a parameter."),
    MS_EXT_METHOD(
        "op", MS_EXT_FAST(ms_ext_trace_op), METH_FASTCALL, "name, inputs, outputs, copied=None, /",
        "(str, tuple[Any, ...], tuple[Any, ...], int | None) -> None",
        "Reports an operator; operands are tuples (shape, bytes[, elements]). If `copied` is a number, the operator "
        "ran on a CPU and may have allocated a workspace; bit i says that it copied input i first."),
    MS_EXT_METHOD("made", MS_EXT_FAST(ms_ext_trace_made), METH_FASTCALL, "inputs, outputs, runs_again, /",
                  "(tuple[int, ...], tuple[int, ...], bool) -> None",
                  "Reports the storages that the last operator read and made, and whether it can run again."),
    MS_EXT_METHOD("wrote", ms_ext_trace_wrote, METH_O, "key, /", "(int) -> None",
                  "Reports that an operator wrote to a storage that existed before it."),
    MS_EXT_METHOD("saved", saved, METH_O, "key, /", "(int) -> tuple[int, int]",
                  "Reports that autograd saved a tensor; returns its node and serial."),
    MS_EXT_METHOD("unpacked", MS_EXT_FAST(unpacked), METH_FASTCALL, "node, serial, copy_key, /",
                  "(int, int, int) -> None", "Reports an unpack; `copy_key` is the storage that replaced it, or 0."),
    MS_EXT_METHOD("dropped", MS_EXT_FAST(dropped), METH_FASTCALL, "node, serial, /", "(int, int) -> None",
                  "Reports that autograd released a saved tensor."),
    MS_EXT_METHOD("live_bytes", live_bytes, METH_NOARGS, "/", "() -> int", "Bytes live now, without residents."),
    MS_EXT_METHOD("peak_bytes", peak_bytes, METH_NOARGS, "/", "() -> int", "The most live bytes in this phase."),
    MS_EXT_METHOD("finish", finish, METH_NOARGS, "/", "() -> str", "Ends the trace; returns the graph as JSON."),
    {NULL, NULL, 0, NULL},
};

static char trace_doc[] = MS_EXT_TYPE_DOC("Trace", "model, signature, source, threads=1, on_several_devices=False, /",
                                          "(str, str, str, int, bool) -> None",
                                          "Turns the events of one step into a graph. If the model lies on several "
                                          "devices, the storages of one are reported.");

static PyType_Slot trace_slots[] = {
    {Py_tp_doc, trace_doc},
    {Py_tp_new, MS_EXT_SLOT(trace_new)},
    {Py_tp_dealloc, MS_EXT_SLOT(trace_dealloc)},
    {Py_tp_methods, trace_methods},
    {0, NULL},
};

static PyType_Spec trace_spec = {
    .name = "memscale._core.Trace",
    .basicsize = sizeof(trace_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = trace_slots,
};

int ms_ext_add_trace(PyObject *module)
{
    return ms_ext_add_type(module, &trace_spec, NULL);
}
