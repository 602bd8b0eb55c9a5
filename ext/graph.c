/*
 * Graph documents for Python: whether one is sound.
 */
#include "memscale/graph.h"

#include "common.h"
#include "rooms.h"

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

static PyMethodDef functions[] = {
    MS_EXT_FUNCTION("graph_check", graph_check, METH_O, "json, /", "(str) -> None",
                    "Raises MemScaleError where the document is no sound graph."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_graph(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
