/*
 * State that operators read besides their arguments: whole stacks of modes, and the processor's floating-point control.
 * base/environment.py calls these functions, also during an undo (undo.h), so they run no bytecode.
 */
#include "environment.h"
#include "rooms.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

/* ---- modes -------------------------------------------------------------------------------- */

/* Pops all modes of one kind from this thread's stack and pushes these. */
static int set_stack(PyObject *length, PyObject *pop, PyObject *push, PyObject *modes)
{
    for (;;) {
        PyObject *count = PyObject_CallNoArgs(length);
        long left = count != NULL ? PyLong_AsLong(count) : -1;
        Py_XDECREF(count);
        if (left < 0) {
            return -1;
        }
        PyObject *mode = left > 0 ? PyObject_CallNoArgs(pop) : NULL;
        Py_XDECREF(mode);
        if (left == 0) {
            break;
        }
        if (mode == NULL) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_Size(modes); i++) {
        PyObject *done = PyObject_CallFunctionObjArgs(push, PyList_GetItem(modes, i), NULL);
        Py_XDECREF(done);
        if (done == NULL) {
            return -1;
        }
    }
    return 0;
}

static PyObject *set_modes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (ms_ext_arity("set_modes", count, 4, 8) != 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i + 4 <= count; i += 4) {
        if (!PyList_Check(args[i + 3])) {
            PyErr_SetString(PyExc_TypeError, "set_modes() takes lists of modes");
            return NULL;
        }
        if (set_stack(args[i], args[i + 1], args[i + 2], args[i + 3]) != 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* ---- the processor's floating-point control --------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)
enum { CONTROL_BITS = 0xffc0 }; /* of MXCSR, without the flags that operations set */

uint32_t ms_ext_float_control(void)
{
    return _mm_getcsr() & CONTROL_BITS;
}

static void write_control(uint32_t bits)
{
    _mm_setcsr((_mm_getcsr() & ~(unsigned)CONTROL_BITS) | ((unsigned)bits & CONTROL_BITS));
}
#elif defined(__aarch64__)
uint32_t ms_ext_float_control(void)
{
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return (uint32_t)bits;
}

static void write_control(uint32_t bits)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)bits));
}
#else
uint32_t ms_ext_float_control(void)
{
    return 0;
}

static void write_control(uint32_t bits)
{
    (void)bits;
}
#endif

static PyObject *float_control(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromUnsignedLong(ms_ext_float_control());
}

static PyObject *set_float_control(PyObject *module, PyObject *number)
{
    (void)module;
    uint32_t bits;
    if (ms_ext_u32(number, "bits", &bits) != 0) {
        return NULL;
    }
    write_control(bits);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "set_modes", MS_EXT_FAST(set_modes), METH_FASTCALL, "length, pop, push, modes, /, *others",
        "(Callable[[], int], Callable[[], object], Callable[[Any], object], list[Any], Any) -> None",
        "Pops all modes from this thread's stack and pushes these, with torch's three functions for one kind of "
        "modes; then the same for another kind, if given."),
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
