/*
 * A frontier as a table, CSV, JSON and a picture. It shows the numbers of frontier.h and computes only
 * positions in the picture.
 */
#include "base/json.h"
#include "base/units.h"
#include "memscale/frontier.h"
#include "observability/report_chart.h"
#include "plan/text.h"

/* ---- table and CSV -------------------------------------------------------------- */

static void frontier_add_layers(ms__text *text, const ms_frontier_point *point)
{
    const char *separator = "";
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        if (point->layers[i] > 0) {
            ms__text_add(text, "%s%u %s", separator, point->layers[i], ms_technique_name((ms_technique)i));
            separator = ", ";
        }
    }
    ms__text_add(text, "\n");
}

char *ms_frontier_table(const ms_frontier *frontier)
{
    ms__text text = {0};
    ms__text_add(&text, "memscale frontier for %s, %s\n", frontier->model, frontier->signature);
    ms__text_add(&text, "  unoptimized: %s", ms__text_bytes(frontier->need_bytes).text);
    ms__text_add(&text, ", %s a step\n\n", ms__text_ns(frontier->unoptimized_ns).text);
    ms__text_add(&text, "%12s %12s %12s %7s  %s\n", "budget", "peak", "step", "ratio", "layers");
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        const ms_frontier_point *point = &frontier->points[i];
        uint64_t permille = ms__mul_div(point->step_ns, 1000, ms__max_u64(frontier->unoptimized_ns, 1));
        ms__text_add(&text, "%12s", ms__text_bytes(point->budget_bytes).text);
        ms__text_add(&text, " %12s", ms__text_bytes(point->peak_bytes).text);
        ms__text_add(&text, " %12s %3llu.%03llu  ", ms__text_ns(point->step_ns).text,
                     (unsigned long long)(permille / 1000), (unsigned long long)(permille % 1000));
        frontier_add_layers(&text, point);
    }
    return ms__text_take(&text);
}

char *ms_frontier_csv(const ms_frontier *frontier)
{
    ms__text text = {0};
    ms__text_add(&text, "budget_bytes,peak_bytes,step_ns");
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        ms__text_add(&text, ",%s", ms_technique_name((ms_technique)i));
    }
    ms__text_add(&text, "\n");
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        const ms_frontier_point *point = &frontier->points[i];
        ms__text_add(&text, "%llu,%llu,%llu", (unsigned long long)point->budget_bytes,
                     (unsigned long long)point->peak_bytes, (unsigned long long)point->step_ns);
        for (int k = 0; k < MS_TECHNIQUE_COUNT; k++) {
            ms__text_add(&text, ",%u", point->layers[k]);
        }
        ms__text_add(&text, "\n");
    }
    return ms__text_take(&text);
}

/* ---- JSON ------------------------------------------------------------------------- */

char *ms_frontier_json(const ms_frontier *frontier)
{
    ms__json_writer writer = {0};
    json_t *root = ms__json_new(&writer);
    ms__json_put_u64(&writer, root, "version", 1);
    ms__json_put_string(&writer, root, "model", frontier->model);
    ms__json_put_string(&writer, root, "signature", frontier->signature);
    ms__json_put_saturated(&writer, root, "need_bytes", frontier->need_bytes);
    ms__json_put_saturated(&writer, root, "unoptimized_ns", frontier->unoptimized_ns);
    json_t *points = ms__json_put_array(&writer, root, "points");
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        const ms_frontier_point *point = &frontier->points[i];
        json_t *item = ms__json_add_object(&writer, points);
        ms__json_put_saturated(&writer, item, "budget_bytes", point->budget_bytes);
        ms__json_put_saturated(&writer, item, "peak_bytes", point->peak_bytes);
        ms__json_put_saturated(&writer, item, "step_ns", point->step_ns);
        json_t *layers = ms__json_put_object(&writer, item, "layers");
        for (int k = 0; k < MS_TECHNIQUE_COUNT; k++) {
            ms__json_put_u64(&writer, layers, ms_technique_name((ms_technique)k), point->layers[k]);
        }
    }
    char *text = NULL;
    ms_error err;
    return ms__json_finish(&writer, root, "frontier", &text, &err) == MS_OK ? text : NULL;
}

/* ---- picture ------------------------------------------------------------------------ */

/* The plot's frame in the picture, in pixels. */
enum { WIDTH = 720, HEIGHT = 440, LEFT = 90, RIGHT = 690, TOP = 50, BOTTOM = 380, TICKS = 5 };

