/*
 * The report, the progress line and telemetry events for Python. Used by core/report.py,
 * observability/progress.py and observability/telemetry.py; conversions only.
 */
#include "common.h"
#include "rooms.h"

#include "memscale/report.h"
#include "memscale/telemetry.h"

static const char HISTORY[] = "memscale.history"; /* capsules of ext/observability.c */

/* A dict of counters by name; None is none. */
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

static int parse_documents(const char *graph, const char *hardware, const char *plan, ms_report *report,
                           ms_hardware *room, ms_error *err)
{
    ms_graph *graph_read = NULL;
    ms_plan *plan_read = NULL;
    int rc = graph != NULL ? ms_graph_parse(graph, &graph_read, err) : MS_OK;
    report->graph = graph_read;
    if (rc == MS_OK && hardware != NULL) {
        rc = ms_hardware_parse(hardware, room, err);
        report->hardware = room;
    }
    if (rc == MS_OK && plan != NULL) {
        rc = ms_plan_parse(plan, &plan_read, err);
    }
    report->plan = plan_read;
    return rc;
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
    ms_hardware *room = ms_malloc(sizeof *room);
    int rc = room != NULL ? parse_documents(graph, hardware, plan, &report, room, &err)
                          : ms_fail(&err, MS_ENOMEM, "out of memory");
    if (rc == MS_OK) {
        rc = ms_report_html(&report, &html, &err);
    }
    ms_graph_free((ms_graph *)(uintptr_t)report.graph); /* ours, shown to the report as const */
    ms_plan_free((ms_plan *)(uintptr_t)report.plan);
    ms_free(room);
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
    ms_report documents = {0};
    char *text = NULL;
    ms_hardware *room = ms_malloc(sizeof *room);
    ms_config *config_room = ms_malloc(sizeof *config_room);
    int rc = room != NULL && config_room != NULL ? parse_documents(NULL, hardware, plan, &documents, room, &err)
                                                 : ms_fail(&err, MS_ENOMEM, "out of memory");
    if (rc == MS_OK && config != NULL) {
        rc = ms_config_parse(config, config_room, &err);
    }
    if (rc == MS_OK) {
        facts.parameter_count = parameters;
        facts.measured_peak_bytes = peak_bytes;
        facts.hardware = documents.hardware;
        facts.plan = documents.plan;
        facts.config = config != NULL ? config_room : NULL;
        text = ms_telemetry_event(&facts);
    }
    ms_plan_free((ms_plan *)(uintptr_t)documents.plan);
    ms_free(room);
    ms_free(config_room);
    return rc == MS_OK ? ms_ext_take_text(text) : ms_ext_raise(&err);
}

static PyMethodDef methods[] = {
    {"telemetry_event", telemetry_event, METH_VARARGS,
     "telemetry_event(event, architecture, outcome, parameters, measured peak bytes, hardware, config, plan) -> str: "
     "one line of JSON; the last three may be None."},
    {"report_html", report_html, METH_VARARGS,
     "report_html(model, tier, graph, hardware, plan, history, counters) -> str: the page; all but the model "
     "may be None."},
    {"progress_line", progress_line, METH_O,
     "progress_line(history) -> str or None: how the run stands after its last step."},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_report(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
