/*
 * Charts as SVG, for the report: lines over a shared axis, in whole numbers. report.c uses it, and
 * frontier_text.c its escapes. Tests: tests/python/test_report.py.
 */
#ifndef MS_OBSERVABILITY_REPORT_CHART_H
#define MS_OBSERVABILITY_REPORT_CHART_H

#include "plan/text.h"

typedef struct ms__series {
    const char *name;
    const char *colour;
    bool is_limit;     /* one value, y[0], dashed over the whole width */
    bool is_stepped;
    size_t count;
    const uint64_t *x, *y; /* UINT64_MAX in y: unknown */
} ms__series;

typedef struct ms__chart {
    const char *title;
    const char *x_name;
    bool x_is_time;    /* x in nanoseconds, else a count */
    bool from_zero;    /* the x axis begins at zero, else at the first point */
    size_t series_count;
    const ms__series *series;
} ms__chart;

void ms__chart_add(ms__text *text, const ms__chart *chart);

/* Adds text between tags or in an attribute. */
void ms__html_escape(ms__text *text, const char *plain);

#endif
