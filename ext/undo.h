/*
 * undo.h - changes that are taken back whatever happens.
 *
 * Python code that changes somebody else's objects for a while notes each change in an Undo before it makes it.
 * A `finally` would not do: KeyboardInterrupt comes between any two bytecodes, the first of a `finally` included.
 * Here everything is put back in one call into C, in which no bytecode of ours runs, so nothing can come between.
 *
 * Users: the replay of a layer (execute_saved.c), single operators (execute_chosen.c), and Python through
 * `_core.guarded()`. One thread each; under the interpreter lock.
 */
#ifndef MS_EXT_UNDO_H
#define MS_EXT_UNDO_H

#include "common.h"

/* Calls `function(undo, *args)` and puts back what was noted in `undo`, exception or not. What `function` gave, or
 * NULL with its exception; one from putting back is raised where there was none. */
PyObject *ms_ext_guarded(PyObject *function, PyObject *args);

/* The same with one argument. */
PyObject *ms_ext_guarded_one(PyObject *function, PyObject *arg);

#endif
