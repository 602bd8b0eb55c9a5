/*
 * report.h - a run on one page: what was planned, what was measured, and where memory went.
 *
 * Called by `executor.report(path)`. The page needs nothing from the network: styles and
 * pictures (SVG) are in it, and there is no script.
 */
#ifndef MEMSCALE_REPORT_H
#define MEMSCALE_REPORT_H

#include "memscale/observability.h"
#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of a run; any pointer but `model` may be NULL, and its part of the page
 * then says so. Borrowed for the call. */
typedef struct ms_report {
    const char *model;            /* class name */
    const char *tier;             /* what the lower tier is */
    const ms_graph *graph;        /* of the plan in force */
    const ms_hardware *hardware;
    const ms_plan *plan;
    const ms_history *history;
    const ms_counters *counters;
} ms_report;

/* The page, to be freed with ms_free(). MS_ENOMEM. */
MS_API int ms_report_html(const ms_report *report, char **html, ms_error *err);

/* One line on how a run stands: step, loss of memory and time against plan and budget.
 * `record` is of the last step. NULL when memory is out; freed with ms_free(). */
MS_API char *ms_progress_line(const ms_step_record *record);

#ifdef __cplusplus
}
#endif

#endif
