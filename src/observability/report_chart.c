/*
 * The charts of report_chart.h.
 */
#include "observability/report_chart.h"

#include <inttypes.h>
#include <string.h>

/* The plot's frame in the picture, in pixels. */
enum {
    WIDTH = 900,
    HEIGHT = 320,
    LEFT = 90,
    RIGHT = 880,
    TOP = 40,
    BOTTOM = 260,
    TICKS = 5,
    LEGEND_STEP = 160,
    FAR = 3
};

typedef struct axes {
    uint64_t least_x, most_x, most_y;
} axes;

void ms__html_escape(ms__text *text, const char *plain)
{
    for (const char *c = plain; *c != '\0'; c++) {
        switch (*c) {
        case '<':
            ms__text_add(text, "&lt;");
            break;
        case '>':
            ms__text_add(text, "&gt;");
            break;
        case '&':
            ms__text_add(text, "&amp;");
            break;
        case '"':
            ms__text_add(text, "&quot;");
            break;
        case '\n':
            ms__text_add(text, "\n");
            break;
        default:
            ms__text_add(text, "%c", (unsigned char)*c < ' ' ? ' ' : *c);
            break;
        }
    }
}

/* Whether a limit is so far above the lines that showing it would flatten them. */
static bool is_far(const axes *a, const ms__series *limit)
{
    return limit->count == 0 || limit->y[0] == UINT64_MAX || limit->y[0] / FAR > a->most_y;
}

static axes chart_axes(const ms__chart *chart)
{
    axes found = {UINT64_MAX, 1, 1};
    for (size_t s = 0; s < chart->series_count; s++) {
        const ms__series *series = &chart->series[s];
        for (size_t i = 0; i < series->count; i++) {
            if (series->y[i] == UINT64_MAX) {
                continue;
            }
            if (!series->is_limit) {
                found.most_y = ms__max_u64(found.most_y, series->y[i]);
                found.least_x = ms__min_u64(found.least_x, series->x[i]);
                found.most_x = ms__max_u64(found.most_x, series->x[i]);
            }
        }
    }
    uint64_t most_y = found.most_y;
    for (size_t s = 0; s < chart->series_count; s++) {
        const ms__series *series = &chart->series[s];
        if (series->is_limit && !is_far(&found, series)) {
            most_y = ms__max_u64(most_y, series->y[0]);
        }
    }
    found.most_y = ms__add_sat(most_y, most_y / 10);
    if (chart->from_zero || found.least_x > found.most_x) {
        found.least_x = 0;
    }
    if (found.most_x == found.least_x) {
        found.most_x = ms__add_sat(found.least_x, 1);
    }
    return found;
}

static int chart_x(const axes *a, uint64_t x)
{
    return LEFT + (int)ms__mul_div(RIGHT - LEFT, ms__sub_sat(x, a->least_x), a->most_x - a->least_x);
}

static int chart_y(const axes *a, uint64_t y)
{
    return BOTTOM - (int)ms__mul_div(BOTTOM - TOP, ms__min_u64(y, a->most_y), a->most_y);
}

uint64_t ms__tick_step(uint64_t span, uint64_t most)
{
    for (uint64_t power = 1;; power *= 10) {
        for (uint64_t digit = 1; digit <= 5; digit += digit == 1 ? 1 : 3) { /* 1, 2, 5 */
            if (span / (digit * power) <= most || power > UINT64_MAX / 50) {
                return digit * power;
            }
        }
    }
}

ms__unit_text ms__tick_text(uint64_t value, bool is_time)
{
    ms__unit_text made = is_time ? ms__text_ns(value) : ms__text_bytes(value);
    char *unit = strchr(made.text, ' '), *point = strchr(made.text, '.');
    if (unit != NULL && point != NULL) {
        char *end = unit;
        while (end[-1] == '0') {
            end--;
        }
        end = end[-1] == '.' ? end - 1 : end;
        memmove(end, unit, strlen(unit) + 1);
    }
    return made;
}

