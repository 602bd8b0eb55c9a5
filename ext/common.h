/*
 * common.h - helpers for every file of the extension: raises the library's errors as Python
 * exceptions, converts texts and numbers, releases the interpreter lock. Uses only the stable ABI of
 * Python 3.10; decides nothing.
 *
 * Convention: a function that fails sets a Python exception and returns NULL if it returns a
 * pointer, else -1.
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
/* None if `code` is MS_OK, else raises and returns NULL. */
PyObject *ms_ext_none_or_raise(int code, const ms_error *err);

/* A str of the library's text, which it frees. NULL means out of memory. */
PyObject *ms_ext_take_text(char *text);

/* None for NULL, else a str. Bytes that are not UTF-8 are replaced. */
PyObject *ms_ext_text_or_none(const char *text);

/* The UTF-8 of a str, borrowed from it. TypeError names `what` ("graph"). `length` may be NULL; then a text with a
 * NUL inside is a ValueError. */
const char *ms_ext_utf8(PyObject *object, const char *what, Py_ssize_t *length);

/* As ms_ext_utf8() with a NULL `length`, but None is allowed and sets `*out` to NULL. */
int ms_ext_utf8_or_none(PyObject *object, const char *what, const char **out);

/* A non-negative int below 2**64, or 2**32. TypeError or OverflowError names `what`. */
int ms_ext_u64(PyObject *object, const char *what, uint64_t *out);
int ms_ext_u32(PyObject *object, const char *what, uint32_t *out);

/* For METH_FASTCALL functions: raises TypeError if the count of arguments is outside [least, most]. */
int ms_ext_arity(const char *function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most);

/* Makes a type and adds it to the module under the last part of its name. If `type` isn't NULL, `*type` gets a
 * reference for C that makes objects of the type; it is never released. */
int ms_ext_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type);

/* Runs a statement without the interpreter lock. The statement must not touch Python objects:
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
 * Rows of a table of functions or methods, and the docstring of a type that can be called. `parameters` is the list
 * that inspect.signature() shows, "/" if there are none. `types` has the types of the parameters, in the same order,
 * and of the result: "(str, int) -> None". scripts/core_stubs.py writes python/memscale/_core.pyi from both.
 */
#define MS_EXT_FUNCTION(name, function, flags, parameters, types, text) \
    {name, function, flags, name "($module, " parameters ")\n--\n\n" types "\n\n" text}
#define MS_EXT_METHOD(name, function, flags, parameters, types, text) \
    {name, function, flags, name "($self, " parameters ")\n--\n\n" types "\n\n" text}
#define MS_EXT_TYPE_DOC(name, parameters, types, text) name "(" parameters ")\n--\n\n" types "\n\n" text
/* The docstring of an attribute. */
#define MS_EXT_ATTRIBUTE_DOC(type, text) "-> " type "\n\n" text

/* A function pointer of another signature than PyCFunction, for a table of functions. */
#define MS_EXT_FAST(function) ((PyCFunction)(void (*)(void))(function))

/* A function pointer for a slot. Python's ABI stores it as an object pointer, a conversion that ISO C lacks. */
#define MS_EXT_SLOT(function) (__extension__(void *)(function))

#endif
