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
static PyObject *is_autocast, *nest_autocast, *leave_autocast, *clear_casts, *are_hooks_allowed;

/* Looks torch's functions up once. */
static int find_functions(void)
{
    static const struct {
        PyObject **place;
        const char *module, *name;
    } wanted[] = {
        {&is_grad_enabled, "torch._C", "is_grad_enabled"},
        {&set_grad_enabled, "torch._C", "_set_grad_enabled"},
        {&function_modes, "torch._C", "_len_torch_function_stack"},
        {&dispatch_modes, "torch._C", "_len_torch_dispatch_stack"},
        {&is_autocast, "torch._C", "_is_any_autocast_enabled"},
        {&nest_autocast, "torch._C", "autocast_increment_nesting"},
        {&leave_autocast, "torch._C", "autocast_decrement_nesting"},
        {&clear_casts, "torch._C", "clear_autocast_cache"},
        {&are_hooks_allowed, "torch._C._autograd", "_saved_tensors_hooks_is_enabled"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        if (*wanted[i].place != NULL) {
            continue;
        }
        PyObject *module = PyImport_ImportModule(wanted[i].module);
        *wanted[i].place = module != NULL ? PyObject_GetAttrString(module, wanted[i].name) : NULL;
        Py_XDECREF(module);
        if (*wanted[i].place == NULL) {
            return -1;
        }
    }
    return 0;
}

/* The truth of what one of torch's functions without arguments returns; -1 with an exception. */
static int is_true(PyObject *function)
{
    PyObject *value = PyObject_CallNoArgs(function);
    int truth = value != NULL ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

/* Whether any mode is on; -1 with an exception. */
static int are_modes_on(void)
{
    int functions = is_true(function_modes);
    return functions != 0 ? functions : is_true(dispatch_modes);
}

/* If the layer has switched autocast on by hand, outside of all of its contexts, nothing would clear the casts of its
 * weights, and the next step would find those of old weights. */
static int drop_casts(void)
{
    PyObject *done = NULL;
    int rc = is_true(is_autocast);
    if (rc > 0) {
        PyObject *nesting = PyObject_CallNoArgs(nest_autocast);
        done = nesting != NULL ? PyObject_CallNoArgs(leave_autocast) : NULL;
        bool is_outermost = done != NULL && PyLong_AsLong(nesting) == 1;
        Py_XDECREF(nesting);
        if (is_outermost) {
            Py_DECREF(done);
            done = PyObject_CallNoArgs(clear_casts);
        }
        rc = done != NULL ? 0 : -1;
    }
    Py_XDECREF(done);
    return rc;
}

/* Calls `end`, which ends all modes, if any is on. */
static int end_modes(PyObject *end)
{
    int are_on = are_modes_on();
    PyObject *done = are_on > 0 ? PyObject_CallNoArgs(end) : NULL;
    Py_XDECREF(done);
    return are_on == 0 || done != NULL ? 0 : -1;
}

/* Notes how to put the present state back, and how to end modes (None: not to). */
static int note_present(PyObject *const *args, PyObject *values, PyObject *states, PyObject *end)
{
    PyObject *grad = PyObject_CallNoArgs(is_grad_enabled);
    PyObject *back = grad != NULL ? PyTuple_Pack(6, args[1], values, args[5], states, grad, end) : NULL;
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
    int are_on = are_modes_on();
    if (are_on < 0) {
        return NULL;
    }
    bool has_modes = args[6] == Py_None || are_on > 0;
    PyObject *values = ms_ext_read_settings(args[1]), *done = NULL;
    PyObject *states = values != NULL ? ms_ext_read_states(args[5]) : NULL;
    int rc = states != NULL ? note_present(args, values, states, has_modes ? Py_None : args[6]) : -1;
    if (rc == 0 && values != args[2]) {
        rc = ms_ext_put_settings(args[1], args[2]);
    }
    if (rc == 0 && ms_ext_write_states(args[3], args[4], args[3] == args[5] ? states : NULL) == 0) {
        done = PyObject_CallFunctionObjArgs(set_grad_enabled, Py_True, NULL);
    }
    Py_XDECREF(states);
    Py_XDECREF(values);
    if (done == NULL) {
        return NULL;
    }
    Py_DECREF(done);
    int casts = is_true(is_autocast), hooks = is_true(are_hooks_allowed);
    return casts < 0 || hooks < 0 ? NULL : PyBool_FromLong(!has_modes && casts == 0 && hooks > 0);
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
    after_step(drop_casts() != 0, error);
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
                    "-> bool",
                    "Sets settings and random states that were read, each unless it is set already, and enables grad "
                    "mode. The undo puts the present ones back, even if the layer changes them meanwhile. `end_modes` "
                    "is a builtin if no modes of torch were on, else None: if none are on now either, the undo calls "
                    "it if some are on then. Returns whether that was all: the caller puts modes on or off, counts "
                    "a level of autocast, and allows saved-tensor hooks."),
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
