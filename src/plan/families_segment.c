/*
 * Candidates with segments, in the step that the search is at: runs of layers of which only
 * the first keeps its arguments. Called by solver.c, after the others.
 */
#include <string.h>

#include "base/units.h"
#include "plan/search.h"

enum { LENGTHS_MOST = 8, GRID = 4 };

static void set_segments(ms__search *search, uint32_t length, uint32_t keep)
{
    memset(search->scratch, MS_TECHNIQUE_KEEP, search->node_count);
    for (uint32_t i = 0; i + keep < search->layer_count; i++) {
        ms_technique wanted = i % length == 0 ? MS_TECHNIQUE_RECOMPUTE : MS_TECHNIQUE_RECOMPUTE_SEGMENT;
        uint32_t node = search->layers[i];
        search->scratch[node] = ms__search_pick(search, node, wanted, MS_TECHNIQUE_RECOMPUTE);
    }
}

static void set_roots(ms__search *search)
{
    for (uint32_t i = 0; i < search->root_count; i++) {
        uint32_t node = search->roots[i];
        search->scratch[node] =
            ms__search_pick(search, node, (ms_technique)search->root_technique, MS_TECHNIQUE_KEEP);
    }
}

/* Lengths grow by half: 2, 3, 4, 6, 9 and so on. */
void ms__families_segment(ms__search *search)
{
    uint32_t step = (uint32_t)ms__div_up(ms__max_u64(search->layer_count, 1), GRID);
    uint32_t length = 2;
    for (uint32_t tried = 0; tried < LENGTHS_MOST && length <= search->layer_count; tried++) {
        for (uint32_t keep = 0; keep < search->layer_count; keep += step) {
            set_segments(search, length, keep);
            ms__search_add(search, 0, false);
            if (search->root_count > 0) {
                set_roots(search);
                ms__search_add(search, 0, false);
                ms__search_add(search, 1, false);
            }
        }
        length += ms__max_u64(length / 2, 1);
    }
}
