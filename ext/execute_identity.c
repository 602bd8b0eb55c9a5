/*
 * Sets of storages, by identity: the residents of an execution, and sums that count each storage once. Open addressing;
 * members are never removed.
 */
#include "execute_ext.h"
#include "memscale/hostmem.h"

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

int ms_ext_identity_reserve(ms_identity_set *set, size_t more)
{
    ms_identity_set larger = {0};
    if (2 * (set->count + more) <= set->capacity) {
        return 0;
    }
    if (ms_ext_identity_reset(&larger, 2 * (set->count + more)) != 0) {
        return -1;
    }
    for (size_t i = 0; i < set->capacity; i++) {
        if (set->items[i] != 0) {
            larger.items[identity_slot(&larger, set->items[i])] = set->items[i];
            larger.count++;
        }
    }
    ms_free(set->items);
    *set = larger;
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

/* ---- the residents of an execution ------------------------------------------------------ */

static int add_all(ms_identity_set *set, PyObject *tensors)
{
    if (!PyList_Check(tensors)) {
        PyErr_SetString(PyExc_TypeError, "residents: a list of tensors");
        return -1;
    }
    Py_ssize_t count = PyList_Size(tensors);
    if (ms_ext_identity_reserve(set, (size_t)count) != 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        ms_ext_identity_add(set, PyList_GetItem(tensors, i));
    }
    return 0;
}

PyObject *ms_ext_set_residents(PyObject *self, PyObject *tensors)
{
    ms_identity_set set = {0};
    if (add_all(&set, tensors) != 0) {
        return NULL;
    }
    ms_free(ms_ext_execution_of(self)->residents.items);
    ms_ext_execution_of(self)->residents = set;
    Py_RETURN_NONE;
}

PyObject *ms_ext_add_residents(PyObject *self, PyObject *tensors)
{
    if (add_all(&ms_ext_execution_of(self)->residents, tensors) != 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *ms_ext_is_resident(PyObject *self, PyObject *tensor)
{
    return PyBool_FromLong(ms_ext_identity_has_tensor(&ms_ext_execution_of(self)->residents, tensor));
}

/* ---- bytes of lists of tensors -------------------------------------------------------- */

/* The bytes of a storage. If they are unknown, an exception is set. */
static uint64_t bytes_of(PyObject *storage)
{
    PyObject *number = PyObject_CallFunctionObjArgs(ms_ext_torch()->nbytes, storage, NULL);
    uint64_t bytes = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    return bytes;
}

/* The bytes of the map of hostmem that a storage is in; 0 if it is in none. */
static uint64_t map_bytes_of(PyObject *storage)
{
    ms_hostmem_block block;
    void *address = ms_ext_address_of(storage);
    PyErr_Clear(); /* a tensor without memory of its own has no address */
    return address != NULL && ms_hostmem_find(address, &block) ? block.bytes : 0;
}

/* Sums over the tensors' storages, each of which counts once. */
static PyObject *sum_storages(PyObject *tensors, const char *function, uint64_t (*bytes)(PyObject *storage))
{
    ms_identity_set seen = {0};
    uint64_t total = 0;
    if (!PyList_Check(tensors)) {
        return PyErr_Format(PyExc_TypeError, "%s: a list of tensors", function);
    }
    if (ms_ext_torch() == NULL || ms_ext_identity_reset(&seen, (size_t)PyList_Size(tensors)) != 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++) {
        PyObject *storage;
        uintptr_t identity;
        size_t before = seen.count;
        PyObject *tensor = PyList_GetItem(tensors, i);
        ms_ext_identity_add(&seen, tensor);
        if (seen.count > before && ms_ext_storage_of(tensor, &storage, &identity) == 0) {
            total += bytes(storage);
            Py_DECREF(storage);
        }
    }
    ms_free(seen.items);
    return PyErr_Occurred() == NULL ? PyLong_FromUnsignedLongLong(total) : NULL;
}

PyObject *ms_ext_storage_bytes(PyObject *module, PyObject *tensors)
{
    (void)module;
    return sum_storages(tensors, "storage_bytes", bytes_of);
}

PyObject *ms_ext_map_bytes(PyObject *module, PyObject *tensors)
{
    (void)module;
    return sum_storages(tensors, "map_bytes", map_bytes_of);
}
