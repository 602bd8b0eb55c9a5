/*
 * The families of candidates: uniform plans, the chain split into kept and treated layers in several
 * patterns, greedy orders for uneven chains, and neighbours of the best so far. Graph and rules alone decide
 * which are proposed. solver.c calls them in the order of this file.
 */
#include <string.h>

#include "base/units.h"
#include "search/search.h"

enum { GRID_FINE = 12, GRID_COARSE = 6, REFINE_FRONT = 32, REFINE_NODES = 24, REFINE_ROUNDS = 2 };

/* The positions of the kept layers. KEEP_ENDS keeps the last one, whose saved tensors backward needs
 * before they could be freed, and the rest from the first on. */
typedef enum layout { KEEP_LAST, KEEP_FIRST, KEEP_ENDS, SPREAD, INTERLEAVED } layout;

/* Whether item `i` is one of `chosen` evenly spread among `count`. */
static bool is_spread(uint32_t i, uint32_t chosen, uint32_t count)
{
    return (uint64_t)(i + 1) * chosen / count > (uint64_t)i * chosen / count;
}

/* 0: kept, 1: the first technique, 2: the second; `keep` and `first` are counts. */
static int layout_part(layout where, uint32_t i, uint32_t count, uint32_t keep, uint32_t first)
{
    switch (where) {
    case KEEP_FIRST:
        return i < keep ? 0 : i < keep + first ? 1 : 2;
    case KEEP_ENDS:
        return keep > 0 && (i + 1 == count || i + 1 < keep) ? 0 : i + 1 < keep + first ? 1 : 2;
    case SPREAD: {
        if (is_spread(i, keep, count)) {
            return 0;
        }
        uint32_t before = i - (uint32_t)((uint64_t)i * keep / count);
        return is_spread(before, first, count - keep) ? 1 : 2;
    }
    case INTERLEAVED:
        return i >= count - keep ? 0 : is_spread(i, first, count - keep) ? 1 : 2;
    default:
        return i >= count - keep ? 0 : i < first ? 1 : 2;
    }
}

void ms__families_set_roots(ms__search *search, bool moved)
{
    for (uint32_t i = 0; i < search->root_count; i++) {
        uint32_t node = search->roots[i];
        search->scratch[node] =
            moved ? ms__search_pick(search, node, (ms_technique)search->root_technique, MS_TECHNIQUE_KEEP)
                  : (uint8_t)MS_TECHNIQUE_KEEP;
    }
}

static void set_layers(ms__search *search, layout where, uint32_t keep, uint32_t first, ms_technique one,
                       ms_technique two)
{
    for (uint32_t i = 0; i < search->layer_count; i++) {
        uint32_t node = search->layers[i];
        int part = layout_part(where, i, search->layer_count, keep, first);
        search->scratch[node] = part == 0   ? (uint8_t)MS_TECHNIQUE_KEEP
                                : part == 1 ? ms__search_pick(search, node, one, two)
                                            : ms__search_pick(search, node, two, one);
    }
}

static void add_windows(ms__search *search, bool must)
{
    for (uint32_t window = 0; window < MS__WINDOW_COUNT; window++) {
        ms__search_add(search, window, must);
    }
}

static bool families_layers_may(const ms__search *search, int technique)
{
    return technique != MS_TECHNIQUE_KEEP && (search->layer_techniques & 1u << technique) != 0;
}

/* ---- uniform -------------------------------------------------------------------- */

/* Root work can only move; techniques that replay layers leave it alone. */
void ms__families_one(ms__search *search, ms_technique technique)
{
    ms__search_keep_all(search);
    for (uint32_t i = 0; i < search->node_count; i++) {
        search->scratch[i] = ms__search_pick(search, i, technique, MS_TECHNIQUE_KEEP);
    }
    add_windows(search, true);
}

/* A yardstick: exempt from the restriction to light candidates at low pressure. */
static void mark_uniform(ms__search *search, size_t from)
{
    for (size_t i = from; i < search->count; i++) {
        search->items[i].uniform = true;
        search->items[i].light = true;
    }
}

void ms__families_everywhere(ms__search *search, ms_technique technique)
{
    size_t before = search->count;
    ms__families_one(search, technique);
    if (technique != MS_TECHNIQUE_KEEP) {
        ms__families_set_roots(search, false);
        add_windows(search, true);
        ms__families_set_roots(search, true);
        add_windows(search, true);
    }
    mark_uniform(search, before);
}

void ms__families_uniform(ms__search *search)
{
    for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        if ((MS__WHOLE & 1u << technique) != 0) { /* the others are in families_selective.c and families_segment.c */
            ms__families_everywhere(search, (ms_technique)technique);
        }
    }
}

