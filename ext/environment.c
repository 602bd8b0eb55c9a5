/*
 * State that operators read besides their arguments, and that torch has no functions for: whole stacks of modes, and
 * the processor's floating-point control. base/environment.py calls these functions, also during an undo (undo.h), so
 * they run no bytecode.
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

static PyMethodDef methods[] = {
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
