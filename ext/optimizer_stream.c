/*
 * Optimizer state on disk for Python: `_core.OptimizerStream`, a thin wrapper of
 * ms_optimizer_stream. memscale.optim, the caller, keeps parameters and gradients alive during the
 * calls. Decides nothing. update_by() takes Python's lock while it holds the stream's, so no call waits for the
 * stream with Python's lock.
 */
#include "memscale/optimizer_stream.h"

#include "optimizer_ext.h"
#include "rooms.h"

typedef struct stream_object {
    PyObject_HEAD ms_optimizer_stream *stream;
} stream_object;

static ms_optimizer_stream *stream_of(PyObject *self)
{
    return ((stream_object *)self)->stream;
}

/* ---- opening and closing -------------------------------------------------------- */

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {(char *)"dir", (char *)"cap_gb", NULL};
    PyObject *dir = Py_None;
    PyObject *cap = Py_None;
    ms_optimizer_stream_options options = {0};
    ms_error err;
    int rc;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:OptimizerStream", names, &dir, &cap) ||
        ms_ext_utf8_or_none(dir, "dir", &options.dir) != 0) {
        return NULL;
    }
    if (cap != Py_None) {
        double gigabytes = PyFloat_AsDouble(cap);
        if (gigabytes == -1.0 && PyErr_Occurred()) {
            return NULL;
        }
        if (!(gigabytes > 0.0) || gigabytes > 1e9) {
            ms_fail(&err, MS_ECONFIG,
                    "max_disk_offload_gb: %g is not allowed; allowed are numbers "
                    "above 0",
                    gigabytes);
            return ms_ext_raise(&err);
        }
        options.cap_bytes = (uint64_t)(gigabytes * 1e9);
    }
    stream_object *self = (stream_object *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_open(&options, &self->stream, &err));
    if (ms_ext_check(rc, &err) != 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void stream_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    MS_EXT_UNLOCKED(ms_optimizer_stream_close(stream_of(self)));
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- states --------------------------------------------------------------------- */

static PyObject *add(PyObject *self, PyObject *args)
{
    ms_optimizer_form form;
    uint64_t id;
    ms_error err;
    if (ms_ext_read_optimizer_form(args, &form) != 0) {
        return NULL;
    }
    int rc;
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_add(stream_of(self), &form, &id, &err));
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *remove_state(PyObject *self, PyObject *number)
{
    uint64_t id;
    if (ms_ext_u64(number, "id", &id) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_optimizer_stream_remove(stream_of(self), id));
    Py_RETURN_NONE;
}

static PyObject *part_bytes(PyObject *self, PyObject *number)
{
    uint64_t id;
    uint64_t bytes[MS_PART_COUNT];
    ms_error err;
    int rc;
    if (ms_ext_u64(number, "id", &id) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_part_bytes(stream_of(self), id, bytes, &err));
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    PyObject *tuple = PyTuple_New(MS_PART_COUNT);
    for (Py_ssize_t i = 0; tuple != NULL && i < MS_PART_COUNT; i++) {
        PyObject *item = PyLong_FromUnsignedLongLong(bytes[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
        } else {
            PyTuple_SetItem(tuple, i, item);
        }
    }
    return tuple;
}

static PyObject *put(PyObject *self, PyObject *args)
{
    unsigned long long id;
    PyObject *fields;
    ms_adamw_tensor source;
    ms_error err;
    int rc;
    if (!PyArg_ParseTuple(args, "KO:put", &id, &fields) || ms_ext_read_adamw_tensor(fields, &source) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_put(stream_of(self), id, &source, &err));
    return ms_ext_none_or_raise(rc, &err);
}

/* A tuple of MS_PART_COUNT int; None: skip the array. */
static int read_offsets(PyObject *tuple, uint64_t offsets[MS_PART_COUNT])
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != MS_PART_COUNT) {
        PyErr_Format(PyExc_TypeError, "export: offsets are a tuple of %d int", (int)MS_PART_COUNT);
        return -1;
    }
    for (Py_ssize_t i = 0; i < MS_PART_COUNT; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        offsets[i] = UINT64_MAX;
        if (item != Py_None && ms_ext_u64(item, "offset", &offsets[i]) != 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *export_state(PyObject *self, PyObject *args)
{
    unsigned long long id;
    int fd;
    PyObject *tuple;
    uint64_t offsets[MS_PART_COUNT];
    ms_error err;
    int rc;
    if (!PyArg_ParseTuple(args, "KiO:export", &id, &fd, &tuple) || read_offsets(tuple, offsets) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_export(stream_of(self), id, fd, offsets, &err));
    return ms_ext_none_or_raise(rc, &err);
}

/* ---- rounds --------------------------------------------------------------------- */

/* Reads a list of ids: free them with PyMem_Free. NULL with an exception. */
static uint64_t *read_ids(PyObject *list, size_t *count)
{
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "begin: the ids come as a list");
        return NULL;
    }
    Py_ssize_t size = PyList_Size(list);
    uint64_t *ids = PyMem_Calloc((size_t)size + 1, sizeof *ids);
    if (ids == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if (ms_ext_u64(PyList_GetItem(list, i), "id", &ids[i]) != 0) {
            PyMem_Free(ids);
            return NULL;
        }
    }
    *count = (size_t)size;
    return ids;
}

static PyObject *begin(PyObject *self, PyObject *list)
{
    size_t count;
    uint64_t *ids = read_ids(list, &count);
    ms_error err;
    int rc;
    if (ids == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_begin(stream_of(self), ids, count, &err));
    PyMem_Free(ids);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *update(PyObject *self, PyObject *args)
{
    unsigned long long id;
    PyObject *fields;
    ms_adamw_group group;
    ms_adamw_tensor tensor;
    unsigned int threads;
    int maximize;
    ms_error err;
    int rc;
    if (!PyArg_ParseTuple(args, "KOddddddpI:update", &id, &fields, &group.lr, &group.beta1, &group.beta2, &group.eps,
                          &group.weight_decay, &group.grad_scale, &maximize, &threads) ||
        ms_ext_read_adamw_tensor(fields, &tensor) != 0) {
        return NULL;
    }
    group.maximize = maximize != 0;
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_update(stream_of(self), id, &group, &tensor, threads, &err));
    return ms_ext_none_or_raise(rc, &err);
}

/* ---- the caller's arithmetic ---------------------------------------------------- */

/* An update during which Python's lock is released. `failed`: the function has raised, and the exception is kept. */
typedef struct python_compute {
    PyObject *function;
    PyThreadState *released;
    PyObject *type, *value, *traceback;
    bool failed;
} python_compute;

/* PyBUF_WRITE, which the stable ABI names from Python 3.11 on. */
enum { WRITABLE = 0x200 };

/* A tuple of views of the arrays that are there, which must not outlive the call. */
static PyObject *views_of(const ms_adamw_tensor *part)
{
    void *const arrays[] = {part->exp_avg, part->exp_avg_sq, part->max_exp_avg_sq, part->extra};
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i] == NULL) {
            continue;
        }
        bool is_low = arrays[i] == part->extra && part->weights == MS_ADAMW_BF16_SPLIT;
        uint64_t bytes = part->count * (is_low ? sizeof(int16_t) : sizeof(float));
        PyObject *view = PyMemoryView_FromMemory(arrays[i], (Py_ssize_t)bytes, WRITABLE);
        if (view == NULL || PyList_Append(list, view) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(view);
    }
    PyObject *tuple = list != NULL ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static int call_python(void *context, uint64_t first, const ms_adamw_tensor *part, ms_error *err)
{
    python_compute *call = context;
    if (part->moments != MS_ADAMW_MOMENTS_FP32) {
        return ms_fail(err, MS_EINVAL, "optimizer state: moments of 8 bits have an arithmetic of their own");
    }
    PyEval_RestoreThread(call->released);
    PyObject *views = views_of(part);
    PyObject *answer =
        views != NULL ? PyObject_CallFunction(call->function, "KO", (unsigned long long)first, views) : NULL;
    Py_XDECREF(views);
    call->failed = answer == NULL;
    if (call->failed) {
        PyErr_Fetch(&call->type, &call->value, &call->traceback);
    }
    Py_XDECREF(answer);
    call->released = PyEval_SaveThread();
    return call->failed ? ms_fail(err, MS_ESTATE, "optimizer state: the update of a stretch has failed") : MS_OK;
}

