/*
 * References to torch storages for the library, which calls these functions through
 * ms_execute_host. A reference is strong or weak; torch's own weak reference also keeps the
 * storage's identity from being reused.
 */
#include "execute_ext.h"

#include "memscale/hostmem.h"

ms_memory *ms_ext_memory_of_storage(PyObject *storage, uint64_t bytes)
{
    const ms_torch *t = ms_ext_torch();
    ms_memory *memory = ms_calloc(1, sizeof *memory);
    if (memory == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memory->weak = PyObject_CallFunctionObjArgs(t->weak_ref, storage, NULL);
    if (memory->weak == NULL) {
        ms_free(memory);
        return NULL;
    }
    Py_INCREF(storage);
    memory->strong = storage;
    memory->bytes = bytes;
    return memory;
}

ms_memory *ms_ext_memory_of_tensor(PyObject *tensor, uint64_t version)
{
    ms_memory *memory = ms_calloc(1, sizeof *memory);
    if (memory == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    Py_INCREF(tensor);
    memory->strong = tensor;
    memory->version = version;
    return memory;
}

/* Keeps an exception that is already set. */
void ms_ext_memory_free(ms_memory *memory)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_CLEAR(memory->strong);
    Py_CLEAR(memory->probe);
    if (memory->weak != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(ms_ext_torch()->free_weak_ref, memory->weak, NULL);
        if (done == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(done);
        Py_DECREF(memory->weak);
    }
    ms_free(memory);
    PyErr_Restore(type, value, traceback);
}

static void host_weaken(void *context, void *reference)
{
    (void)context;
    ms_memory *memory = reference;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_CLEAR(memory->strong);
    PyErr_Restore(type, value, traceback);
}

/* Whether a storage still has its bytes: the user may have resized it to nothing. */
static bool has_bytes(PyObject *storage, uint64_t bytes)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->nbytes, storage, NULL);
    bool same = number != NULL && PyLong_AsUnsignedLongLong(number) == bytes;
    Py_XDECREF(number);
    return same;
}

static bool host_strengthen(void *context, void *reference)
{
    (void)context;
    ms_memory *memory = reference;
    if (memory->strong != NULL) {
        return true;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *storage = PyObject_CallFunctionObjArgs(ms_ext_torch()->new_with_weak_ptr, memory->weak, NULL);
    if (storage != NULL && storage != Py_None && has_bytes(storage, memory->bytes)) {
        memory->strong = storage;
        storage = NULL;
    }
    Py_XDECREF(storage);
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return memory->strong != NULL;
}

static void host_release(void *context, void *reference)
{
    (void)context;
    ms_ext_memory_free(reference);
}

static PyObject *new_storage(const ms_execution *execution, uint64_t bytes)
{
    const ms_torch *t = ms_ext_torch();
    PyObject *device_kwargs = execution->device.bytes_kwargs;
    PyObject *kwargs = device_kwargs != NULL ? device_kwargs : t->empty_bytes_kwargs;
    PyObject *storage = NULL;
    PyObject *args = Py_BuildValue("(K)", (unsigned long long)bytes);
    PyObject *tensor = args != NULL ? PyObject_Call(t->empty, args, kwargs) : NULL;
    if (tensor != NULL) {
        storage = PyObject_CallFunctionObjArgs(t->untyped_storage, tensor, NULL);
    }
    Py_XDECREF(args);
    Py_XDECREF(tensor);
    return storage;
}

void *ms_ext_address_of(PyObject *storage)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->data_ptr, storage, NULL);
    void *address = number != NULL ? PyLong_AsVoidPtr(number) : NULL;
    Py_XDECREF(number);
    return address;
}

int ms_ext_fail_with_exception(const char *what, ms_error *err)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *text = value != NULL ? PyObject_Str(value) : NULL;
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int rc = ms_fail(err, MS_ENOMEM, "%s: %s", what, utf8 != NULL ? utf8 : "unknown");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return rc;
}

int ms_ext_check_fetch(const ms_execution *execution, int code, const ms_error *err)
{
    PyObject *torch = code == MS_ENOMEM && execution->device.name != NULL ? PyImport_ImportModule("torch") : NULL;
    PyObject *class = torch != NULL ? PyObject_GetAttrString(torch, "OutOfMemoryError") : NULL;
    Py_XDECREF(torch);
    if (class == NULL) {
        PyErr_Clear();
        return ms_ext_check(code, err);
    }
    PyErr_SetString(class, err->text);
    Py_DECREF(class);
    return -1;
}

static int host_obtain(void *context, uint64_t bytes, void **reference, void **address, uint64_t *capacity,
                       ms_error *err)
{
    const ms_execution *execution = context;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int rc = MS_OK;
    PyObject *storage = new_storage(execution, bytes);
    void *place = storage != NULL ? ms_ext_address_of(storage) : NULL;
    ms_memory *memory = place != NULL ? ms_ext_memory_of_storage(storage, bytes) : NULL;
    if (memory == NULL) {
        char what[64];
        snprintf(what, sizeof what, "no memory for %llu bytes fetched back", (unsigned long long)bytes);
        rc = ms_ext_fail_with_exception(what, err);
    } else {
        *reference = memory;
        *address = place;
        *capacity = ms_ext_capacity_behind(place, bytes);
        memory->stream = ms_execute_host_is_device(execution->execute) ? NULL : ms_ext_device_stream(execution);
    }
    Py_XDECREF(storage);
    PyErr_Restore(type, value, traceback);
    return rc;
}

uint64_t ms_ext_capacity_behind(const void *address, uint64_t bytes)
{
    ms_hostmem_block block;
    if (!ms_hostmem_find(address, &block)) {
        return bytes;
    }
    uint64_t behind = block.bytes - ((uintptr_t)address - block.address);
    return behind > bytes ? behind : bytes;
}

static void *host_stream(void *context)
{
    return ms_ext_device_stream(context);
}

/* The state of the thread that released the lock, for the same thread to take it again: waits do not nest. */
static _Thread_local PyThreadState *waiting_thread;

static void host_unlock(void *context)
{
    (void)context;
    waiting_thread = PyEval_SaveThread();
}

static void host_lock(void *context)
{
    (void)context;
    PyEval_RestoreThread(waiting_thread);
}

const ms_execute_host ms_ext_host = {
    .weaken = host_weaken,
    .strengthen = host_strengthen,
    .release = host_release,
    .obtain = host_obtain,
    .stream = host_stream,
    .unlock = host_unlock,
    .lock = host_lock,
};

PyObject *ms_ext_forward_begins(PyObject *self, PyObject *args)
{
    unsigned long long known_bytes, state_bytes;
    if (!PyArg_ParseTuple(args, "KK:forward_begins", &known_bytes, &state_bytes)) {
        return NULL;
    }
    ms_execute *execute = ms_ext_execution_of(self)->execute;
    uint32_t waiting = 0;
    uint64_t more = ms_execute_forward_begins(execute, known_bytes, state_bytes, &waiting);
    return Py_BuildValue("(KI)", (unsigned long long)more, waiting);
}
