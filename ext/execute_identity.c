/*
 * Sets of storages, by identity: the residents of an execution, and storage_bytes(), which counts
 * each storage once. Open addressing; members are never removed.
 */
#include "execute_ext.h"

static size_t identity_slot(const ms_identity_set *set, uintptr_t identity)
{
    size_t at = (size_t)(((uint64_t)identity * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (set->capacity - 1);
    while (set->items[at] != 0 && set->items[at] != identity) {
        at = (at + 1) & (set->capacity - 1);
    }
    return at;
}

bool ms_ext_identity_has(const ms_identity_set *set, uintptr_t identity)
{
    return set->capacity > 0 && set->items[identity_slot(set, identity)] == identity;
}

bool ms_ext_identity_has_tensor(const ms_identity_set *set, PyObject *tensor)
{
    PyObject *storage;
    uintptr_t identity;
    if (ms_ext_storage_of(tensor, &storage, &identity) != 0) {
        return false;
    }
    Py_DECREF(storage);
    return ms_ext_identity_has(set, identity);
}

int ms_ext_identity_reset(ms_identity_set *set, size_t count)
{
    size_t capacity = 64;
    while (capacity < 2 * count) {
        capacity *= 2;
    }
    uintptr_t *items = ms_calloc(capacity, sizeof *items);
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    ms_free(set->items);
    *set = (ms_identity_set){.items = items, .capacity = capacity, .count = 0};
    return 0;
}

void ms_ext_identity_add(ms_identity_set *set, PyObject *tensor)
{
    PyObject *storage;
    uintptr_t identity;
    if (tensor == Py_None || ms_ext_storage_of(tensor, &storage, &identity) != 0) {
        return;
    }
    Py_DECREF(storage);
    size_t at = identity_slot(set, identity);
    if (set->items[at] == 0) {
        set->items[at] = identity;
        set->count++;
    }
}

PyObject *ms_ext_storage_bytes(PyObject *module, PyObject *tensors)
{
    (void)module;
    ms_identity_set seen = {0};
    uint64_t total = 0;
    if (!PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "storage_bytes: a list of tensors");
        return NULL;
    }
    if (ms_ext_torch() == NULL) {
        return NULL;
    }
    if (ms_ext_identity_reset(&seen, (size_t)PyList_Size(tensors)) != 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        PyObject *storage;
        uintptr_t identity;
        size_t before = seen.count;
        PyObject *tensor = PyList_GetItem(tensors, i);
        ms_ext_identity_add(&seen, tensor);
        if (seen.count == before || ms_ext_storage_of(tensor, &storage, &identity) != 0) {
            continue;
        }
        PyObject *bytes = PyObject_CallFunctionObjArgs(ms_ext_torch()->nbytes, storage, NULL);
        total += bytes != NULL ? PyLong_AsUnsignedLongLong(bytes) : 0;
        Py_XDECREF(bytes);
        Py_DECREF(storage);
    }
    ms_free(seen.items);
    return PyErr_Occurred() == NULL ? PyLong_FromUnsignedLongLong(total) : NULL;
}
