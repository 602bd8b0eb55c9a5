/*
 * The report, the progress line and telemetry events for Python. Used by observability/report.py,
 * observability/progress.py and observability/telemetry.py. Only conversions.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/report.h"
#include "memscale/telemetry.h"

static const char HISTORY[] = "memscale.history"; /* capsules of ext/observability.c */

/* Reads a dict of counters by name; None leaves them at 0. */
static int counters_of(PyObject *dict, ms_counters *counters)
{
    for (int id = 0; dict != Py_None && id < MS_COUNTER_COUNT; id++) {
        PyObject *value = PyMapping_GetItemString(dict, ms_counter_name((ms_counter)id));
        int rc = value != NULL ? ms_ext_u64(value, "counter", &counters->value[id]) : -1;
        Py_XDECREF(value);
        if (rc != 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *report_html(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *plan;
    PyObject *capsule, *dict;
    ms_report report = {0};
    ms_counters counters = {0};
    if (!PyArg_ParseTuple(args, "szzzzOO:report_html", &report.model, &report.tier, &graph, &hardware, &plan, &capsule,
                          &dict) ||
        counters_of(dict, &counters) != 0) {
        return NULL;
    }
    if (capsule != Py_None && (report.history = PyCapsule_GetPointer(capsule, HISTORY)) == NULL) {
        return NULL;
    }
    report.counters = dict != Py_None ? &counters : NULL;
    ms_error err;
    char *html = NULL;
    ms_ext_documents d = {0};
    int rc = ms_ext_documents_parse(&d, graph, hardware, NULL, plan, &err);
    if (rc == MS_OK) {
        report.graph = d.graph;
        report.hardware = d.hardware;
        report.plan = d.plan;
        rc = ms_report_html(&report, &html, &err);
    }
    ms_ext_documents_free(&d);
    return rc == MS_OK ? ms_ext_take_text(html) : ms_ext_raise(&err);
}

static PyObject *progress_line(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms_history *history = PyCapsule_GetPointer(capsule, HISTORY);
    ms_step_record record;
    if (history == NULL) {
        return NULL;
    }
    size_t count = ms_history_count(history);
    if (count == 0 || !ms_history_get(history, count - 1, &record)) {
        Py_RETURN_NONE;
    }
    return ms_ext_take_text(ms_progress_line(&record));
}

static PyObject *telemetry_event(PyObject *module, PyObject *args)
{
    (void)module;
    const char *hardware, *config, *plan;
    unsigned long long parameters, peak_bytes;
    ms_telemetry_facts facts = {0};
    if (!PyArg_ParseTuple(args, "sssKKzzz:telemetry_event", &facts.event, &facts.architecture, &facts.outcome,
                          &parameters, &peak_bytes, &hardware, &config, &plan)) {
        return NULL;
    }
    ms_error err;
    ms_ext_documents d = {0};
    char *text = NULL;
    int rc = ms_ext_documents_parse(&d, NULL, hardware, config, plan, &err);
    if (rc == MS_OK) {
        facts.parameter_count = parameters;
        facts.measured_peak_bytes = peak_bytes;
        facts.hardware = d.hardware;
        facts.plan = d.plan;
        facts.config = config != NULL ? &d.config : NULL;
        text = ms_telemetry_event(&facts);
    }
    ms_ext_documents_free(&d);
    return rc == MS_OK ? ms_ext_take_text(text) : ms_ext_raise(&err);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("telemetry_event", telemetry_event, METH_VARARGS,
                    "event, architecture, outcome, parameters, measured_peak_bytes, hardware, config, plan, /",
                    "(str, str, str, int, int, str | None, str | None, str | None) -> str",
                    "The event as one line of JSON."),
    MS_EXT_FUNCTION(
        "report_html", report_html, METH_VARARGS, "model, tier, graph, hardware, plan, history, counters, /",
        "(str, str | None, str | None, str | None, str | None, object | None, dict[str, int] | None) -> str",
        "The report as an HTML page."),
    MS_EXT_FUNCTION("progress_line", progress_line, METH_O, "history, /", "(object) -> str | None",
                    "One line about the run after its last step; None before the first."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_report(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
