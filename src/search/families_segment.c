/*
 * Candidates with segments, in the current step: runs of layers that keep only the first one's arguments;
 * runs inside runs; layers that run again as one; and, after the last run, layers that are kept, moved or
 * selective. Called by solver.c, after the other families.
 */
#include <string.h>

#include "base/units.h"
#include "search/search.h"

enum { LENGTHS_MOST = 8, SHAPES_MOST = 40, GRID = 4, JOINED_MOST = 4 };

/* The positions at which runs begin. A layer has nesting n (0: it keeps its arguments), if n is the
 * smallest with lengths[n] dividing its number; a length of 1 ends the list. The remaining layers are
 * joined, or have the last nesting. */
typedef struct shape {
    uint32_t lengths[MS_NESTING_MOST];
    bool joined;
} shape;

/* The technique with this nesting or joined, which moves nothing. */
static ms_technique chained_technique(uint32_t nesting, bool joined)
{
    ms_technique_row columns = *ms_technique_of(MS_TECHNIQUE_RECOMPUTE);
    columns.nesting = joined ? 0 : (uint8_t)nesting;
    columns.joined = joined;
    return ms_technique_with(&columns);
}

static ms_technique shape_technique(const shape *how, uint32_t i, ms_technique first)
{
    uint32_t nesting = 0;
    while (nesting < MS_NESTING_MOST && how->lengths[nesting] > 1 && i % how->lengths[nesting] != 0) {
        nesting++;
    }
    bool is_left = nesting == MS_NESTING_MOST || how->lengths[nesting] <= 1;
    if (nesting == 0) {
        return first;
    }
    return chained_technique(nesting, is_left && how->joined);
}

/* The last `others` layers get `rest`, those before them the shape. */
static void set_segments(ms__search *search, const shape *how, ms_technique first, uint32_t others, ms_technique rest)
{
    ms__search_keep_all(search);
    for (uint32_t i = 0; i < search->layer_count; i++) {
        uint32_t node = search->layers[i];
        bool is_other = i + others >= search->layer_count;
        ms_technique wanted = is_other ? rest : shape_technique(how, i, first);
        search->scratch[node] =
            ms__search_pick(search, node, wanted, is_other ? MS_TECHNIQUE_KEEP : MS_TECHNIQUE_RECOMPUTE);
    }
}

/* ---- shapes ------------------------------------------------------------------------- */

/* The least n with n to the power >= count. */
static uint32_t ceil_root(uint32_t count, uint32_t power)
{
    for (uint32_t n = 1;; n++) {
        uint64_t product = 1;
        for (uint32_t i = 0; i < power; i++) {
            product *= n;
        }
        if (product >= count) {
            return n;
        }
    }
}

static size_t add_shape(shape *shapes, size_t count, shape made)
{
    if (count < SHAPES_MOST) {
        shapes[count++] = made;
    }
    return count;
}

/* Lengths grow by half: 2, 3, 4, 6, 9 and so on; and the whole chain. */
static size_t list_shapes(uint32_t layers, shape *shapes)
{
    size_t count = 0;
    for (uint32_t joined = 2; joined <= JOINED_MOST && joined <= layers; joined++) {
        count = add_shape(shapes, count, (shape){{joined, 1, 1}, true});
    }
    uint32_t length = 2;
    for (uint32_t tried = 0; tried <= LENGTHS_MOST && length <= layers; tried++) {
        count = add_shape(shapes, count, (shape){{length, 1, 1}, false});
        uint32_t inner = ceil_root(length, 2);
        if (inner > 1 && inner < length) {
            count = add_shape(shapes, count, (shape){{length, inner, 1}, false});
            count = add_shape(shapes, count, (shape){{length, inner, 1}, true});
        }
        if (length > 4) {
            count = add_shape(shapes, count, (shape){{length, 2, 1}, true});
        }
        uint32_t grown = length + (uint32_t)ms__max_u64(length / 2, 1);
        bool is_last = length < layers && (grown > layers || tried + 1 == LENGTHS_MOST);
        length = is_last ? layers : grown;
    }
    uint32_t third = ceil_root(layers, 3);
    if (third > 1 && third * third < layers) {
        count = add_shape(shapes, count, (shape){{layers, third * third, third}, false});
    }
    return count;
}

/* ---- candidates ----------------------------------------------------------------------- */

static void segment_add(ms__search *search)
{
    ms__search_add(search, 0, false);
    ms__search_add(search, 1, false); /* the same if nothing moves */
    if (search->root_count > 0) {
        ms__families_set_roots(search, true);
        ms__search_add(search, 0, false);
        ms__search_add(search, 1, false);
    }
}

static void propose_beside(ms__search *search, const shape *shapes, size_t count, ms_technique first, ms_technique rest)
{
    uint32_t step = (uint32_t)ms__div_up(ms__max_u64(search->layer_count, 1), GRID);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t others = rest == MS_TECHNIQUE_KEEP ? 0 : step; others < search->layer_count; others += step) {
            set_segments(search, &shapes[i], first, others, rest);
            segment_add(search);
        }
    }
}

static bool segment_layers_may(const ms__search *search, int technique)
{
    return ((search->layer_techniques | search->selective_techniques) & 1u << technique) != 0;
}

void ms__families_segment(ms__search *search)
{
    shape shapes[SHAPES_MOST];
    size_t count = list_shapes(search->layer_count, shapes);
    for (int first = 0; first < MS_TECHNIQUE_COUNT; first++) {
        bool alone = ms_technique_of((ms_technique)first)->replays && !ms_technique_is_chained((ms_technique)first);
        if (alone && segment_layers_may(search, first)) {
            propose_beside(search, shapes, count, (ms_technique)first, MS_TECHNIQUE_KEEP);
        }
    }
    for (int rest = MS_TECHNIQUE_KEEP + 1; rest < MS_TECHNIQUE_COUNT; rest++) {
        if (!ms_technique_of((ms_technique)rest)->replays && segment_layers_may(search, rest)) {
            propose_beside(search, shapes, count, MS_TECHNIQUE_RECOMPUTE, (ms_technique)rest);
        }
    }
}
