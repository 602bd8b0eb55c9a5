/*
 * The numbers of report_page.h. All are whole; UINT64_MAX (unknown) becomes null.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "observability/report_page.h"

void ms__page_add_text(ms__text *text, const char *plain)
{
    ms__text_add(text, "%s", plain);
}

static void add_number(ms__text *text, uint64_t value, bool is_first)
{
    if (value == UINT64_MAX) {
        ms__text_add(text, "%snull", is_first ? "" : ",");
    } else {
        ms__text_add(text, "%s%" PRIu64, is_first ? "" : ",", value);
    }
}

/* A list of the 64-bit field at `offset` in `count` structures of `stride` bytes. */
static void add_column(ms__text *text, const char *name, const void *rows, size_t stride, size_t offset, size_t count)
{
    ms__text_add(text, ",\n\"%s\":[", name);
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        memcpy(&value, (const char *)rows + i * stride + offset, sizeof value);
        add_number(text, value, i == 0);
    }
    ms__text_add(text, "]");
}

/* A name inside a JSON string inside a script element: nothing that ends either. */
static void add_name(ms__text *text, const char *name)
{
    ms__text_add(text, "\"");
    for (const char *c = name; *c != '\0'; c++) {
        bool plain = (unsigned char)*c >= ' ' && *c != '"' && *c != '\\' && *c != '<' && *c != '>' && *c != '&';
        ms__text_add(text, plain ? "%c" : "\\u%04x", plain ? *c : (unsigned char)*c);
    }
    ms__text_add(text, "\"");
}

static void add_names(ms__text *text, const ms_plan *plan)
{
    ms__text_add(text, "\"layers\":[");
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const ms_plan_entry *entry = &plan->entries[i];
        ms__text_add(text, i == 0 ? "" : ",");
        add_name(text, entry->name[0] != '\0' ? entry->name : "(root)");
    }
    ms__text_add(text, "],\n\"techniques\":[");
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        ms__text_add(text, "%s\"%s\"", i == 0 ? "" : ",", ms_technique_name((ms_technique)plan->entries[i].technique));
    }
    ms__text_add(text, "],\n\"owners\":[");
    for (int i = 0; i < MS_OWNER_COUNT; i++) {
        ms__text_add(text, "%s\"%s\"", i == 0 ? "" : ",", ms_owner_name((ms_owner)i));
    }
    ms__text_add(text, "]");
}

#define SAMPLE_COLUMN(name, field) \
    add_column(text, name, samples, sizeof *samples, offsetof(ms_sample, field), sample_count)
#define RECORD_COLUMN(name, field) \
    add_column(text, name, records, sizeof *records, offsetof(ms_step_record, field), record_count)

static void add_samples(ms__text *text, const ms_sample *samples, uint32_t sample_count, const ms_sample *plain)
{
    SAMPLE_COLUMN("at_ns", at_ns);
    SAMPLE_COLUMN("lower_bytes", lower_tier_bytes);
    SAMPLE_COLUMN("recompute_ns", recompute_ns);
    for (int i = 0; i < MS_OWNER_COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "owner_%d", i);
        add_column(text, name, samples, sizeof *samples,
                   offsetof(ms_sample, owner_bytes) + (size_t)i * sizeof(uint64_t), sample_count);
    }
    ms__text_add(text, ",\n\"nodes\":[");
    for (uint32_t i = 0; i < sample_count; i++) {
        add_number(text, samples[i].node, i == 0);
    }
    ms__text_add(text, "]");
    add_column(text, "plain_at_ns", plain, sizeof *plain, offsetof(ms_sample, at_ns), sample_count);
    add_column(text, "plain_bytes", plain, sizeof *plain, offsetof(ms_sample, device_bytes), sample_count);
}

void ms__page_add_numbers(ms__text *text, const ms_report *report, const ms_sample *samples, uint32_t sample_count,
                          const ms_sample *plain, const ms_step_record *records, size_t record_count)
{
    const ms_plan *plan = report->plan;
    ms__text_add(text, "<script type=\"application/json\" id=\"numbers\">{");
    add_names(text, plan);
    ms__text_add(text, ",\n\"budget_bytes\":%" PRIu64 ",\"budget_given\":%s", plan->pressure.allowed_bytes,
                 plan->pressure.budget_given ? "true" : "false");
    ms__text_add(text, ",\"predicted_bytes\":%" PRIu64, plan->replay.peak_bytes);
    if (sample_count > 0) {
        add_samples(text, samples, sample_count, plain);
    }
    if (record_count > 0) {
        RECORD_COLUMN("step", last_step);
        RECORD_COLUMN("peak_bytes", peak_bytes);
        RECORD_COLUMN("resident_bytes", resident_bytes);
        RECORD_COLUMN("tier_bytes", tier_bytes);
    }
    ms__text_add(text, "}</script>\n");
}