static PyObject *update_by(PyObject *self, PyObject *args)
{
    unsigned long long id, step;
    python_compute call = {0};
    ms_error err;
    if (!PyArg_ParseTuple(args, "KKO:update_by", &id, &step, &call.function)) {
        return NULL;
    }
    call.released = PyEval_SaveThread();
    int rc = ms_optimizer_stream_update_by(stream_of(self), id, step, call_python, &call, &err);
    PyEval_RestoreThread(call.released);
    if (call.failed) {
        PyErr_Restore(call.type, call.value, call.traceback);
        return NULL;
    }
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *end(PyObject *self, PyObject *args)
{
    (void)args;
    ms_error err;
    int rc;
    MS_EXT_UNLOCKED(rc = ms_optimizer_stream_end(stream_of(self), &err));
    return ms_ext_none_or_raise(rc, &err);
}

/* ---- queries -------------------------------------------------------------------- */

static PyObject *stats(PyObject *self, PyObject *args)
{
    (void)args;
    ms_optimizer_stream_stats s;
    MS_EXT_UNLOCKED(ms_optimizer_stream_get_stats(stream_of(self), &s));
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K}", "disk_bytes", (unsigned long long)s.disk_bytes, "resident_bytes",
                         (unsigned long long)s.resident_bytes, "peak_resident_bytes",
                         (unsigned long long)s.peak_resident_bytes, "written_bytes",
                         (unsigned long long)s.written_bytes, "read_bytes", (unsigned long long)s.read_bytes,
                         "stall_ns", (unsigned long long)s.stall_ns);
}

