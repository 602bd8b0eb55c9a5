/*
 * The GPU of an Execution whose model is on one: its names and kind for torch, the
 * stream that the calling thread works on, and the use of fetched memory on other streams. Called
 * by the other files of the execute room; nothing here runs on a machine without a GPU.
 *
 * Rules of torch's caching allocator:
 * - Storing: the library holds the storage until its copy has ended, so that the allocator can't
 *   reuse it earlier.
 * - Fetching: the storage is allocated on the current stream. The copy begins after an event on
 *   that stream, and that stream waits for the copy's end before the storage is used or released.
 * - If another stream uses the fetched storage, that stream waits too, and record_stream() tells
 *   the allocator.
 */
#include "execute_ext.h"

int ms_ext_device_open(ms_execution *execution, ms_device_kind kind, int index, PyObject *bits)
{
    const ms_torch *t = ms_ext_torch();
    ms_ext_device *device = &execution->device;
    ms_ext_device_close(execution);
    Py_INCREF(bits);
    device->bits = bits;
    PyObject *torch_c = PyImport_ImportModule("torch._C");
    device->kind = ms__device_kind_of(kind);
    device->raw_stream = torch_c != NULL ? PyObject_GetAttrString(torch_c, device->kind->torch_raw_stream) : NULL;
    Py_XDECREF(torch_c);
    device->number = PyLong_FromLong(index);
    device->name = PyUnicode_FromFormat("%s:%d", device->kind->name, index);
    device->bytes_kwargs =
        device->name != NULL ? Py_BuildValue("{s:O,s:O}", "dtype", t->uint8, "device", device->name) : NULL;
    device->empty_tensor =
        device->bytes_kwargs != NULL ? PyObject_Call(t->empty, t->zero_args, device->bytes_kwargs) : NULL;
    if (device->raw_stream == NULL || device->number == NULL || device->empty_tensor == NULL) {
        ms_ext_device_close(execution);
        return -1;
    }
    return 0;
}

void ms_ext_device_close(ms_execution *execution)
{
    ms_ext_device *device = &execution->device;
    Py_CLEAR(device->raw_stream);
    Py_CLEAR(device->number);
    Py_CLEAR(device->name);
    Py_CLEAR(device->bytes_kwargs);
    Py_CLEAR(device->empty_tensor);
    Py_CLEAR(device->bits);
}

/* A thread without a stream of its own is on the default one, which is NULL. */
void *ms_ext_device_stream(const ms_execution *execution)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *handle = PyObject_CallFunctionObjArgs(execution->device.raw_stream, execution->device.number, NULL);
    void *stream = handle != NULL ? PyLong_AsVoidPtr(handle) : NULL;
    Py_XDECREF(handle);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return stream;
}

bool ms_ext_device_has(const ms_execution *execution, PyObject *tensor)
{
    PyObject *index = PyObject_CallMethod(tensor, "get_device", NULL);
    long found = index != NULL ? PyLong_AsLong(index) : -1;
    Py_XDECREF(index);
    PyErr_Clear();
    return found == ms_execute_device(execution->execute);
}

int ms_ext_device_lend(const ms_execution *execution, const ms_memory *memory, PyObject *view)
{
    if (memory->stream == ms_ext_device_stream(execution)) {
        return 0;
    }
    PyObject *torch_module = PyImport_ImportModule(execution->device.kind->torch_module);
    PyObject *stream = torch_module != NULL
                           ? PyObject_CallMethod(torch_module, "current_stream", "O", execution->device.number)
                           : NULL;
    PyObject *done = stream != NULL ? PyObject_CallMethod(view, "record_stream", "O", stream) : NULL;
    Py_XDECREF(torch_module);
    Py_XDECREF(stream);
    Py_XDECREF(done);
    return done != NULL ? 0 : -1;
}

PyObject *ms_ext_set_device(PyObject *self, PyObject *args)
{
    ms_execution *execution = ms_ext_execution_of(self);
    const char *name;
    unsigned int index;
    PyObject *bits;
    ms_device_kind kind;
    ms_error err;
    if (!PyArg_ParseTuple(args, "sIO:set_device", &name, &index, &bits) ||
        ms_ext_check(ms_device_kind_named(name, &kind, &err), &err) != 0) {
        return NULL;
    }
    if (!ms_device_host_is_device(kind) && ms_ext_device_open(execution, kind, (int)index, bits) != 0) {
        return NULL;
    }
    ms_execute_set_device(execution->execute, kind, index);
    Py_RETURN_NONE;
}
