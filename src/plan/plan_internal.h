/*
 * Shared by the files that make, show and save plans. Only src/plan and src/pipeline/pipeline.c include it.
 * Tests: tests/c/plan/test_solver.c.
 */
#ifndef MS_PLAN_PLAN_INTERNAL_H
#define MS_PLAN_PLAN_INTERNAL_H

#include "memscale/plan.h"
#include "plan/text.h"
#include "search/select.h"

/* A plan of the graph's model and shapes, KEEP everywhere and all else zero; NULL if memory runs out.
 * `graph` may be NULL. */
ms_plan *ms__plan_new(const ms_graph *graph);

/*
 * For a caller that plans for one of several assumptions about the loop: variants faster than `least_ns` or
 * slower than `most_ns` are skipped. Sets slowest_ns to the step time of the plan for the smallest budget
 * that has one within these limits (0 if none), whatever the budget is. See src/pipeline/pipeline.c.
 */
typedef struct ms__limits {
    uint64_t least_ns, most_ns;
    uint64_t slowest_ns;
    bool segments;   /* segments, which cost another forward, are offered */
    bool exact_only; /* only exact step options are admitted */
} ms__limits;

/*
 * Makes the plan: replays candidates over the admitted techniques and selects the fastest whose peak fits. It
 * is never slower than the best uniform plan, and monotone: a larger budget never gives a slower plan, a
 * smaller one never a larger one. Options that may change bits (enable_tiling) are chosen only if nothing
 * exact fits; across that border a larger budget may be slower. A forced plan is the one of the smallest peak
 * among those that shrink the tensors; if every admitted technique moves tensors and they are tiny, the slab
 * can lift that peak above everything kept.
 *
 * MS_EINFEASIBLE, with err->hint_bytes = the smallest budget, if no candidate fits the user's budget. For a
 * default target that nothing fits, the plan of the smallest peak, with `over_target` set.
 *
 * replay.step_ns assumes a cache that surely fits the budget; replay.peak_bytes one that may fill all of it.
 *
 * A fit, the budget in a refusal and pressure->need_bytes count all of the process's scratch.
 * replay.peak_bytes and unoptimized.peak_bytes count only the expected part of it, and the expected bytes of
 * a cache. So replay.peak_bytes + reserve_bytes is within a given budget, and a smaller budget never raises
 * that sum.
 */
int ms__plan_solve(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, const ms_admission *admissions, ms__limits *limits, ms_plan **plan,
                   ms_error *err);

/* The numbers of the chosen variant, which may use `room_bytes` of the device in all (0: only its own
 * bytes). */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);
/* Bytes of an unoptimized run with an unbounded cache; keeping all is the first candidate. */
uint64_t ms__plan_most(const ms__search *search);
/* The part of `allowed_bytes` that a plan may use: at most that run's bytes, with a margin for the cache. */
uint64_t ms__plan_room(const ms__search *search, uint64_t allowed_bytes);
/* A variant's peak if it may use `room_bytes` in all. */
uint64_t ms__plan_peak(const ms__search *search, const ms__variant *variant, uint64_t room_bytes);
/* Its expected peaks, with `peak` from ms__plan_peak(): sets those of `expected`, without the reserve. */
void ms__plan_expect(ms__search *search, const ms__variant *variant, uint64_t peak, ms_replay *expected);
void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan);
int ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Fills the entries' rules and bytes, and, by replaying each node's alternatives, time and runner-up. An
 * alternative fits if it needs at most `room_bytes`, or at most the chosen one's bytes if those are more. */
void ms__plan_fill_entries(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);

/* The chosen step options and the effect of each, by a replay that differs from the plan in this option
 * alone. */
void ms__plan_fill_options(ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Returns the number of bit-packed saved tensors; *tensors: of two-valued ones. */
uint32_t ms__plan_packed(const ms_plan *plan, uint32_t *tensors);
/* Adds a line with these numbers, their bytes and time (table.c). */
void ms__plan_add_packed(ms__text *text, const char *label, const ms_plan *plan);

/* The number of layers (not the root's nodes) for each technique. */
void ms__plan_count(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT]);

#endif
