/*
 * undo.h - temporary changes that are always undone.
 *
 * Python code that changes other people's objects for a while notes each change in an Undo before it makes it.
 * A `finally` is not enough: a KeyboardInterrupt can come between any two bytecodes, even before the first of a
 * `finally`. One call into C undoes all changes; it runs no bytecode of ours, so nothing can interrupt it.
 *
 * Users: the replay of a layer (execute_slot.c), single operators (execute_selective.c), and Python through
 * `_core.guarded()`. An Undo belongs to one thread; all calls are under the interpreter lock.
 */
#ifndef MS_EXT_UNDO_H
#define MS_EXT_UNDO_H

#include "common.h"

/* Calls `function(undo, *args)`, then undoes the changes noted in `undo`, exception or not. Returns the result of
 * `function`, or NULL with its exception; with an exception of the undo if `function` raised none. */
PyObject *ms_ext_guarded(PyObject *function, PyObject *args);

/* ms_ext_guarded() with one argument. */
PyObject *ms_ext_guarded_one(PyObject *function, PyObject *arg);

/* As Undo.later(): `undo` will call the builtin `function` with the tuple `args`. */
int ms_ext_later(PyObject *undo, PyObject *function, PyObject *args);

#endif
