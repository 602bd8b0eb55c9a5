/*
 * The frontier of frontier.h: one plan per budget, nothing kept between them.
 */
#include "memscale/frontier.h"

#include "base/units.h"
#include "pipeline/frontier_watch.h"
#include "pipeline/pipeline_internal.h"
#include "plan/plan_internal.h"

void ms_frontier_free(ms_frontier *frontier)
{
    if (frontier != NULL) {
        ms_free(frontier->model);
        ms_free(frontier->signature);
        ms_free(frontier);
    }
}

/* The smallest budget that a plan meets: the one in the refusal of one byte. */
static int smallest_budget(const ms_graph *graph, const ms_hardware *hardware, ms_config config, uint64_t *bytes,
                           ms_error *err)
{
    ms_error refusal = {0};
    ms_plan *plan = NULL;
    config.memory_budget_bytes = 1;
    int rc = ms__pipeline_plan(graph, hardware, &config, &plan, &refusal);
    if (rc == MS_EINFEASIBLE) {
        *bytes = refusal.hint_bytes;
        return MS_OK;
    }
    if (rc == MS_OK) { /* a step of no bytes */
        *bytes = 1;
        ms_plan_free(plan);
    } else if (err != NULL) {
        *err = refusal;
    }
    return rc;
}

/* The budget of point `index`, from the need down to the smallest. */
static uint64_t budget_at(uint64_t need, uint64_t smallest, uint32_t index, uint32_t count)
{
    uint64_t steps = count - 1;
    return index == steps ? smallest : need - ms__mul_div(need - smallest, index, steps);
}

static void take_point(const ms_plan *plan, uint64_t budget_bytes, ms_frontier_point *point)
{
    point->budget_bytes = budget_bytes;
    point->peak_bytes = plan->replay.peak_bytes;
    point->step_ns = plan->replay.step_ns;
    ms__plan_count(plan, point->layers);
}

static int take_header(const ms_plan *plan, ms_frontier *frontier, ms_error *err)
{
    frontier->need_bytes = plan->pressure.need_bytes;
    frontier->unoptimized_ns = plan->unoptimized.step_ns;
    frontier->model = ms_strdup(plan->model);
    frontier->signature = ms_strdup(plan->signature);
    bool whole = frontier->model != NULL && frontier->signature != NULL;
    return whole ? MS_OK : ms_fail(err, MS_ENOMEM, "frontier: out of memory");
}

/* Plans at one budget. */
static int plan_point(const ms_graph *graph, const ms_hardware *hardware, ms_config config, uint64_t budget_bytes,
                      ms_plan **plan, ms_error *err)
{
    config.memory_budget_bytes = budget_bytes;
    return ms__pipeline_plan(graph, hardware, &config, plan, err);
}

static int fill_frontier(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint32_t count,
                         void (*planned)(void *argument), void *argument, ms_frontier *frontier, ms_error *err)
{
    uint64_t smallest = 0;
    ms_plan *plan = NULL;
    int rc = smallest_budget(graph, hardware, *config, &smallest, err);
    if (rc == MS_OK) {
        rc = plan_point(graph, hardware, *config, INT64_MAX, &plan, err);
    }
    if (rc == MS_OK) {
        rc = take_header(plan, frontier, err);
        ms_plan_free(plan);
    }
    uint64_t need = ms__max_u64(frontier->need_bytes, smallest);
    for (uint32_t i = 0; rc == MS_OK && i < count; i++) {
        uint64_t budget = budget_at(need, smallest, i, count);
        rc = plan_point(graph, hardware, *config, budget, &plan, err);
        if (rc == MS_OK) {
            take_point(plan, budget, &frontier->points[i]);
            ms_plan_free(plan);
            if (planned != NULL) {
                planned(argument);
            }
        }
    }
    frontier->point_count = count;
    return rc;
}

int ms__frontier_make(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint32_t count,
                      void (*planned)(void *argument), void *argument, ms_frontier **frontier, ms_error *err)
{
    if (count < 1 || count > MS_FRONTIER_MOST_POINTS) {
        return ms_fail(err, MS_EINVAL, "frontier: %u points; give 1 to %d", count, MS_FRONTIER_MOST_POINTS);
    }
    ms_frontier *made = ms_calloc(1, sizeof *made + count * sizeof made->points[0]);
    if (made == NULL) {
        return ms_fail(err, MS_ENOMEM, "frontier: out of memory for %u points", count);
    }
    ms_config free_choice = *config;
    free_choice.force_optimize = false;
    int rc = fill_frontier(graph, hardware, &free_choice, count, planned, argument, made, err);
    if (rc != MS_OK) {
        ms_frontier_free(made);
        return rc;
    }
    *frontier = made;
    return MS_OK;
}

int ms_frontier_make(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint32_t count,
                     ms_frontier **frontier, ms_error *err)
{
    return ms__frontier_make(graph, hardware, config, count, NULL, NULL, frontier, err);
}
