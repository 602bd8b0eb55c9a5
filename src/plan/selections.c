/*
 * A plan's selections: for each layer with a selective technique or two-valued saved storages, the dropped
 * and the bit-packed ones among its saved storages. Order and bytes identify them, so the executor needs no
 * graph. Filled with a plan, written with it and read back.
 */
#include <string.h>

#include "base/json_fields.h"
#include "base/units.h"
#include "plan/plan_internal.h"
#include "plan/selections.h"

enum { SELECTIONS_MOST = 1 << 20, SLOTS_MOST = 1 << 20 };

static const ms__json_field two_valued_fields[] = {
    MS__FIELD(ms_two_valued, slot, U32),
    MS__FIELD(ms_two_valued, packed, BOOL),
    MS__FIELD(ms_two_valued, saved_bytes, U64),
    MS__FIELD(ms_two_valued, cost_ns, U64),
};
enum { TWO_VALUED_FIELDS = sizeof two_valued_fields / sizeof two_valued_fields[0] };

void ms__selections_clear(ms_plan *plan)
{
    for (uint32_t i = 0; i < plan->selection_count; i++) {
        ms_free(plan->selections[i].slot_bytes);
        ms_free(plan->selections[i].dropped);
        ms_free(plan->selections[i].two_valued);
    }
    ms_free(plan->selections);
    plan->selections = NULL;
    plan->selection_count = 0;
}

static int make_arrays(ms_selection *selection, uint32_t count)
{
    selection->slot_bytes = ms_calloc(count, sizeof *selection->slot_bytes);
    selection->dropped = ms_calloc(count, 1);
    selection->slot_count = count;
    return selection->slot_bytes != NULL && selection->dropped != NULL ? MS_OK : MS_ENOMEM;
}

/* ---- filling -------------------------------------------------------------------- */

static uint32_t entry_set(const ms_plan_entry *entry)
{
    return ms_technique_of((ms_technique)entry->technique)->set;
}

/* Whether the entry drops anything or has two-valued storages. */
static bool has_selection(const ms__sim *sim, const ms_plan_entry *entry)
{
    const ms__sim_profile *profile = sim->nodes[entry->node].profile;
    return ms__selective_set(profile, (ms_technique)entry->technique) != NULL || entry->packing.tensors > 0;
}

/* An earlier entry with the same profile, set and bits. */
static uint32_t find_equal(const ms_graph *graph, const ms_plan *plan, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (plan->entries[i].selection != 0 && entry_set(&plan->entries[i]) == entry_set(&plan->entries[index]) &&
            plan->entries[i].packing.packed == plan->entries[index].packing.packed &&
            plan->entries[i].packing.tensors == plan->entries[index].packing.tensors &&
            graph->nodes[i].profile == graph->nodes[index].profile) {
            return plan->entries[i].selection;
        }
    }
    return 0;
}

/* Lists only storages that the executor looks at; smaller ones are never packed. */
static int selection_fill_two_valued(const ms__sim_profile *profile, const ms_plan_packing *packing,
                                     uint64_t least_bytes, ms_selection *selection)
{
    selection->two_valued = ms_calloc(profile->bits_count, sizeof *selection->two_valued);
    if (selection->two_valued == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t slot = 0; packing->tensors > 0 && slot < profile->save_count; slot++) {
        const ms__sim_bits *bits = &profile->bits[slot];
        if (bits->rank > 0 && selection->slot_bytes[slot] >= least_bytes) {
            selection->two_valued[selection->two_valued_count++] = (ms_two_valued){
                slot, bits->rank <= packing->packed, bits->saved_bytes, bits->pack_ns + bits->unpack_ns};
        }
    }
    return MS_OK;
}

static int selection_fill(const ms__sim *sim, const ms_plan *plan, const ms_plan_entry *entry, ms_selection *selection)
{
    const ms__sim_profile *profile = sim->nodes[entry->node].profile;
    const ms_profile *from = &sim->graph->profiles[sim->graph->nodes[entry->node].profile];
    const uint8_t *set = ms__selective_set(profile, (ms_technique)entry->technique);
    if (make_arrays(selection, profile->save_count) != MS_OK) {
        return MS_ENOMEM;
    }
    for (uint32_t slot = 0; slot < profile->save_count; slot++) {
        selection->slot_bytes[slot] = from->storage_bytes[profile->saved[slot]];
        selection->dropped[slot] = set != NULL && set[slot];
    }
    return selection_fill_two_valued(profile, &entry->packing, plan->offload_min_bytes, selection);
}

int ms__selections_fill(const ms__sim *sim, ms_plan *plan)
{
    plan->selections = ms_calloc(plan->entry_count, sizeof *plan->selections);
    if (plan->selections == NULL) {
        return MS_ENOMEM;
    }
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        ms_plan_entry *entry = &plan->entries[i];
        entry->selection = 0;
        if (!has_selection(sim, entry)) {
            continue;
        }
        uint32_t known = find_equal(sim->graph, plan, i);
        if (known == 0) {
            if (selection_fill(sim, plan, entry, &plan->selections[plan->selection_count++]) != MS_OK) {
                return MS_ENOMEM;
            }
            known = plan->selection_count;
        }
        entry->selection = known;
    }
    return MS_OK;
}

/* ---- writing -------------------------------------------------------------------- */

static void put_two_valued(ms__json_writer *writer, json_t *item, const ms_selection *selection)
{
    if (selection->two_valued_count == 0) {
        return;
    }
    json_t *list = ms__json_put_array(writer, item, "two_valued");
    for (uint32_t i = 0; i < selection->two_valued_count; i++) {
        ms__json_put_fields(writer, ms__json_add_object(writer, list), two_valued_fields, TWO_VALUED_FIELDS,
                            &selection->two_valued[i]);
    }
}

