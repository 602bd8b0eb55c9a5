/*
 * The explanation as the member "explanation" of a plan's document, written and read back strictly. Called by
 * plan_json.c. A plan without a graph has none, and older documents lack it.
 */
#include "base/json_fields.h"
#include "base/units.h"
#include "plan/explain_internal.h"

enum { PARTS_MOST = 1 << 24 };

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static const char *kind_word(uint32_t kind)
{
    return ms_peak_kind_name((ms_peak_kind)kind);
}

static const char *phase_word(uint32_t phase)
{
    return ms_step_phase_name((ms_step_phase)phase);
}

static const ms__json_field neighbour_fields[] = {
    MS__FIELD_NUMBER(ms_neighbour, budget_bytes, U64, 1, INT64_MAX),
    MS__FIELD(ms_neighbour, peak_bytes, U64),
    MS__FIELD(ms_neighbour, step_ns, U64),
};
/* With "node" between them. */
static const ms__json_field part_kind[] = {MS__FIELD_WORDS(ms_peak_part, kind, MS_PEAK_KIND_COUNT, kind_word)};
static const ms__json_field part_sizes[] = {MS__FIELD(ms_peak_part, storages, U32),
                                            MS__FIELD(ms_peak_part, bytes, U64)};
static const ms__json_field peak_fields[] = {
    {"phase", MS__FIELD_WORD, offsetof(ms_explanation, peak_phase), 0, MS_PHASE_COUNT, phase_word},
    {"event", MS__FIELD_U32, offsetof(ms_explanation, peak_event), 0, 0, NULL},
    {"again", MS__FIELD_BOOL, offsetof(ms_explanation, peak_again), 0, 0, NULL},
};
static const ms__json_field timed_field[] = {MS__FIELD(ms_explanation, timed_bytes, U64)};

/* ---- writing ------------------------------------------------------------------------- */

static void put_neighbour(ms__json_writer *writer, json_t *object, const char *name, const ms_neighbour *neighbour)
{
    if (neighbour->budget_bytes == 0) {
        ms__json_put_null(writer, object, name);
        return;
    }
    json_t *item = ms__json_put_object(writer, object, name);
    ms__json_put_fields(writer, item, neighbour_fields, COUNT(neighbour_fields), neighbour);
}

static void put_parts(ms__json_writer *writer, json_t *peak, const ms_explanation *why)
{
    json_t *parts = ms__json_put_array(writer, peak, "parts");
    for (uint32_t i = 0; i < why->part_count; i++) {
        const ms_peak_part *part = &why->parts[i];
        json_t *item = ms__json_add_object(writer, parts);
        ms__json_put_fields(writer, item, part_kind, COUNT(part_kind), part);
        ms__json_put_u64_or_null(writer, item, "node", part->node, MS_NO_NODE);
        ms__json_put_fields(writer, item, part_sizes, COUNT(part_sizes), part);
    }
}

void ms__explanation_put(ms__json_writer *writer, json_t *root, const ms_plan *plan)
{
    const ms_explanation *why = &plan->why;
    if (!why->known) {
        return;
    }
    json_t *object = ms__json_put_object(writer, root, "explanation");
    json_t *peak = ms__json_put_object(writer, object, "peak");
    ms__json_put_fields(writer, peak, peak_fields, COUNT(peak_fields), why);
    put_parts(writer, peak, why);
    ms__json_put_fields(writer, object, timed_field, COUNT(timed_field), why);
    ms__json_put_u64_or_null(writer, object, "lower_bound_ns", ms__min_u64(why->lower_bound_ns, INT64_MAX), 0);
    put_neighbour(writer, object, "larger_budget", &why->larger);
    put_neighbour(writer, object, "smaller_budget", &why->smaller);
    if (why->gigabyte.budget_bytes != 0) {
        put_neighbour(writer, object, "gigabyte_more", &why->gigabyte);
    }
    if (why->forced.budget_bytes != 0) {
        put_neighbour(writer, object, "forced", &why->forced);
    }
}

/* ---- reading --------------------------------------------------------------------------- */

static int read_neighbour(const ms__json_at *at, const char *name, ms_neighbour *neighbour)
{
    ms__json_at item;
    if (!ms__json_has(at, name)) {
        return MS_OK;
    }
    int rc = ms__json_object(at, name, &item);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&item, neighbour_fields, COUNT(neighbour_fields), neighbour);
    }
    return rc == MS_OK ? ms__json_only_count(&item, COUNT(neighbour_fields)) : rc;
}

static int read_part(const ms__json_at *at, ms_peak_part *part)
{
    static const char *const members[] = {"kind", "node", "storages", "bytes"};
    uint64_t node = MS_NO_NODE;
    int rc = ms__json_only(at, members, COUNT(members));
    if (rc == MS_OK) {
        rc = ms__json_read_fields(at, part_kind, COUNT(part_kind), part);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(at, "node", 0, MS_NO_NODE - 1, MS_NO_NODE, &node);
    }
    part->node = (uint32_t)node;
    return rc == MS_OK ? ms__json_read_fields(at, part_sizes, COUNT(part_sizes), part) : rc;
}

static int read_parts(const ms__json_at *peak, ms_explanation *why)
{
    ms__json_at list, item;
    int rc;
    why->parts = ms__json_items(peak, "parts", PARTS_MOST, sizeof *why->parts, &list, &why->part_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < why->part_count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_part(&item, &why->parts[i]);
        }
    }
    return rc;
}

static int read_peak(const ms__json_at *at, ms_explanation *why)
{
    ms__json_at peak;
    int rc = ms__json_object(at, "peak", &peak);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&peak, peak_fields, COUNT(peak_fields), why);
    }
    if (rc == MS_OK) {
        rc = read_parts(&peak, why);
    }
    return rc == MS_OK ? ms__json_only_count(&peak, COUNT(peak_fields) + 1) : rc;
}

int ms__explanation_read(const ms__json_at *root, ms_plan *plan)
{
    static const char *const members[] = {"peak",           "timed_bytes", "lower_bound_ns", "larger_budget",
                                          "smaller_budget", "forced",      "gigabyte_more"};
    ms_explanation *why = &plan->why;
    ms__json_at at;
    if (!ms__json_has(root, "explanation")) {
        return MS_OK;
    }
    int rc = ms__json_object(root, "explanation", &at);
    if (rc == MS_OK) {
        rc = ms__json_only(&at, members, COUNT(members));
    }
    if (rc == MS_OK) {
        rc = read_peak(&at, why);
    }
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, timed_field, COUNT(timed_field), why);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(&at, "lower_bound_ns", 1, INT64_MAX, 0, &why->lower_bound_ns);
    }
    if (rc == MS_OK) {
        rc = read_neighbour(&at, "larger_budget", &why->larger);
    }
    if (rc == MS_OK) {
        rc = read_neighbour(&at, "smaller_budget", &why->smaller);
    }
    if (rc == MS_OK) {
        rc = read_neighbour(&at, "gigabyte_more", &why->gigabyte);
    }
    if (rc == MS_OK) {
        rc = read_neighbour(&at, "forced", &why->forced);
    }
    why->known = rc == MS_OK;
    return rc;
}
