/*
 * The base room for Python: version, error table, live memory, and fault points for tests. Called
 * by memscale.__init__ and by tests.
 */
#include "common.h"
#include "rooms.h"

static PyObject *version(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyUnicode_FromString(ms_version());
}

static PyObject *error_table(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    static const int codes[] = {
#define CODE(name, value, exception, text) value,
        MS_ERROR_TABLE(CODE)
#undef CODE
    };
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows != NULL && i < sizeof codes / sizeof codes[0]; i++) {
        PyObject *row = Py_BuildValue("(isss)", codes[i], ms_error_name(codes[i]), ms_error_exception(codes[i]),
                                      ms_error_text(codes[i]));
        if (row == NULL || PyList_Append(rows, row) != 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}

static PyObject *memory_live(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return Py_BuildValue("(KK)", (unsigned long long)ms_memory_live_bytes(),
                         (unsigned long long)ms_memory_live_blocks());
}

static PyObject *team_threads(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyLong_FromUnsignedLong(ms_team_threads());
}

static PyObject *now_ns(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyLong_FromUnsignedLongLong(ms_now_ns());
}

/* ---- fault points ------------------------------------------------------- */

static const char *const fault_names[MS_FAULT_COUNT] = {
    [MS_FAULT_ALLOC] = "alloc",   [MS_FAULT_MAP] = "map",       [MS_FAULT_OPEN] = "open", [MS_FAULT_WRITE] = "write",
    [MS_FAULT_READ] = "read",     [MS_FAULT_SHORT] = "short",   [MS_FAULT_FLIP] = "flip", [MS_FAULT_THREAD] = "thread",
    [MS_FAULT_DRIVER] = "driver", [MS_FAULT_SYSTEM] = "system",
};

static int fault_kind(const char *name, ms_fault *out)
{
    for (int kind = 0; kind < MS_FAULT_COUNT; kind++) {
        if (strcmp(name, fault_names[kind]) == 0) {
            *out = (ms_fault)kind;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError, "there is no fault kind \"%s\"", name);
    return -1;
}

static PyObject *fault_arm(PyObject *module, PyObject *args)
{
    (void)module;
    const char *name;
    unsigned long long nth;
    int system_errno = 0;
    ms_fault kind;
    if (!PyArg_ParseTuple(args, "sK|i:fault_arm", &name, &nth, &system_errno) || fault_kind(name, &kind) != 0) {
        return NULL;
    }
    ms_fault_arm(kind, nth, system_errno);
    Py_RETURN_NONE;
}

static PyObject *fault_disarm_all(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_fault_disarm_all();
    Py_RETURN_NONE;
}

static PyObject *fault_passed(PyObject *module, PyObject *args)
{
    (void)module;
    const char *name;
    ms_fault kind;
    if (!PyArg_ParseTuple(args, "s:fault_passed", &name) || fault_kind(name, &kind) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(ms_fault_passed(kind));
}

static PyObject *same_bytes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    uint64_t a, b, bytes;
    if (ms_ext_arity("same_bytes", count, 3, 3) != 0 || ms_ext_u64(args[0], "address", &a) != 0 ||
        ms_ext_u64(args[1], "address", &b) != 0 || ms_ext_u64(args[2], "bytes", &bytes) != 0) {
        return NULL;
    }
    return PyBool_FromLong(memcmp((const void *)(uintptr_t)a, (const void *)(uintptr_t)b, (size_t)bytes) == 0);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("version", version, METH_NOARGS, "/", "() -> str", "Version of the library."),
    MS_EXT_FUNCTION("error_table", error_table, METH_NOARGS, "/", "() -> list[tuple[int, str, str, str]]",
                    "Code, name, exception class and text of each error."),
    MS_EXT_FUNCTION("memory_live", memory_live, METH_NOARGS, "/", "() -> tuple[int, int]",
                    "Bytes and blocks of memory that the library has allocated."),
    MS_EXT_FUNCTION("team_threads", team_threads, METH_NOARGS, "/", "() -> int",
                    "Threads that OpenMP would use in this thread, 0 without OpenMP."),
    MS_EXT_FUNCTION("same_bytes", MS_EXT_FAST(same_bytes), METH_FASTCALL, "address, other, bytes, /",
                    "(int, int, int) -> bool", "Whether the memory at both addresses has the same bytes."),
    MS_EXT_FUNCTION("now_ns", now_ns, METH_NOARGS, "/", "() -> int", "The library's clock, in nanoseconds."),
    MS_EXT_FUNCTION(
        "fault_arm", fault_arm, METH_VARARGS, "kind, nth, errno=0, /", "(str, int, int) -> None",
        "Makes the nth call from now on fail, for tests. Kinds: alloc, map, open, write, read, short, flip, thread, "
        "driver, system."),
    MS_EXT_FUNCTION("fault_disarm_all", fault_disarm_all, METH_NOARGS, "/", "() -> None", "Disarms all fault points."),
    MS_EXT_FUNCTION("fault_passed", fault_passed, METH_VARARGS, "kind, /", "(str) -> int",
                    "Number of calls of this kind since it was armed."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_base(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
