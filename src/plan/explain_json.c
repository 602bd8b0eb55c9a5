/*
 * The explanation as the member "explanation" of a plan's document, written and read back
 * strictly. Called by plan_json.c. A plan without a graph has none, and a document from
 * before there was one is read without it.
 */
#include "base/units.h"
#include "plan/explain_internal.h"

enum { PARTS_MOST = 1 << 24 };

/* ---- writing ------------------------------------------------------------------------- */

static void put_neighbour(ms__json_writer *writer, json_t *object, const char *name, const ms_neighbour *neighbour)
{
    if (neighbour->budget_bytes == 0) {
        ms__json_put_null(writer, object, name);
        return;
    }
    json_t *item = ms__json_put_object(writer, object, name);
    ms__json_put_saturated(writer, item, "budget_bytes", neighbour->budget_bytes);
    ms__json_put_saturated(writer, item, "peak_bytes", neighbour->peak_bytes);
    ms__json_put_saturated(writer, item, "step_ns", neighbour->step_ns);
}

static void put_parts(ms__json_writer *writer, json_t *peak, const ms_explanation *why)
{
    json_t *parts = ms__json_put_array(writer, peak, "parts");
    for (uint32_t i = 0; i < why->part_count; i++) {
        const ms_peak_part *part = &why->parts[i];
        json_t *item = ms__json_add_object(writer, parts);
        ms__json_put_string(writer, item, "kind", ms_peak_kind_name((ms_peak_kind)part->kind));
        ms__json_put_u64_or_null(writer, item, "node", part->node, MS_NO_NODE);
        ms__json_put_saturated(writer, item, "storages", part->storages);
        ms__json_put_saturated(writer, item, "bytes", part->bytes);
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
    ms__json_put_string(writer, peak, "phase", ms_step_phase_name((ms_step_phase)why->peak_phase));
    ms__json_put_saturated(writer, peak, "event", why->peak_event);
    ms__json_put_bool(writer, peak, "again", why->peak_again);
    put_parts(writer, peak, why);
    ms__json_put_saturated(writer, object, "timed_bytes", why->timed_bytes);
    ms__json_put_u64_or_null(writer, object, "lower_bound_ns", ms__min_u64(why->lower_bound_ns, INT64_MAX), 0);
    put_neighbour(writer, object, "larger_budget", &why->larger);
    put_neighbour(writer, object, "smaller_budget", &why->smaller);
}

/* ---- reading --------------------------------------------------------------------------- */

static int read_neighbour(const ms__json_at *at, const char *name, ms_neighbour *neighbour)
{
    static const char *const names[] = {"budget_bytes", "peak_bytes", "step_ns"};
    ms__json_at item;
    if (!ms__json_has(at, name)) {
        return MS_OK;
    }
    int rc = ms__json_object(at, name, &item);
    if (rc == MS_OK) {
        rc = ms__json_only(&item, names, sizeof names / sizeof names[0]);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(&item, "budget_bytes", 1, INT64_MAX, &neighbour->budget_bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(&item, "peak_bytes", 0, INT64_MAX, &neighbour->peak_bytes);
    }
    return rc != MS_OK ? rc : ms__json_u64(&item, "step_ns", 0, INT64_MAX, &neighbour->step_ns);
}

static int read_part(const ms__json_at *at, ms_peak_part *part)
{
    static const char *const members[] = {"kind", "node", "storages", "bytes"};
    const char *names[MS_PEAK_KIND_COUNT];
    size_t kind = 0;
    uint64_t node = MS_NO_NODE;
    for (int i = 0; i < MS_PEAK_KIND_COUNT; i++) {
        names[i] = ms_peak_kind_name((ms_peak_kind)i);
    }
    int rc = ms__json_only(at, members, sizeof members / sizeof members[0]);
    if (rc == MS_OK) {
        rc = ms__json_enum(at, "kind", names, MS_PEAK_KIND_COUNT, &kind);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64_or(at, "node", 0, MS_NO_NODE - 1, MS_NO_NODE, &node);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(at, "storages", 0, UINT32_MAX, &part->storages);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(at, "bytes", 0, INT64_MAX, &part->bytes);
    }
    part->kind = (uint32_t)kind;
    part->node = (uint32_t)node;
    return rc;
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
    static const char *const members[] = {"phase", "event", "again", "parts"};
    const char *names[MS_PHASE_COUNT];
    size_t phase = 0;
    ms__json_at peak;
    for (int i = 0; i < MS_PHASE_COUNT; i++) {
        names[i] = ms_step_phase_name((ms_step_phase)i);
    }
    int rc = ms__json_object(at, "peak", &peak);
    if (rc == MS_OK) {
        rc = ms__json_only(&peak, members, sizeof members / sizeof members[0]);
    }
    if (rc == MS_OK) {
        rc = ms__json_enum(&peak, "phase", names, MS_PHASE_COUNT, &phase);
    }
    if (rc == MS_OK) {
        rc = ms__json_u32(&peak, "event", 0, UINT32_MAX, &why->peak_event);
    }
    if (rc == MS_OK) {
        rc = ms__json_bool(&peak, "again", &why->peak_again);
    }
    why->peak_phase = (uint32_t)phase;
    return rc != MS_OK ? rc : read_parts(&peak, why);
}

int ms__explanation_read(const ms__json_at *root, ms_plan *plan)
{
    static const char *const members[] = {"peak", "timed_bytes", "lower_bound_ns", "larger_budget", "smaller_budget"};
    ms_explanation *why = &plan->why;
    ms__json_at at;
    if (!ms__json_has(root, "explanation")) {
        return MS_OK;
    }
    int rc = ms__json_object(root, "explanation", &at);
    if (rc == MS_OK) {
        rc = ms__json_only(&at, members, sizeof members / sizeof members[0]);
    }
    if (rc == MS_OK) {
        rc = read_peak(&at, why);
    }
    if (rc == MS_OK) {
        rc = ms__json_u64(&at, "timed_bytes", 0, INT64_MAX, &why->timed_bytes);
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
    why->known = rc == MS_OK;
    return rc;
}
