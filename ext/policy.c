/*
 * Stage 1 for Python: trained policies as capsules, and the plan that follows a policy's decision.
 * Used by memscale.policy only. Only conversions.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/pipeline.h"

static const char POLICY[] = "memscale.policy";

static void policy_gone(PyObject *capsule)
{
    ms_policy_free(PyCapsule_GetPointer(capsule, POLICY));
}

static PyObject *policy_load(PyObject *module, PyObject *text)
{
    (void)module;
    ms_error err;
    ms_policy *policy = NULL;
    const char *json = ms_ext_utf8(text, "policy", NULL);
    if (json == NULL || ms_ext_check(ms_policy_parse(json, &policy, &err), &err) != 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(policy, POLICY, policy_gone);
    if (capsule == NULL) {
        ms_policy_free(policy);
    }
    return capsule;
}

static PyObject *policy_shipped(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    return PyUnicode_FromString(ms_policy_shipped());
}

static PyObject *policy_seal(PyObject *module, PyObject *text)
{
    (void)module;
    ms_error err;
    char *artifact = NULL;
    const char *json = ms_ext_utf8(text, "policy", NULL);
    if (json == NULL || ms_ext_check(ms_policy_seal(json, &artifact, &err), &err) != 0) {
        return NULL;
    }
    return ms_ext_take_text(artifact);
}

static PyObject *plan_by_policy(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    PyObject *capsule;
    int rules_only;
    if (!PyArg_ParseTuple(args, "sssOp:plan_by_policy", &graph, &hardware, &config, &capsule, &rules_only)) {
        return NULL;
    }
    ms_policy *trained = NULL;
    if (capsule != Py_None && (trained = PyCapsule_GetPointer(capsule, POLICY)) == NULL) {
        return NULL;
    }
    ms_error err;
    ms_ext_documents d = {0};
    ms_config effective;
    ms_strategy_decision decision;
    PyObject *answer = NULL;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_pipeline_plan_by_policy(d.graph, d.hardware, &d.config, trained, rules_only != 0, &decision,
                                            &effective, &d.plan, &err);
        }
    });
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(NNN)", ms_ext_take_text(ms_plan_to_json(d.plan)),
                               ms_ext_take_text(ms_strategy_decision_to_json(&decision)),
                               ms_ext_take_text(ms_config_to_json(&effective)));
    }
    ms_ext_documents_free(&d);
    return answer;
}

/* Graph and hardware may be None. */
static PyObject *policy_as_configured(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    if (!PyArg_ParseTuple(args, "szz:policy_as_configured", &config, &graph, &hardware)) {
        return NULL;
    }
    ms_error err;
    ms_ext_documents d = {0};
    ms_strategy_decision decision;
    PyObject *answer = NULL;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_pipeline_as_configured(d.graph, d.hardware, &d.config, &decision, &err);
        }
    });
    if (ms_ext_check(rc, &err) == 0) {
        answer = ms_ext_take_text(ms_strategy_decision_to_json(&decision));
    }
    ms_ext_documents_free(&d);
    return answer;
}

/* The context, and plans under the first `count` strategies of the table. */
static int try_all(const ms_ext_documents *d, ms_strategy_context *context, ms_strategy_outcome *outcomes, size_t count,
                   ms_error *err)
{
    ms_strategy strategy;
    int rc = ms_pipeline_context(d->graph, d->hardware, &d->config, context, err);
    bool is_low = rc == MS_OK && context->value[MS_FEATURE_PRESSURE_PERMILLE] <= MS_LOW_PRESSURE_PERMILLE;
    /* If nothing fits under the first strategy, the widest, nothing fits under another. Narrower modes are tried only
     * under low pressure, because only there the rules choose one. */
    for (size_t i = 0; rc == MS_OK && i < count && (i == 0 || outcomes[0].fits); i++) {
        (void)ms_strategy_at(i, &strategy);
        if (strategy.mode != MS_MODE_AGGRESSIVE && !is_low) {
            continue;
        }
        rc = ms_pipeline_try_strategy(d->graph, d->hardware, &d->config, &strategy, &outcomes[i], err);
    }
    return rc;
}

