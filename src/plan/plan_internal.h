/*
 * Shared by the files that make, show and save plans. Only src/plan and src/pipeline/pipeline.c include it.
 * Tests: tests/c/plan/test_solver.c.
 */
#ifndef MS_PLAN_PLAN_INTERNAL_H
#define MS_PLAN_PLAN_INTERNAL_H

#include "memscale/plan.h"
#include "plan/text.h"
#include "search/select.h"

/* A plan of the graph's model and shapes, KEEP everywhere and all else zero; NULL when out of memory.
 * `graph` may be NULL. */
ms_plan *ms__plan_new(const ms_graph *graph);

/*
 * For a caller that plans under one of several assumptions about the loop: skips variants faster than
 * `least_ns` or slower than `most_ns`. slowest_ns receives the step time of the plan for the smallest budget
 * that has a plan within these limits (0 if none has), for any given budget. See src/pipeline/pipeline.c.
 */
typedef struct ms__limits {
    uint64_t least_ns, most_ns;
    uint64_t slowest_ns;
    bool segments;   /* segments, which cost another forward, are offered */
    bool exact_only; /* only exact step options are admitted */
} ms__limits;

/*
 * Makes the plan: replays candidates over the admitted techniques and selects the fastest whose peak fits. It
 * is never slower than the best uniform plan. A larger budget never gives a slower plan, and a smaller budget
 * never gives one with a larger peak. Options that may change bits (enable_tiling) are chosen only if no exact
 * plan fits; across that border a larger budget may be slower. A forced plan has the smallest peak of all
 * plans that reduce the tensors' bytes. If tensors are tiny and every admitted technique moves them, the slab
 * can raise that peak above the peak with everything kept.
 *
 * If no candidate fits the user's budget: MS_EINFEASIBLE, with err->hint_bytes = the smallest budget. If none
 * fits a default target: the plan with the smallest peak, with `over_target` set.
 *
 * replay.step_ns assumes a cache that certainly fits the budget; replay.peak_bytes a cache that may fill it.
 *
 * A fit, the budget in a refusal and pressure->need_bytes count all scratch of the process.
 * replay.peak_bytes and unoptimized.peak_bytes count only its expected part, and the expected bytes of a
 * cache. So replay.peak_bytes + reserve_bytes is within a given budget, and a smaller budget never raises
 * that sum.
 */
int ms__plan_solve(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, const ms_admission *admissions, ms__limits *limits, ms_plan **plan,
                   ms_error *err);

/* Fills in the numbers of the chosen variant, which may use a total of `room_bytes` of the device (0: only
 * its own bytes). */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);
/* Bytes of an unoptimized run (the first candidate) with an unbounded cache. */
uint64_t ms__plan_most(const ms__search *search);
/* The part of `allowed_bytes` that a plan may use: at most ms__plan_most(), with a margin for the cache. */
uint64_t ms__plan_room(const ms__search *search, uint64_t allowed_bytes);
/* A variant's peak if it may use a total of `room_bytes`. */
uint64_t ms__plan_peak(const ms__search *search, const ms__variant *variant, uint64_t room_bytes);
/* Sets the peaks of `expected`, without the reserve, for a variant whose ms__plan_peak() is `peak`. */
void ms__plan_expect(ms__search *search, const ms__variant *variant, uint64_t peak, ms_replay *expected);
void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan);
int ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Fills in the entries: rules and bytes, then time and runner-up, for which it replays each node's
 * alternatives. An alternative fits if it needs at most `room_bytes`, or at most the chosen one's bytes if
 * those are more. */
void ms__plan_fill_entries(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);

/* Fills in the step options and the effect of each, from a replay that differs from the plan only in this
 * option. */
void ms__plan_fill_options(ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Returns the number of bit-packed saved tensors; *tensors receives the number of two-valued ones. */
uint32_t ms__plan_packed(const ms_plan *plan, uint32_t *tensors);
/* Adds a line with these numbers, their bytes and time (table.c). */
void ms__plan_add_machine(ms__text *text, const ms_hardware *hardware);
/* The option's name; if the plan moves a part of the optimizer's state, also how much. */
void ms__plan_add_option(ms__text *text, const ms_plan *plan, ms_step_option which);
void ms__plan_add_packed(ms__text *text, const char *label, const ms_plan *plan);

/* The number of layers (not the root's nodes) for each technique. */
void ms__plan_count(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT]);

#endif
