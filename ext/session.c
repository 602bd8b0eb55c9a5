/*
 * Library calls for session/session.py: they find a known signature whose plan serves other inputs, and copy parts
 * from one graph to another.
 */
#include "common.h"
#include "memscale/plan.h"
#include "rooms.h"

/* Borrows the texts of a list of str; NULL with an exception if an item is not a str. */
static const char **texts_of(PyObject *list, size_t *count)
{
    Py_ssize_t size = PyList_Size(list);
    if (size < 0) {
        return NULL;
    }
    const char **texts = ms_calloc((size_t)size + 1, sizeof *texts);
    if (texts == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        texts[i] = ms_ext_utf8(PyList_GetItem(list, i), "a signature", NULL);
        if (texts[i] == NULL) {
            ms_free(texts);
            return NULL;
        }
    }
    *count = (size_t)size;
    return texts;
}

static PyObject *signature_find(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list;
    const char *signature;
    if (!PyArg_ParseTuple(args, "O!s:signature_find", &PyList_Type, &list, &signature)) {
        return NULL;
    }
    size_t count = 0;
    const char **known = texts_of(list, &count);
    if (known == NULL) {
        return NULL;
    }
    size_t found = ms_signature_find(known, count, signature);
    ms_free(known);
    PyObject *answer = found < count ? PyList_GetItem(list, (Py_ssize_t)found) : Py_None;
    return Py_NewRef(answer);
}

static PyObject *signature_ahead(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list;
    const char *signature;
    if (!PyArg_ParseTuple(args, "O!s:signature_ahead", &PyList_Type, &list, &signature)) {
        return NULL;
    }
    size_t count = 0;
    const char **known = texts_of(list, &count);
    if (known == NULL) {
        return NULL;
    }
    char *ahead = ms_signature_ahead(known, count, signature);
    PyObject *answer = ms_ext_text_or_none(ahead);
    ms_free(ahead);
    ms_free(known);
    return answer;
}

static PyObject *signature_without_numbers(PyObject *module, PyObject *args)
{
    (void)module;
    const char *given, *dropped = NULL;
    if (!PyArg_ParseTuple(args, "s|z:signature_without_numbers", &given, &dropped)) {
        return NULL;
    }
    char *text = ms_strdup(given);
    if (text == NULL) {
        return PyErr_NoMemory();
    }
    ms_signature_drop_numbers(text, dropped);
    return ms_ext_take_text(text);
}

static PyObject *signature_learn(PyObject *module, PyObject *args)
{
    (void)module;
    const char *signature, *json, *other, *other_json;
    if (!PyArg_ParseTuple(args, "ssss:signature_learn", &signature, &json, &other, &other_json)) {
        return NULL;
    }
    ms_error err;
    ms_graph *graph = NULL, *other_graph = NULL;
    char *text = ms_strdup(signature);
    PyObject *answer = text == NULL ? PyErr_NoMemory() : NULL;
    int rc = ms_graph_parse(json, &graph, &err);
    if (rc == MS_OK) {
        rc = ms_graph_parse(other_json, &other_graph, &err);
    }
    if (text != NULL && ms_ext_check(rc, &err) == 0) {
        bool learnt = ms_signature_learn(text, graph, other, other_graph);
        answer = ms_ext_text_or_none(learnt ? text : NULL);
    }
    ms_free(text);
    ms_graph_free(graph);
    ms_graph_free(other_graph);
    return answer;
}

static int adopt_loop(ms_graph *graph, const ms_graph *other, ms_error *err)
{
    (void)err;
    ms_graph_adopt_loop(graph, other);
    return MS_OK;
}

