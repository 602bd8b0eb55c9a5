/*
 * Planning for Python: takes and returns documents as JSON texts. Every function converts for one
 * call of plan.h or pipeline.h. Used by memscale.session and memscale.planning.
 */
#include "common.h"
#include "documents.h"
#include "rooms.h"

#include "memscale/pipeline.h"

/* The plan as a str if `rc` is MS_OK, else raises. Always frees the documents. */
static PyObject *plan_text_or_raise(ms_ext_documents *d, int rc, const ms_error *err)
{
    PyObject *text = NULL;
    if (ms_ext_check(rc, err) == 0) {
        text = ms_ext_take_text(ms_plan_to_json(d->plan));
    }
    ms_ext_documents_free(d);
    return text;
}

static PyObject *plan_make(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    if (!PyArg_ParseTuple(args, "sss:plan_make", &graph, &hardware, &config)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_pipeline_plan(d.graph, d.hardware, &d.config, &d.plan, &err);
        }
    });
    return plan_text_or_raise(&d, rc, &err);
}

static PyObject *plan_uniform(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config, *name;
    if (!PyArg_ParseTuple(args, "zssz:plan_uniform", &graph, &hardware, &config, &name)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    ms_technique technique = MS_TECHNIQUE_COUNT;
    if (name != NULL && ms_technique_parse(name, &technique) != MS_OK) {
        return PyErr_Format(PyExc_ValueError, "plan_uniform: \"%s\" is no technique", name);
    }
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_plan_uniform(d.graph, d.hardware, &d.config, technique, &d.plan, &err);
        }
    });
    return plan_text_or_raise(&d, rc, &err);
}

/* ---- texts ---------------------------------------------------------------------- */

