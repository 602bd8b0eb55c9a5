/*
 * execute_handle.h - the handle of a saved tensor. execute_slot.c, execute_extent.c and execute_selective.c have a
 * kind each; execute_waiting.c makes kept handles that become extents. execute_pack.c makes handles for autograd.
 */
#ifndef MS_EXT_EXECUTE_HANDLE_H
#define MS_EXT_EXECUTE_HANDLE_H

#include "execute_movable.h"

typedef struct ms_saved ms_saved;

/* The functions of a kind of handle. All run under the interpreter lock. */
typedef struct ms_saved_kind {
    PyObject *(*unpack)(ms_saved *saved);            /* the tensor, a new reference; NULL with an exception */
    void (*end)(ms_saved *saved);                    /* before the handle dies; NULL: nothing to do */
    int (*drop)(ms_saved *saved, PyObject *ticket);  /* releases the bytes; NULL: not possible */
} ms_saved_kind;

struct ms_saved {
    PyObject_HEAD const ms_saved_kind *kind;
    uint32_t slot;
    uint64_t version;
    uint64_t mark;                            /* of an extent: see ms_extent_taken() */
    ms_execution *execution;
    ms_region *region;                        /* of a slot */
    ms_extent *extent;                        /* of an extent */
    PyObject *tensor; /* kept: the alias; extent: the probe of its version; selective: first the
                                               * alias, then the probe */
    PyObject *dtype, *size, *stride, *offset; /* of an extent and a selective one: the view */
    PyObject *ticket; /* of a selective one: recomputes the storage; NULL: the bytes are still held */
    PyObject *token; /* the observer's, or NULL */
};

int ms_ext_saved_init_type(PyObject *module);
ms_saved *ms_ext_saved_new(const ms_saved_kind *kind, ms_execution *execution);
bool ms_ext_is_saved(PyObject *object);
PyObject *ms_ext_saved_unpack(PyObject *handle);

/* A handle that holds the tensor. */
PyObject *ms_ext_keep(ms_execution *execution, PyObject *tensor);
PyObject *ms_ext_unpack_kept(ms_saved *saved);
/* Whether the tensor stays whatever the plan says: parameters, buffers, the caller's batch. */
bool ms_ext_stays(ms_execution *execution, PyObject *tensor);

/* The tensor itself if it is a leaf, else an alias without a graph. */
PyObject *ms_ext_alias_of(PyObject *tensor);
/* The tensor's version, or a value that no version has. No exception is left set. */
uint64_t ms_ext_version_or_none(PyObject *tensor);
/* Raises autograd's error if the tensor, or the handle's probe, is no longer at the saved version. */
int ms_ext_check_version(PyObject *tensor, uint64_t version);
int ms_ext_check_probe(const ms_saved *saved);
/* Whether an operator may save this tensor now and fill it afterwards. */
bool ms_ext_may_be_unwritten(PyObject *tensor);

/* Records dtype, sizes, strides and offset of the tensor in the handle. */
int ms_ext_remember_view(ms_saved *saved, PyObject *tensor);
/* A tensor of this dtype without elements, on the execution's device. */
PyObject *ms_ext_empty_of(const ms_execution *execution, PyObject *dtype);
/* A new str, such as "torch.FloatTensor". */
PyObject *ms_ext_type_name_of(PyObject *tensor);

#endif
