/*
 * Plans as JSON (docs/formats/plan.schema.json), written and read back strictly:
 * what is read and written again is the same text byte for byte. Called by the
 * extension, the program and the executor; knows nothing of how plans are made.
 */
#include <stddef.h>
#include <string.h>

#include "base/json.h"
#include "base/units.h"
#include "plan/explain_internal.h"
#include "plan/plan_internal.h"
#include "plan/selections.h"

enum { ENTRIES_MOST = 1 << 24 };

/* ---- members that are plain numbers ------------------------------------------- */

typedef struct number {
    const char *name;
    size_t offset; /* of a uint64_t */
} number;

#define REPLAY(member) {#member, offsetof(ms_replay, member)}
static const number replay_numbers[] = {
    REPLAY(peak_bytes),
    REPLAY(peak_live_bytes),
    REPLAY(first_step_peak_bytes),
    REPLAY(small_peak_bytes),
    REPLAY(step_ns),
    REPLAY(compute_ns),
    REPLAY(recompute_ns),
    REPLAY(fault_ns),
    REPLAY(stall_forward_ns),
    REPLAY(stall_backward_ns),
    REPLAY(moved_bytes),
    {"host_peak_bytes", offsetof(ms_replay, tier_peak_bytes) + MS__HOST_TIER * sizeof(uint64_t)},
    {"disk_peak_bytes", offsetof(ms_replay, tier_peak_bytes) + MS__DISK_TIER * sizeof(uint64_t)},
};

/* Left out where it is 0, as in plans made before it was there. */
static const number replay_packing[] = {REPLAY(packed_bytes), REPLAY(packing_ns)};

#define PLAN(member) {#member, offsetof(ms_plan, member)}
static const number setting_numbers[] = {
    PLAN(offload_min_bytes), PLAN(write_window_bytes), PLAN(read_window_bytes), PLAN(ceiling_bytes),
    PLAN(slab_bytes),        PLAN(disk_cap_bytes),     PLAN(host_cap_bytes),
};

#define PRESSURE(member) {#member, offsetof(ms_pressure, member)}
static const number pressure_numbers[] = {
    PRESSURE(need_bytes),
    PRESSURE(allowed_bytes),
    PRESSURE(permille),
};

#define ENTRY(member) {#member, offsetof(ms_plan_entry, member)}
static const number entry_numbers[] = {
    ENTRY(kept_bytes), ENTRY(saved_bytes), ENTRY(cost_ns), ENTRY(runner_up_ns), ENTRY(runner_up_peak_bytes),
};

#define PACKING(member) {#member, offsetof(ms_plan_packing, member)}
static const number packing_numbers[] = {
    PACKING(saved_bytes),
    PACKING(cost_ns),
    PACKING(runner_up_ns),
    PACKING(runner_up_peak_bytes),
};

#define OPTION(member) {#member, offsetof(ms_plan_option, member)}
static const number option_numbers[] = {OPTION(saved_bytes), OPTION(cost_ns), OPTION(gain_ns)};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* ---- writing ----------------------------------------------------------------------- */

static void put_numbers(ms__json_writer *writer, json_t *object, const number *table, size_t count, const void *base)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)base + table[i].offset, sizeof value);
        ms__json_put_saturated(writer, object, table[i].name, value);
    }
}

static void put_replay(ms__json_writer *writer, json_t *plan, const char *name, const ms_replay *replay)
{
    json_t *object = ms__json_put_object(writer, plan, name);
    put_numbers(writer, object, replay_numbers, COUNT(replay_numbers), replay);
    if (replay->packed_bytes > 0) {
        put_numbers(writer, object, replay_packing, COUNT(replay_packing), replay);
    }
    ms__json_put_saturated(writer, object, "peak_node", replay->peak_node);
    ms__json_put_bool(writer, object, "peak_in_backward", replay->peak_in_backward);
}

