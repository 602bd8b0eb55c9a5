/*
 * The judgements of outlook.h. It calls the whole pipeline and keeps nothing between calls.
 */
#include "memscale/outlook.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "sim/process.h"
#include "sim/sim.h"

const char *ms_risk_name(ms_risk risk)
{
    static const char *const names[] = {
#define RISK_NAME(id, name, text) [MS_RISK_##id] = name,
        MS_RISK_TABLE(RISK_NAME)
#undef RISK_NAME
    };
    return (unsigned)risk < sizeof names / sizeof names[0] ? names[risk] : "unknown";
}

static ms_risk risk_of(uint64_t bytes, uint64_t capacity_bytes)
{
    uint64_t permille = ms__mul_div_up(bytes, 1000, ms__max_u64(capacity_bytes, 1));
    if (permille <= MS_RISK_LOW_PERMILLE) {
        return MS_RISK_LOW;
    }
    if (permille <= MS_RISK_MODERATE_PERMILLE) {
        return MS_RISK_MODERATE;
    }
    return permille <= MS_RISK_HIGH_PERMILLE ? MS_RISK_HIGH : MS_RISK_CERTAIN;
}

/* Bytes that do not depend on the batch: the process, gradients, optimizer state. */
static uint64_t fixed_bytes(const ms_graph *graph, const ms_hardware *hardware)
{
    uint64_t process = ms__add_sat(hardware->process.baseline_bytes, ms__process_scratch(&hardware->process, graph));
    uint64_t state = ms__sub_sat(graph->loop.optimizer_state_bytes, hardware->process.state_bytes);
    return ms__add_sat(process, ms__add_sat(graph->residents.trainable_bytes, state));
}

static void add_advice(ms_outlook *outlook, const char *text)
{
    if (outlook->advice_count < MS_ADVICE_MOST) {
        snprintf(outlook->advice[outlook->advice_count++], MS_ADVICE_TEXT_MAX, "%s", text);
    }
}

static void advise_plan(ms_outlook *outlook)
{
    char text[MS_ADVICE_TEXT_MAX];
    if (!outlook->is_plannable) {
        snprintf(text, sizeof text,
                 "no plan of this configuration fits: the smallest budget is %s; lower the batch or "
                 "the sequence, or allow more techniques",
                 ms__text_bytes_up(outlook->smallest_budget_bytes).text);
        add_advice(outlook, text);
        return;
    }
    uint64_t more = ms__sub_sat(outlook->planned_ns, outlook->unoptimized_ns);
    uint64_t permille = ms__mul_div(more, 1000, ms__max_u64(outlook->unoptimized_ns, 1));
    ms__unit_text capacity = ms__text_bytes(outlook->capacity_bytes);
    snprintf(text, sizeof text,
             "memscale.wrap() with memory_budget_gb=%llu.%02llu: a peak of %s within %s for %llu.%llu%% "
             "more time",
             (unsigned long long)(outlook->capacity_bytes / 1000000000),
             (unsigned long long)(outlook->capacity_bytes / 10000000 % 100),
             ms__text_bytes(outlook->planned_peak_bytes).text, capacity.text, (unsigned long long)(permille / 10),
             (unsigned long long)(permille % 10));
    add_advice(outlook, text);
}

static void advise_changes(const ms_graph *graph, ms_outlook *outlook, uint64_t fixed)
{
    char text[MS_ADVICE_TEXT_MAX];
    uint64_t state = graph->loop.optimizer_state_bytes;
    if (outlook->batch_permille > 0 && outlook->batch_permille < 1000) {
        snprintf(text, sizeof text,
                 "unmodified, about %llu%% of this batch would fit; accumulate gradients to keep the "
                 "effective batch",
                 (unsigned long long)(outlook->batch_permille / 10));
        add_advice(outlook, text);
    } else if (outlook->batch_permille == 0 && fixed < UINT64_MAX) {
        snprintf(text, sizeof text, "%s are taken before the first activation: a smaller batch alone does not suffice",
                 ms__text_bytes(fixed).text);
        add_advice(outlook, text);
    }
    if (state > outlook->capacity_bytes / 10) {
        snprintf(text, sizeof text, "use_8bit_optimizer=True would free about %s of optimizer state",
                 ms__text_bytes(state / 4 * 3).text);
        add_advice(outlook, text);
    }
}

