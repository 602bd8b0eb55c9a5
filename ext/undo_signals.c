/*
 * Undo.signals(): signals that Python handles wait until the undo.
 *
 * A handler that raises, as Python's own for Ctrl-C does, may run between any two bytecodes. Some C++ functions of torch that
 * a trace passes through call Python where they can't pass an exception on, and end the process then. So the actions
 * of these signals are replaced meanwhile by one that only takes note; Python never sees the signal. The undo puts the
 * actions back, flags included, and sends this thread the signals that came.
 *
 * Python runs handlers in its main thread only, so on other threads there is nothing to hold back. All state belongs to
 * the main thread, but for the notes, which the handler writes.
 */
#include <signal.h>

#include "rooms.h"
#include "undo.h"

enum { SIGNALS_END = 65 }; /* beyond Linux's last */

static struct sigaction theirs[SIGNALS_END];
static bool is_held[SIGNALS_END];
static volatile sig_atomic_t has_come[SIGNALS_END];
static unsigned depth;         /* calls of Undo.signals() that were not undone */
static unsigned long main_thread; /* set by them */

static void take_note(int number)
{
    has_come[number] = 1;
}

static void hold_back(int number)
{
    struct sigaction ours = {.sa_handler = take_note, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    is_held[number] = sigaction(number, &ours, &theirs[number]) == 0;
}

/* Unless the program has set another action meanwhile. */
static void let_go(int number)
{
    struct sigaction now;
    if (is_held[number] && sigaction(number, NULL, &now) == 0 && now.sa_handler == take_note) {
        (void)sigaction(number, &theirs[number], NULL);
    }
    is_held[number] = false;
}

/* Sends this thread a signal that came. Python takes note of it, and runs its handler at the next bytecode. */
static void send_again(int number)
{
    if (has_come[number]) {
        has_come[number] = 0;
        (void)raise(number);
    }
}

static PyObject *end_hold(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    if (--depth == 0) {
        for (int number = 1; number < SIGNALS_END; number++) {
            let_go(number);
        }
        for (int number = 1; number < SIGNALS_END; number++) {
            send_again(number);
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef end_hold_def = {"end_hold", end_hold, METH_NOARGS, NULL};

/* 1 on the thread where Python runs handlers, 0 on others, -1 with an exception. */
static int is_main_thread(void)
{
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading != NULL ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = thread != NULL ? PyObject_GetAttrString(thread, "ident") : NULL;
    unsigned long number = ident != NULL ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(ident);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    return PyErr_Occurred() ? -1 : number == PyThread_get_thread_ident();
}

/* Holds back the signals whose handlers are Python's to run. */
static int hold_all(void)
{
    PyObject *signals = PyImport_ImportModule("_signal");
    int rc = signals != NULL ? 0 : -1;
    for (int number = 1; rc == 0 && number < SIGNALS_END; number++) {
        PyObject *handler = PyObject_CallMethod(signals, "getsignal", "i", number);
        if (handler != NULL && PyCallable_Check(handler)) {
            hold_back(number);
        }
        if (handler == NULL) {
            rc = PyErr_ExceptionMatches(PyExc_ValueError) ? 0 : -1; /* libc keeps some numbers to itself */
            if (rc == 0) {
                PyErr_Clear();
            }
        }
        Py_XDECREF(handler);
    }
    Py_XDECREF(signals);
    return rc;
}

PyObject *ms_ext_note_signals(PyObject *undo, PyObject *none)
{
    (void)none;
    int is_main = is_main_thread();
    if (is_main <= 0) {
        return is_main == 0 ? Py_NewRef(Py_None) : NULL;
    }
    PyObject *end = PyCFunction_NewEx(&end_hold_def, NULL, NULL), *empty = PyTuple_New(0);
    int rc = end != NULL && empty != NULL ? ms_ext_later(undo, end, empty) : -1;
    Py_XDECREF(end);
    Py_XDECREF(empty);
    if (rc == 0 && depth++ == 0) {
        main_thread = PyThread_get_thread_ident();
        rc = hold_all();
    }
    /* Python has taken note of some already: their handlers run here, and not between two bytecodes of the trace. */
    return rc == 0 && PyErr_CheckSignals() == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *let_signals_in(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    if (depth == 0 || PyThread_get_thread_ident() != main_thread) {
        Py_RETURN_NONE;
    }
    int rc = 0;
    for (int number = 1; rc == 0 && number < SIGNALS_END; number++) {
        if (is_held[number] && has_come[number]) {
            let_go(number);
            send_again(number);
            rc = PyErr_CheckSignals();
            hold_back(number);
        }
    }
    return rc == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("let_signals_in", let_signals_in, METH_NOARGS, "/", "() -> None",
                    "Runs the handlers of signals that Undo.signals() holds back. Raises what they raise."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_undo_signals(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
