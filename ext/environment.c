/*
 * State that operators read besides their arguments: whole stacks of modes, the processor's floating-point control, and
 * all that a replay sets in one call.
 * base/environment.py calls these functions, also during an undo (undo.h), so they run no bytecode.
 */
#include "environment.h"
#include "rooms.h"
#include "undo.h"

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

/* ---- for a replay ----------------------------------------------------------------------------- */

static PyObject *leave_function; /* leave_environment() of the module */
static PyObject *is_grad_enabled, *set_grad_enabled, *function_modes, *dispatch_modes;

/* Looks torch's functions up once. */
static int find_functions(void)
{
    if (dispatch_modes == NULL) {
        PyObject *torch = PyImport_ImportModule("torch");
        PyObject *c = torch != NULL ? PyObject_GetAttrString(torch, "_C") : NULL;
        is_grad_enabled = c != NULL ? PyObject_GetAttrString(torch, "is_grad_enabled") : NULL;
        set_grad_enabled = is_grad_enabled != NULL ? PyObject_GetAttrString(c, "_set_grad_enabled") : NULL;
        function_modes = set_grad_enabled != NULL ? PyObject_GetAttrString(c, "_len_torch_function_stack") : NULL;
        dispatch_modes = function_modes != NULL ? PyObject_GetAttrString(c, "_len_torch_dispatch_stack") : NULL;
        Py_XDECREF(c);
        Py_XDECREF(torch);
    }
    return dispatch_modes != NULL ? 0 : -1;
}

/* Calls `end`, which ends all modes, if any is on. */
static int end_modes(PyObject *end)
{
    PyObject *functions = PyObject_CallNoArgs(function_modes), *dispatches = PyObject_CallNoArgs(dispatch_modes);
    int are_on =
        functions != NULL && dispatches != NULL ? PyObject_IsTrue(functions) || PyObject_IsTrue(dispatches) : -1;
    Py_XDECREF(functions);
    Py_XDECREF(dispatches);
    PyObject *done = are_on > 0 ? PyObject_CallNoArgs(end) : NULL;
    Py_XDECREF(done);
    return are_on == 0 || done != NULL ? 0 : -1;
}

/* Notes how to put the present state back. */
static int note_present(PyObject *const *args, PyObject *values, PyObject *states)
{
    PyObject *grad = PyObject_CallNoArgs(is_grad_enabled);
    PyObject *back = grad != NULL ? PyTuple_Pack(6, args[1], values, args[5], states, grad, args[6]) : NULL;
    int rc = back != NULL ? ms_ext_later(args[0], leave_function, back) : -1;
    Py_XDECREF(back);
    Py_XDECREF(grad);
    return rc;
}

static PyObject *enter_environment(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (ms_ext_arity("enter_environment", count, 7, 7) != 0 || !ms_ext_are_settings(args[1], args[2]) ||
        !ms_ext_are_states(args[3], args[4]) || find_functions() != 0) {
        return NULL;
    }
    PyObject *values = ms_ext_read_settings(args[1]), *done = NULL;
    PyObject *states = values != NULL ? ms_ext_read_states(args[5]) : NULL;
    int rc = states != NULL ? note_present(args, values, states) : -1;
    if (rc == 0 && values != args[2]) {
        rc = ms_ext_put_settings(args[1], args[2]);
    }
    if (rc == 0 && ms_ext_write_states(args[3], args[4], args[3] == args[5] ? states : NULL) == 0) {
        done = PyObject_CallFunctionObjArgs(set_grad_enabled, Py_True, NULL);
    }
    Py_XDECREF(states);
    Py_XDECREF(values);
    return done;
}

/* Ends one step of leaving. The first error is raised once all is back. */
static void after_step(bool failed, PyObject *error[3])
{
    if (failed && error[0] == NULL) {
        PyErr_Fetch(&error[0], &error[1], &error[2]);
    }
    PyErr_Clear();
}

static PyObject *leave_environment(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (ms_ext_arity("leave_environment", count, 6, 6) != 0 || !ms_ext_are_settings(args[0], args[1]) ||
        !ms_ext_are_states(args[2], args[3]) || find_functions() != 0) {
        return NULL;
    }
    PyObject *error[3] = {NULL};
    after_step(args[5] != Py_None && end_modes(args[5]) != 0, error);
    after_step(ms_ext_put_settings(args[0], args[1]) != 0, error);
    after_step(ms_ext_write_states(args[2], args[3], NULL) != 0, error);
    PyObject *done = PyObject_CallFunctionObjArgs(set_grad_enabled, args[4], NULL);
    if (error[0] != NULL) {
        Py_CLEAR(done);
        PyErr_Restore(error[0], error[1], error[2]);
    }
    return done;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("enter_environment", MS_EXT_FAST(enter_environment), METH_FASTCALL,
                    "undo, table, values, sources, states, sources_now, end_modes, /",
                    "(Undo, Settings, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], "
                    "Callable[[], object] | None) "
                    "-> object",
                    "Sets settings and random states that were read, each unless it is set already, and enables grad "
                    "mode. The undo puts the present ones back, even if the layer changes them meanwhile, and calls "
                    "`end_modes`, a builtin, if modes of torch are on then; None leaves them on."),
    MS_EXT_FUNCTION("leave_environment", MS_EXT_FAST(leave_environment), METH_FASTCALL,
                    "table, values, sources, states, is_grad_enabled, end_modes, /",
                    "(Settings, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool, Callable[[], object] | None) "
                    "-> object",
                    "Puts settings, random states and grad mode back and ends modes; for enter_environment()."),
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
    if (PyModule_AddFunctions(module, methods) != 0) {
        return -1;
    }
    leave_function = PyObject_GetAttrString(module, "leave_environment");
    return leave_function != NULL ? 0 : -1;
}