enum { TRIED_MOST = 64 };

static size_t strategy_count(void)
{
    ms_strategy strategy;
    size_t count = 0;
    while (count < TRIED_MOST && ms_strategy_at(count, &strategy)) {
        count++;
    }
    return count;
}

static PyObject *context_list(const ms_strategy_context *context)
{
    PyObject *list = PyList_New(MS_FEATURE_COUNT);
    for (int i = 0; list != NULL && i < MS_FEATURE_COUNT; i++) {
        PyList_SetItem(list, i, PyLong_FromUnsignedLongLong(context->value[i]));
    }
    return list;
}

/* Reads graph, hardware and configuration from `args` and tries them. -1 with an exception. */
static int try_run(PyObject *args, const char *format, ms_strategy_context *context, ms_strategy_outcome *outcomes,
                   size_t count)
{
    const char *graph, *hardware, *config;
    if (!PyArg_ParseTuple(args, format, &graph, &hardware, &config)) {
        return -1;
    }
    ms_error err;
    ms_ext_documents d = {0};
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = try_all(&d, context, outcomes, count, &err);
        }
    });
    ms_ext_documents_free(&d);
    return ms_ext_check(rc, &err);
}

static PyObject *policy_outcomes(PyObject *module, PyObject *args)
{
    (void)module;
    ms_strategy_context context;
    ms_strategy_outcome outcomes[TRIED_MOST] = {0};
    size_t count = strategy_count();
    if (try_run(args, "sss:policy_outcomes", &context, outcomes, count) != 0) {
        return NULL;
    }
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        const ms_strategy_outcome *o = &outcomes[i];
        PyList_SetItem(list, (Py_ssize_t)i,
                       Py_BuildValue("(OIKKK)", o->fits ? Py_True : Py_False, o->care, (unsigned long long)o->step_ns,
                                     (unsigned long long)o->peak_bytes, (unsigned long long)o->replayed_events));
    }
    return list != NULL ? Py_BuildValue("(NN)", context_list(&context), list) : NULL;
}

static PyObject *policy_context(PyObject *module, PyObject *args)
{
    (void)module;
    ms_strategy_context context;
    return try_run(args, "sss:policy_context", &context, NULL, 0) == 0 ? context_list(&context) : NULL;
}

static PyObject *policy_tables(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    PyObject *features = PyList_New(MS_FEATURE_COUNT), *strategies = PyList_New(0);
    ms_strategy s;
    for (int i = 0; features != NULL && i < MS_FEATURE_COUNT; i++) {
        PyList_SetItem(features, i, PyUnicode_FromString(ms_feature_name((ms_feature)i)));
    }
    for (size_t i = 0; strategies != NULL && ms_strategy_at(i, &s); i++) {
        PyObject *row = Py_BuildValue("(ssOOI)", ms_strategy_name(&s), ms_mode_name(s.mode),
                                      s.enable_checkpointing ? Py_True : Py_False,
                                      s.enable_offloading ? Py_True : Py_False, s.search_permille);
        int failed = row == NULL || PyList_Append(strategies, row) != 0;
        Py_XDECREF(row);
        if (failed) {
            Py_CLEAR(strategies);
        }
    }
    return features != NULL && strategies != NULL ? Py_BuildValue("(NN)", features, strategies) : NULL;
}

/* A row of a corpus; -1 with an exception. */
static int read_context(PyObject *row, ms_strategy_context *context)
{
    for (int i = 0; i < MS_FEATURE_COUNT; i++) {
        PyObject *number = PySequence_GetItem(row, i);
        context->value[i] = number != NULL ? PyLong_AsUnsignedLongLong(number) : 0;
        Py_XDECREF(number);
        if (PyErr_Occurred() != NULL) {
            return -1;
        }
    }
    return 0;
}

