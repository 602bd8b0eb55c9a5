/*
 * Charts as SVG: lines over a shared axis, in whole numbers. Used by report.c; frontier_text.c uses
 * only ms__html_escape(). Tests: tests/python/test_report.py.
 */
#ifndef MS_OBSERVABILITY_REPORT_CHART_H
#define MS_OBSERVABILITY_REPORT_CHART_H

#include "base/units.h"
#include "plan/text.h"

typedef struct ms__series {
    const char *name;
    const char *colour;
    bool is_limit;     /* a dashed line at y[0] over the whole width */
    bool is_stepped;
    size_t count;
    const uint64_t *x, *y; /* UINT64_MAX in y: unknown */
} ms__series;

typedef struct ms__chart {
    const char *title;
    const char *x_name;
    bool x_is_time;    /* x is in nanoseconds, else a count */
    bool from_zero;    /* the x axis begins at zero, else at the first point */
    size_t series_count;
    const ms__series *series;
} ms__chart;

void ms__chart_add(ms__text *text, const ms__chart *chart);

/* The distance of the ticks of an axis that spans `span`: 1, 2 or 5 times a power of ten, at most `most` of them. */
uint64_t ms__tick_step(uint64_t span, uint64_t most);

/* A tick's text, without zeros at the end of its fraction: "1.5 GB", "500 ms". */
ms__unit_text ms__tick_text(uint64_t value, bool is_time);

/* Adds `plain`, escaped for use between tags or in an attribute. */
void ms__html_escape(ms__text *text, const char *plain);

#endif
