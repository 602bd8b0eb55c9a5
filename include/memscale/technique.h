/*
 * technique.h - the techniques for the tensors that a layer saves for backward.
 *
 * One table, a row for each technique. Rules, simulator, search, executor, the extension, Python, the
 * report and the policy read its columns; none of them knows a technique by its place in the list. The
 * number of a technique may change between builds, so documents hold the name. The number is a bit in
 * masks, so there are at most 32.
 *
 * All functions are pure and thread-safe; the strings they return live as long as the library.
 * Tests: tests/c/rules/test_technique.c.
 */
#ifndef MEMSCALE_TECHNIQUE_H
#define MEMSCALE_TECHNIQUE_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the saved tensors that are not dropped wait for backward. */
typedef enum ms_rest {
    MS_REST_STAYS, /* where they are */
    MS_REST_HOST,  /* in host memory */
    MS_REST_DISK,  /* on disk */
    MS_REST_NONE,  /* nowhere: all are dropped */
} ms_rest;

/* Selective sets are numbered from 1 to MS_SELECTIVE_SETS, nesting from 1 to MS_NESTING_MOST. */
enum { MS_SELECTIVE_SETS = 4, MS_NESTING_MOST = 3 };

/*
 * The columns of a row:
 *
 *   id, name     the enumerator MS_TECHNIQUE_<id>; the word in documents
 *   replays      the whole layer runs again in backward, from its arguments
 *   rest         where the tensors that are not dropped wait (ms_rest, without its prefix)
 *   set          the set of saved tensors that single operators recompute; 0: none
 *   nesting      the level at which the layers before recompute its first argument, see below; 0: it is kept
 *   joined       the layer before runs again together with this one and gives it its first argument
 *   moves_input  the arguments wait on the next lower tier
 *   colour       in the report
 *   text         for people: the fate of the saved tensors
 *
 * If a layer's first argument is the output of the layer before, by identity, and the layer before is
 * replayed too, the argument need not be kept. There are two ways to recompute it:
 * - joined: when this layer asks for it, the layer before is replayed up to its output. Both keep the
 *   tensors that they save, so each runs again only once.
 * - nesting: a run of the layers before recomputes it, and keeps only arguments. The run starts at the
 *   nearest layer before that has its argument. It keeps the arguments of the layers with the smallest
 *   nesting among those it passes. So one run over the segment serves the layers of nesting 1; a run
 *   between two of those serves the layers of nesting 2 while backward is there; and so on. Each level
 *   costs up to one more forward, and its arguments live only while backward is inside it.
 *
 * KEEP comes first: every fallback is KEEP.
 */
#define MS_SELECTIVE_ROWS(X, id, name, rest, colour, text) \
    X(SELECTIVE_1##id, "selective_1" name, 0, rest, 1, 0, 0, 0, colour, \
      "operators recompute set 1 of the saved tensors, the cheapest per byte; " text) \
    X(SELECTIVE_2##id, "selective_2" name, 0, rest, 2, 0, 0, 0, colour, \
      "operators recompute set 2 of the saved tensors, the cheapest per byte; " text) \
    X(SELECTIVE_3##id, "selective_3" name, 0, rest, 3, 0, 0, 0, colour, \
      "operators recompute set 3 of the saved tensors, the cheapest per byte; " text) \
    X(SELECTIVE_4##id, "selective_4" name, 0, rest, 4, 0, 0, 0, colour, \
      "operators recompute set 4 of the saved tensors, the cheapest per byte; " text)
#define MS_TECHNIQUE_TABLE(X) \
    X(KEEP, "keep", 0, STAYS, 0, 0, 0, 0, "#9aa5b1", "saved tensors stay where they are") \
    X(RECOMPUTE, "recompute", 1, NONE, 0, 0, 0, 0, "#e08e0b", \
      "only the arguments stay; the layer runs again in backward") \
    X(RECOMPUTE_OFFLOAD_INPUT, "recompute_offload_input", 1, NONE, 0, 0, 0, 1, "#b55d00", \
      "as recompute, with the arguments on a lower tier") \
    X(RECOMPUTE_JOINED, "recompute_joined", 1, NONE, 0, 0, 1, 0, "#f6c453", \
      "as recompute; the layer before runs again together with it and gives it its argument") \
    X(RECOMPUTE_SEGMENT, "recompute_segment", 1, NONE, 0, 1, 0, 0, "#e0b00b", \
      "as recompute; the layers before recompute its argument, which is not kept") \
    X(RECOMPUTE_NESTED_2, "recompute_nested_2", 1, NONE, 0, 2, 0, 0, "#b98e07", \
      "as recompute_segment, in a run inside the run that serves a segment") \
    X(RECOMPUTE_NESTED_3, "recompute_nested_3", 1, NONE, 0, 3, 0, 0, "#8a6a04", \
      "as recompute_segment, in a run inside the run that serves a recompute_nested_2") \
    X(OFFLOAD_HOST, "offload_host", 0, HOST, 0, 0, 0, 0, "#2a9d5c", \
      "saved tensors go to host memory and come back in backward") \
    X(OFFLOAD_DISK, "offload_disk", 0, DISK, 0, 0, 0, 0, "#0b62a4", \
      "saved tensors go to disk and come back in backward") \
    MS_SELECTIVE_ROWS(X, , "", STAYS, "#a684d6", "the rest stays") \
    MS_SELECTIVE_ROWS(X, _HOST, "_offload_host", HOST, "#5b3d8a", "the rest goes to host memory") \
    MS_SELECTIVE_ROWS(X, _DISK, "_offload_disk", DISK, "#5b3d8a", "the rest goes to disk")

typedef enum ms_technique {
#define MS_TECHNIQUE_ENUM(id, name, replays, rest, set, nesting, joined, moves_input, colour, text) MS_TECHNIQUE_##id,
    MS_TECHNIQUE_TABLE(MS_TECHNIQUE_ENUM)
#undef MS_TECHNIQUE_ENUM
        MS_TECHNIQUE_COUNT
} ms_technique;

/* A row of the table above. */
typedef struct ms_technique_row {
    const char *name, *text, *colour;
    ms_rest rest;
    uint8_t set, nesting;
    bool replays, joined, moves_input;
} ms_technique_row;

/* Never NULL; a value outside the table has KEEP's columns and the name "unknown". */
MS_API const ms_technique_row *ms_technique_of(ms_technique technique);

/* The technique with these columns (name, text and colour aside); MS_TECHNIQUE_COUNT if there is none. */
MS_API ms_technique ms_technique_with(const ms_technique_row *columns);

/* MS_EINVAL if no technique has this name. */
MS_API int ms_technique_parse(const char *name, ms_technique *technique);

/* The word in documents; "unknown" for a value outside the table. */
MS_API const char *ms_technique_name(ms_technique technique);

/* Whether saved tensors or arguments go to a lower tier. */
MS_API bool ms_technique_moves(ms_technique technique);

/* Whether the layers before recompute the first argument (joined or nested). */
MS_API bool ms_technique_is_chained(ms_technique technique);

#ifdef __cplusplus
}
#endif

#endif
