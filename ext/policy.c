/*
 * Stage 1 for Python: trained policies as capsules, and the plan behind a policy. Used by
 * memscale.policy only; conversions, no decisions.
 */
#include "common.h"
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
    const char *graph_text, *hardware_text, *config_text;
    PyObject *capsule;
    int rules_only;
    if (!PyArg_ParseTuple(args, "sssOp:plan_by_policy", &graph_text, &hardware_text, &config_text, &capsule,
                          &rules_only)) {
        return NULL;
    }
    ms_policy *trained = NULL;
    if (capsule != Py_None && (trained = PyCapsule_GetPointer(capsule, POLICY)) == NULL) {
        return NULL;
    }
    ms_error err;
    ms_graph *graph = NULL;
    ms_plan *plan = NULL;
    ms_strategy_decision decision;
    PyObject *answer = NULL;
    ms_hardware *hardware = ms_malloc(sizeof *hardware);
    ms_config *configs = ms_calloc(2, sizeof *configs); /* the caller's and the effective one */
    int rc = hardware != NULL && configs != NULL ? MS_OK : ms_fail(&err, MS_ENOMEM, "out of memory");
    MS_EXT_UNLOCKED({
        rc = rc == MS_OK ? ms_graph_parse(graph_text, &graph, &err) : rc;
        rc = rc == MS_OK ? ms_hardware_parse(hardware_text, hardware, &err) : rc;
        rc = rc == MS_OK ? ms_config_parse(config_text, &configs[0], &err) : rc;
        if (rc == MS_OK) {
            rc = ms_pipeline_plan_by_policy(graph, hardware, &configs[0], trained, rules_only != 0, &decision,
                                            &configs[1], &plan, &err);
        }
    });
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(NNN)", ms_ext_take_text(ms_plan_to_json(plan)),
                               ms_ext_take_text(ms_strategy_decision_to_json(&decision)),
                               ms_ext_take_text(ms_config_to_json(&configs[1])));
    }
    ms_graph_free(graph);
    ms_plan_free(plan);
    ms_free(hardware);
    ms_free(configs);
    return answer;
}

static PyMethodDef methods[] = {
    {"policy_load", policy_load, METH_O,
     "policy_load(artifact) -> a trained policy; MemScaleError where the text is none."},
    {"policy_seal", policy_seal, METH_O, "policy_seal(policy) -> str: the artifact around a policy's JSON."},
    {"plan_by_policy", plan_by_policy, METH_VARARGS,
     "plan_by_policy(graph, hardware, config, policy or None, rules_only) -> (plan, decision, effective "
     "config): stage 1 and stage 2, all as JSON."},
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_policy(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