static PyObject *set_buffers(PyObject *self, PyObject *number)
{
    uint64_t bytes;
    if (ms_ext_u64(number, "bytes", &bytes) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_optimizer_stream_set_buffers(stream_of(self), bytes));
    Py_RETURN_NONE;
}

static PyObject *is_inherited(PyObject *self, PyObject *args)
{
    (void)args;
    return PyBool_FromLong(ms_optimizer_stream_is_inherited(stream_of(self)));
}

static PyObject *directory(PyObject *self, PyObject *args)
{
    (void)args;
    return ms_ext_text_or_none(ms_optimizer_stream_dir(stream_of(self)));
}

static PyObject *description(PyObject *self, PyObject *args)
{
    (void)args;
    return ms_ext_text_or_none(ms_optimizer_stream_description(stream_of(self)));
}

static PyObject *takes(PyObject *module, PyObject *number)
{
    (void)module;
    uint64_t elements;
    if (ms_ext_u64(number, "elements", &elements) != 0) {
        return NULL;
    }
    return PyBool_FromLong(ms_optimizer_stream_takes(elements));
}

static PyObject *host_elements(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned arrays, item_bytes;
    if (!PyArg_ParseTuple(args, "II:optimizer_host_elements", &arrays, &item_bytes)) {
        return NULL;
    }
    if (arrays == 0 || item_bytes == 0) {
        PyErr_SetString(PyExc_ValueError, "optimizer_host_elements: both numbers are at least 1");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(ms_optimizer_host_elements(arrays, item_bytes));
}

/* ---- tables --------------------------------------------------------------------- */

static PyMethodDef stream_methods[] = {
    MS_EXT_METHOD("add", add, METH_VARARGS, "weights, moments, has_max_exp_avg_sq, count, /",
                  "(int, int, bool, int) -> int", "Adds a new state; returns its id."),
    MS_EXT_METHOD("remove", remove_state, METH_O, "id, /", "(int) -> None", "Removes the state."),
    MS_EXT_METHOD(
        "part_bytes", part_bytes, METH_O, "id, /", "(int) -> tuple[int, ...]",
        "Bytes of exp_avg, exp_avg_sq, max_exp_avg_sq, extra, exp_avg_absmax, exp_avg_sq_absmax; 0 for arrays that "
        "the state lacks."),
    MS_EXT_METHOD("put", put, METH_VARARGS, "id, tensor, /", "(int, tuple[int, ...]) -> None",
                  "Replaces the state with one in memory; `tensor` as for adamw_step()."),
    MS_EXT_METHOD("export", export_state, METH_VARARGS, "id, fd, offsets, /",
                  "(int, int, tuple[int | None, ...]) -> None",
                  "Writes the arrays into a file; offsets in the order of part_bytes(), None: skip the array."),
    MS_EXT_METHOD("begin", begin, METH_O, "ids, /", "(list[int]) -> None",
                  "Begins a round of updates, expected in this order."),
    MS_EXT_METHOD("update", update, METH_VARARGS,
                  "id, tensor, lr, beta1, beta2, eps, weight_decay, grad_scale, maximize, threads, /",
                  "(int, tuple[int, ...], float, float, float, float, float, float, bool, int) -> None",
                  "Updates one tensor as adamw_step() does; ignores the state's addresses."),
    MS_EXT_METHOD("update_by", update_by, METH_VARARGS, "id, step, function, /",
                  "(int, int, Callable[[int, tuple[memoryview, ...]], object]) -> None",
                  "Updates one state of 32-bit moments by a function of the first element and views of a stretch's "
                  "moments, which end with its call. A stretch whose function raises is left as it was."),
    MS_EXT_METHOD("end", end, METH_NOARGS, "/", "() -> None",
                  "Waits for writes; raises the first failure of the round."),
    MS_EXT_METHOD("stats", stats, METH_NOARGS, "/", "() -> dict[str, int]",
                  "Keys: disk_bytes, resident_bytes, peak_resident_bytes, written_bytes, read_bytes, stall_ns."),
    MS_EXT_METHOD("set_buffers", set_buffers, METH_O, "bytes, /", "(int) -> None",
                  "Sets the bytes of the buffers that states pass through; 0: as few as possible."),
    MS_EXT_METHOD("is_inherited", is_inherited, METH_NOARGS, "/", "() -> bool",
                  "Whether the parent process opened the stream, so that it is unusable here."),
    MS_EXT_METHOD("dir", directory, METH_NOARGS, "/", "() -> str", "The file's directory."),
    MS_EXT_METHOD("description", description, METH_NOARGS, "/", "() -> str", "One line on the file's I/O."),
    {NULL, NULL, 0, NULL},
};

static char stream_doc[] =
    MS_EXT_TYPE_DOC("OptimizerStream", "dir=None, cap_gb=None", "(str | None, float | None) -> None",
                    "Optimizer state on disk. Raises OffloadError if a read or write fails, "
                    "ConfigError if the directory or cap is unfit.");

static PyType_Slot stream_slots[] = {
    {Py_tp_doc, stream_doc},
    {Py_tp_new, MS_EXT_SLOT(stream_new)},
    {Py_tp_dealloc, MS_EXT_SLOT(stream_dealloc)},
    {Py_tp_methods, stream_methods},
    {0, NULL},
};

static PyType_Spec stream_spec = {
    .name = "memscale._core.OptimizerStream",
    .basicsize = sizeof(stream_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = stream_slots,
};

static PyMethodDef functions[] = {
    MS_EXT_FUNCTION("optimizer_stream_takes", takes, METH_O, "elements, /", "(int) -> bool",
                    "Whether a state of this size is worth streaming."),
    MS_EXT_FUNCTION("optimizer_host_elements", host_elements, METH_VARARGS, "arrays, item_bytes, /",
                    "(int, int) -> int", "The elements of a state in host memory that share a buffer of the GPU."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_optimizer_stream(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "OPTIMIZER_HOST_BUFFERS", MS_OPTIMIZER_HOST_BUFFERS) != 0 ||
        PyModule_AddIntConstant(module, "OPTIMIZER_HOST_BUFFER_BYTES", MS_OPTIMIZER_HOST_BUFFER_BYTES) != 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions) == 0 ? ms_ext_add_type(module, &stream_spec, NULL) : -1;
}
