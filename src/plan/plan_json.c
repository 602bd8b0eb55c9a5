/*
 * Plans as JSON (docs/formats/plan.schema.json), written and read back strictly: a text that is read and written
 * again is the same byte for byte. Each object is a table of fields that serves both directions. Called by the
 * extension, the program and the executor.
 */
#include <string.h>

#include "base/json_fields.h"
#include "base/units.h"
#include "plan/explain_internal.h"
#include "plan/plan_internal.h"
#include "plan/selections.h"
#include "sim/step_options.h"

enum { ENTRIES_MOST = 1 << 24 };

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* ---- the tables ---------------------------------------------------------------------- */

static const char *rule_word(uint32_t rule)
{
    return ms_rule_name((ms_rule)rule);
}

static const char *technique_word(uint32_t technique)
{
    return ms_technique_name((ms_technique)technique);
}

#define REPLAY(member) MS__FIELD(ms_replay, member, U64)
#define TIER_PEAK(name, tier) \
    {name, MS__FIELD_U64, offsetof(ms_replay, tier_peak_bytes) + (tier) * sizeof(uint64_t), 0, 0, NULL}
static const ms__json_field replay_fields[] = {
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
    TIER_PEAK("host_peak_bytes", MS__HOST_TIER),
    TIER_PEAK("disk_peak_bytes", MS__DISK_TIER),
};
/* Left out if 0; older plans lack them. */
static const ms__json_field replay_packing[] = {REPLAY(packed_bytes), REPLAY(packing_ns)};
static const ms__json_field replay_place[] = {MS__FIELD(ms_replay, peak_node, U32),
                                              MS__FIELD(ms_replay, peak_in_backward, BOOL)};

#define SETTING(member) MS__FIELD(ms_plan, member, U64)
static const ms__json_field setting_fields[] = {
    SETTING(offload_min_bytes), SETTING(write_window_bytes), SETTING(read_window_bytes), SETTING(ceiling_bytes),
    SETTING(slab_bytes),        SETTING(disk_cap_bytes),     SETTING(host_cap_bytes),
};

static const ms__json_field assumed_fields[] = {
    {"outputs_held", MS__FIELD_BOOL, offsetof(ms_plan, assumed_outputs_held), 0, 0, NULL},
    {"gradients_live_in_forward", MS__FIELD_BOOL, offsetof(ms_plan, assumed_gradients_live), 0, 0, NULL},
};

static const ms__json_field pressure_fields[] = {
    MS__FIELD(ms_pressure, need_bytes, U64),   MS__FIELD(ms_pressure, allowed_bytes, U64),
    MS__FIELD(ms_pressure, permille, U64),     MS__FIELD(ms_pressure, budget_given, BOOL),
    MS__FIELD(ms_pressure, comfortable, BOOL), MS__FIELD(ms_pressure, forced, BOOL),
};

static const ms__json_field entry_fields[] = {
    MS__FIELD_NUMBER(ms_plan_entry, node, U32, 0, ENTRIES_MOST),
    MS__FIELD(ms_plan_entry, call, U32),
    MS__FIELD_WORDS(ms_plan_entry, technique, MS_TECHNIQUE_COUNT, technique_word),
    MS__FIELD_WORDS(ms_plan_entry, rule, MS_RULE_COUNT, rule_word),
    MS__FIELD_WORDS(ms_plan_entry, runner_up, MS_TECHNIQUE_COUNT, technique_word),
    MS__FIELD(ms_plan_entry, kept_bytes, U64),
    MS__FIELD(ms_plan_entry, saved_bytes, U64),
    MS__FIELD(ms_plan_entry, cost_ns, U64),
    MS__FIELD(ms_plan_entry, runner_up_ns, U64),
    MS__FIELD(ms_plan_entry, runner_up_peak_bytes, U64),
};

static const ms__json_field refusal_field[] = {MS__FIELD_WORDS(ms_plan_entry, refusal, MS_RULE_COUNT, rule_word)};

static const ms__json_field packing_fields[] = {
    MS__FIELD_NUMBER(ms_plan_packing, tensors, U32, 1, MS__BITS_MOST),
    MS__FIELD_NUMBER(ms_plan_packing, packed, U32, 0, MS__BITS_MOST),
    MS__FIELD_WORDS(ms_plan_packing, rule, MS_RULE_COUNT, rule_word),
    MS__FIELD_NUMBER(ms_plan_packing, runner_up, U32, 0, MS__BITS_MOST),
    MS__FIELD(ms_plan_packing, saved_bytes, U64),
    MS__FIELD(ms_plan_packing, cost_ns, U64),
    MS__FIELD(ms_plan_packing, runner_up_ns, U64),
    MS__FIELD(ms_plan_packing, runner_up_peak_bytes, U64),
};

