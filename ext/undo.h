/*
 * undo.h - temporary changes that are always undone.
 *
 * Python code that changes other code's objects for a time notes each change in an Undo before it makes it. A
 * `finally` is not enough: KeyboardInterrupt can come between any two bytecodes, also at the first of a `finally`.
 * Here one call into C restores everything. No bytecode of ours runs in it, so nothing can interrupt it.
 *
 * Users: the replay of a layer (execute_slot.c), single operators (execute_selective.c), and Python through
 * `_core.guarded()`. One thread each; under the interpreter lock.
 */
#ifndef MS_EXT_UNDO_H
#define MS_EXT_UNDO_H

#include "common.h"

/* Calls `function(undo, *args)` and restores everything noted in `undo`, also after an exception. Returns the result
 * of `function`, or NULL with its exception, or NULL with an exception of the restoring if there was none before. */
PyObject *ms_ext_guarded(PyObject *function, PyObject *args);

/* The same with one argument. */
PyObject *ms_ext_guarded_one(PyObject *function, PyObject *arg);

#endif
