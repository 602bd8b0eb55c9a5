/*
 * The plan as a table: the technique of each call of a layer, and of the root's own work after
 * it. Filled by ms_execute_set_plan(), read at every call of a layer; refers to nothing in the
 * plan.
 */
#include <string.h>

#include "execute/execute_internal.h"

int ms_execute_add_layer(ms_execute *execute, const char *name, uint32_t *layer, ms_error *err)
{
    for (size_t i = 0; i < execute->layers.count; i++) {
        if (strcmp(execute->layers.items[i].name, name) == 0) {
            *layer = (uint32_t)i;
            return MS_OK;
        }
    }
    if (execute->layers.count >= MS_ROOT_LAYER) {
        return ms_fail(err, MS_EOVERFLOW, "layer %s: too many layers", name);
    }
    char *copy = ms_strdup(name);
    ms__layer *item = copy != NULL ? MS__ARRAY_PUSH(&execute->layers) : NULL;
    if (item == NULL) {
        ms_free(copy);
        return ms_fail(err, MS_ENOMEM, "layer %s: out of memory", name);
    }
    item->name = copy;
    *layer = (uint32_t)(execute->layers.count - 1);
    return MS_OK;
}

const char *ms_execute_layer_name(const ms_execute *execute, uint32_t layer)
{
    return layer < execute->layers.count ? execute->layers.items[layer].name : "";
}

void ms__table_clear(ms_execute *execute)
{
    for (size_t i = 0; i < execute->layers.count; i++) {
        execute->layers.items[i].calls.count = 0;
    }
    ms__selections_drop(execute);
    memset(&execute->root_start, 0, sizeof execute->root_start);
    execute->fallback = MS_TECHNIQUE_KEEP;
    execute->is_active = false;
    execute->packs_found = false;
    execute->min_bytes = MS_OFFLOAD_MIN_BYTES;
    execute->write_window_bytes = 0;
    execute->read_window_bytes = 0;
}

void ms__table_free(ms_execute *execute)
{
    ms__selections_drop(execute);
    for (size_t i = 0; i < execute->layers.count; i++) {
        ms_free(execute->layers.items[i].name);
        MS__ARRAY_FREE(&execute->layers.items[i].calls);
    }
    MS__ARRAY_FREE(&execute->layers);
}

static bool is_root(const ms_plan_entry *entry)
{
    return entry->name == NULL || entry->name[0] == '\0';
}

/* Work outside a layer cannot be recomputed on its own. */
static ms_technique root_technique(uint32_t technique)
{
    const ms_technique_row *row = ms_technique_of((ms_technique)technique);
    return row->replays || row->set > 0 ? MS_TECHNIQUE_KEEP : (ms_technique)technique;
}

static int table_set(ms_execute *execute, const ms_plan_entry *entry, ms__call_plan **where, ms_error *err)
{
    uint32_t layer;
    int rc = ms_execute_add_layer(execute, entry->name, &layer, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms__layer *item = &execute->layers.items[layer];
    while (item->calls.count <= entry->call) {
        if (MS__ARRAY_PUSH(&item->calls) == NULL) {
            return ms_fail(err, MS_ENOMEM, "plan: out of memory");
        }
    }
    ms__call_plan *call = &item->calls.items[entry->call];
    call->technique = (uint8_t)entry->technique;
    call->is_known = true;
    call->selection = entry->selection;
    *where = call;
    return MS_OK;
}

/* A plan with a higher call number is corrupt. */
enum { CALLS_MAX = 1 << 20 };

static int table_fill(ms_execute *execute, const ms_plan *plan, ms_error *err)
{
    ms__call_plan *before = &execute->root_start;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        if (entry->technique >= MS_TECHNIQUE_COUNT || entry->call > CALLS_MAX) {
            return ms_fail(err, MS_EINVAL, "plan entry %u: technique %u or call %u is out of range", i,
                           entry->technique, entry->call);
        }
        if (is_root(entry)) {
            before->after = (uint8_t)root_technique(entry->technique);
            execute->is_active |= before->after != MS_TECHNIQUE_KEEP;
            continue;
        }
        int rc = table_set(execute, entry, &before, err);
        if (rc != MS_OK) {
            return rc;
        }
        execute->is_active |= entry->technique != MS_TECHNIQUE_KEEP || ms__selection_packs(execute, entry->selection);
    }
    return MS_OK;
}

