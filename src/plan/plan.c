/*
 * The plan as a value: created, freed, looked up, counted. Called by the search, the parser and every holder
 * of a plan.
 */
#include <string.h>

#include "plan/plan_internal.h"
#include "plan/selections.h"

static bool name_entries(const ms_graph *graph, ms_plan *plan)
{
    plan->entries = ms_calloc(graph->node_count, sizeof *plan->entries);
    if (plan->entries == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < graph->node_count; i++) {
        ms_plan_entry *entry = &plan->entries[i];
        entry->name = ms_strdup(graph->nodes[i].name);
        entry->node = i;
        entry->call = graph->nodes[i].call;
        if (entry->name == NULL) {
            return false;
        }
        plan->entry_count = i + 1;
    }
    return true;
}

ms_plan *ms__plan_new(const ms_graph *graph)
{
    ms_plan *plan = ms_calloc(1, sizeof *plan);
    if (plan == NULL) {
        return NULL;
    }
    plan->fallback = MS_TECHNIQUE_KEEP;
    for (int i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        plan->step_options[i].rule = MS_RULE_KEEP_ALWAYS;
    }
    plan->model = ms_strdup(graph != NULL ? graph->model : "");
    plan->signature = ms_strdup(graph != NULL ? graph->signature : "");
    plan->decision_source = ms_strdup("user_config");
    bool complete = plan->model != NULL && plan->signature != NULL && plan->decision_source != NULL &&
                    (graph == NULL || name_entries(graph, plan));
    if (!complete) {
        ms_plan_free(plan);
        return NULL;
    }
    if (graph != NULL) {
        plan->assumed_outputs_held = graph->loop.outputs_held;
        plan->assumed_gradients_live = graph->loop.gradients_live_in_forward;
    }
    return plan;
}

void ms_plan_free(ms_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        ms_free(plan->entries[i].name);
    }
    ms_free(plan->entries);
    ms_free(plan->why.parts);
    ms__selections_clear(plan);
    ms_free(plan->model);
    ms_free(plan->signature);
    ms_free(plan->decision_source);
    ms_free(plan);
}

uint32_t ms_plan_step_options(const ms_plan *plan)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < MS_STEP_OPTION_COUNT; i++) {
        mask |= plan->step_options[i].chosen ? 1u << i : 0;
    }
    return mask;
}

ms_plan_optimizer ms_plan_for_optimizer(const ms_plan *plan, const ms_config *config)
{
    if (plan == NULL) {
        return (ms_plan_optimizer){0};
    }
    return (ms_plan_optimizer){
        .state_on_disk = plan->step_options[MS_STEP_STATE_ON_DISK].chosen,
        .state_on_host = plan->step_options[MS_STEP_STATE_ON_HOST].chosen,
        .state_buffer_bytes = plan->step_options[MS_STEP_STATE_READ_AHEAD].chosen ? plan->state_buffer_bytes : 0,
        .state_moved_bytes = plan->state_moved_bytes,
        .releases = plan->step_options[MS_STEP_GRADIENT_RELEASE].chosen,
        .may_release = config->mode == MS_MODE_AGGRESSIVE,
    };
}

uint32_t ms__plan_packed(const ms_plan *plan, uint32_t *tensors)
{
    uint32_t packed = 0;
    *tensors = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        packed += plan->entries[i].packing.packed;
        *tensors += plan->entries[i].packing.tensors;
    }
    return packed;
}

ms_choices ms_plan_choices(const ms_plan *plan, uint8_t *rows)
{
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        rows[i] = (uint8_t)plan->entries[i].technique;
        rows[plan->entry_count + i] = (uint8_t)plan->entries[i].packing.packed;
    }
    return (ms_choices){.technique = rows,
                        .packed = rows + plan->entry_count,
                        .step_options = ms_plan_step_options(plan),
                        .offload_min_bytes = plan->offload_min_bytes,
                        .write_window_bytes = plan->write_window_bytes,
                        .read_window_bytes = plan->read_window_bytes,
                        .ceiling_bytes = plan->ceiling_bytes,
                        .state_moved_bytes = plan->state_moved_bytes};
}

void ms__plan_count(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT])
{
    memset(counts, 0, MS_TECHNIQUE_COUNT * sizeof *counts);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        if (plan->entries[i].name[0] != '\0') {
            counts[plan->entries[i].technique]++;
        }
    }
}
