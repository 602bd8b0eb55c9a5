/*
 * execute_movable.h - whether a tensor's bytes can go to a lower tier, and how.
 */
#ifndef MS_EXT_EXECUTE_MOVABLE_H
#define MS_EXT_EXECUTE_MOVABLE_H

#include "execute_ext.h"

/* The storage behind a tensor that can be sent; a new reference. */
typedef struct ms_movable {
    PyObject *storage;
    uintptr_t identity;
    uint64_t bytes;
    bool is_final; /* nobody can write to the storage any more */
} ms_movable;

/* Whether the tensor is on the device whose storages the tier takes. */
bool ms_ext_is_here(const ms_execution *execution, PyObject *tensor);
/* Whether a tensor's storage can be sent; fills `what` if so. No exception is left set. */
bool ms_ext_is_movable(ms_execution *execution, PyObject *tensor, ms_movable *what);
/* 1 if other tensors with their own version counters may lie in the same storage; -1 with an exception. */
int ms_ext_is_piece(PyObject *tensor, const ms_movable *what);
/* The owners of a storage, those in C++ included; UINT64_MAX if torch doesn't tell. No exception is left set. */
uint64_t ms_ext_owners_of(PyObject *storage);
/* A copy with the same strides in its own storage, which replaces the one in `what`. */
PyObject *ms_ext_copy_of_piece(PyObject *tensor, ms_movable *what);
/* An empty tensor that shares the tensor's version counter. */
PyObject *ms_ext_probe_of(const ms_execution *execution, PyObject *tensor);
/* The storage behind a tensor and its bytes; -1 with no exception set if it has none. */
int ms_ext_look_behind(PyObject *tensor, ms_movable *what);

#endif
