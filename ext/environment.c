/*
 * State that operators read besides their arguments: all settings of base/environment.py's table at once, whole stacks
 * of modes, and the processor's floating-point control. base/environment.py calls these functions, also during an undo
 * (undo.h), so they run no bytecode.
 */
#include "common.h"
#include "rooms.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

/* ---- modes -------------------------------------------------------------------------------- */

/* Pops all modes from this thread's stack and pushes these. */
static PyObject *set_modes(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *length, *pop, *push, *modes;
    if (!PyArg_ParseTuple(args, "OOOO!:set_modes", &length, &pop, &push, &PyList_Type, &modes)) {
        return NULL;
    }
    for (;;) {
        PyObject *count = PyObject_CallObject(length, NULL);
        long left = count != NULL ? PyLong_AsLong(count) : -1;
        Py_XDECREF(count);
        if (left < 0) {
            return NULL;
        }
        PyObject *mode = left > 0 ? PyObject_CallObject(pop, NULL) : NULL;
        Py_XDECREF(mode);
        if (left == 0) {
            break;
        }
        if (mode == NULL) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_Size(modes); i++) {
        PyObject *done = PyObject_CallFunctionObjArgs(push, PyList_GetItem(modes, i), NULL);
        Py_XDECREF(done);
        if (done == NULL) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* ---- the processor's floating-point control --------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)
enum { CONTROL_BITS = 0xffc0 }; /* of MXCSR, without the flags that operations set */

static uint64_t read_control(void)
{
    return _mm_getcsr() & CONTROL_BITS;
}

static void write_control(uint64_t bits)
{
    _mm_setcsr((_mm_getcsr() & ~(unsigned)CONTROL_BITS) | ((unsigned)bits & CONTROL_BITS));
}
#elif defined(__aarch64__)
static uint64_t read_control(void)
{
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
}

static void write_control(uint64_t bits)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(bits));
}
#else
static uint64_t read_control(void)
{
    return 0;
}

static void write_control(uint64_t bits)
{
    (void)bits;
}
#endif

static PyObject *float_control(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLongLong(read_control());
}

static PyObject *set_float_control(PyObject *module, PyObject *number)
{
    (void)module;
    uint64_t bits;
    if (ms_ext_u64(number, "bits", &bits) != 0) {
        return NULL;
    }
    write_control(bits);
    Py_RETURN_NONE;
}

/* ---- settings ---------------------------------------------------------------------------- */

/* The value of one setting: a new reference. Ellipsis stands for one that torch refuses to read. */
static PyObject *read_setting(PyObject *readers)
{
    PyObject *value = NULL;
    if (PyTuple_Check(readers)) { /* one part of the value from each */
        Py_ssize_t count = PyTuple_Size(readers);
        value = PyTuple_New(count);
        for (Py_ssize_t i = 0; value != NULL && i < count; i++) {
            PyObject *part = PyObject_CallNoArgs(PyTuple_GetItem(readers, i));
            if (part == NULL || PyTuple_SetItem(value, i, part) != 0) {
                Py_CLEAR(value);
            }
        }
    } else {
        value = PyObject_CallNoArgs(readers);
    }
    if (value == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear();
        value = Py_Ellipsis;
        Py_INCREF(value);
    }
    return value;
}

static PyObject *read_settings(PyObject *module, PyObject *rows)
{
    (void)module;
    if (!PyList_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "read_settings() takes a list of rows");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(rows);
    PyObject *values = PyList_New(count);
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        PyObject *row = PyList_GetItem(rows, i);
        PyObject *readers = PyTuple_Check(row) ? PyTuple_GetItem(row, 0) : NULL;
        PyObject *value = readers != NULL ? read_setting(readers) : NULL;
        if (value == NULL || PyList_SetItem(values, i, value) != 0) {
            Py_CLEAR(values);
        }
    }
    if (values == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a row is a tuple of readers and writers");
    }
    return values;
}

/* Calls each writer with the value, in parts if it is a tuple. A writer is (function, names of the last parts, whether
 * it takes the value). */
