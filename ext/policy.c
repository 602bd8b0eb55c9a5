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

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("policy_load", policy_load, METH_O, "artifact, /", "(str) -> object",
                    "Loads a trained policy. Raises MemScaleError if the text is invalid."),
    MS_EXT_FUNCTION("policy_seal", policy_seal, METH_O, "policy, /", "(str) -> str",
                    "Wraps a policy's JSON into an artifact."),
    MS_EXT_FUNCTION("plan_by_policy", plan_by_policy, METH_VARARGS, "graph, hardware, config, policy, rules_only, /",
                    "(str, str, str, object | None, bool) -> tuple[str, str, str]",
                    "Runs stages 1 and 2: the plan, the decision and the effective config, as JSON."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_policy(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
