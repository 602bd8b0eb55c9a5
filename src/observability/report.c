/*
 * The page of report.h, section by section: comparison, memory, layers, transfers, the plan's texts,
 * counters.
 */
#include "memscale/report.h"

#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "observability/report_chart.h"
#include "observability/report_page.h"
#include "sim/process.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static const char *colour_of(uint32_t technique)
{
    return ms_technique_of((ms_technique)technique)->colour;
}

static const char budget_colour[] = "#b30000", predicted_colour[] = "#7a3ea1", device_colour[] = "#0b62a4",
                  resident_colour[] = "#9aa5b1", tier_colour[] = "#2a9d5c";

/* Shared by the sections: the report's values as arrays for charts. */
typedef struct page {
    const ms_report *report;
    ms__text text;
    uint32_t sample_count;
    ms_sample *samples; /* of the predicted step, then of the unoptimized one; NULL if it can't be replayed */
    size_t record_count;
    ms_step_record *records;
    uint64_t *numbers; /* scratch for series */
} page;

/* ---- preparing ------------------------------------------------------------------ */

/* Replays the plan for its timeline, if plan and graph are of one step. */
static int page_take_samples(page *p, ms_error *err)
{
    const ms_report *r = p->report;
    if (r->graph == NULL || r->hardware == NULL || r->plan == NULL || r->plan->entry_count != r->graph->node_count) {
        return MS_OK;
    }
    uint32_t nodes = r->graph->node_count;
    ms_replay replay;
    uint8_t *techniques = ms_calloc(nodes, 2); /* and, for each node, its packed storages */
    p->samples = ms_calloc(nodes, 4 * sizeof *p->samples);
    if (techniques == NULL || p->samples == NULL) {
        ms_free(techniques);
        return ms_fail(err, MS_ENOMEM, "report: out of memory for %u nodes", nodes);
    }
    ms_choices choices = ms_plan_choices(r->plan, techniques);
    uint64_t reserve_bytes = ms__process_reserve(&r->hardware->process, r->graph);
    int rc = ms_simulate(r->graph, r->hardware, &choices, &replay, p->samples, err);
    memset(techniques, 0, (size_t)nodes * 2);
    choices = (ms_choices){.technique = techniques, .offload_min_bytes = MS_OFFLOAD_MIN_BYTES};
    if (rc == MS_OK) {
        rc = ms_simulate(r->graph, r->hardware, &choices, &replay, p->samples + (size_t)2 * nodes, err);
    }
    p->sample_count = rc == MS_OK ? 2 * nodes : 0;
    for (size_t i = 0; i < (size_t)2 * p->sample_count; i++) { /* as in the plan's peak */
        uint64_t *process = &p->samples[i].owner_bytes[MS_OWNER_PROCESS];
        p->samples[i].device_bytes = ms__sub_sat(p->samples[i].device_bytes, reserve_bytes);
        *process = ms__sub_sat(*process, reserve_bytes);
    }
    ms_free(techniques);
    return rc;
}

static int page_take_records(page *p, ms_error *err)
{
    if (p->report->history == NULL) {
        return MS_OK;
    }
    size_t room = ms_history_count(p->report->history);
    if (room == 0) {
        return MS_OK;
    }
    p->records = ms_calloc(room, sizeof *p->records);
    if (p->records == NULL) {
        return ms_fail(err, MS_ENOMEM, "report: out of memory for %zu steps", room);
    }
    while (p->record_count < room &&
           ms_history_get(p->report->history, p->record_count, &p->records[p->record_count])) {
        p->record_count++;
    }
    return MS_OK;
}

enum { SERIES_MOST = 4 }; /* arrays that a chart takes from the scratch */

static int prepare_page(page *p, ms_error *err)
{
    int rc = page_take_samples(p, err);
    if (rc == MS_OK) {
        rc = page_take_records(p, err);
    }
    size_t longest = ms__max_u64(p->sample_count, p->record_count);
    if (rc == MS_OK && (p->numbers = ms_calloc(longest + 1, SERIES_MOST * sizeof *p->numbers)) == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "report: out of memory");
    }
    return rc;
}

/* ---- predicted against measured ---------------------------------------------------- */

static uint64_t measured_peak(const page *p)
{
    uint64_t peak = UINT64_MAX;
    for (size_t i = 0; i < p->record_count; i++) {
        uint64_t bytes = p->records[i].peak_bytes;
        if (bytes != UINT64_MAX) {
            peak = peak == UINT64_MAX ? bytes : ms__max_u64(peak, bytes);
        }
    }
    return peak;
}

