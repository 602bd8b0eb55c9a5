/*
 * Graph documents for Python: checks one, and compares two of the same step.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/pipeline.h"

static PyObject *graph_check(PyObject *module, PyObject *text)
{
    (void)module;
    ms_graph *graph;
    ms_error err;
    const char *json = ms_ext_utf8(text, "graph", NULL);
    if (json == NULL || ms_ext_check(ms_graph_parse(json, &graph, &err), &err) != 0) {
        return NULL;
    }
    ms_graph_free(graph);
    Py_RETURN_NONE;
}

static PyObject *trace_diff(PyObject *module, PyObject *args)
{
    (void)module;
    const char *traced_json, *seen_json, *hardware_json;
    if (!PyArg_ParseTuple(args, "sss:trace_diff", &traced_json, &seen_json, &hardware_json)) {
        return NULL;
    }
    ms_ext_documents traced = {0}, seen = {0};
    ms_error err;
    char *report = NULL;
    uint32_t differences = 0;
    int rc = ms_ext_documents_parse(&traced, traced_json, hardware_json, NULL, NULL, &err);
    if (rc == MS_OK) {
        rc = ms_ext_documents_parse(&seen, seen_json, NULL, NULL, NULL, &err);
    }
    if (rc == MS_OK) {
        rc = ms_pipeline_trace_diff(traced.graph, seen.graph, traced.hardware, &report, &differences, &err);
    }
    ms_ext_documents_free(&traced);
    ms_ext_documents_free(&seen);
    return ms_ext_check(rc, &err) == 0 ? Py_BuildValue("(NI)", ms_ext_take_text(report), differences) : NULL;
}

static PyMethodDef functions[] = {
    MS_EXT_FUNCTION("graph_check", graph_check, METH_O, "json, /", "(str) -> None",
                    "Raises MemScaleError if the document is not a sound graph."),
    MS_EXT_FUNCTION("trace_diff", trace_diff, METH_VARARGS, "traced, seen, hardware, /",
                    "(str, str, str) -> tuple[str, int]",
                    "The differences of two graphs of the same step, as text, and their number."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_graph(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