/* Fills the pipeline's result for this configuration with the capacity as budget. */
static int outlook_plan(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                        ms_outlook *outlook, ms_error *err)
{
    ms_config budgeted = *config;
    ms_error refusal = {0};
    ms_plan *plan = NULL;
    budgeted.memory_budget_bytes = ms__min_u64(outlook->capacity_bytes, INT64_MAX);
    int rc = ms__pipeline_plan(graph, hardware, &budgeted, &plan, &refusal);
    if (rc == MS_EINFEASIBLE) {
        outlook->smallest_budget_bytes = refusal.hint_bytes;
        outlook->planned_risk = MS_RISK_CERTAIN;
        return MS_OK;
    }
    if (rc != MS_OK) {
        if (err != NULL) {
            *err = refusal;
        }
        return rc;
    }
    outlook->is_plannable = true;
    outlook->planned_peak_bytes = plan->replay.peak_bytes;
    outlook->planned_ns = plan->replay.step_ns;
    outlook->planned_risk = MS_RISK_LOW; /* a plan keeps its budget */
    outlook->smallest_budget_bytes = plan->smallest_budget_bytes;
    outlook->unoptimized_ns = plan->unoptimized.step_ns;
    ms_plan_free(plan);
    return MS_OK;
}

uint64_t ms__baseline_with_model(const ms_hardware *hardware, const ms_graph *graph)
{
    uint64_t process = hardware->process.baseline_bytes;
    if (process == 0) {
        process = ms__device_kind_of(ms_hardware_device_kind(hardware))->runtime_bytes;
    }
    return ms__add_sat(process, ms__add_sat(graph->residents.parameter_bytes, graph->residents.buffer_bytes));
}

/* The description of a process that holds the model; without a process, of one that holds torch and the
 * model. */
static ms_hardware *with_model(const ms_hardware *hardware, const ms_graph *graph, bool is_absent, ms_error *err)
{
    ms_hardware *loaded = ms_malloc(sizeof *loaded);
    if (loaded == NULL) {
        ms_fail(err, MS_ENOMEM, "outlook: out of memory");
        return NULL;
    }
    *loaded = *hardware;
    if (is_absent || hardware->process.baseline_bytes == 0) {
        loaded->process.baseline_bytes = ms__baseline_with_model(hardware, graph);
    }
    return loaded;
}

static void outlook_judge(const ms_graph *graph, const ms_hardware *hardware, const ms_pressure *pressure,
                          ms_outlook *outlook)
{
    uint64_t fixed = fixed_bytes(graph, hardware), need = pressure->need_bytes;
    uint64_t slack = 0;
    if (ms_hardware_host_is_device(hardware)) {
        uint64_t tensors = ms__sub_sat(need, hardware->process.baseline_bytes);
        slack = ms__add_sat(ms__mul_div_up(tensors, MS_LIBC_SLACK_PERMILLE, 1000), MS_FIRST_STEP_BYTES);
    }
    outlook->need_bytes = ms__add_sat(need, slack);
    outlook->risk = risk_of(outlook->need_bytes, outlook->capacity_bytes);
    fixed = ms__add_sat(fixed, ms_hardware_host_is_device(hardware) ? MS_FIRST_STEP_BYTES : 0);
    uint64_t variable = ms__sub_sat(outlook->need_bytes, fixed);
    uint64_t room = ms__sub_sat(ms__mul_div(outlook->capacity_bytes, MS_RISK_MODERATE_PERMILLE, 1000), fixed);
    outlook->batch_permille = variable == 0 ? 1000 : ms__min_u64(ms__mul_div(room, 1000, variable), 1000);
}

