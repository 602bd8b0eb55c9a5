/*
 * Selects the fastest candidate that fits. Called by the search, which proposes the candidates.
 *
 * Why the choice is monotone. A *variant* is a candidate with a cache of a stated size; its time and bytes do
 * not depend on the budget. The variants eligible at a budget include all that are eligible at a smaller one,
 * and the order among variants is total. So a larger budget never gives a slower plan, and if it gives
 * another plan, that plan takes more bytes and did not fit the smaller budget. The rest of the budget goes to
 * the cache too, up to the size of an unoptimized run: it can only help, and the predicted time doesn't count it.
 *
 * At low pressure, the light candidates are eligible, and all that fit the budget at which low pressure begins.
 * So the sets stay nested.
 */
#include "search/select.h"

#include <stdlib.h>
#include <string.h>

#include "base/units.h"

/* ---- variants --------------------------------------------------------------------- */

ms__variant ms__variant_of(const ms__search *search, size_t candidate, uint64_t slack_bytes)
{
    uint64_t peak = ms__candidate_peak(&search->items[candidate]);
    return (ms__variant){.candidate = candidate, .slack_bytes = slack_bytes, .bytes = ms__add_sat(peak, slack_bytes)};
}

void ms__variant_replay(ms__search *search, ms__variant *variant)
{
    if (variant->replayed) {
        return;
    }
    const ms__candidate *candidate = &search->items[variant->candidate];
    ms__search_use(search, candidate->step);
    uint64_t ceiling = search->sim->on_host ? ms__add_sat(candidate->live_peak_bytes, variant->slack_bytes) : 0;
    const uint8_t *row = ms__candidate_row(search, variant->candidate);
    ms_choices choices = ms__search_choices(search, row, candidate->window, ceiling);
    ms__outcome outcome;
    ms__sim_run(search->sim, &choices, &outcome, NULL);
    variant->replay = outcome.replay;
    variant->replayed = true;
}

/* Sixteenths of the bytes that an unbounded cache would hold beyond the live peak. */
static const uint64_t slack_sixteenths[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
enum { SLACK_STEPS = sizeof slack_sixteenths / sizeof slack_sixteenths[0] };

static uint64_t slack_of(const ms__candidate *candidate, uint32_t step)
{
    uint64_t most = ms__sub_sat(candidate->held_most_bytes, candidate->live_peak_bytes);
    return ms__mul_div(most, slack_sixteenths[step], 16);
}

static int compare_variants(const void *left, const void *right)
{
    const ms__variant *a = left, *b = right;
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes ? -1 : 1;
    }
    if (a->candidate != b->candidate) {
        return a->candidate < b->candidate ? -1 : 1;
    }
    return (a->slack_bytes > b->slack_bytes) - (a->slack_bytes < b->slack_bytes);
}

int ms__variants_make(ms__search *search, const size_t *finalists, size_t count, uint64_t most_bytes,
                      ms__variants *variants)
{
    variants->count = 0;
    variants->items = ms_calloc(count * SLACK_STEPS, sizeof *variants->items);
    if (variants->items == NULL) {
        return MS_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        const ms__candidate *candidate = &search->items[finalists[i]];
        for (uint32_t step = 0; step < (search->sim->on_host ? (uint32_t)SLACK_STEPS : 1u); step++) {
            uint64_t slack = slack_of(candidate, step);
            ms__variant variant = ms__variant_of(search, finalists[i], slack);
            bool repeated = step > 0 && slack == slack_of(candidate, step - 1);
            if (!repeated && (step == 0 || variant.bytes <= most_bytes)) {
                variants->items[variants->count++] = variant;
            }
        }
    }
    qsort(variants->items, variants->count, sizeof *variants->items, compare_variants);
    return MS_OK;
}

void ms__variants_free(ms__variants *variants)
{
    ms_free(variants->items);
    variants->items = NULL;
    variants->count = 0;
}

/* ---- selection -------------------------------------------------------------------- */

/* A more exact class wins, whatever the time: rounding is for budgets that nothing exact fits. */
bool ms__variant_better(const ms__search *search, const ms__variant *a, const ms__variant *b)
{
    ms_exactness class_a = ms__candidate_exactness(search, a->candidate);
    ms_exactness class_b = ms__candidate_exactness(search, b->candidate);
    if (class_a != class_b) {
        return class_a < class_b;
    }
    if (a->replay.step_ns != b->replay.step_ns) {
        return a->replay.step_ns < b->replay.step_ns;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes;
    }
    int order = ms__candidate_compare(search, a->candidate, b->candidate);
    return order != 0 ? order < 0 : a->slack_bytes < b->slack_bytes;
}