static void put_pressure(ms__json_writer *writer, json_t *plan, const ms_pressure *pressure)
{
    json_t *object = ms__json_put_object(writer, plan, "pressure");
    put_numbers(writer, object, pressure_numbers, COUNT(pressure_numbers), pressure);
    ms__json_put_bool(writer, object, "budget_given", pressure->budget_given);
    ms__json_put_bool(writer, object, "comfortable", pressure->comfortable);
    ms__json_put_bool(writer, object, "forced", pressure->forced);
}

static void put_packing(ms__json_writer *writer, json_t *entry, const ms_plan_packing *packing)
{
    if (packing->tensors == 0) {
        return;
    }
    json_t *object = ms__json_put_object(writer, entry, "packing");
    ms__json_put_saturated(writer, object, "tensors", packing->tensors);
    ms__json_put_saturated(writer, object, "packed", packing->packed);
    ms__json_put_string(writer, object, "rule", ms_rule_name((ms_rule)packing->rule));
    ms__json_put_saturated(writer, object, "runner_up", packing->runner_up);
    put_numbers(writer, object, packing_numbers, COUNT(packing_numbers), packing);
}

static void add_entry(ms__json_writer *writer, json_t *entries, const ms_plan_entry *entry)
{
    json_t *object = ms__json_add_object(writer, entries);
    ms__json_put_string(writer, object, "name", entry->name);
    ms__json_put_saturated(writer, object, "node", entry->node);
    ms__json_put_saturated(writer, object, "call", entry->call);
    ms__json_put_string(writer, object, "technique", ms_technique_name((ms_technique)entry->technique));
    ms__json_put_string(writer, object, "rule", ms_rule_name((ms_rule)entry->rule));
    ms__json_put_string(writer, object, "runner_up", ms_technique_name((ms_technique)entry->runner_up));
    put_numbers(writer, object, entry_numbers, COUNT(entry_numbers), entry);
    if (entry->selection != 0) {
        ms__json_put_saturated(writer, object, "selection", entry->selection - 1);
    }
    put_packing(writer, object, &entry->packing);
}

static void add_option(ms__json_writer *writer, json_t *options, ms_step_option which, const ms_plan_option *option)
{
    json_t *object = ms__json_add_object(writer, options);
    ms__json_put_string(writer, object, "name", ms_step_option_name(which));
    ms__json_put_bool(writer, object, "chosen", option->chosen);
    ms__json_put_string(writer, object, "exactness", ms_exactness_name(ms_step_option_exactness(which)));
    ms__json_put_string(writer, object, "rule", ms_rule_name((ms_rule)option->rule));
    put_numbers(writer, object, option_numbers, COUNT(option_numbers), option);
}

char *ms_plan_to_json(const ms_plan *plan)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_saturated(&writer, root, "version", 1);
    ms__json_put_string(&writer, root, "model", plan->model);
    ms__json_put_string(&writer, root, "signature", plan->signature);
    ms__json_put_string(&writer, root, "decision_source", plan->decision_source);
    ms__json_put_bool(&writer, root, "skipped", plan->skipped);
    ms__json_put_bool(&writer, root, "over_target", plan->over_target);
    json_t *assumed = ms__json_put_object(&writer, root, "assumed");
    ms__json_put_bool(&writer, assumed, "outputs_held", plan->assumed_outputs_held);
    ms__json_put_bool(&writer, assumed, "gradients_live_in_forward", plan->assumed_gradients_live);
    put_pressure(&writer, root, &plan->pressure);
    put_replay(&writer, root, "predicted", &plan->replay);
    put_replay(&writer, root, "unoptimized", &plan->unoptimized);
    if (plan->reserve_bytes > 0) {
        ms__json_put_saturated(&writer, root, "reserve_bytes", plan->reserve_bytes);
    }
    json_t *settings = ms__json_put_object(&writer, root, "settings");
    put_numbers(&writer, settings, setting_numbers, COUNT(setting_numbers), plan);
    ms__json_put_u64_or_null(&writer, root, "smallest_budget_bytes",
                             ms__min_u64(plan->smallest_budget_bytes, INT64_MAX), 0);
    ms__json_put_string(&writer, root, "fallback", ms_technique_name((ms_technique)plan->fallback));
    json_t *options = ms__json_put_array(&writer, root, "step_options");
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        add_option(&writer, options, (ms_step_option)i, &plan->step_options[i]);
    }
    ms__explanation_put(&writer, root, plan);
    ms__selections_put(&writer, root, plan);
    json_t *entries = ms__json_put_array(&writer, root, "entries");
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        add_entry(&writer, entries, &plan->entries[i]);
    }
    char *text;
    return ms__json_finish(&writer, root, "plan", &text, NULL) == MS_OK ? text : NULL;
}

