/*
 * The plans for the next smaller and the next larger budget. With the variants sorted by bytes, a budget's plan
 * is the best variant up to that budget (select.c). So the neighbours are where that best changes to another
 * candidate. A plan that differs only by its cache is not a neighbour. Called by the search, which holds the list.
 */
#include <string.h>

#include "base/units.h"
#include "plan/explain_internal.h"

typedef struct neighbour_walk {
    ms__search *search;
    ms__variants *variants;
    const ms__bounds *bounds;
    uint64_t most_bytes;
} neighbour_walk;

static uint64_t expected_peak(ms__search *search, const ms__variant *variant, uint64_t room_bytes)
{
    ms_replay expected = variant->replay;
    ms__plan_expect(search, variant, ms__plan_peak(search, variant, room_bytes), &expected);
    return expected.peak_bytes;
}

/* A plan fills the rest of its budget, up to the bytes of its candidate and of an unoptimized run, as in
 * ms__plan_fill(). */
static ms_neighbour neighbour_of(const neighbour_walk *w, const ms__variant *variant, uint64_t budget_bytes)
{
    return (ms_neighbour){.budget_bytes = budget_bytes,
                          .peak_bytes = expected_peak(w->search, variant, ms__min_u64(budget_bytes, w->most_bytes)),
                          .step_ns = variant->replay.step_ns};
}

/* Whether the variant becomes the best once it fits. `open` has no budget. */
static bool takes_over(const neighbour_walk *w, const ms__bounds *open, const ms__variant *best, ms__variant *variant)
{
    bool hopeless = best != NULL && ms__variant_hopeless(w->search, variant, best);
    if (hopeless || !ms__variant_fits(w->search, open, variant)) {
        return false;
    }
    ms__variant_replay(w->search, variant);
    return ms__variant_in_time(open, variant) && (best == NULL || ms__variant_better(w->search, variant, best));
}

static void find_neighbours(const neighbour_walk *w, uint64_t heavy_bytes, const ms__variant *chosen,
                            ms_explanation *why)
{
    ms__bounds open = *w->bounds;
    open.allowed_bytes = UINT64_MAX;
    open.heavy_bytes = heavy_bytes;
    const ms__variant *best = NULL;
    for (size_t i = 0; i < w->variants->count;) {
        const ms__variant *before = best;
        uint64_t budget = w->variants->items[i].bytes;
        for (; i < w->variants->count && w->variants->items[i].bytes == budget; i++) {
            best = takes_over(w, &open, best, &w->variants->items[i]) ? &w->variants->items[i] : best;
        }
        if (best == NULL) {
            continue;
        }
        bool mine = best->candidate == chosen->candidate;
        if (budget > w->bounds->allowed_bytes && !mine) {
            why->larger = neighbour_of(w, best, budget);
            return;
        }
        if (budget <= w->bounds->allowed_bytes && mine && before != NULL && before->candidate != best->candidate) {
            why->smaller = neighbour_of(w, before, budget - 1);
        }
    }
}

enum { GIGABYTE = 1000000000 };

/* The plan for 1 GB more, of a GPU's memory. */
static void find_gigabyte(const neighbour_walk *w, uint64_t heavy_bytes, ms_explanation *why)
{
    ms__bounds more = *w->bounds;
    if (w->search->sim->on_host) {
        return;
    }
    more.allowed_bytes = ms__add_sat(more.allowed_bytes, GIGABYTE);
    more.heavy_bytes = ms__min_u64(more.allowed_bytes, heavy_bytes);
    const ms__variant *best = ms__select(w->search, w->variants, &more);
    if (best != NULL) {
        why->gigabyte = neighbour_of(w, best, more.allowed_bytes);
    }
}

/* The smallest budget at which everything kept is a comfortable fit. */
static uint64_t comfortable_bytes(const ms_pressure *pressure)
{
    return ms__mul_div_up(pressure->need_bytes, 1000, MS_COMFORTABLE_PERMILLE);
}

static bool keeps_all(const ms__search *search, const ms__variant *variant)
{
    const uint8_t *row = ms__candidate_row(search, variant->candidate);
    bool changed = search->steps[search->items[variant->candidate].step].options != 0;
    for (uint32_t i = 0; i < search->row_bytes; i++) { /* KEEP, and nothing packed */
        changed = changed || row[i] != MS_TECHNIQUE_KEEP;
    }
    return !changed;
}

void ms__explain_neighbours(ms__search *search, ms__variants *variants, const ms__bounds *bounds,
                            const ms__variant *chosen, uint64_t most_bytes, ms_plan *plan)
{
    neighbour_walk w = {search, variants, bounds, most_bytes};
    ms_explanation *why = &plan->why;
    const ms_pressure *pressure = &plan->pressure;
    uint64_t begins = ms__mul_div_up(pressure->need_bytes, 1000, MS_LOW_PRESSURE_PERMILLE);
    uint64_t smallest = ms__candidate_peak(&search->items[ms__select_smallest_exact(search)]);
    find_neighbours(&w, ms__max_u64(begins, smallest), chosen, why);
    find_gigabyte(&w, ms__max_u64(begins, smallest), why);
    uint64_t comfortable = comfortable_bytes(pressure);
    bool none = why->larger.budget_bytes == 0 || why->larger.budget_bytes >= comfortable;
    if (none && !keeps_all(search, chosen) && comfortable > bounds->allowed_bytes) {
        ms__variant kept = ms__variant_of(search, 0, 0);
        why->larger = (ms_neighbour){
            .budget_bytes = comfortable,
            .peak_bytes = expected_peak(search, &kept, ms__min_u64(comfortable, most_bytes)),
            .step_ns = plan->unoptimized.step_ns,
        };
    } else if (none) {
        why->larger = (ms_neighbour){0};
    }
}