/* Per step, over the last record; UINT64_MAX if no step was measured. */
static uint64_t measured_step_ns(const page *p)
{
    if (p->record_count == 0) {
        return UINT64_MAX;
    }
    const ms_step_record *last = &p->records[p->record_count - 1];
    return last->step_ns / ms__max_u64(last->last_step - last->first_step + 1, 1);
}

static uint64_t measured_moved(const page *p)
{
    if (p->record_count == 0) {
        return UINT64_MAX;
    }
    const ms_step_record *last = &p->records[p->record_count - 1];
    uint64_t moved = ms__add_sat(ms_counter_get(&last->total, MS_COUNTER_OFFLOADED_BYTES),
                                 ms_counter_get(&last->total, MS_COUNTER_FETCHED_BYTES));
    return moved / ms__max_u64(last->last_step, 1);
}

static ms__unit_text unit_text(uint64_t value, bool is_time)
{
    if (value == UINT64_MAX) {
        return (ms__unit_text){"-"};
    }
    return is_time ? ms__text_ns(value) : ms__text_bytes(value);
}

static void add_comparison_row(page *p, const char *what, uint64_t predicted, uint64_t measured, bool is_time)
{
    ms__text_add(&p->text, "<tr><td>%s</td><td>%s</td><td>%s</td>", what, unit_text(predicted, is_time).text,
                 unit_text(measured, is_time).text);
    if (predicted == UINT64_MAX || measured == UINT64_MAX || predicted == 0) {
        ms__text_add(&p->text, "<td>-</td></tr>\n");
        return;
    }
    bool is_more = measured >= predicted;
    uint64_t permille = ms__mul_div(is_more ? measured - predicted : predicted - measured, 1000, predicted);
    ms__text_add(&p->text, "<td>%c%" PRIu64 ".%" PRIu64 "%%</td></tr>\n", is_more ? '+' : '-', permille / 10,
                 permille % 10);
}

static void add_comparison(page *p)
{
    const ms_plan *plan = p->report->plan;
    ms__text_add(&p->text, "<h2>Predicted against measured</h2>\n<table><tr><th></th><th>predicted</th>"
                           "<th>measured</th><th>difference</th></tr>\n");
    add_comparison_row(p, "peak", plan->replay.peak_bytes, measured_peak(p), false);
    add_comparison_row(p, "step", ms_hardware_at_pace(p->report->hardware, plan->replay.step_ns), measured_step_ns(p),
                       true);
    add_comparison_row(p, "moved per step", plan->replay.moved_bytes, measured_moved(p), false);
    add_comparison_row(p, "peak without memscale", plan->unoptimized.peak_bytes, UINT64_MAX, false);
    add_comparison_row(p, "step without memscale", ms_hardware_at_pace(p->report->hardware, plan->unoptimized.step_ns),
                       UINT64_MAX, true);
    ms__text_add(&p->text, "</table>\n<p>%s: %s. Decided by %s.</p>\n",
                 plan->pressure.budget_given ? "Budget" : "Target", ms__text_bytes(plan->pressure.allowed_bytes).text,
                 plan->decision_source);
}

/* ---- memory -------------------------------------------------------------------------- */

static void add_step_memory(page *p)
{
    const ms_plan *plan = p->report->plan;
    size_t n = p->sample_count;
    uint64_t *at = p->numbers, *device = at + n, *lower = device + n;
    for (size_t i = 0; i < n; i++) {
        at[i] = p->samples[i].at_ns;
        device[i] = p->samples[i].device_bytes;
        lower[i] = p->samples[i].lower_tier_bytes;
    }
    const ms__series series[] = {
        {"training device", device_colour, false, false, n, at, device},
        {"lower tier", tier_colour, false, false, n, at, lower},
        {"predicted peak", predicted_colour, true, false, 1, NULL, &plan->replay.peak_bytes},
        {"budget or target", budget_colour, true, false, 1, NULL, &plan->pressure.allowed_bytes},
    };
    ms__chart_add(&p->text, &(ms__chart){"Memory within a step, as replayed", "time in the step", true, true,
                                         COUNT(series), series});
}

static void add_run_memory(page *p)
{
    const ms_plan *plan = p->report->plan;
    size_t n = p->record_count;
    uint64_t *at = p->numbers, *peak = at + n, *resident = peak + n, *lower = resident + n;
    for (size_t i = 0; i < n; i++) {
        at[i] = p->records[i].last_step;
        peak[i] = p->records[i].peak_bytes;
        resident[i] = p->records[i].resident_bytes;
        lower[i] = p->records[i].tier_bytes;
    }
    const ms__series series[] = {
        {"peak of the step", device_colour, false, true, n, at, peak},
        {"at the boundary", resident_colour, false, true, n, at, resident},
        {"lower tier", tier_colour, false, true, n, at, lower},
        {"predicted peak", predicted_colour, true, false, 1, NULL, &plan->replay.peak_bytes},
        {"budget or target", budget_colour, true, false, 1, NULL, &plan->pressure.allowed_bytes},
    };
    ms__chart_add(&p->text,
                  &(ms__chart){"Memory over the run, as measured", "step", false, false, COUNT(series), series});
}

