/*
 * Cases outside the plan, for Python: evaluations above the budget, and shapes that no plan fits into it.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/pipeline.h"

static PyObject *plan_evaluation(PyObject *module, PyObject *args)
{
    (void)module;
    const char *text;
    unsigned long long before, peak, rows;
    if (!PyArg_ParseTuple(args, "sKKK:plan_evaluation", &text, &before, &peak, &rows)) {
        return NULL;
    }
    ms_config config;
    ms_error err;
    ms_evaluation seen = {before, peak, rows};
    char *line = NULL;
    int rc = ms_config_parse(text, &config, &err);
    if (rc == MS_OK) {
        rc = ms_pipeline_evaluation(&config, &seen, &line, &err);
    }
    if (ms_ext_check(rc, &err) != 0) {
        return NULL;
    }
    PyObject *answer = ms_ext_text_or_none(line);
    ms_free(line);
    return answer;
}

static PyObject *plan_beyond(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *first, *hardware, *config, *in_force;
    unsigned long long held_bytes, waiting;
    if (!PyArg_ParseTuple(args, "ssssKKz:plan_beyond", &graph, &first, &hardware, &config, &held_bytes, &waiting,
                          &in_force)) {
        return NULL;
    }
    ms_ext_documents d = {0}, of_first = {0};
    ms_error err;
    ms_plan *plan = NULL;
    char *line = NULL;
    PyObject *answer = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, config, in_force, &err);
    if (rc == MS_OK) {
        rc = ms_ext_documents_parse(&of_first, first, hardware, config, NULL, &err);
    }
    if (rc == MS_OK) {
        ms_beyond beyond = {d.graph, of_first.graph, held_bytes, waiting, d.plan};
        rc = ms_pipeline_beyond(&beyond, d.hardware, &d.config, &plan, &line, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        PyObject *text = plan == NULL ? PyUnicode_FromString(in_force) : ms_ext_take_text(ms_plan_to_json(plan));
        answer = Py_BuildValue("(NN)", text, ms_ext_take_text(line));
    }
    ms_plan_free(plan);
    ms_ext_documents_free(&d);
    ms_ext_documents_free(&of_first);
    return answer;
}

/* Ends a call that has made a plan: the plan as JSON, None if there is none, or NULL with the error. Frees both. */
static PyObject *plan_made(int rc, ms_plan *plan, ms_ext_documents *documents, const ms_error *err)
{
    PyObject *answer = NULL;
    if (ms_ext_check(rc, err) == 0) {
        answer = plan == NULL ? Py_NewRef(Py_None) : ms_ext_take_text(ms_plan_to_json(plan));
    }
    ms_plan_free(plan);
    ms_ext_documents_free(documents);
    return answer;
}

static PyObject *plan_least(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    if (!PyArg_ParseTuple(args, "sss:plan_least", &graph, &hardware, &config)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    ms_plan *plan = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
    if (rc == MS_OK) {
        rc = ms_pipeline_least(d.graph, d.hardware, &d.config, &plan, &err);
    }
    return plan_made(rc, plan, &d, &err);
}

static PyObject *plan_again(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config, *old;
    if (!PyArg_ParseTuple(args, "ssss:plan_again", &graph, &hardware, &config, &old)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    ms_plan *plan = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, config, old, &err);
    if (rc == MS_OK) {
        rc = ms_plan_again(d.graph, d.hardware, &d.config, d.plan, &plan, &err);
    }
    return plan_made(rc, plan, &d, &err);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION(
        "plan_evaluation", plan_evaluation, METH_VARARGS, "config, before_bytes, peak_bytes, rows, /",
        "(str, int, int, int) -> str | None",
        "The warning about forwards without gradients whose peak was `peak_bytes`; None if within the budget."),
    MS_EXT_FUNCTION(
        "plan_beyond", plan_beyond, METH_VARARGS,
        "graph, first_graph, hardware, config, held_bytes, waiting_forwards, plan_in_force, /",
        "(str, str, str, str, int, int, str | None) -> tuple[str, str]",
        "The smallest plan for a step that no plan fits into the budget, and the warning about it: "
        "`held_bytes` are what the script came to hold, or what waiting forwards hold. The plan in force itself, "
        "if it makes the same choices."),
    MS_EXT_FUNCTION("plan_least", plan_least, METH_VARARGS, "graph, hardware, config, /", "(str, str, str) -> str",
                    "The smallest plan for a step that no plan fits into the budget, which measured peaks may keep all "
                    "the same: the plan's pressure is that of the budget."),
    MS_EXT_FUNCTION("plan_again", plan_again, METH_VARARGS, "graph, hardware, config, plan, /",
                    "(str, str, str, str) -> str | None",
                    "The plan's choices with the figures of corrected documents; None if another plan is due."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_outside(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