/* Merges a part of the second graph into the first with `change`; returns the first as text. */
static PyObject *changed_graph(const char *json, const char *other_json,
                               int (*change)(ms_graph *, const ms_graph *, ms_error *))
{
    ms_error err;
    ms_graph *graph = NULL, *other = NULL;
    PyObject *answer = NULL;
    int rc = ms_graph_parse(json, &graph, &err);
    if (rc == MS_OK) {
        rc = ms_graph_parse(other_json, &other, &err);
    }
    if (rc == MS_OK) {
        rc = change(graph, other, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        answer = ms_ext_take_text(ms_graph_to_json(graph));
    }
    ms_graph_free(graph);
    ms_graph_free(other);
    return answer;
}

static PyObject *graph_adopt_loop(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json, *other_json;
    if (!PyArg_ParseTuple(args, "ss:graph_adopt_loop", &json, &other_json)) {
        return NULL;
    }
    return changed_graph(json, other_json, adopt_loop);
}

static int hold_all(ms_graph *graph, PyObject *layers)
{
    for (Py_ssize_t i = 0; i < PyList_Size(layers); i++) {
        const char *name = PyUnicode_AsUTF8AndSize(PyList_GetItem(layers, i), NULL);
        if (name == NULL) {
            return -1;
        }
        ms_graph_hold(graph, name);
    }
    return 0;
}

static PyObject *graph_hold(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    PyObject *layers, *answer = NULL;
    ms_graph *graph = NULL;
    ms_error err;
    if (!PyArg_ParseTuple(args, "sO!:graph_hold", &json, &PyList_Type, &layers) ||
        ms_ext_check(ms_graph_parse(json, &graph, &err), &err) != 0) {
        return NULL;
    }
    if (hold_all(graph, layers) == 0) {
        answer = ms_ext_take_text(ms_graph_to_json(graph));
    }
    ms_graph_free(graph);
    return answer;
}

static PyObject *graph_pend(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json;
    unsigned long long forwards;
    ms_graph *graph = NULL;
    ms_error err;
    if (!PyArg_ParseTuple(args, "sK:graph_pend", &json, &forwards) ||
        ms_ext_check(ms_graph_parse(json, &graph, &err), &err) != 0) {
        return NULL;
    }
    ms_graph_pend(graph, forwards);
    PyObject *answer = ms_ext_take_text(ms_graph_to_json(graph));
    ms_graph_free(graph);
    return answer;
}

static PyObject *graph_add_tiled(PyObject *module, PyObject *args)
{
    (void)module;
    const char *json, *tiled_json;
    if (!PyArg_ParseTuple(args, "ss:graph_add_tiled", &json, &tiled_json)) {
        return NULL;
    }
    return changed_graph(json, tiled_json, ms_graph_add_tiled);
}

static PyObject *tile_rows(PyObject *module, PyObject *rows)
{
    (void)module;
    uint64_t given;
    if (ms_ext_u64(rows, "tile_rows", &given) != 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(ms_tile_rows(given));
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("signature_find", signature_find, METH_VARARGS, "known, signature, /",
                    "(list[str], str) -> str | None", "The known signature that serves these inputs, or None."),
    MS_EXT_FUNCTION("signature_ahead", signature_ahead, METH_VARARGS, "known, signature, /",
                    "(list[str], str) -> str | None",
                    "The signature of larger inputs to trace instead if inputs keep growing, else None."),
    MS_EXT_FUNCTION(
        "signature_without_numbers", signature_without_numbers, METH_VARARGS, "signature, dropped=None, /",
        "(str, str | None) -> str",
        "The signature with '#' for numbers that are values of arguments: all, or those that are '#' in `dropped`."),
    MS_EXT_FUNCTION("signature_learn", signature_learn, METH_VARARGS, "signature, graph, other, other_graph, /",
                    "(str, str, str, str) -> str | None",
                    "The signature with '#' for numbers that differ in the other signature; None if the steps differ."),
    MS_EXT_FUNCTION("graph_adopt_loop", graph_adopt_loop, METH_VARARGS, "graph, other, /", "(str, str) -> str",
                    "The graph with the other's observations of the training loop."),
    MS_EXT_FUNCTION("graph_hold", graph_hold, METH_VARARGS, "graph, layers, /", "(str, list[str]) -> str",
                    "The graph with these layers marked as not repeatable."),
    MS_EXT_FUNCTION(
        "graph_pend", graph_pend, METH_VARARGS, "graph, forwards, /", "(str, int) -> str",
        "The graph of a step in which this many forwards, or more, wait for their backward while another runs."),
    MS_EXT_FUNCTION(
        "graph_add_tiled", graph_add_tiled, METH_VARARGS, "graph, tiled, /", "(str, str) -> str",
        "The graph with the tiled programs of the same layers in `tiled`, a graph traced in tiles, if the two match."),
    MS_EXT_FUNCTION("tile_rows", tile_rows, METH_O, "rows, /", "(int) -> int",
                    "Rows of a tile for a module's number of rows."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_session(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