/* A place that the page's script draws in; the picture inside is for readers without scripts. */
static void add_figure(page *p, const char *id, const char *title, void (*add_picture)(page *p))
{
    ms__text_add(&p->text, "<figure id=\"%s\"><figcaption>%s</figcaption><div class=\"picture\">\n", id, title);
    add_picture(p);
    ms__text_add(&p->text, "</div></figure>\n");
}

/* ---- layers and transfers -------------------------------------------------------------- */

static bool is_used(const ms_plan *plan, uint32_t technique)
{
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        if (plan->entries[i].technique == technique) {
            return true;
        }
    }
    return false;
}

static void add_strip(page *p)
{
    const ms_plan *plan = p->report->plan;
    ms__text_add(&p->text, "<h2>Layers</h2>\n<div class=\"strip\">");
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        ms__text_add(&p->text, "<i style=\"background:%s\" title=\"", colour_of(entry->technique));
        ms__html_escape(&p->text, entry->name[0] != '\0' ? entry->name : "(root)");
        ms__text_add(&p->text, ": %s, ", ms_technique_name((ms_technique)entry->technique));
        ms__text_add(&p->text, "%s freed\"></i>", ms__text_bytes(entry->saved_bytes).text);
    }
    ms__text_add(&p->text, "</div>\n<p>");
    for (uint32_t k = 0; k < MS_TECHNIQUE_COUNT; k++) {
        if (ms_technique_of((ms_technique)k)->set > 0 && !is_used(plan, k)) {
            continue;
        }
        ms__text_add(&p->text, "<b style=\"color:%s\">&#9632;</b> %s &nbsp; ", colour_of(k),
                     ms_technique_name((ms_technique)k));
    }
    ms__text_add(&p->text, "</p>\n");
}

static void add_entries(page *p)
{
    const ms_plan *plan = p->report->plan;
    ms__text_add(&p->text, "<details><summary>Every layer</summary><table><tr><th>layer</th><th>call</th>"
                           "<th>technique</th><th>rule</th><th>held if kept</th><th>freed</th><th>cost</th></tr>\n");
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        ms__text_add(&p->text, "<tr><td>");
        ms__html_escape(&p->text, entry->name[0] != '\0' ? entry->name : "(root)");
        ms__text_add(&p->text, "</td><td>%u</td><td>%s</td><td>%s</td>", (unsigned)entry->call,
                     ms_technique_name((ms_technique)entry->technique), ms_rule_name((ms_rule)entry->rule));
        ms__text_add(&p->text, "<td>%s</td><td>%s</td><td>%s</td></tr>\n", ms__text_bytes(entry->kept_bytes).text,
                     ms__text_bytes(entry->saved_bytes).text, ms__text_ns(entry->cost_ns).text);
    }
    ms__text_add(&p->text, "</table></details>\n");
}

/* Bytes written to and released from the lower tier between neighbouring samples. */
static void add_transfers(page *p)
{
    size_t n = p->sample_count;
    uint64_t *at = p->numbers, *down = at + n, *back = down + n;
    uint64_t before = 0, moved = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t now = p->samples[i].lower_tier_bytes;
        at[i] = p->samples[i].at_ns;
        down[i] = ms__sub_sat(now, before);
        back[i] = ms__sub_sat(before, now);
        moved = ms__add_sat(moved, down[i]);
        before = now;
    }
    ms__text_add(&p->text, "<h2>Transfers</h2>\n");
    if (moved == 0) {
        ms__text_add(&p->text, "<p>The plan moves nothing.</p>\n");
        return;
    }
    const ms__series series[] = {
        {"to the lower tier", device_colour, false, true, n, at, down},
        {"released there", tier_colour, false, true, n, at, back},
    };
    ms__chart_add(&p->text, &(ms__chart){"Bytes moved between layers, as replayed", "time in the step", true, true,
                                         COUNT(series), series});
}

static void add_counters(page *p)
{
    ms__text_add(&p->text, "<h2>Counters</h2>\n<p>Lower tier: ");
    ms__html_escape(&p->text, p->report->tier != NULL ? p->report->tier : "none");
    ms__text_add(&p->text, "</p>\n<table><tr><th>counter</th><th>value</th><th></th></tr>\n");
    for (int id = 0; p->report->counters != NULL && id < MS_COUNTER_COUNT; id++) {
        ms__text_add(&p->text, "<tr><td>%s</td><td>%" PRIu64 "</td><td class=\"text\">%s</td></tr>\n",
                     ms_counter_name((ms_counter)id), ms_counter_get(p->report->counters, (ms_counter)id),
                     ms_counter_text((ms_counter)id));
    }
    ms__text_add(&p->text, "</table>\n");
}