bool ms__variant_fits(const ms__search *search, const ms__bounds *bounds, const ms__variant *variant)
{
    bool light = search->items[variant->candidate].light;
    return variant->bytes <= (light ? bounds->allowed_bytes : bounds->heavy_bytes);
}

bool ms__variant_in_time(const ms__bounds *bounds, const ms__variant *variant)
{
    return variant->replay.step_ns >= bounds->least_ns && variant->replay.step_ns <= bounds->most_ns;
}

/* No cache makes a candidate faster than its work and its stalls. */
bool ms__variant_hopeless(const ms__search *search, const ms__variant *variant, const ms__variant *best)
{
    ms_exactness mine = ms__candidate_exactness(search, variant->candidate);
    ms_exactness others = ms__candidate_exactness(search, best->candidate);
    return mine != others ? mine > others : search->items[variant->candidate].work_ns > best->replay.step_ns;
}

const ms__variant *ms__select(ms__search *search, ms__variants *variants, const ms__bounds *bounds)
{
    const ms__variant *best = NULL;
    for (size_t i = 0; i < variants->count && variants->items[i].bytes <= bounds->allowed_bytes; i++) {
        ms__variant *tried = &variants->items[i];
        bool hopeless = best != NULL && ms__variant_hopeless(search, tried, best);
        if (hopeless || !ms__variant_fits(search, bounds, tried)) {
            continue;
        }
        ms__variant_replay(search, tried);
        if (ms__variant_in_time(bounds, tried) && (best == NULL || ms__variant_better(search, tried, best))) {
            best = tried;
        }
    }
    return best;
}

const ms__variant *ms__select_least(ms__search *search, ms__variants *variants, const ms__bounds *bounds)
{
    for (size_t i = 0; i < variants->count && variants->items[i].bytes <= bounds->allowed_bytes; i++) {
        ms__variant *tried = &variants->items[i];
        if (ms__variant_fits(search, bounds, tried)) {
            ms__variant_replay(search, tried);
            if (ms__variant_in_time(bounds, tried)) {
                return tried;
            }
        }
    }
    return NULL;
}

/* ---- forced and over target ---------------------------------------------------------- */

/* The tensors' peak first, then the peak of forward and backward, then the bytes live between them: in a
 * tiny model the first is the optimizer's under every technique. */
static int compare_tensors(const ms__candidate *a, const ms__candidate *b)
{
    const uint64_t left[] = {a->live_peak_bytes, a->activation_peak_bytes, a->boundary_bytes};
    const uint64_t right[] = {b->live_peak_bytes, b->activation_peak_bytes, b->boundary_bytes};
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        if (left[i] != right[i]) {
            return left[i] < right[i] ? -1 : 1;
        }
    }
    return 0;
}

/* The peak with the slab, which is not a tensor, then tensors, then time. */
static bool forced_is_smaller(const ms__search *search, size_t left, size_t right)
{
    const ms__candidate *a = &search->items[left], *b = &search->items[right];
    uint64_t peak_a = ms__candidate_peak(a), peak_b = ms__candidate_peak(b);
    if (peak_a != peak_b) {
        return peak_a < peak_b;
    }
    int order = compare_tensors(a, b);
    return order != 0 ? order < 0 : ms__candidate_compare(search, left, right) < 0;
}

/* A forced plan shrinks the tensors if any technique can, even if every admitted technique needs a slab
 * larger than the bytes it frees. Keeping everything, the first candidate, is chosen only if nothing
 * shrinks them. */
size_t ms__select_forced(const ms__search *search)
{
    size_t best = 0;
    for (size_t i = 1; i < search->count; i++) {
        bool shrinks = compare_tensors(&search->items[i], &search->items[0]) < 0;
        best = shrinks && (best == 0 || forced_is_smaller(search, i, best)) ? i : best;
    }
    return best;
}

/* The first candidate keeps all and is exact. */
static size_t smallest_peak(const ms__search *search, ms_exactness most)
{
    size_t best = 0;
    for (size_t i = 1; i < search->count; i++) {
        uint64_t a = ms__candidate_peak(&search->items[i]), b = ms__candidate_peak(&search->items[best]);
        bool smaller_or_faster = a < b || (a == b && ms__candidate_compare(search, i, best) < 0);
        if (smaller_or_faster && ms__candidate_exactness(search, i) <= most) {
            best = i;
        }
    }
    return best;
}

size_t ms__select_smallest_peak(const ms__search *search)
{
    return smallest_peak(search, MS_LOSSY);
}

size_t ms__select_smallest_exact(const ms__search *search)
{
    return smallest_peak(search, MS_EXACT);
}
