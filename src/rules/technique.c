/*
 * The table of techniques as data, and lookups in it. All of it follows from the columns of
 * MS_TECHNIQUE_TABLE. A row that lacks a column, or names a set or nesting that does not exist, does not
 * compile.
 */
#include "memscale/technique.h"

#include <string.h>

#define ROW(id, name_, replays_, rest_, set_, nesting_, joined_, moves_input_, colour_, text_) \
    [MS_TECHNIQUE_##id] = {.name = (name_), \
                           .text = (text_), \
                           .colour = (colour_), \
                           .rest = MS_REST_##rest_, \
                           .set = (set_), \
                           .nesting = (nesting_), \
                           .replays = (replays_), \
                           .joined = (joined_), \
                           .moves_input = (moves_input_)},
static const ms_technique_row rows[] = {MS_TECHNIQUE_TABLE(ROW)};

#define CHECK(id, name, replays, rest, set, nesting, joined, moves_input, ...) \
    _Static_assert((set) <= MS_SELECTIVE_SETS && (nesting) <= MS_NESTING_MOST, #id ": no such set or nesting"); \
    _Static_assert((replays) == (MS_REST_##rest == MS_REST_NONE), #id ": a replayed layer saves nothing"); \
    _Static_assert((replays) || !((nesting) > 0 || (joined) || (moves_input)), #id ": only replays use arguments"); \
    _Static_assert(!(replays) || (set) == 0, #id ": a layer is replayed whole, or a set of it is recomputed");
MS_TECHNIQUE_TABLE(CHECK)
_Static_assert(MS_TECHNIQUE_KEEP == 0, "KEEP comes first");
_Static_assert(MS_TECHNIQUE_COUNT <= 32, "masks have 32 bits");

const ms_technique_row *ms_technique_of(ms_technique technique)
{
    static const ms_technique_row unknown = {.name = "unknown", .text = "unknown technique", .colour = "#9aa5b1"};
    return (unsigned)technique < MS_TECHNIQUE_COUNT ? &rows[technique] : &unknown;
}

ms_technique ms_technique_with(const ms_technique_row *columns)
{
    int i = 0;
    for (; i < MS_TECHNIQUE_COUNT; i++) {
        const ms_technique_row *row = &rows[i];
        if (row->rest == columns->rest && row->set == columns->set && row->nesting == columns->nesting &&
            row->replays == columns->replays && row->joined == columns->joined &&
            row->moves_input == columns->moves_input) {
            break;
        }
    }
    return (ms_technique)i;
}

int ms_technique_parse(const char *name, ms_technique *technique)
{
    for (int i = 0; i < MS_TECHNIQUE_COUNT; i++) {
        if (strcmp(name, rows[i].name) == 0) {
            *technique = (ms_technique)i;
            return MS_OK;
        }
    }
    return MS_EINVAL;
}

const char *ms_technique_name(ms_technique technique)
{
    return ms_technique_of(technique)->name;
}

bool ms_technique_moves(ms_technique technique)
{
    const ms_technique_row *row = ms_technique_of(technique);
    return row->moves_input || row->rest == MS_REST_HOST || row->rest == MS_REST_DISK;
}

bool ms_technique_is_chained(ms_technique technique)
{
    const ms_technique_row *row = ms_technique_of(technique);
    return row->joined || row->nesting > 0;
}
