/*
 * What every file of the extension uses: errors of the library as Python exceptions, conversions of
 * text and numbers, the release of the interpreter lock. Only the stable ABI of Python 3.11; decides
 * nothing.
 *
 * Convention: functions that return PyObject * or a pointer return NULL, others -1, with a Python
 * exception set.
 */
#ifndef MS_EXT_COMMON_H
#define MS_EXT_COMMON_H

#include <Python.h>

#include <string.h>

#include "memscale/base.h"

/* Raises the exception class that the error table names for `err->code`, with
 * its text and the attributes code, system_errno and hint_bytes. Always NULL. */
PyObject *ms_ext_raise(const ms_error *err);

/* 0 if `code` is MS_OK, else raises and returns -1. */
int ms_ext_check(int code, const ms_error *err);
/* The same for a function that returns None. */
PyObject *ms_ext_none_or_raise(int code, const ms_error *err);

/* A str of a text of the library's; frees the text. A NULL text means out of memory. */
PyObject *ms_ext_take_text(char *text);

/* None for NULL, else a str. Bytes that are not UTF-8 are replaced. */
PyObject *ms_ext_text_or_none(const char *text);

/* UTF-8 of a str, borrowed from it; `*length` may be NULL. TypeError names `what` ("graph"). A text
 * with a NUL inside is a ValueError if `length` is NULL. */
const char *ms_ext_utf8(PyObject *object, const char *what, Py_ssize_t *length);

/* The same, but None is allowed: `*out` is NULL then. */
int ms_ext_utf8_or_none(PyObject *object, const char *what, const char **out);

/* A non-negative int below 2**64. TypeError or OverflowError name `what`. */
int ms_ext_u64(PyObject *object, const char *what, uint64_t *out);
int ms_ext_u32(PyObject *object, const char *what, uint32_t *out);

/* Raises TypeError if the count of arguments is outside [least, most]. For METH_FASTCALL functions. */
int ms_ext_arity(const char *function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most);

/* Makes a type and puts it into the module under the last part of its name. `*type` gets a
 * reference that is never given back, for the objects that C makes; may be NULL. */
int ms_ext_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);

/* Runs a statement without the interpreter lock; it may touch no Python object:
 *
 *     MS_EXT_UNLOCKED(rc = ms_hardware_probe(path, &hardware, &err));
 */
#define MS_EXT_UNLOCKED(statement) \
    do { \
        PyThreadState *ms_ext_thread = PyEval_SaveThread(); \
        statement; \
        PyEval_RestoreThread(ms_ext_thread); \
    } while (0)

/*
 * Rows of a table of functions or methods, and the docstring of a type that can be called. `parameters` are what
 * inspect.signature() shows, "/" if there are none; `types` are theirs in the same order and the result's, as in
 * "(str, int) -> None"; scripts/core_stubs.py writes python/memscale/_core.pyi from both.
 */
#define MS_EXT_FUNCTION(name, function, flags, parameters, types, text) \
    {name, function, flags, name "($module, " parameters ")\n--\n\n" types "\n\n" text}
#define MS_EXT_METHOD(name, function, flags, parameters, types, text) \
    {name, function, flags, name "($self, " parameters ")\n--\n\n" types "\n\n" text}
#define MS_EXT_TYPE_DOC(name, parameters, types, text) name "(" parameters ")\n--\n\n" types "\n\n" text
/* Of an attribute. */
#define MS_EXT_ATTRIBUTE_DOC(type, text) "-> " type "\n\n" text

/* A function pointer of any signature as METH_FASTCALL wants it in a table. */
#define MS_EXT_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* Slots hold functions as object pointers: Python's ABI wants it, ISO C has no such
 * conversion. */
#define MS_EXT_SLOT(function) (__extension__(void *)(function))

#endif
