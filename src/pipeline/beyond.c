/*
 * Handles a shape that no plan fits, in the middle of training: makes the smallest plan for it, and the line that says
 * how far the plan exceeds the budget and how long inputs may be. The first shape has no other to compare it with. Part
 * of the pipeline. A pure function of its
 * documents.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "pipeline/pipeline_internal.h"

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

static char *beyond_line(const ms_graph *graph, const ms_graph *first, uint64_t need, uint64_t first_need,
                         uint64_t budget)
{
    char text[1024], longest[96] = "", began[256] = "";
    uint64_t first_size = 0, later_size = 0;
    if (strcmp(first->signature, graph->signature) != 0) {
        snprintf(began, sizeof began, "; training began with %.200s", first->signature);
    }
    if (differing_size(first->signature, graph->signature, &first_size, &later_size)) {
        uint64_t size = longest_size(first_size, later_size, first_need, need, budget);
        if (size > 0) {
            snprintf(longest, sizeof longest, "; the longest that fits is about %llu instead of %llu",
                     (unsigned long long)size, (unsigned long long)later_size);
        }
    }
    snprintf(text, sizeof text, "inputs %.200s need %s, %s over the budget, and run under the smallest plan%s%s",
             graph->signature, ms__text_bytes(need).text, ms__text_bytes_up(ms__sub_sat(need, budget)).text, began,
             longest);
    return ms_strdup(text);
}

int ms_pipeline_beyond(const ms_graph *graph, const ms_graph *first, const ms_hardware *hardware,
                       const ms_config *config, ms_plan **plan, char **line, ms_error *err)
{
    ms_config wanted = *config;
    uint64_t first_need = 0, need = 0;
    ms_plan *made = NULL;
    int rc = ms__pipeline_smallest(first, hardware, config, &first_need, err);
    if (rc == MS_OK) {
        rc = ms__pipeline_smallest(graph, hardware, config, &need, err);
    }
    if (rc == MS_OK) {
        wanted.memory_budget_bytes = need;
        rc = ms__pipeline_plan(graph, hardware, &wanted, &made, err);
    }
    if (rc != MS_OK) {
        return rc;
    }
    *line = beyond_line(graph, first, need, first_need, config->memory_budget_bytes);
    if (*line == NULL) {
        ms_plan_free(made);
        return ms_fail(err, MS_ENOMEM, "beyond: out of memory");
    }
    *plan = made;
    return MS_OK;
}
