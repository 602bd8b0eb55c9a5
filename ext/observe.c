/*
 * Compares finished steps with their plan, for memscale.session. It runs after every step, so the documents that the
 * steps share stay parsed: parsing those of a large model took 3 to 15 ms, and a step on a GPU may take 50.
 */
#include <string.h>

#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/pipeline.h"

/* Reads a number; absent or None is MS_UNSET. */
static int read_number(PyObject *dict, const char *name, uint64_t *out)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key != NULL ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    if (value == NULL || value == Py_None) {
        *out = MS_UNSET;
        return PyErr_Occurred() ? -1 : 0;
    }
    return ms_ext_u64(value, name, out);
}

/* Reads a flag; absent or None is false. */
static int read_flag(PyObject *dict, const char *name, bool *out)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *value = key != NULL ? PyDict_GetItemWithError(dict, key) : NULL;
    Py_XDECREF(key);
    int truth = value == NULL ? 0 : PyObject_IsTrue(value);
    *out = truth > 0;
    return truth < 0 || PyErr_Occurred() ? -1 : 0;
}

static int read_observation(PyObject *dict, ms_observation *seen)
{
    uint64_t step, plan_steps, time_lag;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "plan_observe: the observation must be a dict");
        return -1;
    }
    if (read_number(dict, "peak_bytes", &seen->peak_bytes) != 0 ||
        read_number(dict, "peak_held_bytes", &seen->peak_held_bytes) != 0 ||
        read_number(dict, "baseline_held_bytes", &seen->baseline_held_bytes) != 0 ||
        read_number(dict, "resident_bytes", &seen->resident_bytes) != 0 ||
        read_number(dict, "held_bytes", &seen->held_bytes) != 0 || read_number(dict, "step_ns", &seen->step_ns) != 0 ||
        read_number(dict, "optimizer_state_bytes", &seen->optimizer_state_bytes) != 0 ||
        read_flag(dict, "outputs_held", &seen->outputs_held) != 0 ||
        read_flag(dict, "gradients_live_in_forward", &seen->gradients_live_in_forward) != 0 ||
        read_flag(dict, "gradients_cleared", &seen->gradients_cleared) != 0 ||
        read_flag(dict, "loop_seen", &seen->loop_seen) != 0 ||
        read_flag(dict, "gradients_released", &seen->gradients_released) != 0 ||
        read_flag(dict, "gradients_needed", &seen->gradients_needed) != 0 ||
        read_flag(dict, "smaller_inputs", &seen->smaller_inputs) != 0 ||
        read_flag(dict, "keeps_reserve", &seen->keeps_reserve) != 0 ||
        read_flag(dict, "replan_refused", &seen->replan_refused) != 0 ||
        read_number(dict, "plans", &seen->plans) != 0 || read_number(dict, "step", &step) != 0 ||
        read_number(dict, "plan_steps", &plan_steps) != 0 || read_number(dict, "time_lag", &time_lag) != 0) {
        return -1;
    }
    seen->step = step > UINT32_MAX ? UINT32_MAX : (uint32_t)step;
    seen->plan_steps = plan_steps > UINT32_MAX ? UINT32_MAX : (uint32_t)plan_steps;
    seen->time_lag = time_lag > UINT32_MAX ? 0 : (uint32_t)time_lag;
    return 0;
}

/* ---- documents that stay parsed ----------------------------------------------------- */

/* Texts never change, so the same objects mean the same documents. Guarded by the interpreter lock. */
typedef struct kept_documents {
    PyObject *graph_text, *plan_text; /* owned; NULL: empty */
    ms_graph *graph;
    ms_plan *plan;
} kept_documents;

enum { KEPT_MOST = 4 }; /* models that train in turns */

static kept_documents kept[KEPT_MOST];
static unsigned next_kept;

static void forget(kept_documents *documents)
{
    kept_documents old = *documents;
    *documents = (kept_documents){0}; /* first: the releases below may run Python code */
    ms_graph_free(old.graph);
    ms_plan_free(old.plan);
    Py_XDECREF(old.graph_text);
    Py_XDECREF(old.plan_text);
}

/* NULL with an exception if a text is malformed. */
static kept_documents *documents_of(PyObject *graph_text, PyObject *plan_text)
{
    for (unsigned i = 0; i < KEPT_MOST; i++) {
        if (kept[i].graph_text == graph_text && kept[i].plan_text == plan_text) {
            return &kept[i];
        }
    }
    const char *graph = PyUnicode_AsUTF8AndSize(graph_text, NULL), *plan = PyUnicode_AsUTF8AndSize(plan_text, NULL);
    if (graph == NULL || plan == NULL) {
        return NULL;
    }
    ms_ext_documents parsed = {0};
    ms_error err;
    if (ms_ext_check(ms_ext_documents_parse(&parsed, graph, NULL, NULL, plan, &err), &err) != 0) {
        ms_ext_documents_free(&parsed);
        return NULL;
    }
    kept_documents *documents = &kept[next_kept++ % KEPT_MOST];
    forget(documents);
    *documents = (kept_documents){.graph_text = Py_NewRef(graph_text),
                                  .plan_text = Py_NewRef(plan_text),
                                  .graph = parsed.graph,
                                  .plan = parsed.plan};
    return documents;
}

