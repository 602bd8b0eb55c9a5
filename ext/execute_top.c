/*
 * The pair on top of this thread's stack of saved-tensor hooks. Later versions of torch tell it to Python. torch 2.6 and
 * 2.7 tell it only by a function of libtorch_cpu.so, which is called here with the layout of its result.
 */
#include "execute_ext.h"
#include "probes.h"

#define PYTHON_NAME "_top_saved_tensors_default_hooks"

static PyObject *top_hooks; /* torch's function for Python; NULL if this torch has none */

/* std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>>. The caller owns both references. Of more than 16 bytes,
 * so that C passes its address as C++ does. */
typedef struct hook_pair {
    PyObject *pack;
    void *interpreter;
    PyObject *unpack;
    void *other_interpreter;
    bool is_there;
} hook_pair;

static hook_pair (*get_hooks)(void);
static bool (*set_tracing)(bool); /* returns the value before */

static PyObject *pack_from_library(void)
{
    bool is_tracing = set_tracing(false); /* get_hooks() hides the stack from a compiler's tracer */
    hook_pair found = get_hooks();
    (void)set_tracing(is_tracing);
    if (!found.is_there) {
        Py_RETURN_NONE;
    }
    Py_XDECREF(found.unpack);
    return found.pack;
}

PyObject *ms_ext_top_pack(void)
{
    if (ms_ext_torch() == NULL) {
        return NULL;
    }
    if (top_hooks == NULL) {
        return pack_from_library();
    }
    PyObject *top = PyObject_CallFunctionObjArgs(top_hooks, Py_True, NULL);
    PyObject *pack = top != NULL && top != Py_None ? PyTuple_GetItem(top, 0) : top;
    Py_XINCREF(pack);
    Py_XDECREF(top);
    return pack;
}

/* Whether the library's function finds a pair that was just pushed. If hooks are disabled, none can be pushed, and none
 * of ours can be on the stack. 1, 0, or -1 with an exception. */
static int finds_pushed(const ms_torch *torch)
{
    int is_enabled = ms_ext_ask(torch->hooks_enabled, NULL);
    if (is_enabled <= 0) {
        return is_enabled == 0 ? 1 : -1;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(torch->push_hooks, torch->detach, torch->stride, NULL);
    if (done == NULL) {
        return -1;
    }
    Py_DECREF(done);
    PyObject *pack = pack_from_library();
    bool is_found = pack == torch->detach;
    if (is_found) {
        Py_DECREF(pack); /* any other value is not known to be a reference */
    }
    done = PyObject_CallFunctionObjArgs(torch->pop_hooks, NULL);
    Py_XDECREF(done);
    return done != NULL ? is_found : -1;
}

static int find_in_library(const ms_torch *torch)
{
    get_hooks = (hook_pair (*)(void))ms_ext_torch_function("_ZN2at23SavedTensorDefaultHooks9get_hooksEv");
    set_tracing = (bool (*)(bool))ms_ext_torch_function("_ZN2at23SavedTensorDefaultHooks11set_tracingEb");
    int is_usable = get_hooks != NULL && set_tracing != NULL ? finds_pushed(torch) : 0;
    if (is_usable == 0) {
        PyErr_SetString(PyExc_AttributeError, "module 'torch._C._autograd' has no attribute '" PYTHON_NAME "'");
    }
    return is_usable > 0 ? 0 : -1;
}

int ms_ext_find_top(const ms_torch *torch, PyObject *autograd)
{
    top_hooks = PyObject_GetAttrString(autograd, PYTHON_NAME);
    if (top_hooks != NULL) {
        return 0;
    }
    PyErr_Clear();
    return find_in_library(torch);
}