/* ---- kept and treated layers -------------------------------------------------------- */

/* Layers that one technique is refused for fall back on the other: none, then each other one. */
void ms__families_split_one(ms__search *search, ms_technique technique, ms_technique second)
{
    uint32_t count = search->layer_count, step = (uint32_t)ms__div_up(count, GRID_FINE);
    for (uint32_t keep = 0; keep <= count; keep += step) {
        for (layout where = KEEP_LAST; where <= SPREAD; where++) {
            for (int roots = 0; roots < (search->root_count > 0 && where == KEEP_LAST ? 2 : 1); roots++) {
                ms__search_keep_all(search);
                set_layers(search, where, keep, count - keep, technique, second);
                ms__families_set_roots(search, roots == 1);
                add_windows(search, false);
            }
        }
    }
}

void ms__families_split(ms__search *search)
{
    if (search->layer_count == 0) {
        ms__search_keep_all(search);
        ms__families_set_roots(search, true);
        add_windows(search, true);
        return;
    }
    for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
        for (int second = 0; families_layers_may(search, technique) && second < MS_TECHNIQUE_COUNT; second++) {
            if (second == MS_TECHNIQUE_KEEP || (second != technique && families_layers_may(search, second))) {
                ms__families_split_one(search, (ms_technique)technique, (ms_technique)second);
            }
        }
    }
}

/* ---- two techniques --------------------------------------------------------------- */

void ms__families_mix_two(ms__search *search, ms_technique one, ms_technique two)
{
    static const layout layouts[] = {KEEP_LAST, INTERLEAVED};
    uint32_t count = search->layer_count, step = (uint32_t)ms__div_up(count, GRID_COARSE);
    for (uint32_t keep = 0; keep < count; keep += step) {
        for (uint32_t first = step; first < count - keep; first += step) {
            for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
                ms__search_keep_all(search);
                set_layers(search, layouts[i], keep, first, one, two);
                ms__search_add(search, 0, false);
                ms__search_add(search, 1, false);
            }
        }
    }
}

void ms__families_mixed(ms__search *search)
{
    for (int one = 1; one < MS_TECHNIQUE_COUNT; one++) {
        for (int two = 1; two < MS_TECHNIQUE_COUNT; two++) {
            if (one != two && families_layers_may(search, one) && families_layers_may(search, two)) {
                ms__families_mix_two(search, (ms_technique)one, (ms_technique)two);
            }
        }
    }
}

/* ---- greedy orders ------------------------------------------------------------------ */

/* One possible step: a technique at one node, its bytes freed between forward and backward, and its time. */
typedef struct step {
    uint32_t node;
    uint8_t technique;
    uint64_t freed_bytes;
    uint64_t cost_ns;
} step;

/* Whether a frees more bytes per nanosecond than b. Ties: the earlier node. */
static bool step_is_cheaper(const step *a, const step *b)
{
    int order =
        ms__compare_quotients(a->freed_bytes, ms__add_sat(a->cost_ns, 1), b->freed_bytes, ms__add_sat(b->cost_ns, 1));
    if (order != 0) {
        return order > 0;
    }
    return a->node != b->node ? a->node < b->node : a->technique < b->technique;
}

static bool step_is_larger(const step *a, const step *b)
{
    if (a->freed_bytes != b->freed_bytes) {
        return a->freed_bytes > b->freed_bytes;
    }
    return a->node != b->node ? a->node < b->node : a->technique < b->technique;
}

static void sort_steps(step *steps, size_t count, bool (*before)(const step *, const step *))
{
    for (size_t i = 1; i < count; i++) {
        step moving = steps[i];
        size_t at = i;
        for (; at > 0 && before(&moving, &steps[at - 1]); at--) {
            steps[at] = steps[at - 1];
        }
        steps[at] = moving;
    }
}

/* Replays each step alone. Returns the number of those that free anything. */
static size_t measure_steps(ms__search *search, step *steps)
{
    ms__outcome kept, outcome;
    ms__search_keep_all(search);
    ms_choices choices = ms__search_choices(search, search->scratch, 1, 0);
    ms__sim_run(search->sim, &choices, &kept, NULL);
    size_t count = 0;
    for (uint32_t node = 0; node < search->node_count; node++) {
        for (int technique = 1; technique < MS_TECHNIQUE_COUNT; technique++) {
            uint32_t mask = search->admissions[node].under_pressure & search->offered;
            if ((mask & 1u << technique) == 0 || search->replays_left == 0) {
                continue;
            }
            search->scratch[node] = (uint8_t)technique;
            ms__sim_run(search->sim, &choices, &outcome, NULL);
            search->scratch[node] = MS_TECHNIQUE_KEEP;
            search->replays_left--;
            uint64_t freed = ms__sub_sat(kept.boundary_bytes, outcome.boundary_bytes);
            uint64_t cost = ms__sub_sat(outcome.replay.step_ns, kept.replay.step_ns);
            if (freed > 0) {
                steps[count++] = (step){node, (uint8_t)technique, freed, cost};
            }
        }
    }
    return count;
}

