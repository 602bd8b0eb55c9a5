/*
 * execute_movable.h - whether and how a tensor's bytes can be sent to a lower tier.
 */
#ifndef MS_EXT_EXECUTE_MOVABLE_H
#define MS_EXT_EXECUTE_MOVABLE_H

#include "execute_ext.h"

/* The storage behind a tensor that can be sent; a new reference. */
typedef struct ms_movable {
    PyObject *storage;
    uintptr_t identity;
    uint64_t bytes;
} ms_movable;

/* No exception is left set. */
bool ms_ext_is_movable(ms_execution *execution, PyObject *tensor, ms_movable *what);
/* 1 if other tensors with version counters of their own may be in the same storage. */
int ms_ext_is_piece(PyObject *tensor, const ms_movable *what);
/* A copy with the same strides in a storage of its own, which replaces that in `what`. */
PyObject *ms_ext_copy_of_piece(PyObject *tensor, ms_movable *what);
/* An empty tensor that shares the tensor's version counter. */
PyObject *ms_ext_probe_of(const ms_execution *execution, PyObject *tensor);
/* The storage behind a tensor and its bytes; -1 with no exception set if it has none. */
int ms_ext_look_behind(PyObject *tensor, ms_movable *what);

#endif
