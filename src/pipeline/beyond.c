/*
 * Handles a shape that no plan fits, in the middle of training: makes the smallest plan for it, and the line that says
 * how far the plan exceeds the budget and why: inputs are longer than the first, or the loop holds outputs or gradients,
 * which the first plan could not know. Part of the pipeline. A pure function of its documents.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"
#include "plan/text.h"

/* The first number inside brackets that differs between two signatures that are otherwise alike. */
static bool differing_size(const char *first, const char *later, uint64_t *first_size, uint64_t *later_size)
{
    bool in_sizes = false;
    while (*first != '\0' && *later != '\0') {
        if (in_sizes && isdigit((unsigned char)*first) && isdigit((unsigned char)*later)) {
            char *first_end, *later_end;
            *first_size = strtoull(first, &first_end, 10);
            *later_size = strtoull(later, &later_end, 10);
            if (*first_size != *later_size) {
                return true;
            }
            first = first_end;
            later = later_end;
            continue;
        }
        if (*first != *later) {
            return false;
        }
        in_sizes = *first == '[' || (in_sizes && *first != ']');
        first++;
        later++;
    }
    return false;
}

/* Need grows at least in proportion to a size, so the straight line between two shapes gives no size that is too
 * large. 0 if that says nothing. */
static uint64_t longest_size(uint64_t first_size, uint64_t later_size, uint64_t first_need, uint64_t later_need,
                             uint64_t budget)
{
    if (later_size <= first_size || later_need <= first_need || budget <= first_need || budget >= later_need) {
        return 0;
    }
    return first_size + ms__mul_div(budget - first_need, later_size - first_size, later_need - first_need);
}

/* A step, and the smallest budgets of its shape and of the one that training began with. */
typedef struct refused_step {
    ms_beyond step;
    const ms_hardware *hardware;
    const ms_config *config;
    uint64_t need, first_need;
} refused_step;

static void add_first_shape(ms__text *text, const refused_step *r)
{
    const char *first = r->step.first->signature, *later = r->step.graph->signature;
    uint64_t first_size = 0, later_size = 0, budget = r->config->memory_budget_bytes;
    ms__text_add(text, "; training began with %.200s", first);
    if (differing_size(first, later, &first_size, &later_size)) {
        uint64_t size = longest_size(first_size, later_size, r->first_need, r->need, budget);
        if (size > 0) {
            ms__text_add(text, "; the longest that fits is about %llu instead of %llu", (unsigned long long)size,
                         (unsigned long long)later_size);
        }
    }
}

/* Less is not worth the reader's time. */
static const uint64_t worth_bytes = 1 << 20;

/* Adds by how much `loop` would need less. */
static void add_less(ms__text *text, const refused_step *r, ms_loop loop, const char *how)
{
    ms_graph freeing = *r->step.graph;
    uint64_t need = 0;
    freeing.loop = loop;
    if (ms__pipeline_smallest(&freeing, r->hardware, r->config, &need, NULL) == MS_OK &&
        ms__sub_sat(r->need, need) >= worth_bytes) {
        ms__text_add(text, "; %s less if %s", ms__text_bytes(r->need - need).text, how);
    }
}

/* Names what the observed loop could free: the model's outputs, and gradients, unless the loop accumulates them. */
static void add_held_by_loop(ms__text *text, const refused_step *r)
{
    const ms_loop *held = &r->step.graph->loop;
    ms_loop loop = *held;
    if (held->observed && held->outputs_held) {
        loop.outputs_held = false;
        add_less(text, r, loop, "the model's outputs are freed before backward");
    }
    if (held->observed && held->gradients_live_in_forward && held->gradients_cleared) {
        loop = *held;
        loop.gradients_live_in_forward = loop.gradients_cleared = false;
        add_less(text, r, loop, "zero_grad() comes before the forward");
    }
}

static void add_held_by_script(ms__text *text, const ms_beyond *step)
{
    const char *held = ms__text_bytes(step->held_bytes).text;
    if (step->waiting_forwards > 0) {
        ms__text_add(text, "; forwards that wait for their backward hold %s", held);
    } else if (step->held_bytes > 0) {
        ms__text_add(text, "; the script holds %s more than when training began", held);
    }
}