/* ---- reading ------------------------------------------------------------------------- */

/* All members were read: there are no others where there are as many. */
static int check_count(const ms__json_at *object, size_t count)
{
    return ms__json_count(object) == count ? MS_OK
                                           : ms__json_fail(object, MS_EFORMAT, "has members that are not known");
}

static int read_numbers(const ms__json_at *object, const number *table, size_t count, void *base)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        int rc = ms__json_u64(object, table[i].name, 0, INT64_MAX, &value);
        if (rc != MS_OK) {
            return rc;
        }
        memcpy((char *)base + table[i].offset, &value, sizeof value);
    }
    return MS_OK;
}

/* In place of what a new plan holds. */
static int replace_text(const ms__json_at *object, const char *name, char **text)
{
    char *copy = NULL;
    int rc = ms__json_string_copy(object, name, &copy);
    if (rc == MS_OK) {
        ms_free(*text);
        *text = copy;
    }
    return rc;
}

static int read_technique(const ms__json_at *object, const char *name, uint32_t *technique)
{
    const char *names[MS_TECHNIQUE_COUNT];
    size_t index = 0;
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        names[i] = ms_technique_name((ms_technique)i);
    }
    int rc = ms__json_enum(object, name, names, MS_TECHNIQUE_COUNT, &index);
    *technique = (uint32_t)index;
    return rc;
}

static int read_rule(const ms__json_at *object, uint32_t *rule)
{
    const char *names[MS_RULE_COUNT];
    size_t index = 0;
    for (int i = 0; i < MS_RULE_COUNT; i++) {
        names[i] = ms_rule_name((ms_rule)i);
    }
    int rc = ms__json_enum(object, "rule", names, MS_RULE_COUNT, &index);
    *rule = (uint32_t)index;
    return rc;
}

static int read_replay(const ms__json_at *root, const char *name, ms_replay *replay)
{
    ms__json_at at;
    int rc = ms__json_object(root, name, &at);
    if (rc == MS_OK) {
        rc = read_numbers(&at, replay_numbers, COUNT(replay_numbers), replay);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "peak_node", 0, UINT32_MAX, &replay->peak_node);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "peak_in_backward", &replay->peak_in_backward);
    }
    bool packs = rc == MS_OK && ms__json_has(&at, replay_packing[0].name);
    rc = packs ? read_numbers(&at, replay_packing, COUNT(replay_packing), replay) : rc;
    return rc != MS_OK ? rc : check_count(&at, COUNT(replay_numbers) + 2 + (packs ? COUNT(replay_packing) : 0));
}

static int read_pressure(const ms__json_at *root, ms_pressure *pressure)
{
    ms__json_at at;
    int rc = ms__json_object(root, "pressure", &at);
    if (rc == MS_OK) {
        rc = read_numbers(&at, pressure_numbers, COUNT(pressure_numbers), pressure);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "budget_given", &pressure->budget_given);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "comfortable", &pressure->comfortable);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, "forced", &pressure->forced);
    }
    return rc != MS_OK ? rc : check_count(&at, COUNT(pressure_numbers) + 3);
}

