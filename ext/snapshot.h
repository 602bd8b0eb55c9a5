/*
 * snapshot.h - what the walks over a layer's modules share: snapshot.c takes a Snapshot, snapshot_put.c puts it back,
 * undo_modules.c notes for an Undo what a replay may change.
 */
#ifndef MS_EXT_SNAPSHOT_H
#define MS_EXT_SNAPSHOT_H

#include "common.h"

/* Whether a value is None, a bool, an int, a float or a str, of Python's own class. */
bool ms_ext_is_scalar(PyObject *value);

/* Whether it is a function, a method, a builtin or a Python module. */
bool ms_ext_is_inert(PyObject *value);

/* Finds the names of the attributes that every module has. -1 with an exception. */
int ms_ext_find_own(void);

/* Whether a module's attribute is one of those: 1, 0, or -1 with an exception. Call it for each attribute in order, with
 * the same `*at`, which is 0 at first: as long as a dictionary keeps torch's order, no name is looked up. */
int ms_ext_is_own(PyObject *name, Py_ssize_t *at);

/* The dictionary of a module's attributes, a new reference. */
PyObject *ms_ext_attributes_of(PyObject *module);

/* A name of a dictionary. */
typedef struct ms_snapshot_item {
    PyObject *name, *value; /* value: NULL unless it is a scalar */
} ms_snapshot_item;

/* The names of one dictionary: `count` items from `first` on. */
typedef struct ms_snapshot_table {
    PyObject *dict;
    size_t first, count;
} ms_snapshot_table;

typedef struct ms_snapshot_parameter {
    PyObject *table, *name, *tensor;
    uint64_t version;
    bool has_version;
} ms_snapshot_parameter;

typedef struct ms_snapshot {
    PyObject_HEAD ms_snapshot_table *tables; /* two for each module: attributes and buffers */
    ms_snapshot_item *items;
    ms_snapshot_parameter *parameters;
    size_t table_count, item_count, item_room, parameter_count, parameter_room;
} ms_snapshot;

/* Methods of Snapshot in snapshot_put.c; snapshot.c has their docstrings. */
PyObject *ms_ext_put_attributes(PyObject *self, PyObject *none);
PyObject *ms_ext_bind_parameters(PyObject *self, PyObject *undo);

#endif
