/*
 * report.h - a run on one page: the plan, the measurements, and the use of memory.
 *
 * Called by `executor.report(path)`. The page needs no network: styles and pictures (SVG) are inline, and it
 * has no script. Tests: tests/python/test_report.py.
 */
#ifndef MEMSCALE_REPORT_H
#define MEMSCALE_REPORT_H

#include "memscale/observability.h"
#include "memscale/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The facts about a run. Any pointer but `model` may be NULL; its part of the page then says so. Borrowed
 * for the call. */
typedef struct ms_report {
    const char *model;            /* class name */
    const char *tier;             /* description of the lower tier */
    const ms_graph *graph;        /* of the plan in force */
    const ms_hardware *hardware;
    const ms_plan *plan;
    const ms_history *history;
    const ms_counters *counters;
} ms_report;

/* The page, to be freed with ms_free(). MS_ENOMEM. */
MS_API int ms_report_html(const ms_report *report, char **html, ms_error *err);

/* One line about a run's progress: step, peak and time against plan and budget. `record` is of the last
 * step. Freed with ms_free(); NULL if memory runs out. */
MS_API char *ms_progress_line(const ms_step_record *record);

#ifdef __cplusplus
}
#endif

#endif