static void chart_add_ticks(ms__text *text, const ms__chart *chart, const axes *a)
{
    uint64_t step_y = ms__tick_step(a->most_y, TICKS), step_x = ms__tick_step(a->most_x - a->least_x, TICKS);
    for (uint64_t y = 0; y <= a->most_y; y += step_y) {
        ms__text_add(text, "<path d=\"M%d %dH%d\" stroke=\"#ddd\"/>", LEFT, chart_y(a, y), RIGHT);
        ms__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8, chart_y(a, y) + 4,
                     ms__tick_text(y, false).text);
    }
    for (uint64_t x = (a->least_x + step_x - 1) / step_x * step_x; x <= a->most_x; x += step_x) {
        ms__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", chart_x(a, x), BOTTOM + 18);
        if (chart->x_is_time) {
            ms__text_add(text, "%s</text>\n", ms__tick_text(x, true).text);
        } else {
            ms__text_add(text, "%" PRIu64 "</text>\n", x);
        }
    }
}

static void chart_add_line(ms__text *text, const axes *a, const ms__series *series)
{
    bool is_down = false;
    ms__text_add(text, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", series->colour);
    for (size_t i = 0; i < series->count; i++) {
        if (series->y[i] == UINT64_MAX) {
            is_down = false;
            continue;
        }
        int x = chart_x(a, series->x[i]), y = chart_y(a, series->y[i]);
        if (!is_down) {
            ms__text_add(text, "M%d %dh1", x, y); /* makes a single point visible */
        } else if (series->is_stepped) {
            ms__text_add(text, "H%dV%d", x, y);
        } else {
            ms__text_add(text, "L%d %d", x, y);
        }
        is_down = true;
    }
    ms__text_add(text, "\"/>\n");
}

static void add_limit(ms__text *text, const axes *a, const ms__series *series)
{
    if (series->count > 0 && series->y[0] <= a->most_y) {
        ms__text_add(text, "<path stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"6 4\" d=\"M%d %dH%d\"/>\n",
                     series->colour, LEFT, chart_y(a, series->y[0]), RIGHT);
    }
}

static void add_legend(ms__text *text, const ms__chart *chart, const axes *a)
{
    for (size_t s = 0; s < chart->series_count; s++) {
        int x = LEFT + (int)s * LEGEND_STEP;
        ms__text_add(text, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"4\" fill=\"%s\"/>", x, HEIGHT - 12,
                     chart->series[s].colour);
        ms__text_add(text, "<text x=\"%d\" y=\"%d\">%s", x + 20, HEIGHT - 6, chart->series[s].name);
        if (chart->series[s].is_limit && chart->series[s].count > 0 && chart->series[s].y[0] > a->most_y) {
            ms__text_add(text, " (far above)");
        }
        ms__text_add(text, "</text>\n");
    }
}

void ms__chart_add(ms__text *text, const ms__chart *chart)
{
    axes a = chart_axes(chart);
    ms__text_add(text,
                 "<svg viewBox=\"0 0 %d %d\" role=\"img\" font-size=\"12\" font-family=\"sans-serif\">"
                 "<title>%s</title>\n<text x=\"%d\" y=\"22\" font-size=\"15\">%s</text>\n",
                 WIDTH, HEIGHT, chart->title, LEFT, chart->title);
    chart_add_ticks(text, chart, &a);
    ms__text_add(text, "<path fill=\"none\" stroke=\"#333\" d=\"M%d %dV%dH%d\"/>", LEFT, TOP, BOTTOM, RIGHT);
    ms__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", (LEFT + RIGHT) / 2, BOTTOM + 36,
                 chart->x_name);
    for (size_t s = 0; s < chart->series_count; s++) {
        if (chart->series[s].is_limit) {
            add_limit(text, &a, &chart->series[s]);
        } else {
            chart_add_line(text, &a, &chart->series[s]);
        }
    }
    add_legend(text, chart, &a);
    ms__text_add(text, "</svg>\n");
}
