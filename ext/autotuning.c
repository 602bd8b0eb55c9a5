/*
 * The outlook on a run and the search for a batch, for Python. Used by memscale.autotuning;
 * conversions only.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/autotuning.h"
#include "memscale/outlook.h"

static PyObject *outlook(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    int is_absent;
    if (!PyArg_ParseTuple(args, "sssp:outlook", &graph, &hardware, &config, &is_absent)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    ms_outlook found;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_outlook_of(d.graph, d.hardware, &d.config, is_absent != 0, &found, &err);
        }
    });
    ms_ext_documents_free(&d);
    return rc == MS_OK ? ms_ext_take_text(ms_outlook_to_json(&found)) : ms_ext_raise(&err);
}

static PyObject *savings(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    int is_absent;
    if (!PyArg_ParseTuple(args, "sssp:savings", &graph, &hardware, &config, &is_absent)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    char *json = NULL;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_savings_json(d.graph, d.hardware, &d.config, is_absent != 0, &json, &err);
        }
    });
    ms_ext_documents_free(&d);
    return rc == MS_OK ? ms_ext_take_text(json) : ms_ext_raise(&err);
}

/* ---- the search ------------------------------------------------------------------ */

static const char SEARCH[] = "memscale.batch_search";

static ms_batch_search *search_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, SEARCH);
}

static void search_gone(PyObject *capsule)
{
    ms_batch_search_free(search_of(capsule));
}

static PyObject *batch_search_new(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned most, effective, guess, trials;
    ms_error err;
    ms_batch_search *search = NULL;
    if (!PyArg_ParseTuple(args, "IIII:batch_search_new", &most, &effective, &guess, &trials) ||
        ms_ext_check(ms_batch_search_new(most, effective, guess, trials, &search, &err), &err) != 0) {
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(search, SEARCH, search_gone);
    if (capsule == NULL) {
        ms_batch_search_free(search);
    }
    return capsule;
}

static PyObject *batch_search_next(PyObject *module, PyObject *capsule)
{
    (void)module;
    ms_batch_search *search = search_of(capsule);
    return search != NULL ? PyLong_FromUnsignedLong(ms_batch_search_next(search)) : NULL;
}

static PyObject *batch_search_report(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *capsule;
    int fits;
    if (!PyArg_ParseTuple(args, "Op:batch_search_report", &capsule, &fits)) {
        return NULL;
    }
    ms_batch_search *search = search_of(capsule);
    if (search == NULL) {
        return NULL;
    }
    ms_batch_search_report(search, fits != 0);
    Py_RETURN_NONE;
}

static PyObject *batch_search_best(PyObject *module, PyObject *capsule)
{
    (void)module;
    uint32_t accumulation = 0;
    ms_batch_search *search = search_of(capsule);
    if (search == NULL) {
        return NULL;
    }
    unsigned best = ms_batch_search_best(search, &accumulation);
    return Py_BuildValue("(II)", best, (unsigned)accumulation);
}

static PyObject *trial_limits(PyObject *module, PyObject *budget)
{
    (void)module;
    uint64_t budget_bytes, resident_bytes, maps_bytes;
    if (ms_ext_u64(budget, "budget", &budget_bytes) != 0) {
        return NULL;
    }
    ms_trial_limits(budget_bytes, &resident_bytes, &maps_bytes);
    return Py_BuildValue("(KK)", (unsigned long long)resident_bytes, (unsigned long long)maps_bytes);
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("outlook", outlook, METH_VARARGS, "graph, hardware, config, is_absent, /",
                    "(str, str, str, bool) -> str", "Whether the run will fit, as JSON."),
    MS_EXT_FUNCTION("savings", savings, METH_VARARGS, "graph, hardware, config, is_absent, /",
                    "(str, str, str, bool) -> str", "The bytes that each mode can save, as JSON."),
    MS_EXT_FUNCTION("batch_search_new", batch_search_new, METH_VARARGS, "most, effective, guess, trials, /",
                    "(int, int, int, int) -> object",
                    "A search for the largest batch that fits. With `effective` above 0, only its divisors."),
    MS_EXT_FUNCTION("batch_search_next", batch_search_next, METH_O, "search, /", "(object) -> int",
                    "The batch to try; 0 ends the search."),
    MS_EXT_FUNCTION("batch_search_report", batch_search_report, METH_VARARGS, "search, fits, /",
                    "(object, bool) -> None", "Reports whether the tried batch fits."),
    MS_EXT_FUNCTION("batch_search_best", batch_search_best, METH_O, "search, /", "(object) -> tuple[int, int]",
                    "Batch and accumulation: the largest that fitted, 0 if none did."),
    MS_EXT_FUNCTION("trial_limits", trial_limits, METH_O, "budget, /", "(int) -> tuple[int, int]",
                    "Limits of a trial: resident bytes and bytes of private maps."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_autotuning(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
