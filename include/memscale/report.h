/*
 * report.h - a run on one page: the plan, the measurements, and the use of memory.
 *
 * Called by `executor.report(path)`. The page needs no network: styles, pictures (SVG), and the script
 * that draws charts over them (uPlot) are inline. It can be read without scripts. Tests: tests/python/test_report.py.
 */
#ifndef MEMSCALE_REPORT_H
#define MEMSCALE_REPORT_H

#include "memscale/observability.h"
#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The facts about a run; the call only borrows them. Any pointer except `model` may be NULL; its part of the
 * page then says so. */
typedef struct ms_report {
    const char *model;            /* class name */
    const char *tier;             /* description of the lower tier */
    const ms_graph *graph;        /* of the plan in force */
    const ms_hardware *hardware;
    const ms_plan *plan;
    const ms_history *history;
    const ms_counters *counters;
} ms_report;

/* Makes the page. Free it with ms_free(). MS_ENOMEM. */
MS_API int ms_report_html(const ms_report *report, char **html, ms_error *err);

/* One line about a run's progress: step, peak and time, compared with plan and budget. `record` is of the
 * last step. Free with ms_free(); NULL when out of memory. */
MS_API char *ms_progress_line(const ms_step_record *record);

#ifdef __cplusplus
}
#endif

#endif
