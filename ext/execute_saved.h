/*
 * The handle of a saved tensor, for the files that make and read handles:
 * execute_saved.c, execute_extent.c, execute_waiting.c and execute_chosen.c.
 */
#ifndef MS_EXT_EXECUTE_SAVED_H
#define MS_EXT_EXECUTE_SAVED_H

#include "execute_ext.h"

typedef enum ms_saved_kind { SAVED_KEPT, SAVED_SLOT, SAVED_EXTENT, SAVED_DROPPED } ms_saved_kind;

typedef struct ms_saved {
    PyObject_HEAD ms_saved_kind kind;
    uint32_t slot;
    uint64_t version;
    uint64_t mark;             /* EXTENT: see ms_extent_taken() */
    ms_execution *execution;
    ms_region *region;         /* SLOT */
    ms_extent *extent;         /* EXTENT */
    PyObject *tensor;          /* KEPT: the alias; EXTENT: the probe of its version; DROPPED: one,
                                  then the other */
    PyObject *dtype, *size, *stride, *offset; /* EXTENT and DROPPED: the view */
    PyObject *ticket;          /* DROPPED: gives the storage again; NULL: it is not gone */
    PyObject *token;           /* the observer's, or NULL */
} ms_saved;

/* execute_saved.c */
ms_saved *ms_ext_saved_new(ms_saved_kind kind, ms_execution *execution);
PyObject *ms_ext_keep(ms_execution *execution, PyObject *tensor);
PyObject *ms_ext_alias_of(PyObject *tensor);
uint64_t ms_ext_version_or_none(PyObject *tensor);
PyObject *ms_ext_unpack_kept(ms_saved *saved);
int ms_ext_look_behind(PyObject *tensor, ms_movable *what);
bool ms_ext_stays(ms_execution *execution, PyObject *tensor);

/* A new str, such as "torch.FloatTensor". */
PyObject *ms_ext_type_name_of(PyObject *tensor);

/* execute_extent.c */
/* A handle of a tensor that is sent, now or once it is written, or else kept. */
PyObject *ms_ext_save_extent(ms_region *region, PyObject *tensor);
/* Sends the tensor; takes over what->storage. NULL without an exception: keep it. */
PyObject *ms_ext_offload(ms_region *region, PyObject *tensor, ms_movable *what);
int ms_ext_remember_view(ms_saved *saved, PyObject *tensor);
/* Raises autograd's error where the version is no longer the saved one. */
int ms_ext_check_probe(const ms_saved *saved);
PyObject *ms_ext_unpack_extent(ms_saved *saved);

/* execute_waiting.c */
/* Sends what waits if the operator that saved it is over. */
void ms_ext_send_settled(ms_region *region);
/* Whether the tensor may still be filled, and there is room to wait. */
bool ms_ext_must_wait(const ms_region *region, PyObject *tensor);
/* The number of the operator that autograd is recording. */
uint64_t ms_ext_operator_now(void);
/* Whether an operator may save this tensor now and fill it afterwards. */
bool ms_ext_may_be_unwritten(PyObject *tensor);
/* A handle that holds the tensor until it can be sent. */
PyObject *ms_ext_save_waiting(ms_region *region, PyObject *tensor);

/* execute_chosen.c */
PyObject *ms_ext_save_chosen(ms_region *region, PyObject *tensor);
PyObject *ms_ext_unpack_dropped(ms_saved *saved);
extern PyMethodDef ms_ext_saved_methods[];

#endif
