/*
 * Streamed parameters for Python: memscale.stream() begins and ends streaming; the executor says which layer runs. Decides nothing.
 */
#include "memscale/streamed.h"
#include "common.h"
#include "memscale/config.h"
#include "rooms.h"

static const char LAYERS[] = "memscale.streamed_layers";

static PyObject *streamed_begin(PyObject *module, PyObject *given)
{
    (void)module;
    ms_error err;
    int rc;
    const char *directory = ms_ext_utf8(given, "directory", NULL);
    if (directory == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_streamed_begin(directory, &err));
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *streamed_end(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_streamed_end();
    Py_RETURN_NONE;
}

static PyObject *streamed_failure(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_error err;
    int rc = ms_streamed_failure(&err);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *streamed_stats(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_streamed_stats stats;
    ms_streamed_get_stats(&stats);
    return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "blocks", (unsigned long long)stats.blocks, "total_bytes",
        (unsigned long long)stats.total_bytes, "resident_bytes", (unsigned long long)stats.resident_bytes, "kept_bytes",
        (unsigned long long)stats.kept_bytes, "window_bytes", (unsigned long long)stats.window_bytes, "fetched_bytes",
        (unsigned long long)stats.fetched_bytes, "dropped_bytes", (unsigned long long)stats.dropped_bytes);
}

static PyObject *streamed_set_window(PyObject *module, PyObject *given)
{
    (void)module;
    uint64_t window_bytes;
    if (ms_ext_u64(given, "window_bytes", &window_bytes) != 0) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_streamed_set_window(window_bytes));
    Py_RETURN_NONE;
}

static PyObject *streamed_drop(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    MS_EXT_UNLOCKED(ms_streamed_drop());
    Py_RETURN_NONE;
}

/* The addresses of a sequence of ints; free with ms_free(). */
static const void **addresses_of(PyObject *given, size_t *count)
{
    Py_ssize_t length = PySequence_Size(given);
    const void **addresses = length < 0 ? NULL : ms_calloc((size_t)length + 1, sizeof *addresses);
    if (addresses == NULL) {
        return length < 0 ? NULL : (const void **)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        uint64_t address = 0;
        PyObject *item = PySequence_GetItem(given, i);
        int rc = item != NULL ? ms_ext_u64(item, "address", &address) : -1;
        Py_XDECREF(item);
        if (rc != 0) {
            ms_free(addresses);
            return NULL;
        }
        addresses[i] = (const void *)(uintptr_t)address;
    }
    *count = (size_t)length;
    return addresses;
}

static PyObject *streamed_bytes(PyObject *module, PyObject *given)
{
    (void)module;
    size_t count;
    const void **addresses = addresses_of(given, &count);
    if (addresses == NULL) {
        return NULL;
    }
    uint64_t bytes = ms_streamed_bytes((ms_streamed_blocks){addresses, count});
    ms_free(addresses);
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *streamed_source(PyObject *module, PyObject *given)
{
    (void)module;
    size_t count;
    char directory[MS_PATH_MAX];
    const void **addresses = addresses_of(given, &count);
    if (addresses == NULL) {
        return NULL;
    }
    uint64_t bytes = ms_streamed_checkpoint_bytes((ms_streamed_blocks){addresses, count});
    ms_free(addresses);
    ms_streamed_directory(directory, sizeof directory);
    return Py_BuildValue("(Ks)", (unsigned long long)bytes, directory);
}

static PyObject *streamed_keep(PyObject *module, PyObject *given)
{
    (void)module;
    size_t count;
    const void **addresses = addresses_of(given, &count);
    if (addresses == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_streamed_keep((ms_streamed_blocks){addresses, count}));
    ms_free(addresses);
    Py_RETURN_NONE;
}

static PyObject *streamed_own(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *given;
    ms_error err;
    size_t count;
    int only_written, rc;
    if (!PyArg_ParseTuple(args, "Op:streamed_own", &given, &only_written)) {
        return NULL;
    }
    const void **addresses = addresses_of(given, &count);
    if (addresses == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_streamed_own((ms_streamed_blocks){addresses, count}, only_written != 0, &err));
    ms_free(addresses);
    return ms_ext_none_or_raise(rc, &err);
}

static ms_streamed_layers *layers_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, LAYERS);
}

static void layers_gone(PyObject *capsule)
{
    ms_streamed_layers_free(layers_of(capsule));
}