static bool technique_moves(uint32_t technique)
{
    return ms_technique_moves((ms_technique)technique);
}

static bool plan_moves(const ms_plan *plan)
{
    bool found = technique_moves(plan->fallback);
    for (uint32_t i = 0; i < plan->entry_count && !found; i++) {
        found = technique_moves(plan->entries[i].technique);
    }
    return found;
}

int ms_execute_set_plan(ms_execute *execute, const ms_plan *plan, ms_error *err)
{
    ms__table_clear(execute);
    execute->steps_before_plan = execute->steps;
    ms__step_memory_replanned(&execute->watch);
    if (plan == NULL) {
        return MS_OK;
    }
    if (plan->fallback >= MS_TECHNIQUE_COUNT) {
        return ms_fail(err, MS_EINVAL, "plan: fallback technique %u is out of range", plan->fallback);
    }
    int rc = ms__selections_copy(execute, plan) == MS_OK ? MS_OK : ms_fail(err, MS_ENOMEM, "plan: out of memory");
    if (rc == MS_OK) {
        rc = table_fill(execute, plan, err);
    }
    if (rc != MS_OK) {
        ms__table_clear(execute);
        return rc;
    }
    execute->fallback = (ms_technique)plan->fallback;
    execute->is_active |= plan->fallback != MS_TECHNIQUE_KEEP;
    execute->packs_found = plan_moves(plan);
    execute->min_bytes = plan->offload_min_bytes;
    execute->write_window_bytes = plan->write_window_bytes;
    execute->read_window_bytes = plan->read_window_bytes;
    return MS_OK;
}

ms__call_plan ms__table_find(const ms_execute *execute, uint32_t layer, uint32_t call)
{
    ms__call_plan found = {.technique = (uint8_t)execute->fallback, .after = MS_TECHNIQUE_KEEP};
    if (layer >= execute->layers.count) {
        return found;
    }
    const ms__layer *item = &execute->layers.items[layer];
    if (call < item->calls.count && item->calls.items[call].is_known) {
        return item->calls.items[call];
    }
    if (item->calls.count > 0 && item->calls.items[0].is_known) {
        found.technique = item->calls.items[0].technique;
        found.selection = item->calls.items[0].selection;
    }
    return found;
}

/* ---- what replays have shown -------------------------------------------------- */

bool ms__layer_is_proven(const ms_execute *execute, uint32_t layer)
{
    return layer < execute->layers.count && execute->layers.items[layer].is_proven;
}

void ms__layer_prove(ms_execute *execute, uint32_t layer)
{
    if (layer < execute->layers.count) {
        execute->layers.items[layer].is_proven = true;
    }
}

bool ms__layer_is_held(const ms_execute *execute, uint32_t layer)
{
    return layer < execute->layers.count && execute->layers.items[layer].is_held;
}

void ms_execute_hold(ms_execute *execute, uint32_t layer)
{
    if (layer < execute->layers.count) {
        execute->layers.items[layer].is_held = true;
    }
}

size_t ms_execute_held_layers(const ms_execute *execute, uint32_t *layers, size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < execute->layers.count; i++) {
        if (!execute->layers.items[i].is_held) {
            continue;
        }
        if (count < capacity) {
            layers[count] = (uint32_t)i;
        }
        count++;
    }
    return count;
}

void ms_execute_set_watched(ms_execute *execute, bool is_watched)
{
    execute->is_watched = is_watched;
}

bool ms_execute_is_active(const ms_execute *execute)
{
    return execute->is_active;
}

uint64_t ms_execute_min_bytes(const ms_execute *execute)
{
    return execute->min_bytes;
}
