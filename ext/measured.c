/*
 * Measured calls of compiled layers for Python: the session reports what it saw, and C changes the graph.
 */
#include "common.h"
#include "rooms.h"

#include "memscale/graph.h"
#include "memscale/hostmem.h"

/* A list of integers; the caller frees `*out`, also after a failure. */
static int read_bytes(PyObject *list, uint64_t **out, uint32_t *count)
{
    *count = (uint32_t)PyList_Size(list);
    *out = ms_calloc(*count, sizeof **out);
    for (uint32_t i = 0; *out != NULL && i < *count; i++) {
        if (ms_ext_u64(PyList_GetItem(list, i), "bytes", &(*out)[i]) != 0) {
            return -1;
        }
    }
    return *out != NULL ? 0 : (PyErr_NoMemory(), -1);
}

static int read_places(PyObject *list, uint32_t **out, uint32_t *count)
{
    *count = (uint32_t)PyList_Size(list);
    *out = ms_calloc(*count, sizeof **out);
    for (uint32_t i = 0; *out != NULL && i < *count; i++) {
        if (ms_ext_u32(PyList_GetItem(list, i), "place", &(*out)[i]) != 0) {
            return -1;
        }
    }
    return *out != NULL ? 0 : (PyErr_NoMemory(), -1);
}

/* The name is borrowed from the tuple, the arrays are owned. */
static int read_call(PyObject *item, ms_measured_call *call)
{
    PyObject *inputs, *outputs, *made;
    unsigned long long live, forward_peak, backward_peak, forward_ns, backward_ns;
    uint32_t *places = NULL;
    uint64_t *output_bytes = NULL, *made_bytes = NULL;
    if (!PyArg_ParseTuple(item, "sIO!O!O!KKKKK:measured call", &call->layer, &call->call, &PyList_Type, &inputs,
                          &PyList_Type, &outputs, &PyList_Type, &made, &live, &forward_peak, &backward_peak,
                          &forward_ns, &backward_ns)) {
        return -1;
    }
    int rc = read_places(inputs, &places, &call->input_count);
    rc = rc == 0 ? read_bytes(outputs, &output_bytes, &call->output_count) : rc;
    rc = rc == 0 ? read_bytes(made, &made_bytes, &call->made_count) : rc;
    call->inputs = places;
    call->output_bytes = output_bytes;
    call->made_bytes = made_bytes;
    call->live_bytes = live;
    call->forward_peak_bytes = forward_peak;
    call->backward_peak_bytes = backward_peak;
    call->forward_ns = forward_ns;
    call->backward_ns = backward_ns;
    return rc;
}

static void free_calls(ms_measured_call *calls, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; calls != NULL && i < count; i++) {
        ms_free((void *)(uintptr_t)calls[i].inputs);
        ms_free((void *)(uintptr_t)calls[i].output_bytes);
        ms_free((void *)(uintptr_t)calls[i].made_bytes);
    }
    ms_free(calls);
}

static PyObject *graph_measure(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    PyObject *list, *answer = NULL;
    int on_host;
    ms_graph *graph = NULL;
    ms_error err;
    if (!PyArg_ParseTuple(args, "sO!p:graph_measure", &json, &PyList_Type, &list, &on_host)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    ms_measured_call *calls = ms_calloc((size_t)count, sizeof *calls);
    bool read = calls != NULL;
    for (Py_ssize_t i = 0; read && i < count; i++) {
        read = read_call(PyList_GetItem(list, i), &calls[i]) == 0;
    }
    if (read && ms_ext_check(ms_graph_parse(json, &graph, &err), &err) == 0) {
        int rc = ms_graph_measure(graph, calls, (size_t)count, on_host ? MS_HOSTMEM_MIN_BYTES : 0, &err);
        answer = ms_ext_check(rc, &err) == 0 ? ms_ext_take_text(ms_graph_to_json(graph)) : NULL;
    }
    if (calls == NULL) {
        PyErr_NoMemory();
    }
    free_calls(calls, count);
    ms_graph_free(graph);
    return answer;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "graph_measure", graph_measure, METH_VARARGS, "graph, calls, on_host, /",
        "(str, list[tuple[str, int, list[int], list[int], list[int], int, int, int, int, int]], bool) -> str",
        "The graph with what calls of compiled layers were seen to do: layer, call, saved arguments' places, "
        "bytes of saved outputs and of other saved storages, live bytes, peaks and times of both passes."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_measured(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
