/*
 * The files that compute an explanation: each fills its part of plan->why from replays. Called by the search
 * after its choice, and by uniform plans. Changes no choice.
 * Tests: tests/c/plan/test_explain.c.
 */
#ifndef MS_PLAN_EXPLAIN_INTERNAL_H
#define MS_PLAN_EXPLAIN_INTERNAL_H

#include "base/json.h"
#include "plan/plan_internal.h"

/* explain_peak.c: place and parts of the peak; the parts sum to plan->replay.peak_bytes, which must be
 * final. MS_ENOMEM. */
int ms__explain_peak(ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* explain_bound.c: plan->why.lower_bound_ns. MS_ENOMEM. */
int ms__explain_bound(ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* explain_neighbours.c: plan->why.larger and .smaller, the plans for the budgets next to
 * `bounds->allowed_bytes`. `chosen` was selected from `variants`; `most_bytes` are the most bytes that a
 * plan uses. plan->pressure and plan->unoptimized must be set. */
void ms__explain_neighbours(ms__search *search, ms__variants *variants, const ms__bounds *bounds,
                            const ms__variant *chosen, uint64_t most_bytes, ms_plan *plan);

/* explain_json.c: the member "explanation". If it is absent, reading leaves `why.known` false. */
void ms__explanation_put(ms__json_writer *writer, json_t *root, const ms_plan *plan);
int ms__explanation_read(const ms__json_at *root, ms_plan *plan);

#endif
