/*
 * Selection among candidates: variants (a candidate with a cache of a stated size), their eligibility and
 * order, and the smallest. solver.c and uniform.c select; select.c begins with the proof that the choice is
 * monotone in the budget. Tests: tests/c/plan/test_solver.c.
 */
#ifndef MS_SEARCH_SELECT_H
#define MS_SEARCH_SELECT_H

#include "search/search.h"

typedef struct ms__variant {
    size_t candidate;
    uint64_t slack_bytes; /* cache beyond the live peak */
    uint64_t bytes;       /* bytes of the device */
    bool replayed;        /* `replay` is filled; see ms__variant_replay() */
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
    uint64_t least_ns;    /* faster and slower variants are skipped */
    uint64_t most_ns;
} ms__bounds;

/* No cache grows beyond `most_bytes`, an unoptimized run's size. MS_ENOMEM. */
int ms__variants_make(ms__search *search, const size_t *finalists, size_t count, uint64_t most_bytes,
                      ms__variants *variants);
void ms__variants_free(ms__variants *variants);

ms__variant ms__variant_of(const ms__search *search, size_t candidate, uint64_t slack_bytes);
void ms__variant_replay(ms__search *search, ms__variant *variant);

/* The fastest variant in bounds; NULL if there is none. */
const ms__variant *ms__select(ms__search *search, ms__variants *variants, const ms__bounds *bounds);
/* The smallest variant in bounds; NULL if there is none. */
const ms__variant *ms__select_least(ms__search *search, ms__variants *variants, const ms__bounds *bounds);

/* Whether a variant is eligible at these bounds, and which of two replayed variants is better: a total
 * order. */
bool ms__variant_fits(const ms__search *search, const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_in_time(const ms__bounds *bounds, const ms__variant *variant);
bool ms__variant_better(const ms__search *search, const ms__variant *a, const ms__variant *b);

/* Whether no cache can make the variant better than `best`, which was replayed. */
bool ms__variant_hopeless(const ms__search *search, const ms__variant *variant, const ms__variant *best);

/* The candidate of the smallest peak, the faster of equals: among all, or among those of exact steps. */
size_t ms__select_smallest_peak(const ms__search *search);
size_t ms__select_smallest_exact(const ms__search *search);
/* The candidate of a forced plan; see select.c. */
size_t ms__select_forced(const ms__search *search);

#endif