static int read_settings(const ms__json_at *root, ms_plan *plan)
{
    ms__json_at at;
    int rc = ms__json_object(root, "settings", &at);
    if (rc == MS_OK) {
        rc = read_numbers(&at, setting_numbers, COUNT(setting_numbers), plan);
    }
    return rc != MS_OK ? rc : check_count(&at, COUNT(setting_numbers));
}

static int read_assumed(const ms__json_at *root, ms_plan *plan)
{
    static const char *const names[] = {"outputs_held", "gradients_live_in_forward"};
    ms__json_at at;
    int rc = ms__json_object(root, "assumed", &at);
    if (rc == MS_OK) {
        rc = ms__json_only(&at, names, COUNT(names));
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&at, names[0], &plan->assumed_outputs_held);
    }
    return rc != MS_OK ? rc : ms__json_bool(&at, names[1], &plan->assumed_gradients_live);
}

static int read_packing(const ms__json_at *entry, ms_plan_packing *packing)
{
    ms__json_at at;
    if (!ms__json_has(entry, "packing")) {
        return MS_OK;
    }
    int rc = ms__json_object(entry, "packing", &at);
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "tensors", 1, MS__BITS_MOST, &packing->tensors);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "packed", 0, packing->tensors, &packing->packed);
    }
    if (rc == MS_OK) {
        rc = read_rule(&at, &packing->rule);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "runner_up", 0, packing->tensors, &packing->runner_up);
    }
    if (rc == MS_OK) {
        rc = read_numbers(&at, packing_numbers, COUNT(packing_numbers), packing);
    }
    return rc != MS_OK ? rc : check_count(&at, COUNT(packing_numbers) + 4);
}

static int read_entry(const ms__json_at *at, const ms_plan *plan, ms_plan_entry *entry)
{
    int rc = ms__json_string_copy(at, "name", &entry->name);
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "node", 0, ENTRIES_MOST, &entry->node);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "call", 0, UINT32_MAX, &entry->call);
    }
    if (rc == MS_OK) {
        rc = read_technique(at, "technique", &entry->technique);
    }
    if (rc == MS_OK) {
        rc = read_rule(at, &entry->rule);
    }
    if (rc == MS_OK) {
        rc = read_technique(at, "runner_up", &entry->runner_up);
    }
    if (rc == MS_OK) {
        rc = read_numbers(at, entry_numbers, COUNT(entry_numbers), entry);
    }
    if (rc == MS_OK) {
        rc = ms__selections_read_entry(at, plan, entry);
    }
    if (rc == MS_OK) {
        rc = read_packing(at, &entry->packing);
    }
    size_t optional = (entry->selection != 0) + (entry->packing.tensors != 0);
    return rc != MS_OK ? rc : check_count(at, COUNT(entry_numbers) + 6 + optional);
}

static int read_option(const ms__json_at *at, ms_step_option which, ms_plan_option *option)
{
    const char *name = ms_step_option_name(which), *class_name = ms_exactness_name(ms_step_option_exactness(which));
    size_t only;
    int rc = ms__json_enum(at, "name", &name, 1, &only);
    if (rc == MS_OK) {
        rc = ms__json_bool(at, "chosen", &option->chosen);
    }
    if (rc == MS_OK) {
        rc = ms__json_enum(at, "exactness", &class_name, 1, &only);
    }
    if (rc == MS_OK) {
        rc = read_rule(at, &option->rule);
    }
    if (rc == MS_OK) {
        rc = read_numbers(at, option_numbers, COUNT(option_numbers), option);
    }
    return rc != MS_OK ? rc : check_count(at, COUNT(option_numbers) + 4);
}

/* The options in their order, or the first of them: a plan made before an option existed
 * does not name it, and does without. */
