/*
 * The tracer for Python: `_core.Trace`, a thin face of ms_trace, and the check of a
 * graph document. Called by memscale.tracing.profiler for every operator of a traced
 * step, so that a call converts its arguments and nothing more.
 */
#include "base/units.h"
#include "common.h"
#include "rooms.h"
#include "trace_ext.h"

/* ---- making and freeing --------------------------------------------------- */

static PyObject *trace_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    const char *model;
    const char *signature;
    const char *source;
    if (!PyArg_ParseTuple(args, "sss:Trace", &model, &signature, &source)) {
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

/* `count` integers, all wanted. */
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

/* Calls that answer nothing, and take nothing, a number or two. `what` is named where that is none. */
static PyObject *tell(PyObject *self, int (*told)(ms_trace *, ms_error *))
{
    ms_error err;
    return ms_ext_none_or_raise(told(trace_of(self), &err), &err);
}

static PyObject *tell_one(PyObject *self, PyObject *given, const char *what,
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
    return tell_one(self, key, "died", ms_trace_died);
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

static PyObject *own_optimizer(PyObject *self, PyObject *args)
{
    unsigned long long stream_bytes;
    int released, streamed;
    ms_error err;
    if (!PyArg_ParseTuple(args, "Kpp:own_optimizer", &stream_bytes, &released, &streamed)) {
        return NULL;
    }
    int rc = ms_trace_own_optimizer(trace_of(self), stream_bytes, released != 0, streamed != 0, &err);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *optimizer_unknown(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tell(self, ms_trace_optimizer_unknown);
}

/* ---- the model's own cross entropy ------------------------------------------ */

/* The number that the library gives to what is told of this storage. */
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
    return tell_one(self, number, "head", ms_trace_loss_end);
}

static PyObject *loss_backward(PyObject *self, PyObject *number)
{
    return tell_one(self, number, "head", ms_trace_loss_backward);
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
    return tell_one(self, number, "head", ms_trace_head_backward);
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

static PyObject *input(PyObject *self, PyObject *key)
{
    return tell_one(self, key, "input", ms_trace_input);
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
    {"resident", resident, METH_VARARGS,
     MS_EXT_METHOD_DOC("resident", "key, bytes, item_bytes, role, trainable, /", "(int, int, int, str, bool) -> None",
                       "A storage that is there before the step; role: parameter, buffer or batch.")},
    {"phase", phase, METH_O,
     MS_EXT_METHOD_DOC("phase", "name, /", "(str) -> None", "Forward, loss, backward, optimizer or done begins.")},
    {"loss_outside", loss_outside, METH_NOARGS,
     MS_EXT_METHOD_DOC("loss_outside", "/", "() -> None", "The loss is not the model's.")},
    {"own_optimizer", own_optimizer, METH_VARARGS,
     MS_EXT_METHOD_DOC("own_optimizer", "stream_bytes, released, streamed, /", "(int, bool, bool) -> None",
                       "What memscale's own optimizer can do, and does.")},
    {"loss", loss, METH_O,
     MS_EXT_METHOD_DOC("loss", "key, /", "(int) -> int",
                       "A cross entropy of these logits begins; 0 where it is not marked.")},
    {"loss_end", loss_end, METH_O, MS_EXT_METHOD_DOC("loss_end", "head, /", "(int) -> None", "It ends.")},
    {"loss_backward", loss_backward, METH_O,
     MS_EXT_METHOD_DOC("loss_backward", "head, /", "(int) -> None", "Its backward begins.")},
    {"loss_backward_end", MS_EXT_FAST(loss_backward_end), METH_FASTCALL,
     MS_EXT_METHOD_DOC("loss_backward_end", "head, key, /", "(int, int) -> None", "It has made the logits' gradient.")},
    {"head", head, METH_O,
     MS_EXT_METHOD_DOC("head", "key, /", "(int) -> int",
                       "A linear layer has made this, which may be logits; 0 where it is not marked.")},
    {"head_used", MS_EXT_FAST(head_used), METH_FASTCALL,
     MS_EXT_METHOD_DOC("head_used", "head, loss, /", "(int, int) -> None",
                       "Nothing but that cross entropy looks at them.")},
    {"head_backward", head_backward, METH_O,
     MS_EXT_METHOD_DOC("head_backward", "head, /", "(int) -> None", "The gradient of what it made is there.")},
    {"head_backward_end", MS_EXT_FAST(head_backward_end), METH_FASTCALL,
     MS_EXT_METHOD_DOC("head_backward_end", "head, key, /", "(int, int) -> None", "It has made its input's gradient.")},
    {"optimizer_unknown", optimizer_unknown, METH_NOARGS,
     MS_EXT_METHOD_DOC("optimizer_unknown", "/", "() -> None", "Its step failed under the trace; done begins.")},
    {"enter", MS_EXT_FAST(enter), METH_FASTCALL,
     MS_EXT_METHOD_DOC("enter", "name, call, /", "(str, int) -> int", "A layer's call begins; its node.")},
    {"leave", leave, METH_NOARGS, MS_EXT_METHOD_DOC("leave", "/", "() -> None", "The layer's call ends.")},
    {"current", current, METH_NOARGS,
     MS_EXT_METHOD_DOC("current", "/", "() -> int", "The node of the last event of forward.")},
    {"input", input, METH_O,
     MS_EXT_METHOD_DOC("input", "key, /", "(int) -> None", "A tensor argument of the open layer.")},
    {"flag", MS_EXT_FAST(flag), METH_FASTCALL,
     MS_EXT_METHOD_DOC("flag", "node, name, /", "(int, str) -> None", "A fact about a node.")},
    {"born", MS_EXT_FAST(born), METH_FASTCALL,
     MS_EXT_METHOD_DOC("born", "key, bytes, /", "(int, int) -> None", "A storage comes to life.")},
    {"died", died, METH_O,
     MS_EXT_METHOD_DOC("died", "key, /", "(int) -> None", "A storage, or a copy given to unpacked(), is gone.")},
    {"adds", MS_EXT_FAST(adds), METH_FASTCALL,
     MS_EXT_METHOD_DOC("adds", "key, other, /", "(int, int) -> None",
                       "The storage born next is the engine's sum of these gradients.")},
    {"untouched", MS_EXT_FAST(untouched), METH_FASTCALL,
     MS_EXT_METHOD_DOC("untouched", "key, bytes, /", "(int, int) -> None",
                       "What made the storage left so much of it untouched.")},
    {"output", MS_EXT_FAST(output), METH_FASTCALL,
     MS_EXT_METHOD_DOC("output", "key, bytes, /", "(int, int) -> None", "The root returned it.")},
    {"gradient", MS_EXT_FAST(gradient), METH_FASTCALL,
     MS_EXT_METHOD_DOC("gradient", "key, bytes, /", "(int, int) -> None", "A gradient of a parameter.")},
    {"op", MS_EXT_FAST(ms_ext_trace_op), METH_FASTCALL,
     MS_EXT_METHOD_DOC(
         "op", "name, inputs, outputs, takes_workspace=False, /",
         "(str, tuple[Any, ...], tuple[Any, ...], bool) -> None",
         "An operator ran; operands are tuples (shape, bytes[, is_bool]). It may have taken memory of its own if it "
         "ran on a CPU over the default layout.")},
    {"made", MS_EXT_FAST(ms_ext_trace_made), METH_FASTCALL,
     MS_EXT_METHOD_DOC("made", "inputs, outputs, runs_again, /", "(tuple[int, ...], tuple[int, ...], bool) -> None",
                       "Of the operator told last; tuples of storage keys, and whether it is one that can run again.")},
    {"wrote", ms_ext_trace_wrote, METH_O,
     MS_EXT_METHOD_DOC("wrote", "key, /", "(int) -> None", "An operator wrote to a storage that was there.")},
    {"saved", saved, METH_O,
     MS_EXT_METHOD_DOC("saved", "key, /", "(int) -> tuple[int, int]", "Autograd keeps a tensor: its node and serial.")},
    {"unpacked", MS_EXT_FAST(unpacked), METH_FASTCALL,
     MS_EXT_METHOD_DOC("unpacked", "node, serial, copy_key, /", "(int, int, int) -> None",
                       "Autograd asks for it; copy_key 0 for none.")},
    {"dropped", MS_EXT_FAST(dropped), METH_FASTCALL,
     MS_EXT_METHOD_DOC("dropped", "node, serial, /", "(int, int) -> None", "It will not ask again.")},
    {"live_bytes", live_bytes, METH_NOARGS,
     MS_EXT_METHOD_DOC("live_bytes", "/", "() -> int", "Live now, residents excluded.")},
    {"peak_bytes", peak_bytes, METH_NOARGS,
     MS_EXT_METHOD_DOC("peak_bytes", "/", "() -> int", "The most since the phase began.")},
    {"finish", finish, METH_NOARGS,
     MS_EXT_METHOD_DOC("finish", "/", "() -> str", "The graph as JSON; the trace is used up.")},
    {NULL, NULL, 0, NULL},
};

static char trace_doc[] = MS_EXT_TYPE_DOC("Trace", "model, signature, source, /", "(str, str, str) -> None",
                                          "Turns the events of one step into a graph.");

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

static PyMethodDef functions[] = {
    {"operator_row_kind", ms_ext_operator_row_kind, METH_VARARGS,
     MS_EXT_DOC("operator_row_kind", "name, is_pointwise, /", "(str, bool) -> str",
                "What it does with rows: mix, each, product or seen.")},
    {"operator_is_maker", ms_ext_operator_is_maker, METH_VARARGS,
     MS_EXT_DOC("operator_is_maker", "name, is_pointwise, /", "(str, bool) -> bool",
                "Whether it can run again on its own, as far as its name tells.")},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_trace(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) == 0 ? ms_ext_add_type(module, &trace_spec, NULL) : -1;
}
