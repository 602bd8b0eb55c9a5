/*
 * Stage 1's input as a row of numbers, and its decision as JSON. Called by the pipeline; reads graph,
 * hardware and configuration, decides nothing.
 */
#include "base/json.h"
#include "base/units.h"
#include "memscale/policy.h"

static const char *const feature_names[MS_FEATURE_COUNT] = {
#define FEATURE_NAME(id, name, text) [MS_FEATURE_##id] = name,
    MS_FEATURE_TABLE(FEATURE_NAME)
#undef FEATURE_NAME
};

static const char *const source_names[MS_DECISION_SOURCE_COUNT] = {
#define SOURCE_NAME(id, name) [MS_DECISION_SOURCE_##id] = name,
    MS_DECISION_SOURCE_TABLE(SOURCE_NAME)
#undef SOURCE_NAME
};

static const char *const feature_texts[MS_FEATURE_COUNT] = {
#define FEATURE_TEXT(id, name, text) [MS_FEATURE_##id] = text,
    MS_FEATURE_TABLE(FEATURE_TEXT)
#undef FEATURE_TEXT
};

const char *ms_feature_text(ms_feature feature)
{
    return (unsigned)feature < MS_FEATURE_COUNT ? feature_texts[feature] : "unknown";
}

const char *ms_feature_name(ms_feature feature)
{
    return (unsigned)feature < MS_FEATURE_COUNT ? feature_names[feature] : "unknown";
}

const char *ms_decision_source_name(ms_decision_source source)
{
    return (unsigned)source < MS_DECISION_SOURCE_COUNT ? source_names[source] : "unknown";
}

static void context_add_saved(const ms_graph *graph, const ms_admission *admissions, uint64_t *value)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        uint64_t bytes = admissions[i].saved_bytes;
        value[MS_FEATURE_SAVED_BYTES] = ms__add_sat(value[MS_FEATURE_SAVED_BYTES], bytes);
        value[MS_FEATURE_LARGEST_SAVED_BYTES] = ms__max_u64(value[MS_FEATURE_LARGEST_SAVED_BYTES], bytes);
        value[MS_FEATURE_LAYER_COUNT] += graph->nodes[i].kind == MS_NODE_LAYER;
    }
}

static void context_set_machine(const ms_hardware *hardware, const ms_config *config, uint64_t *value)
{
    const ms_gpu *gpu = ms_hardware_gpu(hardware);
    value[MS_FEATURE_ON_GPU] = gpu != NULL;
    value[MS_FEATURE_MATMUL_FLOPS_PER_S] = gpu != NULL ? gpu->matmul_flops_per_s : hardware->cpu.matmul_flops_per_s;
    value[MS_FEATURE_TO_HOST_BYTES_PER_S] = gpu != NULL ? gpu->to_host_bytes_per_s : 0;
    value[MS_FEATURE_DISK_ROOM_BYTES] = ms_rules_disk_cap(hardware, config);
    value[MS_FEATURE_DISK_WRITE_BYTES_PER_S] = hardware->disk.write_bytes_per_s;
    value[MS_FEATURE_DISK_READ_BYTES_PER_S] = hardware->disk.read_bytes_per_s;
    value[MS_FEATURE_HOST_ROOM_BYTES] = ms_rules_host_cap(hardware, config);
}

int ms_strategy_context_of(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                           const ms_pressure *pressure, ms_strategy_context *context, ms_error *err)
{
    ms_admission *admissions = ms_calloc(graph->node_count, sizeof *admissions);
    if (admissions == NULL) {
        return ms_fail(err, MS_ENOMEM, "policy: out of memory for %u nodes", graph->node_count);
    }
    ms_strategy_context made = {0};
    int rc = ms_rules_admit(graph, hardware, config, pressure, admissions, err);
    if (rc == MS_OK) {
        context_add_saved(graph, admissions, made.value);
        context_set_machine(hardware, config, made.value);
        made.value[MS_FEATURE_LOOP_OBSERVED] = graph->loop.observed;
        made.value[MS_FEATURE_NEED_BYTES] = pressure->need_bytes;
        made.value[MS_FEATURE_ALLOWED_BYTES] = pressure->allowed_bytes;
        made.value[MS_FEATURE_PRESSURE_PERMILLE] = pressure->permille;
        made.value[MS_FEATURE_BUDGET_GIVEN] = pressure->budget_given;
        made.value[MS_FEATURE_PARAMETER_BYTES] = graph->residents.parameter_bytes;
        made.value[MS_FEATURE_STATE_BYTES] = graph->loop.optimizer_state_bytes;
        *context = made;
    }
    ms_free(admissions);
    return rc;
}

char *ms_strategy_decision_to_json(const ms_strategy_decision *decision)
{
    ms__json_writer writer = {0};
    char *text = NULL;
    json_t *root = ms__json_new(&writer);
    ms__json_put_string(&writer, root, "decision_source", ms_decision_source_name(decision->source));
    ms__json_put_string(&writer, root, "reason", decision->reason);
    ms__json_put_string(&writer, root, "mode", ms_mode_name(decision->strategy.mode));
    ms__json_put_bool(&writer, root, "enable_checkpointing", decision->strategy.enable_checkpointing);
    ms__json_put_bool(&writer, root, "enable_offloading", decision->strategy.enable_offloading);
    ms__json_put_u64(&writer, root, "search_permille", decision->strategy.search_permille);
    json_t *context = ms__json_put_object(&writer, root, "context");
    for (int i = 0; i < MS_FEATURE_COUNT; i++) {
        uint64_t value = ms__min_u64(decision->context.value[i], INT64_MAX);
        ms__json_put_u64(&writer, context, feature_names[i], value);
    }
    return ms__json_finish(&writer, root, "decision", &text, NULL) == MS_OK ? text : NULL;
}
