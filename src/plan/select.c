/*
 * Selects among candidates the fastest that fits. Called by the solver; which
 * candidates there are is not decided here.
 *
 * Why the choice is monotone. A *variant* is a candidate with a cache of a stated
 * size; its time and the bytes it requires do not depend on the budget. The set that
 * may be chosen from at a budget contains every set of a smaller one, and the order
 * among variants is total. So a larger budget never gives a slower plan; and where it
 * gives another plan, that one did not fit the smaller budget, hence requires more.
 * What the budget leaves beyond a variant's cache is given to the cache as well, up to
 * what an unoptimized run would hold: it can only help, and no time is claimed for it.
 *
 * At low pressure only light candidates may be chosen from, plus whatever already fits
 * the budget at which low pressure begins: so the sets stay nested.
 */
#include "plan/select.h"

#include "base/units.h"

enum { SLACK_STEPS = 6 };

/* ---- variants --------------------------------------------------------------------- */

/* What the variant takes of the device. */
uint64_t ms__variant_bytes(const ms__search *search, const ms__variant *variant)
{
    return ms__add_sat(ms__candidate_peak(&search->items[variant->candidate]), variant->slack_bytes);
}

static uint64_t slack_of(const ms__candidate *candidate, uint32_t step)
{
    uint64_t most = ms__sub_sat(candidate->held_most_bytes, candidate->live_peak_bytes);
    return step == 0 ? 0 : most >> (SLACK_STEPS - 1 - step);
}

void ms__variant_replay(ms__search *search, ms__variant *variant)
{
    const ms__candidate *candidate = &search->items[variant->candidate];
    uint64_t ceiling = search->sim->on_host ? candidate->live_peak_bytes + variant->slack_bytes : 0;
    ms_choices choices =
        ms__search_choices(search, ms__candidate_techniques(search, variant->candidate), candidate->window, ceiling);
    ms__outcome outcome;
    ms__sim_run(search->sim, &choices, &outcome, NULL);
    variant->replay = outcome.replay;
}

/* Is a the better choice? A total order. */
static bool better(const ms__search *search, const ms__variant *a, const ms__variant *b)
{
    if (a->replay.step_ns != b->replay.step_ns) {
        return a->replay.step_ns < b->replay.step_ns;
    }
    uint64_t left = ms__variant_bytes(search, a), right = ms__variant_bytes(search, b);
    if (left != right) {
        return left < right;
    }
    int order = ms__candidate_compare(search, a->candidate, b->candidate);
    return order != 0 ? order < 0 : a->slack_bytes < b->slack_bytes;
}

static bool eligible(const ms__search *search, const ms__bounds *bounds, const ms__variant *variant)
{
    uint64_t bytes = ms__variant_bytes(search, variant);
    uint64_t limit = search->items[variant->candidate].light ? bounds->allowed_bytes : bounds->heavy_bytes;
    return bytes <= limit && (bytes <= bounds->most_bytes || variant->slack_bytes == 0);
}

bool ms__select(ms__search *search, const ms__bounds *bounds, const size_t *finalists, size_t count,
                           ms__variant *best)
{
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        const ms__candidate *candidate = &search->items[finalists[i]];
        for (uint32_t step = 0; step < SLACK_STEPS; step++) {
            ms__variant tried = {.candidate = finalists[i], .slack_bytes = slack_of(candidate, step)};
            bool repeated = step > 0 && tried.slack_bytes == slack_of(candidate, step - 1);
            if (repeated || (step > 0 && !search->sim->on_host) || !eligible(search, bounds, &tried)) {
                continue;
            }
            ms__variant_replay(search, &tried);
            if (!found || better(search, &tried, best)) {
                *best = tried;
                found = true;
            }
        }
    }
    return found;
}

/* ---- forced and over target ---------------------------------------------------------- */

/* A forced plan presses on every layer also where the peak lies elsewhere (in a tiny
 * model the optimizer): tensors' peak first, then the peak of forward and backward, then
 * what lives between them, then time. The slab is no tensor. */
static bool smaller(const ms__search *search, size_t left, size_t right)
{
    const ms__candidate *a = &search->items[left], *b = &search->items[right];
    if (a->live_peak_bytes != b->live_peak_bytes) {
        return a->live_peak_bytes < b->live_peak_bytes;
    }
    if (a->activation_peak_bytes != b->activation_peak_bytes) {
        return a->activation_peak_bytes < b->activation_peak_bytes;
    }
    if (a->boundary_bytes != b->boundary_bytes) {
        return a->boundary_bytes < b->boundary_bytes;
    }
    return ms__candidate_compare(search, left, right) < 0;
}

size_t ms__select_smallest_tensors(const ms__search *search)
{
    size_t best = 0;
    for (size_t i = 1; i < search->count; i++) {
        best = smaller(search, i, best) ? i : best;
    }
    return best;
}

size_t ms__select_smallest_peak(const ms__search *search)
{
    size_t best = 0;
    for (size_t i = 1; i < search->count; i++) {
        uint64_t a = ms__candidate_peak(&search->items[i]), b = ms__candidate_peak(&search->items[best]);
        if (a < b || (a == b && ms__candidate_compare(search, i, best) < 0)) {
            best = i;
        }
    }
    return best;
}

