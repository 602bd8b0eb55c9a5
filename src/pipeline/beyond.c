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

/* The shape, the one that training began with, and the smallest budget of each. */
typedef struct beyond {
    const ms_graph *graph, *first;
    const ms_hardware *hardware;
    const ms_config *config;
    uint64_t need, first_need;
} beyond;

static void add_first_shape(ms__text *text, const beyond *b)
{
    uint64_t first_size = 0, later_size = 0;
    ms__text_add(text, "; training began with %.200s", b->first->signature);
    if (differing_size(b->first->signature, b->graph->signature, &first_size, &later_size)) {
        uint64_t budget = b->config->memory_budget_bytes;
        uint64_t size = longest_size(first_size, later_size, b->first_need, b->need, budget);
        if (size > 0) {
            ms__text_add(text, "; the longest that fits is about %llu instead of %llu", (unsigned long long)size,
                         (unsigned long long)later_size);
        }
    }
}

/* Adds by how much `loop` would need less. */
static void add_less(ms__text *text, const beyond *b, ms_loop loop, const char *how)
{
    ms_graph freeing = *b->graph;
    uint64_t need = 0;
    freeing.loop = loop;
    if (ms__pipeline_smallest(&freeing, b->hardware, b->config, &need, NULL) == MS_OK && need < b->need) {
        ms__text_add(text, "; %s less if %s", ms__text_bytes(b->need - need).text, how);
    }
}

/* What the observed loop holds and another need not. Gradients that are added up can't be given up. */
static void add_held_by_loop(ms__text *text, const beyond *b)
{
    const ms_loop *held = &b->graph->loop;
    ms_loop loop = *held;
    if (held->observed && held->outputs_held) {
        loop.outputs_held = false;
        add_less(text, b, loop, "the model's outputs are freed before backward");
    }
    if (held->observed && held->gradients_live_in_forward && held->gradients_cleared) {
        loop = *held;
        loop.gradients_live_in_forward = loop.gradients_cleared = false;
        add_less(text, b, loop, "zero_grad() comes before the forward");
    }
}

static char *beyond_line(const beyond *b)
{
    ms__text text = {0};
    uint64_t over = ms__sub_sat(b->need, b->config->memory_budget_bytes);
    ms__text_add(&text, "inputs %.200s need %s, %s over the budget, and run under the smallest plan",
                 b->graph->signature, ms__text_bytes(b->need).text, ms__text_bytes_up(over).text);
    if (strcmp(b->first->signature, b->graph->signature) != 0) {
        add_first_shape(&text, b);
    } else {
        add_held_by_loop(&text, b);
    }
    return ms__text_take(&text);
}

int ms_pipeline_beyond(const ms_graph *graph, const ms_graph *first, const ms_hardware *hardware,
                       const ms_config *config, ms_plan **plan, char **line, ms_error *err)
{
    beyond b = {.graph = graph, .first = first, .hardware = hardware, .config = config};
    ms_config wanted = *config;
    ms_plan *made = NULL;
    int rc = ms__pipeline_smallest(first, hardware, config, &b.first_need, err);
    if (rc == MS_OK) {
        rc = ms__pipeline_smallest(graph, hardware, config, &b.need, err);
    }
    if (rc == MS_OK) {
        wanted.memory_budget_bytes = b.need;
        rc = ms__pipeline_plan(graph, hardware, &wanted, &made, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    *line = beyond_line(&b);
    if (*line == NULL) {
        ms_plan_free(made);
        return ms_fail(err, MS_ENOMEM, "beyond: out of memory");
    }
    *plan = made;
    return MS_OK;
}
