/*
 * Events of telemetry.h. Numbers enter only through bucket_of(), texts only through word_of(), so nothing
 * else of a run reaches an event.
 */
#include "memscale/telemetry.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/units.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])
#define GB ((uint64_t)1000000000)

/* The name of values below `below`; the last bucket of a list takes the rest. */
typedef struct bucket {
    uint64_t below;
    const char *name;
} bucket;

static const bucket parameter_buckets[] = {
    {10000000, "<10M"}, {100000000, "10M-100M"}, {GB, "100M-1B"}, {10 * GB, "1B-10B"}, {UINT64_MAX, ">10B"},
};
static const bucket memory_buckets[] = {
    {9 * GB, "<9GB"}, {18 * GB, "9-18GB"}, {36 * GB, "18-36GB"}, {72 * GB, "36-72GB"}, {UINT64_MAX, ">72GB"},
};
static const bucket layer_buckets[] = {
    {9, "<9"}, {17, "9-16"}, {33, "17-32"}, {65, "33-64"}, {UINT64_MAX, ">64"},
};
static const bucket ratio_buckets[] = {
    {250, "<0.25"}, {500, "0.25-0.5"}, {850, "0.5-0.85"}, {1100, "0.85-1.1"}, {2000, "1.1-2"}, {UINT64_MAX, ">2"},
};

static const char *bucket_of(uint64_t value, const bucket *list, size_t count)
{
    for (size_t i = 0; i + 1 < count; i++) {
        if (value < list[i].below) {
            return list[i].name;
        }
    }
    return list[count - 1].name;
}

#define BUCKET(value, list) bucket_of((value), (list), COUNT(list))

static const char *const events[] = {"wrap_called", "finish"};
static const char *const architectures[] = {"decoder",   "encoder",       "encoder_decoder",
                                            "attention", "convolutional", "recurrent"};
static const char *const outcomes[] = {"planned", "skipped", "over_target", "infeasible", "error", "finished"};
static const char *const modes[] = {"conservative", "balanced", "aggressive"};
static const char *const sources[] = {"user_config", "ml", "rule_fallback", "rule"};

/* The list's own word that equals `text`; "other" for anything else. */
static const char *word_of(const char *text, const char *const list[], size_t count)
{
    for (size_t i = 0; text != NULL && i < count; i++) {
        if (strcmp(text, list[i]) == 0) {
            return list[i];
        }
    }
    return "other";
}

#define WORD(text, list) word_of((text), (list), COUNT(list))

static const char *ratio_bucket(uint64_t of, uint64_t to)
{
    return to == 0 || of == UINT64_MAX ? "unknown" : BUCKET(ms__mul_div(of, 1000, to), ratio_buckets);
}

static void put_machine(ms__json_writer *writer, json_t *root, const ms_hardware *hardware)
{
    if (hardware == NULL) {
        ms__json_put_string(writer, root, "device", "unknown");
        ms__json_put_string(writer, root, "device_memory", "unknown");
        return;
    }
    ms__json_put_string(writer, root, "device", ms_hardware_host_is_device(hardware) ? "cpu" : "gpu");
    ms__json_put_string(writer, root, "device_memory", BUCKET(ms_hardware_device_bytes(hardware), memory_buckets));
}

static void put_techniques(ms__json_writer *writer, json_t *root, const ms_plan *plan)
{
    bool used[MS_TECHNIQUE_COUNT] = {false};
    json_t *list = ms__json_put_array(writer, root, "techniques");
    for (uint32_t i = 0; plan != NULL && i < plan->entry_count; i++) {
        used[plan->entries[i].technique] = true;
    }
    for (int k = 0; k < MS_TECHNIQUE_COUNT; k++) {
        if (used[k]) {
            ms__json_add_string(writer, list, ms_technique_name((ms_technique)k));
        }
    }
    for (int k = 0; plan != NULL && k < MS_STEP_OPTION_COUNT; k++) {
        if (plan->step_options[k].chosen) {
            ms__json_add_string(writer, list, ms_step_option_name((ms_step_option)k));
        }
    }
}

static const char *layers_of(const ms_plan *plan)
{
    return plan == NULL ? "unknown" : BUCKET(plan->entry_count, layer_buckets);
}

static void put_plan(ms__json_writer *writer, json_t *root, const ms_plan *plan, uint64_t measured_peak_bytes)
{
    const ms_plan none = {0};
    const ms_plan *p = plan != NULL ? plan : &none;
    ms__json_put_string(writer, root, "layers", layers_of(plan));
    ms__json_put_string(writer, root, "pressure", ratio_bucket(p->pressure.need_bytes, p->pressure.allowed_bytes));
    ms__json_put_string(writer, root, "decision_source", plan != NULL ? WORD(p->decision_source, sources) : "unknown");
    put_techniques(writer, root, plan);
    ms__json_put_string(writer, root, "peak", ratio_bucket(p->replay.peak_bytes, p->unoptimized.peak_bytes));
    ms__json_put_string(writer, root, "step", ratio_bucket(p->replay.step_ns, p->unoptimized.step_ns));
    ms__json_put_string(writer, root, "measured_peak", ratio_bucket(measured_peak_bytes, p->replay.peak_bytes));
}

/* "0.1" of "0.1.0": the release line, not the build. */
static void put_version(ms__json_writer *writer, json_t *root)
{
    unsigned major = 0, minor = 0;
    char text[32];
    sscanf(ms_version(), "%u.%u", &major, &minor);
    snprintf(text, sizeof text, "%u.%u", major % 1000, minor % 1000);
    ms__json_put_string(writer, root, "memscale_version", text);
}

char *ms_telemetry_event(const ms_telemetry_facts *facts)
{
    ms__json_writer writer = {0};
    const ms_config *config = facts->config;
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "schema_version", MS_TELEMETRY_SCHEMA);
    ms__json_put_string(&writer, root, "event", WORD(facts->event, events));
    put_version(&writer, root);
    ms__json_put_string(&writer, root, "architecture", WORD(facts->architecture, architectures));
    ms__json_put_string(&writer, root, "parameters", BUCKET(facts->parameter_count, parameter_buckets));
    put_machine(&writer, root, facts->hardware);
    ms__json_put_string(&writer, root, "mode", config != NULL ? WORD(ms_mode_name(config->mode), modes) : "unknown");
    ms__json_put_bool(&writer, root, "budget_given", config != NULL && config->memory_budget_bytes != MS_UNSET);
    put_plan(&writer, root, facts->plan, facts->measured_peak_bytes);
    ms__json_put_string(&writer, root, "outcome", WORD(facts->outcome, outcomes));
    char *text = writer.code == MS_OK ? ms__json_text(root, true) : NULL;
    json_decref(root);
    return text;
}