/* Both axes start at zero, so distances are proportions. */
typedef struct plot_axes {
    uint64_t most_bytes, most_ns;
} plot_axes;

static int frontier_x(const plot_axes *axes, uint64_t bytes)
{
    return LEFT + (int)ms__mul_div(RIGHT - LEFT, bytes, axes->most_bytes);
}

static int frontier_y(const plot_axes *axes, uint64_t ns)
{
    return BOTTOM - (int)ms__mul_div(BOTTOM - TOP, ns, axes->most_ns);
}

static plot_axes frontier_axes(const ms_frontier *frontier)
{
    plot_axes axes = {ms__max_u64(frontier->need_bytes, 1), ms__max_u64(frontier->unoptimized_ns, 1)};
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        axes.most_bytes = ms__max_u64(axes.most_bytes, frontier->points[i].budget_bytes);
        axes.most_ns = ms__max_u64(axes.most_ns, frontier->points[i].step_ns);
    }
    axes.most_bytes = ms__add_sat(axes.most_bytes, axes.most_bytes / 20);
    axes.most_ns = ms__add_sat(axes.most_ns, axes.most_ns / 20);
    return axes;
}

static void frontier_add_ticks(ms__text *text, const plot_axes *axes)
{
    uint64_t step_bytes = ms__tick_step(axes->most_bytes, TICKS), step_ns = ms__tick_step(axes->most_ns, TICKS);
    for (uint64_t bytes = 0; bytes <= axes->most_bytes; bytes += step_bytes) {
        ms__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", frontier_x(axes, bytes),
                     BOTTOM + 18, ms__tick_text(bytes, false).text);
    }
    for (uint64_t ns = 0; ns <= axes->most_ns; ns += step_ns) {
        ms__text_add(text, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 8,
                     frontier_y(axes, ns) + 4, ms__tick_text(ns, true).text);
        ms__text_add(text, "<path d=\"M%d %dH%d\" stroke=\"#ddd\"/>\n", LEFT, frontier_y(axes, ns), RIGHT);
    }
}

/* A plan fits every larger budget, so each step of the line goes right, then up. */
static void frontier_add_line(ms__text *text, const plot_axes *axes, const ms_frontier *frontier)
{
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        const ms_frontier_point *point = &frontier->points[i];
        int x = frontier_x(axes, point->budget_bytes), y = frontier_y(axes, point->step_ns);
        ms__text_add(text, i == 0 ? "<path fill=\"none\" stroke=\"#0b62a4\" stroke-width=\"2\" d=\"M%d %d" : "H%dV%d",
                     x, y);
    }
    ms__text_add(text, "\"/>\n");
    for (uint32_t i = 0; i < frontier->point_count; i++) {
        const ms_frontier_point *point = &frontier->points[i];
        ms__text_add(text, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"#0b62a4\"><title>%s, ",
                     frontier_x(axes, point->budget_bytes), frontier_y(axes, point->step_ns),
                     ms__text_bytes(point->budget_bytes).text);
        ms__text_add(text, "%s</title></circle>\n", ms__text_ns(point->step_ns).text);
    }
}

char *ms_frontier_svg(const ms_frontier *frontier)
{
    ms__text text = {0};
    plot_axes axes = frontier_axes(frontier);
    int unoptimized_y = frontier_y(&axes, frontier->unoptimized_ns);
    ms__text_add(
        &text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    ms__text_add(&text, "<text x=\"%d\" y=\"24\" font-size=\"15\">Predicted step time over budget: ", LEFT);
    ms__html_escape(&text, frontier->model);
    ms__text_add(&text, "</text>\n");
    frontier_add_ticks(&text, &axes);
    ms__text_add(&text, "<path fill=\"none\" stroke=\"#333\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
    ms__text_add(&text, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">memory budget</text>\n", (LEFT + RIGHT) / 2,
                 BOTTOM + 42);
    ms__text_add(&text,
                 "<path stroke=\"#b30000\" stroke-dasharray=\"6 4\" d=\"M%d %dH%d\"/>\n"
                 "<text x=\"%d\" y=\"%d\" fill=\"#b30000\" text-anchor=\"end\">unoptimized, %s</text>\n",
                 LEFT, unoptimized_y, RIGHT, RIGHT, unoptimized_y + 16, ms__text_bytes(frontier->need_bytes).text);
    frontier_add_line(&text, &axes, frontier);
    ms__text_add(&text, "</svg>\n");
    return ms__text_take(&text);
}
