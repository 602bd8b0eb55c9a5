/*
 * Log lines for Python: the library's threads write them into a ring, and
 * observability/logs.py drains it into the standard logging tree when it holds the
 * interpreter lock anyway.
 */
#include "common.h"
#include "memscale/observability.h"
#include "rooms.h"

/* One per process, because the library's sink is; made at import, never freed. */
static ms_log_ring *ring;

static PyObject *log_drain(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PyObject *lines = PyList_New(0);
    ms_log_level level = MS_LOG_DEBUG;
    for (char *line; lines != NULL && (line = ms_log_ring_take(ring, &level)) != NULL;) {
        PyObject *pair = Py_BuildValue("(iN)", (int)level, ms_ext_text_or_none(line));
        ms_free(line);
        if (pair == NULL || PyList_Append(lines, pair) != 0) {
            Py_CLEAR(lines);
        }
        Py_XDECREF(pair);
    }
    return lines;
}

static PyMethodDef methods[] = {
    {"log_drain", log_drain, METH_NOARGS,
     "log_drain() -> list[tuple[int, str]]: level (0 debug to 3 error) and text of the lines "
     "written since the last call."},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_observability(PyObject *module)
{
    ms_error err;
    if (ring == NULL) {
        if (ms_ext_check(ms_log_ring_new(0, &ring, &err), &err) != 0) {
            return -1;
        }
        ms_log_set_sink(ms_log_ring_write, ring);
    }
    return PyModule_AddFunctions(module, methods);
}