static PyObject *plan_table(PyObject *module, PyObject *args)
{
    (void)module;
    const char *plan, *hardware;
    if (!PyArg_ParseTuple(args, "sz:plan_table", &plan, &hardware)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    PyObject *text = NULL;
    if (ms_ext_check(ms_ext_documents_parse(&d, NULL, hardware, NULL, plan, &err), &err) == 0) {
        text = ms_ext_take_text(ms_plan_table(d.plan, d.hardware));
    }
    ms_ext_documents_free(&d);
    return text;
}

static PyObject *plan_intent(PyObject *module, PyObject *args)
{
    (void)module;
    const char *hardware, *config, *model;
    unsigned long long parameter_bytes;
    if (!PyArg_ParseTuple(args, "sssK:plan_intent", &hardware, &config, &model, &parameter_bytes)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    PyObject *text = NULL;
    if (ms_ext_check(ms_ext_documents_parse(&d, NULL, hardware, config, NULL, &err), &err) == 0) {
        text = ms_ext_take_text(ms_plan_intent(d.hardware, &d.config, model, parameter_bytes));
    }
    ms_ext_documents_free(&d);
    return text;
}

static PyObject *plan_explain(PyObject *module, PyObject *args)
{
    (void)module;
    const char *plan;
    long long entry;
    if (!PyArg_ParseTuple(args, "sL:plan_explain", &plan, &entry)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    PyObject *text = NULL;
    if (ms_ext_check(ms_ext_documents_parse(&d, NULL, NULL, NULL, plan, &err), &err) == 0) {
        text = ms_ext_take_text(ms_plan_explain(d.plan, entry));
    }
    ms_ext_documents_free(&d);
    return text;
}

/* ---- after a step ------------------------------------------------------------------- */

static PyObject *plan_for_optimizer(PyObject *module, PyObject *args)
{
    (void)module;
    const char *plan, *config;
    if (!PyArg_ParseTuple(args, "zs:plan_for_optimizer", &plan, &config)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    PyObject *answer = NULL;
    if (ms_ext_check(ms_ext_documents_parse(&d, NULL, NULL, config, plan, &err), &err) == 0) {
        ms_plan_optimizer wanted = ms_plan_for_optimizer(d.plan, &d.config);
        answer =
            Py_BuildValue("(OOOOKK)", wanted.state_on_disk ? Py_True : Py_False, wanted.releases ? Py_True : Py_False,
                          wanted.may_release ? Py_True : Py_False, wanted.state_on_host ? Py_True : Py_False,
                          (unsigned long long)wanted.state_buffer_bytes, (unsigned long long)wanted.state_moved_bytes);
    }
    ms_ext_documents_free(&d);
    return answer;
}

static PyObject *plan_rehearse(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *plan;
    if (!PyArg_ParseTuple(args, "sss:plan_rehearse", &graph, &hardware, &plan)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    bool fits = false;
    ms_exactness exactness = MS_EXACT;
    PyObject *answer = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, NULL, plan, &err);
    if (rc == MS_OK) {
        rc = ms_pipeline_rehearse(d.graph, d.hardware, d.plan, &fits, &exactness, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(OsN)", fits ? Py_True : Py_False, ms_exactness_name(exactness),
                               ms_ext_take_text(ms_plan_to_json(d.plan)));
    }
    ms_ext_documents_free(&d);
    return answer;
}

static PyObject *plan_precision(PyObject *module, PyObject *args)
{
    (void)module;
    const char *plain, *half, *hardware;
    int has_fp16_parameters;
    if (!PyArg_ParseTuple(args, "zzsp:plan_precision", &plain, &half, &hardware, &has_fp16_parameters)) {
        return NULL;
    }
    ms_ext_documents first = {0}, second = {0};
    ms_error err;
    ms_precision chosen = MS_PRECISION_AS_IS;
    char *line = NULL;
    PyObject *answer = NULL;
    int rc = ms_ext_documents_parse(&first, plain, hardware, NULL, NULL, &err);
    if (rc == MS_OK && half != NULL) {
        rc = ms_graph_parse(half, &second.graph, &err);
    }
    if (rc == MS_OK) {
        rc =
            ms_pipeline_precision(first.graph, second.graph, has_fp16_parameters, first.hardware, &chosen, &line, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(sNN)", ms_precision_name(chosen), ms_ext_take_text(line),
                               ms_ext_take_text(ms_hardware_to_json(first.hardware)));
    }
    ms_ext_documents_free(&first);
    ms_ext_documents_free(&second);
    return answer;
}

static PyObject *plan_window(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config;
    unsigned long long total, least, trained, checkpoint;
    ms_streaming streaming = {0};
    if (!PyArg_ParseTuple(args, "sss(KKKKs):plan_window", &graph, &hardware, &config, &total, &least, &trained,
                          &checkpoint, &streaming.directory)) {
        return NULL;
    }
    streaming.total_bytes = total;
    streaming.least_bytes = least;
    streaming.trained_bytes = trained;
    streaming.checkpoint_bytes = checkpoint;
    ms_ext_documents d = {0};
    ms_error err;
    char *line = NULL;
    ms_window window = {0};
    PyObject *answer = NULL;
    int rc;
    MS_EXT_UNLOCKED({
        rc = ms_ext_documents_parse(&d, graph, hardware, config, NULL, &err);
        if (rc == MS_OK) {
            rc = ms_pipeline_window(d.graph, &streaming, &d.config, d.hardware, &window, &line, &err);
        }
    });
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(NNKK)", ms_ext_take_text(line), ms_ext_take_text(ms_hardware_to_json(d.hardware)),
                               (unsigned long long)window.bytes, (unsigned long long)window.disk_ns);
    }
    ms_ext_documents_free(&d);
    return answer;
}

static PyObject *loss_scale_default(PyObject *module, PyObject *args)
{
    (void)module;
    (void)args;
    ms_loss_scale scale;
    ms_loss_scale_default(&scale);
    return Py_BuildValue("(dI)", scale.scale, (unsigned int)scale.finite_steps);
}

static PyObject *loss_scale_update(PyObject *module, PyObject *args)
{
    (void)module;
    double scale;
    unsigned int finite_steps;
    int is_finite;
    if (!PyArg_ParseTuple(args, "dIp:loss_scale_update", &scale, &finite_steps, &is_finite)) {
        return NULL;
    }
    ms_loss_scale after = {.scale = scale, .finite_steps = finite_steps};
    ms_loss_scale_update(&after, is_finite);
    return Py_BuildValue("(dI)", after.scale, (unsigned int)after.finite_steps);
}

static PyObject *plan_tighten(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *config, *plan;
    unsigned int attempt;
    if (!PyArg_ParseTuple(args, "ssssI:plan_tighten", &graph, &hardware, &config, &plan, &attempt)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    ms_plan *tighter = NULL;
    char *line = NULL;
    PyObject *answer = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, config, plan, &err);
    if (rc == MS_OK) {
        rc = ms_pipeline_tighten(d.graph, d.hardware, &d.config, d.plan, attempt, &tighter, &line, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        answer = Py_BuildValue("(NNN)", ms_ext_take_text(ms_plan_to_json(tighter)),
                               ms_ext_take_text(ms_config_to_json(&d.config)), ms_ext_take_text(line));
    }
    ms_plan_free(tighter);
    ms_ext_documents_free(&d);
    return answer;
}

/* ---- simulation --------------------------------------------------------------------- */

static PyObject *timeline_of(const ms_sample *samples, uint32_t count)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < count; i++) {
        PyObject *point = Py_BuildValue("{sKsKsKsIsO}", "at_ns", (unsigned long long)samples[i].at_ns, "device_bytes",
                                        (unsigned long long)samples[i].device_bytes, "lower_tier_bytes",
                                        (unsigned long long)samples[i].lower_tier_bytes, "node", samples[i].node,
                                        "in_backward", samples[i].in_backward ? Py_True : Py_False);
        if (point == NULL || PyList_Append(list, point) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(point);
    }
    return list;
}

static PyObject *replay_of(const ms_replay *replay, const ms_sample *samples, uint32_t count)
{
    return Py_BuildValue(
        "{sKsKsKsIsOsKsKsKsKsKsKsKsKsKsKsKsN}", "peak_bytes", (unsigned long long)replay->peak_bytes, "peak_live_bytes",
        (unsigned long long)replay->peak_live_bytes, "first_step_peak_bytes",
        (unsigned long long)replay->first_step_peak_bytes, "peak_node", replay->peak_node, "peak_in_backward",
        replay->peak_in_backward ? Py_True : Py_False, "step_ns", (unsigned long long)replay->step_ns, "compute_ns",
        (unsigned long long)replay->compute_ns, "recompute_ns", (unsigned long long)replay->recompute_ns, "fault_ns",
        (unsigned long long)replay->fault_ns, "stall_forward_ns", (unsigned long long)replay->stall_forward_ns,
        "stall_backward_ns", (unsigned long long)replay->stall_backward_ns, "moved_bytes",
        (unsigned long long)replay->moved_bytes, "packed_bytes", (unsigned long long)replay->packed_bytes, "packing_ns",
        (unsigned long long)replay->packing_ns, "host_peak_bytes", (unsigned long long)replay->tier_peak_bytes[1],
        "disk_peak_bytes", (unsigned long long)replay->tier_peak_bytes[2], "timeline", timeline_of(samples, count));
}

/* Replays the step under the plan's choices. `rows` has room for two bytes a node. */
static int simulate_plan(const ms_ext_documents *d, uint8_t *rows, ms_replay *replay, ms_sample *samples, ms_error *err)
{
    if (d->plan->entry_count != d->graph->node_count) {
        return ms_fail(err, MS_EINVAL, "plan_simulate: the plan has %u entries, the graph %u nodes",
                       d->plan->entry_count, d->graph->node_count);
    }
    ms_choices choices = ms_plan_choices(d->plan, rows);
    return ms_simulate(d->graph, d->hardware, &choices, replay, samples, err);
}

static PyObject *plan_simulate(PyObject *module, PyObject *args)
{
    (void)module;
    const char *graph, *hardware, *plan;
    if (!PyArg_ParseTuple(args, "sss:plan_simulate", &graph, &hardware, &plan)) {
        return NULL;
    }
    ms_ext_documents d = {0};
    ms_error err;
    uint8_t *rows = NULL;
    ms_sample *samples = NULL;
    ms_replay replay;
    PyObject *answer = NULL;
    int rc = ms_ext_documents_parse(&d, graph, hardware, NULL, plan, &err);
    if (rc == MS_OK) {
        rows = ms_calloc(d.graph->node_count, 2);
        samples = ms_calloc(d.graph->node_count, 2 * sizeof *samples);
        rc = rows == NULL || samples == NULL ? ms_fail(&err, MS_ENOMEM, "out of memory")
                                             : simulate_plan(&d, rows, &replay, samples, &err);
    }
    if (ms_ext_check(rc, &err) == 0) {
        answer = replay_of(&replay, samples, 2 * d.graph->node_count);
    }
    ms_free(rows);
    ms_free(samples);
    ms_ext_documents_free(&d);
    return answer;
}

static PyMethodDef methods[] = {
    MS_EXT_FUNCTION("plan_make", plan_make, METH_VARARGS, "graph, hardware, config, /", "(str, str, str) -> str",
                    "The plan for three JSON documents. Raises BudgetInfeasibleError if none fits."),
    MS_EXT_FUNCTION(
        "plan_uniform", plan_uniform, METH_VARARGS, "graph, hardware, config, technique, /",
        "(str | None, str, str, str | None) -> str",
        "The plan with one technique for every layer; None: the one that saves the most memory. Without a graph, for "
        "layers not known yet."),
    MS_EXT_FUNCTION("plan_table", plan_table, METH_VARARGS, "plan, hardware, /", "(str, str | None) -> str",
                    "The plan in a few lines."),
    MS_EXT_FUNCTION("plan_intent", plan_intent, METH_VARARGS, "hardware, config, model, parameter_bytes, /",
                    "(str, str, str, int) -> str",
                    "One line before the plan is known: machine, budget, and what mode and flags allow."),
    MS_EXT_FUNCTION("plan_explain", plan_explain, METH_VARARGS, "plan, entry, /", "(str, int) -> str",
                    "The reasons for an entry; entry -1 is the whole plan."),
    MS_EXT_FUNCTION(
        "plan_for_optimizer", plan_for_optimizer, METH_VARARGS, "plan, config, /",
        "(str | None, str) -> tuple[bool, bool, bool, bool, int, int]",
        "For memscale's own optimizer: keep its state on disk, release gradients, watch whether the loop needs them, "
        "keep the state of a GPU's parameters in host memory, the bytes of the buffers of either (0: as few as "
        "possible), at least how many bytes of state leave the device (0: all). False and 0 without a plan."),
    MS_EXT_FUNCTION(
        "plan_rehearse", plan_rehearse, METH_VARARGS, "graph, hardware, plan, /",
        "(str, str, str) -> tuple[bool, str, str]",
        "For a check of the plan against a step that keeps everything: whether that step fits, the plan's class of "
        "exactness, and the plan to run."),
    MS_EXT_FUNCTION(
        "plan_tighten", plan_tighten, METH_VARARGS, "graph, hardware, config, plan, attempt, /",
        "(str, str, str, str, int) -> tuple[str, str, str]",
        "Plan and config to try after an allocation failed, and a log line. Raises BudgetInfeasibleError if there is "
        "none."),
    MS_EXT_FUNCTION(
        "plan_window", plan_window, METH_VARARGS, "graph, hardware, config, streaming, /",
        "(str, str, str, tuple[int, int, int, int, str]) -> tuple[str, str, int, int]",
        "Chooses how many bytes of streamed parameters (total, least, trained, in a checkpoint's own files; "
        "the other files' directory) stay in memory: the log's line, the hardware, the window and the time in which "
        "the disk moves the rest in a step."),
    MS_EXT_FUNCTION(
        "plan_precision", plan_precision, METH_VARARGS, "plain, half, hardware, has_fp16_parameters, /",
        "(str | None, str | None, str, bool) -> tuple[str, str, str]",
        "From the graphs without and with BF16: the autocast dtype of forwards, a log line, and the hardware "
        "description to plan with."),
    MS_EXT_FUNCTION("loss_scale_default", loss_scale_default, METH_NOARGS, "/", "() -> tuple[float, int]",
                    "The initial loss scale and count of finite steps."),
    MS_EXT_FUNCTION("loss_scale_update", loss_scale_update, METH_VARARGS, "scale, finite_steps, is_finite, /",
                    "(float, int, bool) -> tuple[float, int]",
                    "The loss scale and count of finite steps after an optimizer's step."),
    MS_EXT_FUNCTION("plan_simulate", plan_simulate, METH_VARARGS, "graph, hardware, plan, /",
                    "(str, str, str) -> dict[str, Any]",
                    "Simulates steps under the plan: peaks, times and the timeline."),
    {NULL, NULL, 0, NULL},
};

int ms_ext_add_plan(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