static const ms__json_field option_fields[] = {
    MS__FIELD_WORDS(ms_plan_option, rule, MS_RULE_COUNT, rule_word),
    MS__FIELD(ms_plan_option, saved_bytes, U64),
    MS__FIELD(ms_plan_option, cost_ns, U64),
    MS__FIELD(ms_plan_option, gain_ns, U64),
};

static const ms__json_field plan_flags[] = {MS__FIELD(ms_plan, skipped, BOOL), MS__FIELD(ms_plan, over_target, BOOL)};
static const ms__json_field plan_fallback[] = {MS__FIELD_WORDS(ms_plan, fallback, MS_TECHNIQUE_COUNT, technique_word)};

/* ---- writing ----------------------------------------------------------------------- */

static void put_object(ms__json_writer *writer, json_t *parent, const char *name, const ms__json_field *fields,
                       size_t count, const void *base)
{
    ms__json_put_fields(writer, ms__json_put_object(writer, parent, name), fields, count, base);
}

static void put_replay(ms__json_writer *writer, json_t *plan, const char *name, const ms_replay *replay)
{
    json_t *object = ms__json_put_object(writer, plan, name);
    ms__json_put_fields(writer, object, replay_fields, COUNT(replay_fields), replay);
    if (replay->packed_bytes > 0) {
        ms__json_put_fields(writer, object, replay_packing, COUNT(replay_packing), replay);
    }
    ms__json_put_fields(writer, object, replay_place, COUNT(replay_place), replay);
}

static void add_entry(ms__json_writer *writer, json_t *entries, const ms_plan_entry *entry)
{
    json_t *object = ms__json_add_object(writer, entries);
    ms__json_put_string(writer, object, "name", entry->name);
    ms__json_put_fields(writer, object, entry_fields, COUNT(entry_fields), entry);
    if (entry->refusal != 0) {
        ms__json_put_fields(writer, object, refusal_field, 1, entry);
    }
    if (entry->selection != 0) {
        ms__json_put_saturated(writer, object, "selection", entry->selection - 1);
    }
    if (entry->packing.tensors != 0) {
        put_object(writer, object, "packing", packing_fields, COUNT(packing_fields), &entry->packing);
    }
}

static void add_option(ms__json_writer *writer, json_t *options, ms_step_option which, const ms_plan_option *option)
{
    json_t *object = ms__json_add_object(writer, options);
    ms__json_put_string(writer, object, "name", ms_step_option_name(which));
    ms__json_put_bool(writer, object, "chosen", option->chosen);
    ms__json_put_string(writer, object, "exactness", ms_exactness_name(ms_step_option_exactness(which)));
    ms__json_put_fields(writer, object, option_fields, COUNT(option_fields), option);
}

char *ms_plan_to_json(const ms_plan *plan)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_saturated(&writer, root, "version", 1);
    ms__json_put_string(&writer, root, "model", plan->model);
    ms__json_put_string(&writer, root, "signature", plan->signature);
    ms__json_put_string(&writer, root, "decision_source", plan->decision_source);
    ms__json_put_fields(&writer, root, plan_flags, COUNT(plan_flags), plan);
    put_object(&writer, root, "assumed", assumed_fields, COUNT(assumed_fields), plan);
    put_object(&writer, root, "pressure", pressure_fields, COUNT(pressure_fields), &plan->pressure);
    put_replay(&writer, root, "predicted", &plan->replay);
    put_replay(&writer, root, "unoptimized", &plan->unoptimized);
    if (plan->reserve_bytes > 0) {
        ms__json_put_saturated(&writer, root, "reserve_bytes", plan->reserve_bytes);
    }
    if (plan->state_buffer_bytes > 0) {
        ms__json_put_saturated(&writer, root, "state_buffer_bytes", plan->state_buffer_bytes);
    }
    if (plan->state_moved_bytes > 0) {
        ms__json_put_saturated(&writer, root, "state_moved_bytes", plan->state_moved_bytes);
    }
    put_object(&writer, root, "settings", setting_fields, COUNT(setting_fields), plan);
    ms__json_put_u64_or_null(&writer, root, "smallest_budget_bytes",
                             ms__min_u64(plan->smallest_budget_bytes, INT64_MAX), 0);
    ms__json_put_fields(&writer, root, plan_fallback, COUNT(plan_fallback), plan);
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

/* The member `name`, an object of exactly these fields. */
static int read_object(const ms__json_at *parent, const char *name, const ms__json_field *fields, size_t count,
                       void *base)
{
    ms__json_at at;
    int rc = ms__json_object(parent, name, &at);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, fields, count, base);
    }
    return rc == MS_OK ? ms__json_only_count(&at, count) : rc;
}

/* Replaces the new plan's text. */
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