static int read_options(const ms__json_at *root, ms_plan *plan)
{
    ms__json_at list, item;
    if (!ms__json_has(root, "step_options")) {
        return MS_OK;
    }
    int rc = ms__json_array(root, "step_options", &list);
    size_t count = rc == MS_OK ? ms__json_count(&list) : 0;
    if (count > MS_STEP_OPTION_COUNT) {
        rc = ms__json_fail(&list, MS_EFORMAT, "names more than the %d options there are", MS_STEP_OPTION_COUNT);
    }
    for (size_t i = 0; rc == MS_OK && i < count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_option(&item, (ms_step_option)i, &plan->step_options[i]);
        }
    }
    return rc;
}

static int read_entries(const ms__json_at *root, ms_plan *plan)
{
    ms__json_at list, item;
    int rc;
    plan->entries =
        ms__json_items(root, "entries", ENTRIES_MOST, sizeof *plan->entries, &list, &plan->entry_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < plan->entry_count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_entry(&item, plan, &plan->entries[i]);
        }
    }
    return rc;
}

static int read_plan(const ms__json_at *root, ms_plan *plan)
{
    static const char *const names[] = {"version",
                                        "model",
                                        "signature",
                                        "decision_source",
                                        "skipped",
                                        "over_target",
                                        "assumed",
                                        "pressure",
                                        "predicted",
                                        "unoptimized",
                                        "reserve_bytes",
                                        "settings",
                                        "smallest_budget_bytes",
                                        "fallback",
                                        "step_options",
                                        "explanation",
                                        "selections",
                                        "entries"};
    int rc = ms__json_version(root, 1, 1, NULL);
    if (rc == MS_OK) {
        rc = ms__json_only(root, names, COUNT(names));
    }
    if (rc == MS_OK) {
        rc = replace_text(root, "model", &plan->model);
    }
    if (rc == MS_OK) {
        rc = replace_text(root, "signature", &plan->signature);
    }
    if (rc == MS_OK) {
        rc = replace_text(root, "decision_source", &plan->decision_source);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(root, "skipped", &plan->skipped);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(root, "over_target", &plan->over_target);
    }
    if (rc == MS_OK) {
        rc = read_assumed(root, plan);
    }
    if (rc == MS_OK) {
        rc = read_pressure(root, &plan->pressure);
    }
    if (rc == MS_OK) {
        rc = read_replay(root, "predicted", &plan->replay);
    }
    if (rc == MS_OK) {
        rc = read_replay(root, "unoptimized", &plan->unoptimized);
    }
    if (rc == MS_OK && ms__json_has(root, "reserve_bytes")) {
        rc = ms__json_u64(root, "reserve_bytes", 1, INT64_MAX, &plan->reserve_bytes);
    }
    if (rc == MS_OK) {
        rc = read_settings(root, plan);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "smallest_budget_bytes", 1, INT64_MAX, 0, &plan->smallest_budget_bytes);
    }
    if (rc == MS_OK) {
        rc = read_technique(root, "fallback", &plan->fallback);
    }
    if (rc == MS_OK) {
        rc = read_options(root, plan);
    }
    if (rc == MS_OK) {
        rc = ms__explanation_read(root, plan);
    }
    if (rc == MS_OK) {
        rc = ms__selections_read(root, plan);
    }
    return rc != MS_OK ? rc : read_entries(root, plan);
}

int ms_plan_parse(const char *json, ms_plan **plan, ms_error *err)
{
    json_t *tree;
    ms__json_at root;
    int rc = ms__json_parse(json, strlen(json), "plan", &tree, &root, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_plan *made = ms__plan_new(NULL);
    rc = made == NULL ? ms_fail(err, MS_ENOMEM, "plan: out of memory") : read_plan(&root, made);
    json_decref(tree);
    if (rc != MS_OK) {
        ms_plan_free(made);
        return rc;
    }
    *plan = made;
    return MS_OK;
}