/* ---- the comparison ------------------------------------------------------------------ */

/* The graph's text after the comparison: if nothing was corrected, the same object. A new reference. */
static PyObject *graph_text_after(kept_documents *documents, const ms_loop *before)
{
    if (memcmp(before, &documents->graph->loop, sizeof *before) == 0) {
        return Py_NewRef(documents->graph_text);
    }
    PyObject *text = ms_ext_take_text(ms_graph_to_json(documents->graph));
    forget(documents); /* it has another text now */
    return text;
}

static PyObject *observe(kept_documents *documents, ms_ext_documents *d, const ms_observation *seen)
{
    ms_error err;
    ms_drift drift = MS_DRIFT_NONE;
    char *line = NULL;
    ms_loop before = documents->graph->loop;
    int rc = ms_pipeline_observe(documents->graph, d->hardware, &d->config, documents->plan, seen, &drift, &line, &err);
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    int overrun = (int)ms_pipeline_overrun(documents->plan, seen);
    return Py_BuildValue("(sNNNi)", ms_drift_name(drift), ms_ext_take_text(line), graph_text_after(documents, &before),
                         ms_ext_take_text(ms_hardware_to_json(d->hardware)), overrun);
}

static PyObject *plan_observe(PyObject *module, PyObject *args)
{
    (void)module;
    const char *hardware, *config;
    PyObject *graph, *plan, *dict;
    ms_observation seen;
    if (!PyArg_ParseTuple(args, "UssUO:plan_observe", &graph, &hardware, &config, &plan, &dict) ||
        read_observation(dict, &seen) != 0) {
        return NULL;
    }
    kept_documents *documents = documents_of(graph, plan);
    if (documents == NULL) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    int rc = ms_ext_documents_parse(&d, NULL, hardware, config, NULL, &err);
    PyObject *answer = ms_ext_check(rc, &err) == 0 ? observe(documents, &d, &seen) : NULL;
    ms_ext_documents_free(&d);
    return answer;
}

/* ---- between runs ---------------------------------------------------------------------- */

static PyObject *plan_keep_scratch(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *before, *after, *software;
    ms_ext_documents d = {0}, now = {0};
    ms_error err;
    if (!PyArg_ParseTuple(args, "ssss:plan_keep_scratch", &graph, &before, &after, &software)) {
        return NULL;
    }
    int rc = ms_ext_documents_parse(&d, graph, before, NULL, NULL, &err);
    if (rc == MS_OK) {
        rc = ms_ext_documents_parse(&now, NULL, after, NULL, NULL, &err);
    }
    PyObject *answer = NULL;
    if (ms_ext_check(rc, &err) == 0) {
        bool kept = ms_pipeline_keep_scratch(d.graph, &d.hardware->process, now.hardware, software, NULL);
        answer = PyBool_FromLong(kept);
    }
    ms_ext_documents_free(&d);
    ms_ext_documents_free(&now);
    return answer;
}

static PyObject *plan_recall_scratch(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config, *software;
    ms_ext_documents d = {0};
    ms_error err;
    if (!PyArg_ParseTuple(args, "ssss:plan_recall_scratch", &graph, &hardware, &config, &software)) {
        return NULL;
    }
    int rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
    PyObject *answer = NULL;
    if (ms_ext_check(rc, &err) == 0) {
        bool raised = ms_pipeline_recall_scratch(d.graph, d.hardware, &d.config, software, NULL);
        answer = raised ? ms_ext_take_text(ms_hardware_to_json(d.hardware)) : Py_NewRef(Py_None);
    }
    ms_ext_documents_free(&d);
    return answer;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("plan_keep_scratch", plan_keep_scratch, METH_VARARGS,
                    "graph, hardware_before, hardware_after, software, /", "(str, str, str, str) -> bool",
                    "Keeps for later runs what a step took beyond the estimate, after plan_observe() has corrected the "
                    "hardware. Returns whether it wrote."),
    MS_EXT_FUNCTION(
        "plan_recall_scratch", plan_recall_scratch, METH_VARARGS, "graph, hardware, config, software, /",
        "(str, str, str, str) -> str | None",
        "The hardware with what an earlier run of the step took; None if there is nothing to correct, or if "
        "no plan would fit."),
    MS_EXT_FUNCTION(
        "plan_observe", plan_observe, METH_VARARGS, "graph, hardware, config, plan, observation, /",
        "(str, str, str, str, dict[str, Any]) -> tuple[str, str, str, str, int]",
        "Compares a finished step with the plan: the kind of drift, a log line, the corrected graph (the same object "
        "if "
        "nothing was corrected) and hardware, and 0 if the step kept the budget, 1 if not, 2 if it exceeded it by more "
        "than 1%."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_observe(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