static int read_replay(const ms__json_at *root, const char *name, ms_replay *replay)
{
    ms__json_at at;
    size_t packing = 0;
    int rc = ms__json_object(root, name, &at);
    if (rc == MS_OK) {
        packing = ms__json_has(&at, replay_packing[0].name) ? COUNT(replay_packing) : 0;
        rc = ms__json_read_fields(&at, replay_fields, COUNT(replay_fields), replay);
    }
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, replay_packing, packing, replay);
    }
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, replay_place, COUNT(replay_place), replay);
    }
    return rc == MS_OK ? ms__json_only_count(&at, COUNT(replay_fields) + packing + COUNT(replay_place)) : rc;
}

static int read_packing(const ms__json_at *entry, ms_plan_packing *packing)
{
    ms__json_at at;
    if (!ms__json_has(entry, "packing")) {
        return MS_OK;
    }
    int rc = ms__json_object(entry, "packing", &at);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, packing_fields, COUNT(packing_fields), packing);
    }
    /* Their bound is known only now. */
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "packed", 0, packing->tensors, &packing->packed);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&at, "runner_up", 0, packing->tensors, &packing->runner_up);
    }
    return rc == MS_OK ? ms__json_only_count(&at, COUNT(packing_fields)) : rc;
}

static int read_entry(const ms__json_at *at, const ms_plan *plan, ms_plan_entry *entry)
{
    int rc = ms__json_string_copy(at, "name", &entry->name);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(at, entry_fields, COUNT(entry_fields), entry);
    }
    bool is_refused = ms__json_has(at, refusal_field[0].name);
    if (rc == MS_OK && is_refused) {
        rc = ms__json_read_fields(at, refusal_field, 1, entry);
    }
    if (rc == MS_OK) {
        rc = ms__selections_read_entry(at, plan, entry);
    }
    if (rc == MS_OK) {
        rc = read_packing(at, &entry->packing);
    }
    size_t optional = (size_t)is_refused + (entry->selection != 0) + (entry->packing.tensors != 0);
    return rc == MS_OK ? ms__json_only_count(at, 1 + COUNT(entry_fields) + optional) : rc;
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
        rc = ms__json_read_fields(at, option_fields, COUNT(option_fields), option);
    }
    return rc == MS_OK ? ms__json_only_count(at, 3 + COUNT(option_fields)) : rc;
}

/* The options in their order, or the first of them: an older plan does not name later options and has them off. */
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

static int read_texts(const ms__json_at *root, ms_plan *plan)
{
    int rc = replace_text(root, "model", &plan->model);
    if (rc == MS_OK) {
        rc = replace_text(root, "signature", &plan->signature);
    }
    return rc == MS_OK ? replace_text(root, "decision_source", &plan->decision_source) : rc;
}

/* Everything that is one number, flag or flat object, and the two replays. */
static int read_facts(const ms__json_at *root, ms_plan *plan)
{
    int rc = ms__json_read_fields(root, plan_flags, COUNT(plan_flags), plan);
    if (rc == MS_OK) {
        rc = read_object(root, "assumed", assumed_fields, COUNT(assumed_fields), plan);
    }
    if (rc == MS_OK) {
        rc = read_object(root, "pressure", pressure_fields, COUNT(pressure_fields), &plan->pressure);
    }
    if (rc == MS_OK) {
        rc = read_replay(root, "predicted", &plan->replay);
    }
    if (rc == MS_OK) {
        rc = read_replay(root, "unoptimized", &plan->unoptimized);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "reserve_bytes", 1, INT64_MAX, 0, &plan->reserve_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "state_buffer_bytes", 1, MS__STREAM_BUFFER_MOST_BYTES, 0, &plan->state_buffer_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "state_moved_bytes", 1, INT64_MAX, 0, &plan->state_moved_bytes);
    }
    if (rc == MS_OK) {
        rc = read_object(root, "settings", setting_fields, COUNT(setting_fields), plan);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(root, "smallest_budget_bytes", 1, INT64_MAX, 0, &plan->smallest_budget_bytes);
    }
    return rc == MS_OK ? ms__json_read_fields(root, plan_fallback, COUNT(plan_fallback), plan) : rc;
}

static int read_plan(const ms__json_at *root, ms_plan *plan)
{
    static const char *const names[] = {"version",           "model",         "signature",
                                        "decision_source",   "skipped",       "over_target",
                                        "assumed",           "pressure",      "predicted",
                                        "unoptimized",       "reserve_bytes", "state_buffer_bytes",
                                        "state_moved_bytes", "settings",      "smallest_budget_bytes",
                                        "fallback",          "step_options",  "explanation",
                                        "selections",        "entries"};
    int rc = ms__json_version(root, 1, 1, NULL);
    if (rc == MS_OK) {
        rc = ms__json_only(root, names, COUNT(names));
    }
    if (rc == MS_OK) {
        rc = read_texts(root, plan);
    }
    if (rc == MS_OK) {
        rc = read_facts(root, plan);
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
    return rc == MS_OK ? read_entries(root, plan) : rc;
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