/* Takes the steps of one technique (0: of any), best first; every stage is a candidate. */
static void take_steps(ms__search *search, const step *steps, size_t count, int technique)
{
    size_t stride = ms__div_up(count, (size_t)8 * GRID_FINE);
    size_t taken = 0;
    ms__search_keep_all(search);
    for (size_t i = 0; i < count; i++) {
        bool free_node = search->scratch[steps[i].node] == MS_TECHNIQUE_KEEP;
        if (!free_node || (technique != 0 && steps[i].technique != technique)) {
            continue;
        }
        search->scratch[steps[i].node] = steps[i].technique;
        if (++taken % stride == 0 || i + 1 == count) {
            ms__search_add(search, 0, false);
            ms__search_add(search, 1, false);
        }
    }
}

/* Splits serve equal nodes; greedy orders pay if nodes differ. */
static bool chain_is_uneven(const ms__search *search)
{
    uint32_t movable = search->layer_count + search->root_count;
    for (uint32_t i = 1; i < search->layer_count; i++) {
        const ms_admission *a = &search->admissions[search->layers[i - 1]];
        const ms_admission *b = &search->admissions[search->layers[i]];
        if (a->saved_bytes != b->saved_bytes || a->under_pressure != b->under_pressure) {
            return true;
        }
    }
    return movable > search->layer_count && search->layer_count < 4;
}

void ms__families_greedy(ms__search *search)
{
    if (!chain_is_uneven(search)) {
        return;
    }
    step *steps = ms_calloc((size_t)search->node_count * MS_TECHNIQUE_COUNT, sizeof *steps);
    if (steps == NULL) {
        search->out_of_memory = true;
        return;
    }
    size_t count = measure_steps(search, steps);
    for (int order = 0; order < 2; order++) {
        sort_steps(steps, count, order == 0 ? step_is_cheaper : step_is_larger);
        for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
            if (technique == 0 || families_layers_may(search, technique)) {
                take_steps(search, steps, count, technique);
            }
        }
    }
    ms_free(steps);
}

/* ---- neighbours ----------------------------------------------------------------------- */

static void change_one(ms__search *search, uint32_t node, uint32_t window)
{
    uint8_t original = search->scratch[node];
    uint32_t mask = search->admissions[node].under_pressure & search->offered;
    for (int technique = 0; technique < MS_TECHNIQUE_COUNT; technique++) {
        if (technique != original && (mask & 1u << technique) != 0) {
            search->scratch[node] = (uint8_t)technique;
            ms__search_add(search, window, false);
        }
    }
    search->scratch[node] = original;
    if (search->packing_offered && ms__search_packs(search, node) > 0) {
        uint8_t *packed = &search->scratch[search->node_count + node], before = *packed;
        *packed = before > 0 ? 0 : (uint8_t)ms__search_packs(search, node);
        ms__search_add(search, window, false);
        *packed = before;
    }
}

static void refine_one(ms__search *search, size_t index, uint32_t round)
{
    uint32_t window = search->items[index].window;
    ms__search_load(search, index);
    add_windows(search, false);
    uint32_t stride = (uint32_t)ms__div_up(ms__max_u64(search->layer_count, 1), REFINE_NODES);
    for (uint32_t i = round % stride; i < search->layer_count; i += stride) {
        change_one(search, search->layers[i], window);
    }
    for (uint32_t i = 0; i < search->root_count; i++) {
        change_one(search, search->roots[i], window);
    }
}

void ms__families_around(ms__search *search, size_t index)
{
    for (uint32_t round = 0; round < REFINE_ROUNDS; round++) {
        refine_one(search, index, round);
    }
}

void ms__families_refine(ms__search *search)
{
    size_t front[REFINE_FRONT];
    for (uint32_t round = 0; round < REFINE_ROUNDS && search->replays_left > 0; round++) {
        ms__front_kind kind = round % 2 == 0 ? MS__FRONT_UNCACHED : MS__FRONT_CACHED;
        size_t count = ms__search_front(search, kind, false, search->count, front, REFINE_FRONT);
        /* From both ends: if replays run out, the middle is skipped. */
        for (size_t i = 0; i < count; i++) {
            refine_one(search, front[i % 2 == 0 ? count - 1 - i / 2 : i / 2], round);
        }
    }
}