static PyObject *streamed_layers_new(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_streamed_layers *layers = ms_streamed_layers_new();
    if (layers == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(layers, LAYERS, layers_gone);
    if (capsule == NULL) {
        ms_streamed_layers_free(layers);
    }
    return capsule;
}

static PyObject *streamed_layers_add(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *given;
    ms_error err;
    size_t count;
    if (!PyArg_ParseTuple(args, "OO:streamed_layers_add", &capsule, &given)) {
        return NULL;
    }
    ms_streamed_layers *layers = layers_of(capsule);
    const void **addresses = layers != NULL ? addresses_of(given, &count) : NULL;
    if (addresses == NULL) {
        return NULL;
    }
    int rc = ms_streamed_layers_add(layers, (ms_streamed_blocks){addresses, count}, &err);
    ms_free(addresses);
    return ms_ext_none_or_raise(rc, &err);
}

static PyObject *streamed_layers_least_bytes(PyObject *module, PyObject *capsule)
{
    (void)module;
    const ms_streamed_layers *layers = layers_of(capsule);
    return layers != NULL ? PyLong_FromUnsignedLongLong(ms_streamed_layers_least_bytes(layers)) : NULL;
}

static PyObject *streamed_layers_enter(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    unsigned number;
    int in_backward;
    if (!PyArg_ParseTuple(args, "OIp:streamed_layers_enter", &capsule, &number, &in_backward)) {
        return NULL;
    }
    ms_streamed_layers *layers = layers_of(capsule);
    if (layers == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(ms_streamed_layers_enter(layers, number, in_backward != 0));
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("streamed_begin", streamed_begin, METH_O, "directory, /", "(str) -> None",
                    "New tensors become maps of files in `directory`."),
    MS_EXT_FUNCTION("streamed_end", streamed_end, METH_NOARGS, "/", "() -> None", "Ends one streamed_begin()."),
    MS_EXT_FUNCTION("streamed_failure", streamed_failure, METH_NOARGS, "/", "() -> None",
                    "Raises the reason of the last failed allocation, if there was one."),
    MS_EXT_FUNCTION("streamed_stats", streamed_stats, METH_NOARGS, "/", "() -> dict[str, int]",
                    "Keys: blocks, total_bytes, resident_bytes, kept_bytes, window_bytes, fetched_bytes, "
                    "dropped_bytes."),
    MS_EXT_FUNCTION("streamed_set_window", streamed_set_window, METH_O, "window_bytes, /", "(int) -> None",
                    "Sets the most resident bytes, and drops down to them."),
    MS_EXT_FUNCTION("streamed_drop", streamed_drop, METH_NOARGS, "/", "() -> None",
                    "Drops all pages; they come back when they are used."),
    MS_EXT_FUNCTION("streamed_bytes", streamed_bytes, METH_O, "addresses, /", "(list[int]) -> int",
                    "Bytes of the streamed blocks at these addresses."),
    MS_EXT_FUNCTION(
        "streamed_source", streamed_source, METH_O, "addresses, /", "(list[int]) -> tuple[int, str]",
        "The part of these bytes that lies in checkpoints' own files, and the directory of the other files."),
    MS_EXT_FUNCTION("streamed_keep", streamed_keep, METH_O, "addresses, /", "(list[int]) -> None",
                    "Keeps these blocks resident, in place of those kept before."),
    MS_EXT_FUNCTION("streamed_own", streamed_own, METH_VARARGS, "addresses, only_written, /",
                    "(list[int], bool) -> None",
                    "Those of these blocks that lie in a checkpoint's file, or only the written ones, get files of "
                    "their own."),
    MS_EXT_FUNCTION("streamed_layers_new", streamed_layers_new, METH_NOARGS, "/", "() -> object",
                    "The order of a model's layers."),
    MS_EXT_FUNCTION("streamed_layers_add", streamed_layers_add, METH_VARARGS, "layers, addresses, /",
                    "(object, list[int]) -> None", "Adds the next layer, by the addresses of its storages."),
    MS_EXT_FUNCTION("streamed_layers_least_bytes", streamed_layers_least_bytes, METH_O, "layers, /", "(object) -> int",
                    "The smallest sensible window beside kept blocks."),
    MS_EXT_FUNCTION("streamed_layers_enter", streamed_layers_enter, METH_VARARGS, "layers, number, in_backward, /",
                    "(object, int, bool) -> None", "Makes a layer resident and asks for the one after it."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_streamed(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
