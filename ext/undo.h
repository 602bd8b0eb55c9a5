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

/* 0 if the object is an Undo, -1 with TypeError if not. The two functions below take nothing else. */
int ms_ext_is_undo(PyObject *object);

/* As Undo.slot(). */
int ms_ext_note_slot(PyObject *undo, PyObject *holder, PyObject *key);

/* As Undo.content(), with what ms_ext_content_of() gave. Nobody may write that any more. */
int ms_ext_note_content(PyObject *undo, PyObject *container, PyObject *content);

/* Whether a container is an empty dictionary, list or set, and a list whose members the undo empties again, a new
 * reference. Most containers of modules are empty: one note for all of them costs a third of a note for each. Add
 * containers only before any of them may change: the list has the place of the first note. */
bool ms_ext_is_empty(PyObject *container);
PyObject *ms_ext_note_empty(PyObject *undo);

/* As Undo.signals(): the undo ends what undo_signals.c describes. */
PyObject *ms_ext_note_signals(PyObject *undo, PyObject *none);

/* A copy of what a container, or memory, holds; and putting it back in place. */
PyObject *ms_ext_content_of(PyObject *container);
int ms_ext_put_content(PyObject *container, PyObject *content);

#endif