static void add_trained(ms__text *text, const ms_beyond *step)
{
    uint64_t first = step->first->residents.trainable_bytes, now = step->graph->residents.trainable_bytes;
    if (now > first) {
        ms__text_add(text, "; %s of parameters are trained", ms__text_bytes(now).text);
        ms__text_add(text, " instead of %s when training began", ms__text_bytes(first).text);
    }
}

static char *beyond_line(const refused_step *r)
{
    ms__text text = {0};
    uint64_t over = ms__sub_sat(r->need, r->config->memory_budget_bytes);
    bool is_once = r->step.waiting_forwards > 0; /* from the next step on, plans count these forwards */
    ms__text_add(&text, "inputs %.200s need %s%s, %s over the budget%s", r->step.graph->signature,
                 ms__text_bytes(r->need).text, is_once ? " in this step" : "", ms__text_bytes_up(over).text,
                 is_once ? "" : ", and run under the smallest plan");
    if (strcmp(r->step.first->signature, r->step.graph->signature) != 0) {
        add_first_shape(&text, r);
    } else {
        add_held_by_loop(&text, r);
    }
    add_trained(&text, &r->step);
    add_held_by_script(&text, &r->step);
    return ms__text_take(&text);
}

/* The plan names the budget that was asked for, not the one that it was made with. */
static void put_asked_budget(ms_plan *plan, uint64_t budget_bytes)
{
    ms_pressure *pressure = &plan->pressure;
    pressure->allowed_bytes = budget_bytes;
    pressure->permille = ms__mul_div_up(pressure->need_bytes, 1000, ms__max_u64(budget_bytes, 1));
    plan->over_target = true;
}

/* The smallest plan. `need` is a budget for any run of the shape, so another plan may be faster within it. */
static int plan_least(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint64_t need,
                      ms_plan **plan, ms_error *err)
{
    ms_config wanted = *config;
    ms_plan *made = NULL, *least = NULL;
    wanted.memory_budget_bytes = need;
    int rc = ms__pipeline_plan(graph, hardware, &wanted, &made, err);
    if (rc == MS_OK && made->smallest_budget_bytes > 0 && made->smallest_budget_bytes < need) {
        wanted.memory_budget_bytes = made->smallest_budget_bytes;
        (void)ms__pipeline_plan(graph, hardware, &wanted, &least, NULL); /* without it, `made` serves */
    }
    if (rc == MS_OK) {
        *plan = least != NULL ? least : made;
        put_asked_budget(*plan, config->memory_budget_bytes);
    }
    ms_plan_free(least != NULL ? made : NULL);
    return rc;
}

int ms_pipeline_least(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                      ms_error *err)
{
    uint64_t need = 0;
    int rc = ms__pipeline_smallest(graph, hardware, config, &need, err);
    return rc == MS_OK ? plan_least(graph, hardware, config, need, plan, err) : rc;
}

static bool same_choices(const ms_plan *a, const ms_plan *b)
{
    bool same = a->entry_count == b->entry_count && ms_plan_step_options(a) == ms_plan_step_options(b) &&
                a->state_moved_bytes == b->state_moved_bytes && a->write_window_bytes == b->write_window_bytes &&
                a->read_window_bytes == b->read_window_bytes;
    for (uint32_t i = 0; same && i < a->entry_count; i++) {
        same = a->entries[i].technique == b->entries[i].technique &&
               a->entries[i].packing.packed == b->entries[i].packing.packed;
    }
    return same;
}

int ms_pipeline_beyond(const ms_beyond *beyond, const ms_hardware *hardware, const ms_config *config, ms_plan **plan,
                       char **line, ms_error *err)
{
    refused_step refused = {.step = *beyond, .hardware = hardware, .config = config};
    ms_plan *made = NULL;
    int rc = ms__pipeline_smallest(beyond->first, hardware, config, &refused.first_need, err);
    if (rc == MS_OK) {
        rc = ms__pipeline_smallest(beyond->graph, hardware, config, &refused.need, err);
    }
    if (rc == MS_OK) {
        rc = plan_least(beyond->graph, hardware, config, refused.need, &made, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    *line = beyond_line(&refused);
    if (*line == NULL) {
        ms_plan_free(made);
        return ms_fail(err, MS_ENOMEM, "beyond: out of memory");
    }
    bool stays = beyond->in_force != NULL && same_choices(made, beyond->in_force);
    ms_plan_free(stays ? made : NULL);
    *plan = stays ? NULL : made;
    return MS_OK;
}
