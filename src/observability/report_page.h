/*
 * What the report's page consists of besides its sections: texts that are built in, and the charts' numbers.
 * Used by report.c. Tests: tests/python/test_report.py.
 */
#ifndef MS_OBSERVABILITY_REPORT_PAGE_H
#define MS_OBSERVABILITY_REPORT_PAGE_H

#include "memscale/report.h"
#include "plan/text.h"

/* Files of assets/, written by embed.py: uPlot with its licence, the charts, styles. */
extern const char ms__page_uplot[], ms__page_uplot_style[], ms__page_uplot_licence[], ms__page_charts[],
    ms__page_style[];

/* Adds a text of any length as it is. */
void ms__page_add_text(ms__text *text, const char *plain);

/* The numbers behind the charts, as a JSON object between script tags. `samples` are of the plan's step and `plain` of
 * the unoptimized one, 2 x nodes each; NULL and 0 if unknown. */
void ms__page_add_numbers(ms__text *text, const ms_report *report, const ms_sample *samples, uint32_t sample_count,
                          const ms_sample *plain, const ms_step_record *records, size_t record_count);

#endif