static PyObject *policy_costs(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *row;
    ms_strategy_context context;
    ms_strategy strategy;
    if (!PyArg_ParseTuple(args, "OO:policy_costs", &capsule, &row)) {
        return NULL;
    }
    ms_policy *policy = PyCapsule_GetPointer(capsule, POLICY);
    PyObject *list = policy != NULL && read_context(row, &context) == 0 ? PyList_New(0) : NULL;
    for (size_t i = 0; list != NULL && ms_policy_strategy(policy, i, &strategy); i++) {
        PyObject *cost = PyLong_FromUnsignedLongLong(ms_policy_cost(policy, i, &context));
        int failed = cost == NULL || PyList_Append(list, cost) != 0;
        Py_XDECREF(cost);
        if (failed) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Who decides, and the strategy's name, for a row of a corpus. */
static PyObject *policy_choice(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule, *row;
    ms_strategy_decision decision = {0};
    ms_config config;
    if (!PyArg_ParseTuple(args, "OO:policy_choice", &capsule, &row)) {
        return NULL;
    }
    ms_policy *policy = capsule != Py_None ? PyCapsule_GetPointer(capsule, POLICY) : NULL;
    if (PyErr_Occurred() != NULL || read_context(row, &decision.context) != 0) {
        return NULL;
    }
    ms_config_default(&config);
    ms_strategy_decide(&decision.context, &config, policy, policy == NULL, &decision);
    return Py_BuildValue("(ssI)", ms_decision_source_name(decision.source), ms_strategy_name(&decision.strategy),
                         decision.strategy.second_permille);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("policy_load", policy_load, METH_O, "artifact, /", "(str) -> object",
                    "Loads a trained policy. Raises MemScaleError if the text is invalid."),
    MS_EXT_FUNCTION("policy_seal", policy_seal, METH_O, "policy, /", "(str) -> str",
                    "Wraps a policy's JSON into an artifact."),
    MS_EXT_FUNCTION(
        "policy_outcomes", policy_outcomes, METH_VARARGS, "graph, hardware, config, /",
        "(str, str, str) -> tuple[list[int], list[tuple[bool, int, int, int, int]]]",
        "The context, and for each strategy of the table: fits, care, step_ns, peak_bytes, replayed_events."),
    MS_EXT_FUNCTION("policy_context", policy_context, METH_VARARGS, "graph, hardware, config, /",
                    "(str, str, str) -> list[int]", "The features of a run, in the order of the table."),
    MS_EXT_FUNCTION("policy_tables", policy_tables, METH_NOARGS, "/",
                    "() -> tuple[list[str], list[tuple[str, str, bool, bool, int]]]",
                    "Names of the features; the strategies: name, mode, recomputes, moves, permille of the search."),
    MS_EXT_FUNCTION("policy_costs", policy_costs, METH_VARARGS, "policy, context, /",
                    "(object, list[int]) -> list[int]", "The predicted cost of each of the policy's strategies."),
    MS_EXT_FUNCTION("policy_choice", policy_choice, METH_VARARGS, "policy, context, /",
                    "(object | None, list[int]) -> tuple[str, str, int]",
                    "Source, the strategy's name and the permille of a second search; the rules' without a policy."),
    MS_EXT_FUNCTION("policy_shipped", policy_shipped, METH_NOARGS, "/", "() -> str", "The built-in artifact."),
    MS_EXT_FUNCTION("policy_as_configured", policy_as_configured, METH_VARARGS, "config, graph, hardware, /",
                    "(str, str | None, str | None) -> str", "The decision if no policy runs, as JSON."),
    MS_EXT_FUNCTION("plan_by_policy", plan_by_policy, METH_VARARGS, "graph, hardware, config, policy, rules_only, /",
                    "(str, str, str, object | None, bool) -> tuple[str, str, str]",
                    "Runs stages 1 and 2: the plan, the decision and the effective config, as JSON."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_policy(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
