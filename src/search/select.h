/*
 * Selection among candidates: variants (a candidate with a cache of a stated size),
 * what makes one eligible and better, and the smallest. solver.c and uniform.c select;
 * the opening of select.c says why the choice is monotone in the budget.
 */
#ifndef MS_SEARCH_SELECT_H
#define MS_SEARCH_SELECT_H

#include "search/search.h"

typedef struct ms__variant {
    size_t candidate;
    uint64_t slack_bytes; /* cache beyond the live peak */
    uint64_t bytes;       /* what it takes of the device */
    bool replayed;        /* `replay` is filled; see ms__variant_replay() */
    ms_replay replay;     /* with that cache */
} ms__variant;

/* The variants of some candidates, those that take least first. */
typedef struct ms__variants {
    ms__variant *items;
    size_t count;
} ms__variants;

typedef struct ms__bounds {
    uint64_t allowed_bytes;
    uint64_t heavy_bytes; /* what candidates that are not light must fit */
    uint64_t least_ns;    /* faster and slower variants are passed over */
    uint64_t most_ns;
} ms__bounds;

/* No cache grows beyond `most_bytes`: what an unoptimized run would hold. */
int ms__variants_make(ms__search *search, const size_t *finalists, size_t count, uint64_t most_bytes,
                      ms__variants *variants);
void ms__variants_free(ms__variants *variants);

ms__variant ms__variant_of(const ms__search *search, size_t candidate, uint64_t slack_bytes);
void ms__variant_replay(ms__search *search, ms__variant *variant);

/* The fastest variant in bounds; NULL where there is none. */
const ms__variant *ms__select(ms__search *search, ms__variants *variants, const ms__bounds *bounds);
/* The one in bounds that takes least. */
const ms__variant *ms__select_least(ms__search *search, ms__variants *variants, const ms__bounds *bounds);

/* Whether a variant may be chosen from at these bounds, and which of two replayed ones is
 * the better choice: a total order. */
bool ms__variant_fits(const ms__search *search, const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_in_time(const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_better(const ms__search *search, const ms__variant *a, const ms__variant *b);

/* Whether a variant can't be better than another, which was replayed, whatever its cache. */
bool ms__variant_hopeless(const ms__search *search, const ms__variant *variant, const ms__variant *best);

/* The candidate of the smallest peak, the tie going to the faster; of all, or of those of
 * exact steps alone. */
size_t ms__select_smallest_peak(const ms__search *search);
size_t ms__select_smallest_exact(const ms__search *search);
/* The candidate that forced plans want; see select.c. */
size_t ms__select_forced(const ms__search *search);

#endif