static int write_setting(PyObject *writers, PyObject *value)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(writers); i++) {
        PyObject *function, *names;
        int takes;
        if (!PyArg_ParseTuple(PyTuple_GetItem(writers, i), "OO!p:writer", &function, &PyTuple_Type, &names, &takes)) {
            return -1;
        }
        PyObject *parts = !takes ? PyTuple_New(0) : PyTuple_Check(value) ? Py_NewRef(value) : PyTuple_Pack(1, value);
        Py_ssize_t named = PyTuple_Size(names), plain = parts != NULL ? PyTuple_Size(parts) - named : 0;
        PyObject *args = parts != NULL ? PyTuple_GetSlice(parts, 0, plain) : NULL;
        PyObject *kwargs = named > 0 ? PyDict_New() : NULL;
        int rc = args != NULL && (named == 0 || kwargs != NULL) ? 0 : -1;
        for (Py_ssize_t k = 0; rc == 0 && k < named; k++) {
            rc = PyDict_SetItem(kwargs, PyTuple_GetItem(names, k), PyTuple_GetItem(parts, plain + k));
        }
        PyObject *done = rc == 0 ? PyObject_Call(function, args, kwargs) : NULL;
        Py_XDECREF(kwargs);
        Py_XDECREF(args);
        Py_XDECREF(parts);
        Py_XDECREF(done);
        if (done == NULL) {
            return -1;
        }
    }
    return 0;
}

/* Sets one setting unless it has the value already. Each is read again at its turn, because an earlier one may have
 * changed it. */
static int put_setting(PyObject *row, PyObject *value)
{
    PyObject *now = read_setting(PyTuple_GetItem(row, 0));
    int is_same = now == NULL ? -1 : now == Py_Ellipsis ? 1 : PyObject_RichCompareBool(now, value, Py_EQ);
    Py_XDECREF(now);
    return is_same != 0 ? (is_same < 0 ? -1 : 0) : write_setting(PyTuple_GetItem(row, 1), value);
}

static PyObject *put_settings(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *rows, *values, *type = NULL, *value = NULL, *traceback = NULL;
    if (!PyArg_ParseTuple(args, "O!O!:put_settings", &PyList_Type, &rows, &PyList_Type, &values)) {
        return NULL;
    }
    if (PyList_Size(rows) != PyList_Size(values)) {
        PyErr_SetString(PyExc_ValueError, "put_settings() takes one value for each row");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++) {
        PyObject *wanted = PyList_GetItem(values, i);
        if (wanted == Py_Ellipsis || put_setting(PyList_GetItem(rows, i), wanted) == 0) {
            continue;
        }
        if (type == NULL) { /* the first error is raised once all others are set */
            PyErr_Fetch(&type, &value, &traceback);
        } else {
            PyErr_Clear();
        }
    }
    if (type != NULL) {
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("read_settings", read_settings, METH_O, "rows, /", "(list[tuple[Any, Any]]) -> list[Any]",
                    "The value of each setting, by the first item of its row: a function, or a tuple of functions "
                    "for the parts of a tuple. Ellipsis stands for one whose function raises RuntimeError."),
    MS_EXT_FUNCTION(
        "put_settings", put_settings, METH_VARARGS, "rows, values, /", "(list[tuple[Any, Any]], list[Any]) -> None",
        "Sets the settings that differ, in the order of the rows, by the second item of each: tuples of a function, "
        "the "
        "names under which it takes the last parts, and whether it takes the value. Ellipsis leaves a setting alone."),
    MS_EXT_FUNCTION(
        "set_modes", set_modes, METH_VARARGS, "length, pop, push, modes, /",
        "(Callable[[], int], Callable[[], object], Callable[[Any], object], list[Any]) -> None",
        "Pops all modes from this thread's stack and pushes these, with torch's three functions for one kind of "
        "modes."),
    MS_EXT_FUNCTION("float_control", float_control, METH_NOARGS, "/", "() -> int",
                    "The processor's bits for this thread: how it rounds, and whether it flushes denormals."),
    MS_EXT_FUNCTION("set_float_control", set_float_control, METH_O, "bits, /", "(int) -> None",
                    "Sets bits that float_control() returned."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_environment(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
