/*
 * frontier.h - plans of one graph at budgets from the smallest that fits to the need of the unoptimized step.
 *
 * Called by `memscale plan --sweep`. Every point is a plan of ms_pipeline_plan(); a larger budget never has a
 * longer step time. Tests: tests/cli/sweep.golden.
 */
#ifndef MEMSCALE_FRONTIER_H
#define MEMSCALE_FRONTIER_H

#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MS_FRONTIER_MOST_POINTS = 1000 };

/* One budget, with the predictions of its plan. */
typedef struct ms_frontier_point {
    uint64_t budget_bytes;
    uint64_t peak_bytes;                 /* predicted, at most the budget */
    uint64_t step_ns;                    /* predicted */
    uint32_t layers[MS_TECHNIQUE_COUNT]; /* number of layers for each technique */
} ms_frontier_point;

/* Budgets of one graph, and the unoptimized step for comparison. */
typedef struct ms_frontier {
    char *model;
    char *signature;
    uint64_t need_bytes;      /* peak with everything kept */
    uint64_t unoptimized_ns;  /* step time with everything kept */
    uint32_t point_count;
    ms_frontier_point points[]; /* by falling budget, from need_bytes to the smallest that fits */
} ms_frontier;

/*
 * Plans for `count` budgets (1 to MS_FRONTIER_MOST_POINTS), evenly spaced from the need down to the smallest
 * that fits, both included; for a count of 1, only the smallest. Ignores the configuration's own budget and
 * `force_optimize`. Free with ms_frontier_free(). MS_EINVAL for a count out of bounds or a graph without
 * nodes, MS_ENOMEM.
 */
MS_API int ms_frontier_make(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config, uint32_t count,
                            ms_frontier **frontier, ms_error *err);
MS_API void ms_frontier_free(ms_frontier *frontier);

/* The frontier as a table, as CSV with a header line, as a JSON document
 * (docs/formats/frontier.schema.json) and as an SVG picture of step time over budget. The caller frees each
 * with ms_free(); NULL when out of memory. */
MS_API char *ms_frontier_table(const ms_frontier *frontier);
MS_API char *ms_frontier_csv(const ms_frontier *frontier);
MS_API char *ms_frontier_json(const ms_frontier *frontier);
MS_API char *ms_frontier_svg(const ms_frontier *frontier);

#ifdef __cplusplus
}
#endif

#endif
