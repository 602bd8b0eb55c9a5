/*
 * environment.h - the parts of the process's state that a replay sets together (inventory.c): settings (settings.c), random
 * states (generators.c) and the processor's floating-point control (environment.c).
 */
#ifndef MS_EXT_ENVIRONMENT_H
#define MS_EXT_ENVIRONMENT_H

#include "common.h"

/* The processor's bits for this thread: how it rounds, and whether it flushes denormals. 0 on processors that memscale
 * does not know. */
uint32_t ms_ext_float_control(void);

/* Settings.read(); returns a new reference. */
PyObject *ms_ext_read_settings(PyObject *table);

/* Sets every setting of the table that differs from what was read. */
int ms_ext_put_settings(PyObject *table, PyObject *values);

/* Whether this is a table; raises TypeError if not. */
bool ms_ext_is_settings(PyObject *table);

/* Whether these are a table and what it read; raises ValueError if not. */
bool ms_ext_are_settings(PyObject *table, PyObject *values);

/* read_states(); returns a new reference. */
PyObject *ms_ext_read_states(PyObject *sources);

/* Writes each state, unless it is the one in `now`, which may be NULL. The first error is raised once all are set. */
int ms_ext_write_states(PyObject *sources, PyObject *states, PyObject *now);

/* Whether these are sources and a state for each; raises if not. */
bool ms_ext_are_states(PyObject *sources, PyObject *states);

/* An item of a dictionary, borrowed; None stands for a missing one. NULL with an exception. */
PyObject *ms_ext_item_or_none(PyObject *holder, PyObject *key);

/* guards_hold(); -1 with an exception. */
int ms_ext_guards_hold(PyObject *guards);

#endif
