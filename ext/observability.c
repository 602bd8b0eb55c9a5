/*
 * Log lines for Python: the library's threads write them into a ring, and observability/logs.py
 * drains it into the standard logging tree whenever it holds the interpreter lock.
 */
#include "memscale/observability.h"
#include "common.h"
#include "rooms.h"

/* One per process, like the library's sink. Made at import, never freed. */
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

/* ---- metrics and history --------------------------------------------------- */

static PyObject *counter_metrics(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PyObject *list = PyList_New(0);
    for (int id = 0; list != NULL && id < MS_COUNTER_COUNT; id++) {
        ms_metric metric = ms_counter_metric((ms_counter)id);
        PyObject *row = Py_BuildValue("(sssK)", ms_counter_name((ms_counter)id), metric.name, metric.help,
                                      (unsigned long long)metric.per_unit);
        if (row == NULL || PyList_Append(list, row) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

static const char HISTORY[] = "memscale.history";

static void history_gone(PyObject *capsule)
{
    ms_history_free(PyCapsule_GetPointer(capsule, HISTORY));
}

static PyObject *history_new(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_error err;
    ms_history *history = NULL;
    if (ms_ext_check(ms_history_new(0, &history, &err), &err) != 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(history, HISTORY, history_gone);
    if (capsule == NULL) {
        ms_history_free(history);
    }
    return capsule;
}

/* Reads a number of a dict; absent or None is UINT64_MAX. */
static int number_in(PyObject *dict, const char *name, uint64_t *out)
{
    PyObject *value = PyMapping_GetItemString(dict, name);
    int rc = 0;
    *out = UINT64_MAX;
    if (value == NULL) {
        PyErr_Clear();
    } else if (value != Py_None) {
        rc = ms_ext_u64(value, name, out);
    }
    Py_XDECREF(value);
    return rc;
}

static PyObject *history_add(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *seen, *counters;
    if (!PyArg_ParseTuple(args, "OO!O!:history_add", &capsule, &PyDict_Type, &seen, &PyDict_Type, &counters)) {
        return NULL;
    }
    ms_history *history = PyCapsule_GetPointer(capsule, HISTORY);
    ms_step_record record = {0};
    const struct {
        const char *name;
        uint64_t *out;
    } fields[] = {{"step", &record.first_step},
                  {"step_ns", &record.step_ns},
                  {"peak_bytes", &record.peak_bytes},
                  {"resident_bytes", &record.resident_bytes},
                  {"tier_bytes", &record.tier_bytes},
                  {"budget_bytes", &record.budget_bytes},
                  {"predicted_peak_bytes", &record.predicted_peak_bytes},
                  {"predicted_step_ns", &record.predicted_step_ns}};
    for (size_t i = 0; history != NULL && i < sizeof fields / sizeof fields[0]; i++) {
        if (number_in(seen, fields[i].name, fields[i].out) != 0) {
            return NULL;
        }
    }
    for (int id = 0; history != NULL && id < MS_COUNTER_COUNT; id++) {
        if (number_in(counters, ms_counter_name((ms_counter)id), &record.total.value[id]) != 0) {
            return NULL;
        }
    }
    if (history == NULL) {
        return NULL;
    }
    record.last_step = record.first_step;
    ms_history_add(history, &record);
    Py_RETURN_NONE;
}

static PyObject *step_times(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms_history *history = PyCapsule_GetPointer(capsule, HISTORY);
    if (history == NULL) {
        return NULL;
    }
    ms_histogram times = ms_history_step_times(history);
    PyObject *buckets = PyList_New(0);
    for (size_t i = 0; buckets != NULL && i <= MS_HISTOGRAM_BOUNDS; i++) {
        PyObject *row = i < MS_HISTOGRAM_BOUNDS ? Py_BuildValue("(KK)", (unsigned long long)times.bound_ns[i],
                                                                (unsigned long long)times.count[i])
                                                : Py_BuildValue("(OK)", Py_None, (unsigned long long)times.count[i]);
        if (row == NULL || PyList_Append(buckets, row) != 0) {
            Py_CLEAR(buckets);
        }
        Py_XDECREF(row);
    }
    return buckets != NULL ? Py_BuildValue("(NK)", buckets, (unsigned long long)times.sum_ns) : NULL;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "counter_metrics", counter_metrics, METH_NOARGS, "/", "() -> list[tuple[str, str, str, int]]",
        "The name of each counter, its metric's name and help text, and the divisor that converts its value to the "
        "metric's unit."),
    MS_EXT_FUNCTION("history_new", history_new, METH_NOARGS, "/", "() -> object", "An empty history of steps."),
    MS_EXT_FUNCTION("history_add", history_add, METH_VARARGS, "history, step, counters, /",
                    "(object, dict[str, Any], dict[str, int]) -> None",
                    "Adds a step's measurements, and the counters after it."),
    MS_EXT_FUNCTION(
        "history_step_times", step_times, METH_O, "history, /", "(object) -> tuple[list[tuple[int | None, int]], int]",
        "The upper bounds of step times in ns (None for the last) with counts of steps, and the sum in ns."),
    MS_EXT_FUNCTION("log_drain", log_drain, METH_NOARGS, "/", "() -> list[tuple[int, str]]",
                    "Level (0 debug to 3 error) and text of the lines written since the last call."),
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
