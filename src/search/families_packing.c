/*
 * Candidates with bit packing: takes the best candidates without it, and packs all of their two-valued storages,
 * or those that are cheapest per byte. Called by solver.c after the other families. Each tensor is an item. Items
 * are taken in that one order, not in every combination, because a byte costs nearly the same in all of them;
 * that keeps the list short.
 */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "search/search.h"

/* All of them first: if replays run out, the finer parts are skipped. */
static const uint32_t parts[] = {8, 4, 2, 6, 1, 3, 5, 7};
enum { BASES_MOST = 32, PARTS = sizeof parts / sizeof parts[0] };

typedef struct packing_item {
    uint32_t node;
    uint32_t rank; /* in the node */
    uint64_t ns, saved_bytes;
} packing_item;

typedef struct packing_items {
    packing_item *list;
    size_t count;
} packing_items;

static int compare_price(const void *left, const void *right)
{
    const packing_item *a = left, *b = right;
    int order = ms__compare_quotients(a->ns, a->saved_bytes, b->ns, b->saved_bytes);
    if (order != 0) {
        return order;
    }
    return a->node != b->node ? (a->node > b->node) - (a->node < b->node) : (a->rank > b->rank) - (a->rank < b->rank);
}

/* The two-valued storages that the scratch's techniques leave in memory, cheapest per byte first. */
static void list_items(const ms__search *search, packing_items *found)
{
    found->count = 0;
    for (uint32_t i = 0; i < search->node_count; i++) {
        const ms__sim_profile *profile = search->sim->nodes[i].profile;
        bool may = ms__search_packs(search, i) > 0 && ms__bits_possible((ms_technique)search->scratch[i]);
        for (uint32_t s = 0; may && s < profile->save_count; s++) {
            const ms__sim_bits *bits = &profile->bits[s];
            if (bits->rank > 0 && ms__search_may_pack(search, bits)) {
                found->list[found->count++] =
                    (packing_item){i, bits->rank, ms__add_sat(bits->pack_ns, bits->unpack_ns), bits->saved_bytes};
            }
        }
    }
    qsort(found->list, found->count, sizeof *found->list, compare_price);
}

static void take_items(ms__search *search, const packing_items *from, size_t count)
{
    uint8_t *packed = search->scratch + search->node_count;
    memset(packed, 0, search->node_count);
    for (size_t i = 0; i < count; i++) {
        const packing_item *one = &from->list[i];
        packed[one->node] = (uint8_t)ms__max_u64(packed[one->node], one->rank);
    }
}

/* Adds a candidate that packs `part` eighths of the items of another. */
static void pack_part(ms__search *search, size_t base, packing_items *found, uint32_t part)
{
    ms__search_load(search, base);
    list_items(search, found);
    if (found->count > 0) {
        take_items(search, found, ms__div_up(found->count * part, PARTS));
        ms__search_add(search, search->items[base].window, false);
    }
}

/* Enough for any step: options can change a layer's saved storages. */
static bool reserve_items(const ms__search *search, packing_items *found)
{
    size_t most = 1;
    for (uint32_t step = 0; step < search->step_count; step++) {
        const ms__sim *sim = search->steps[step].sim;
        most = sim->slot_count > most ? sim->slot_count : most;
    }
    found->list = ms_calloc(most, sizeof *found->list);
    return found->list != NULL;
}

void ms__families_packing(ms__search *search)
{
    packing_items found = {0};
    size_t bases[2 * BASES_MOST];
    if (!reserve_items(search, &found)) {
        search->out_of_memory = true;
        return;
    }
    size_t count = ms__search_front(search, MS__FRONT_UNCACHED, false, search->count, bases, BASES_MOST);
    count += ms__search_front(search, MS__FRONT_CACHED, false, search->count, bases + count, BASES_MOST);
    for (size_t p = 0; p < PARTS; p++) {
        for (size_t i = 0; i < count; i++) {
            pack_part(search, bases[i], &found, parts[p]);
        }
    }
    ms__search_keep_all(search);
    ms_free(found.list);
}

void ms__families_packing_moves(ms__search *search)
{
    packing_items found = {0};
    if (!reserve_items(search, &found)) {
        search->out_of_memory = true;
        return;
    }
    size_t count = search->row_bytes > search->node_count ? search->count : 0;
    for (size_t i = 0; i < count && !search->out_of_memory; i++) {
        if (ms__search_moves(search, ms__candidate_row(search, i))) {
            pack_part(search, i, &found, PARTS);
        }
    }
    ms__search_keep_all(search);
    ms_free(found.list);
}
