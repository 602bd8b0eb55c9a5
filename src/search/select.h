/*
 * Selection among candidates. A variant is a candidate with a cache of a stated size. Used by solver.c and
 * uniform.c; select.c begins with the proof that the choice is monotone in the budget.
 * Tests: tests/c/plan/test_solver.c.
 */
#ifndef MS_SEARCH_SELECT_H
#define MS_SEARCH_SELECT_H

#include "search/search.h"

typedef struct ms__variant {
    size_t candidate;
    uint64_t slack_bytes; /* cache beyond the live peak */
    uint64_t bytes;       /* on the device */
    bool replayed;        /* ms__variant_replay() has filled `replay` */
    ms_replay replay;     /* with that cache */
} ms__variant;

/* The variants of some candidates, smallest bytes first. */
typedef struct ms__variants {
    ms__variant *items;
    size_t count;
} ms__variants;

typedef struct ms__bounds {
    uint64_t allowed_bytes;
    uint64_t heavy_bytes; /* the limit for candidates that are not light */
    uint64_t least_ns;    /* skips faster variants */
    uint64_t most_ns;     /* skips slower variants */
} ms__bounds;

/* Makes the variants of the finalists. A variant's cache grows at most to `most_bytes`, an unoptimized run's
 * size. MS_ENOMEM. */
int ms__variants_make(ms__search *search, const size_t *finalists, size_t count, uint64_t most_bytes,
                      ms__variants *variants);
void ms__variants_free(ms__variants *variants);

ms__variant ms__variant_of(const ms__search *search, size_t candidate, uint64_t slack_bytes);
void ms__variant_replay(ms__search *search, ms__variant *variant);

/* The fastest variant in bounds; NULL if there is none. */
const ms__variant *ms__select(ms__search *search, ms__variants *variants, const ms__bounds *bounds);
/* The smallest variant in bounds; NULL if there is none. */
const ms__variant *ms__select_least(ms__search *search, ms__variants *variants, const ms__bounds *bounds);

/* Whether a variant is eligible at these bounds: its bytes, and its time. ms__variant_better() is a total order of
 * replayed variants. */
bool ms__variant_fits(const ms__search *search, const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_in_time(const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_better(const ms__search *search, const ms__variant *a, const ms__variant *b);

/* True if the variant is worse than `best`, which was replayed, with any cache. */
bool ms__variant_hopeless(const ms__search *search, const ms__variant *variant, const ms__variant *best);

/* The candidate with the smallest peak, of equals the faster: of all, or of those with exact steps. */
size_t ms__select_smallest_peak(const ms__search *search);
size_t ms__select_smallest_exact(const ms__search *search);
/* A forced plan's candidate: the smallest that frees tensors' bytes; if none does, the one that keeps all. */
size_t ms__select_forced(const ms__search *search);

#endif