void ms__selections_put(ms__json_writer *writer, json_t *root, const ms_plan *plan)
{
    if (plan->selection_count == 0) {
        return;
    }
    json_t *out = ms__json_put_array(writer, root, "selections");
    for (uint32_t i = 0; i < plan->selection_count; i++) {
        const ms_selection *selection = &plan->selections[i];
        json_t *item = ms__json_add_object(writer, out);
        json_t *bytes = ms__json_put_array(writer, item, "slot_bytes");
        json_t *dropped = ms__json_put_array(writer, item, "dropped");
        for (uint32_t slot = 0; slot < selection->slot_count; slot++) {
            ms__json_add_u64(writer, bytes, selection->slot_bytes[slot]);
            if (selection->dropped[slot]) {
                ms__json_add_u64(writer, dropped, slot);
            }
        }
        put_two_valued(writer, item, selection);
    }
}

/* ---- reading -------------------------------------------------------------------- */

static int read_dropped(const ms__json_at *list, ms_selection *selection)
{
    int rc = MS_OK;
    for (size_t i = 0; rc == MS_OK && i < ms__json_count(list); i++) {
        uint64_t slot = 0;
        if (selection->slot_count == 0) {
            return ms__json_fail(list, MS_EFORMAT, "there are no slots");
        }
        rc = ms__json_item_u64(list, i, 0, selection->slot_count - 1, &slot);
        if (rc == MS_OK && selection->dropped[slot]) {
            rc = ms__json_fail(list, MS_EFORMAT, "a slot is listed twice");
        }
        if (rc == MS_OK) {
            selection->dropped[slot] = 1;
        }
    }
    return rc;
}

static int read_one_two_valued(const ms__json_at *list, size_t index, ms_selection *selection)
{
    ms_two_valued *one = &selection->two_valued[index];
    ms__json_at at;
    int rc = ms__json_item_object(list, index, &at);
    if (rc == MS_OK) {
        rc = ms__json_read_fields(&at, two_valued_fields, TWO_VALUED_FIELDS, one);
    }
    if (rc == MS_OK) { /* the bound is the selection's */
        rc = ms__json_u32(&at, "slot", 0, selection->slot_count - 1, &one->slot);
    }
    if (rc == MS_OK && index > 0 && one->slot <= one[-1].slot) {
        rc = ms__json_fail(&at, MS_EFORMAT, "slots do not ascend");
    }
    return rc == MS_OK ? ms__json_only_count(&at, TWO_VALUED_FIELDS) : rc;
}

static int read_two_valued(const ms__json_at *item, ms_selection *selection)
{
    ms__json_at list;
    if (!ms__json_has(item, "two_valued")) {
        return MS_OK;
    }
    int rc;
    selection->two_valued = ms__json_items(item, "two_valued", selection->slot_count, sizeof *selection->two_valued,
                                           &list, &selection->two_valued_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < selection->two_valued_count; i++) {
        rc = read_one_two_valued(&list, i, selection);
    }
    return rc;
}

static int read_selection(const ms__json_at *item, ms_selection *selection)
{
    static const char *const names[] = {"slot_bytes", "dropped", "two_valued"};
    ms__json_at bytes, dropped;
    int rc = ms__json_only(item, names, sizeof names / sizeof names[0]);
    if (rc == MS_OK) {
        rc = ms__json_array(item, names[0], &bytes);
    }
    if (rc == MS_OK) {
        rc = ms__json_array(item, names[1], &dropped);
    }
    if (rc == MS_OK && ms__json_count(&bytes) > SLOTS_MOST) {
        rc = ms__json_fail(&bytes, MS_EFORMAT, "more than %d slots", SLOTS_MOST);
    }
    if (rc == MS_OK && make_arrays(selection, (uint32_t)ms__json_count(&bytes)) != MS_OK) {
        rc = ms__json_fail(&bytes, MS_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; rc == MS_OK && i < selection->slot_count; i++) {
        rc = ms__json_item_u64(&bytes, i, 0, INT64_MAX, &selection->slot_bytes[i]);
    }
    if (rc == MS_OK) {
        rc = read_dropped(&dropped, selection);
    }
    return rc != MS_OK ? rc : read_two_valued(item, selection);
}

int ms__selections_read(const ms__json_at *root, ms_plan *plan)
{
    ms__json_at list, item;
    if (!ms__json_has(root, "selections")) {
        return MS_OK;
    }
    int rc;
    plan->selections = ms__json_items(root, "selections", SELECTIONS_MOST, sizeof *plan->selections, &list,
                                      &plan->selection_count, &rc);
    for (uint32_t i = 0; rc == MS_OK && i < plan->selection_count; i++) {
        rc = ms__json_item_object(&list, i, &item);
        if (rc == MS_OK) {
            rc = read_selection(&item, &plan->selections[i]);
        }
    }
    return rc;
}

int ms__selections_read_entry(const ms__json_at *entry, const ms_plan *plan, ms_plan_entry *out)
{
    uint32_t index = 0;
    if (!ms__json_has(entry, "selection")) {
        return MS_OK;
    }
    if (plan->selection_count == 0) {
        return ms__json_fail(entry, MS_EFORMAT, "a selection, but the plan has none");
    }
    int rc = ms__json_u32(entry, "selection", 0, plan->selection_count - 1, &index);
    out->selection = index + 1;
    return rc;
}