int ms_outlook_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, bool is_absent,
                  ms_outlook *outlook, ms_error *err)
{
    ms_outlook made = {0};
    ms_pressure pressure = {0};
    ms_hardware *loaded = with_model(hardware, graph, is_absent, err);
    if (loaded == NULL) {
        return MS_ENOMEM;
    }
    made.capacity_bytes =
        config->memory_budget_bytes != MS_UNSET ? config->memory_budget_bytes : ms_hardware_device_bytes(loaded);
    int rc = ms__pipeline_pressure(graph, loaded, config, &pressure, err);
    if (rc == MS_OK) {
        outlook_judge(graph, loaded, &pressure, &made);
        rc = outlook_plan(graph, loaded, config, &made, err);
    }
    if (rc == MS_OK && made.risk > MS_RISK_LOW) {
        advise_plan(&made);
        advise_changes(graph, &made, fixed_bytes(graph, loaded));
    }
    ms_free(loaded);
    if (rc == MS_OK) {
        *outlook = made;
    }
    return rc;
}

char *ms_outlook_to_json(const ms_outlook *outlook)
{
    ms__json_writer writer = {0};
    char *text = NULL;
    uint64_t none = UINT64_MAX;
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "capacity_bytes", ms__min_u64(outlook->capacity_bytes, INT64_MAX));
    ms__json_put_u64(&writer, root, "need_bytes", outlook->need_bytes);
    ms__json_put_string(&writer, root, "risk", ms_risk_name(outlook->risk));
    ms__json_put_u64_or_null(&writer, root, "planned_peak_bytes",
                             outlook->is_plannable ? outlook->planned_peak_bytes : none, none);
    ms__json_put_u64_or_null(&writer, root, "planned_step_ns", outlook->is_plannable ? outlook->planned_ns : none,
                             none);
    ms__json_put_string(&writer, root, "planned_risk", ms_risk_name(outlook->planned_risk));
    ms__json_put_u64_or_null(&writer, root, "smallest_budget_bytes", outlook->smallest_budget_bytes, 0);
    json_t *advice = ms__json_put_array(&writer, root, "advice");
    for (uint32_t i = 0; i < outlook->advice_count; i++) {
        ms__json_add_string(&writer, advice, outlook->advice[i]);
    }
    return ms__json_finish(&writer, root, "outlook", &text, NULL) == MS_OK ? text : NULL;
}

/* ---- savings ------------------------------------------------------------------------ */

static int savings_add_mode(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_mode mode,
                            ms__json_writer *writer, json_t *root, ms_error *err)
{
    ms_config with_mode = *config;
    ms_frontier *frontier = NULL;
    with_mode.mode = mode;
    int rc = ms_frontier_make(graph, hardware, &with_mode, 1, &frontier, err);
    if (rc != MS_OK) {
        return rc;
    }
    if (mode == MS_MODE_CONSERVATIVE) {
        ms__json_put_u64(writer, root, "unmodified_peak_bytes", frontier->need_bytes);
        ms__json_put_u64(writer, root, "unmodified_step_ns", frontier->unoptimized_ns);
    }
    json_t *object = ms__json_put_object(writer, root, ms_mode_name(mode));
    ms__json_put_u64(writer, object, "smallest_budget_bytes", frontier->points[0].budget_bytes);
    ms__json_put_u64(writer, object, "peak_bytes", frontier->points[0].peak_bytes);
    ms__json_put_u64(writer, object, "step_ns", frontier->points[0].step_ns);
    ms_frontier_free(frontier);
    return MS_OK;
}

int ms_savings_json(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, bool is_absent,
                    char **json, ms_error *err)
{
    ms__json_writer writer = {0};
    int rc = MS_OK;
    ms_hardware *loaded = with_model(hardware, graph, is_absent, err);
    if (loaded == NULL) {
        return MS_ENOMEM;
    }
    json_t *root = ms__json_new(&writer);
    for (int mode = 0; rc == MS_OK && mode < MS_MODE_COUNT; mode++) {
        rc = savings_add_mode(graph, loaded, config, (ms_mode)mode, &writer, root, err);
    }
    ms_free(loaded);
    if (rc != MS_OK) {
        json_decref(root);
        return rc;
    }
    return ms__json_finish(&writer, root, "savings", json, err);
}