/* Adds one of the plan's texts, escaped; frees it. */
static void add_pre(page *p, char *plain)
{
    p->text.failed = p->text.failed || plain == NULL;
    if (plain != NULL) {
        ms__text_add(&p->text, "<pre>");
        ms__html_escape(&p->text, plain);
        ms__text_add(&p->text, "</pre>\n");
    }
    ms_free(plain);
}

/* ---- the page ------------------------------------------------------------------------------ */

static void add_head(page *p)
{
    ms__text_add(&p->text, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                           "<meta name=\"viewport\" content=\"width=device-width\"><title>memscale: ");
    ms__html_escape(&p->text, p->report->model);
    ms__text_add(&p->text, "</title>\n<style>");
    ms__page_add_text(&p->text, ms__page_uplot_style);
    ms__page_add_text(&p->text, ms__page_style);
    ms__text_add(&p->text, "</style></head>\n<body><h1>memscale: ");
    ms__html_escape(&p->text, p->report->model);
    ms__text_add(&p->text, "</h1>\n");
}

static void add_plan(page *p)
{
    const ms_plan *plan = p->report->plan;
    if (plan == NULL) {
        ms__text_add(&p->text, "<p>There is no plan yet.</p>\n");
        return;
    }
    add_comparison(p);
    ms__text_add(&p->text, "<h2>Memory</h2>\n");
    if (p->sample_count > 0) {
        add_figure(p, "step-memory", "Memory within a step, as replayed", add_step_memory);
    }
    if (p->record_count > 0) {
        add_figure(p, "run-memory", "Memory over the run, as measured", add_run_memory);
    } else {
        ms__text_add(&p->text, "<p>No step has been measured yet.</p>\n");
    }
    add_strip(p);
    add_entries(p);
    if (p->sample_count > 0) {
        add_transfers(p);
    }
    ms__text_add(&p->text, "<h2>The plan</h2>\n");
    add_pre(p, ms_plan_table(plan, p->report->hardware));
    add_pre(p, ms_plan_explain(plan, -1));
}

/* uPlot under its licence, the numbers, and the script that draws them. */
static void add_script(page *p)
{
    if (p->report->plan == NULL) {
        return;
    }
    ms__page_add_numbers(&p->text, p->report, p->samples, p->sample_count, p->samples + p->sample_count, p->records,
                         p->record_count);
    ms__text_add(&p->text, "<script>/*\n");
    ms__page_add_text(&p->text, ms__page_uplot_licence);
    ms__text_add(&p->text, "*/\n");
    ms__page_add_text(&p->text, ms__page_uplot);
    ms__text_add(&p->text, "</script>\n<script>\n");
    ms__page_add_text(&p->text, ms__page_charts);
    ms__text_add(&p->text, "</script>\n");
}

int ms_report_html(const ms_report *report, char **html, ms_error *err)
{
    page p = {.report = report};
    int rc = prepare_page(&p, err);
    if (rc == MS_OK) {
        add_head(&p);
        add_plan(&p);
        add_counters(&p);
        add_script(&p);
        ms__text_add(&p.text, "</body></html>\n");
    }
    ms_free(p.samples);
    ms_free(p.records);
    ms_free(p.numbers);
    char *text = ms__text_take(&p.text);
    if (rc == MS_OK && text == NULL) {
        rc = ms_fail(err, MS_ENOMEM, "report: out of memory");
    }
    if (rc != MS_OK) {
        ms_free(text);
        return rc;
    }
    *html = text;
    return MS_OK;
}

char *ms_progress_line(const ms_step_record *record)
{
    ms__text text = {0};
    ms__text_add(&text, "step %" PRIu64 "  %s", record->last_step, unit_text(record->step_ns, true).text);
    ms__text_add(&text, " (%s planned)", unit_text(record->predicted_step_ns, true).text);
    ms__text_add(&text, "  peak %s", unit_text(record->peak_bytes, false).text);
    ms__text_add(&text, " of %s", unit_text(record->budget_bytes, false).text);
    ms__text_add(&text, "  moved %s",
                 ms__text_bytes(ms__add_sat(ms_counter_get(&record->total, MS_COUNTER_OFFLOADED_BYTES),
                                            ms_counter_get(&record->total, MS_COUNTER_FETCHED_BYTES)))
                     .text);
    ms__text_add(&text, "  recomputed %" PRIu64, ms_counter_get(&record->total, MS_COUNTER_RECOMPUTED_LAYERS));
    return ms__text_take(&text);
}
