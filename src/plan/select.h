/*
 * Selection among candidates: variants (a candidate with a cache of a stated size),
 * what makes one eligible and better, and the smallest. solver.c and uniform.c select;
 * the opening of select.c says why the choice is monotone in the budget.
 */
#ifndef MS_PLAN_SELECT_H
#define MS_PLAN_SELECT_H

#include "plan/search.h"

typedef struct ms__variant {
    size_t candidate;
    uint64_t slack_bytes; /* cache beyond the live peak */
    ms_replay replay;     /* with that cache */
} ms__variant;

typedef struct ms__bounds {
    uint64_t allowed_bytes;
    uint64_t heavy_bytes; /* what candidates that are not light must fit */
    uint64_t most_bytes;  /* no cache grows beyond: what an unoptimized run would hold */
} ms__bounds;

/* What the variant takes of the device. */
uint64_t ms__variant_bytes(const ms__search *search, const ms__variant *variant);
void ms__variant_replay(ms__search *search, ms__variant *variant);

/* The best eligible variant of the finalists; false where none fits. */
bool ms__select(ms__search *search, const ms__bounds *bounds, const size_t *finalists, size_t count,
                ms__variant *best);

/* The candidate of the smallest peak, the tie going to the faster. */
size_t ms__select_smallest_peak(const ms__search *search);
/* The candidate that forced plans want; see select.c. */
size_t ms__select_smallest_tensors(const ms__search *search);

#endif
