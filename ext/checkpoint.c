/* Files of checkpoints for Python: where tensors lie, and maps whose tensors stream. Decides nothing. */
#include "memscale/checkpoint.h"
#include "common.h"
#include "memscale/streamed.h"
#include "rooms.h"

static const char MAP[] = "memscale.streamed_map";

static PyObject *shape_of(const ms_checkpoint_tensor *tensor)
{
    PyObject *shape = PyTuple_New((Py_ssize_t)tensor->rank);
    for (size_t i = 0; i < tensor->rank && shape != NULL; i++) {
        PyObject *extent = PyLong_FromUnsignedLongLong(tensor->shape[i]);
        if (extent == NULL || PyTuple_SetItem(shape, (Py_ssize_t)i, extent) != 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}

static PyObject *row_of(const ms_checkpoint_tensor *tensor)
{
    PyObject *shape = shape_of(tensor);
    return shape == NULL
               ? NULL
               : Py_BuildValue("(ssNKK)", tensor->name, tensor->dtype, shape, (unsigned long long)tensor->offset_bytes,
                               (unsigned long long)tensor->size_bytes);
}

static PyObject *rows_of(const ms_checkpoint *checkpoint)
{
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; i < ms_checkpoint_count(checkpoint) && rows != NULL; i++) {
        PyObject *row = row_of(ms_checkpoint_tensor_at(checkpoint, i));
        if (row == NULL || PyList_Append(rows, row) != 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}

static PyObject *checkpoint_read(PyObject *module, PyObject *given)
{
    (void)module;
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    int rc;
    const char *path = ms_ext_utf8(given, "path", NULL);
    if (path == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = ms_checkpoint_open(path, &checkpoint, &err));
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    PyObject *rows = rows_of(checkpoint);
    ms_checkpoint_free(checkpoint);
    return rows;
}

static void map_gone(PyObject *capsule)
{
    ms_streamed_unmap(PyCapsule_GetPointer(capsule, MAP));
}

static PyObject *capsule_of(ms_streamed_map *map)
{
    PyObject *capsule = PyCapsule_New(map, MAP, map_gone);
    if (capsule == NULL) {
        ms_streamed_unmap(map);
    }
    return capsule;
}

/* *checkpoint is the caller's, also if mapping fails; NULL if the file can't be read. */
static int map_tensors(const char *path, ms_checkpoint **checkpoint, ms_streamed_map **map, ms_error *err)
{
    int rc = ms_checkpoint_open(path, checkpoint, err);
    if (rc != MS_OK) {
        return rc;
    }
    size_t count = ms_checkpoint_count(*checkpoint);
    ms_streamed_range *ranges = ms_calloc(count + 1, sizeof *ranges);
    if (ranges == NULL) {
        return ms_fail(err, MS_ENOMEM, "%s: out of memory for %zu tensors", path, count);
    }
    for (size_t i = 0; i < count; i++) {
        const ms_checkpoint_tensor *tensor = ms_checkpoint_tensor_at(*checkpoint, i);
        ranges[i] = (ms_streamed_range){tensor->offset_bytes, tensor->size_bytes};
    }
    rc = ms_streamed_map_file(path, ms_checkpoint_file_bytes(*checkpoint), ranges, count, map, err);
    ms_free(ranges);
    return rc;
}

static PyObject *told(const ms_checkpoint *checkpoint, ms_streamed_map *map)
{
    PyObject *capsule = capsule_of(map);
    PyObject *rows = capsule != NULL ? rows_of(checkpoint) : NULL;
    if (rows == NULL) {
        Py_XDECREF(capsule);
        return NULL;
    }
    return Py_BuildValue("(NKKN)", capsule, (unsigned long long)(uintptr_t)ms_streamed_map_address(map),
                         (unsigned long long)ms_checkpoint_file_bytes(checkpoint), rows);
}

static PyObject *streamed_map(PyObject *module, PyObject *given)
{
    (void)module;
    ms_error err;
    ms_checkpoint *checkpoint = NULL;
    ms_streamed_map *map = NULL;
    int rc;
    const char *path = ms_ext_utf8(given, "path", NULL);
    if (path == NULL) {
        return NULL;
    }
    MS_EXT_UNLOCKED(rc = map_tensors(path, &checkpoint, &map, &err));
    PyObject *answer = ms_ext_check(rc, &err) == 0 ? told(checkpoint, map) : NULL;
    ms_checkpoint_free(checkpoint);
    return answer;
}

static PyObject *streamed_lend(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long address, bytes;
    ms_error err;
    ms_streamed_map *map = NULL;
    if (!PyArg_ParseTuple(args, "KK:streamed_lend", &address, &bytes)) {
        return NULL;
    }
    int rc = ms_streamed_lend((void *)(uintptr_t)address, bytes, &map, &err);
    return ms_ext_check(rc, &err) != 0 ? NULL : capsule_of(map);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("checkpoint_read", checkpoint_read, METH_O, "path, /",
                    "(str) -> list[tuple[str, str, tuple[int, ...], int, int]]",
                    "Name, type, shape, first byte and bytes of each tensor of a safetensors file."),
    MS_EXT_FUNCTION("streamed_map", streamed_map, METH_O, "path, /",
                    "(str) -> tuple[object, int, int, list[tuple[str, str, tuple[int, ...], int, int]]]",
                    "Maps a safetensors file, whose tensors stream from then on. The file is unmapped with the object; "
                    "then the map's address, the file's bytes, and the tensors as from checkpoint_read()."),
    MS_EXT_FUNCTION("streamed_lend", streamed_lend, METH_VARARGS, "address, size_bytes, /", "(int, int) -> object",
                    "The caller's shared map of a file streams as long as the object lives, which must end before "
                    "the map."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_checkpoint(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
