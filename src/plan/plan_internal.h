/*
 * What the files that make, show and save plans share. Nothing outside src/plan and
 * src/pipeline/pipeline.c includes this.
 */
#ifndef MS_PLAN_PLAN_INTERNAL_H
#define MS_PLAN_PLAN_INTERNAL_H

#include "memscale/plan.h"
#include "plan/text.h"
#include "search/select.h"

/* A plan of the graph's model and shapes with entries of zeros, KEEP everywhere; NULL
 * when memory is out. Graph may be NULL. */
ms_plan *ms__plan_new(const ms_graph *graph);

/*
 * For a caller that plans for one of several assumptions about the loop: variants that
 * are faster than `least_ns` or slower than `most_ns` are passed over. *slowest_ns is
 * given back: the step time of the plan for the smallest budget that fits any in these
 * limits (0 where there is none), whatever the budget is. See src/pipeline/pipeline.c.
 */
typedef struct ms__limits {
    uint64_t least_ns, most_ns;
    uint64_t slowest_ns;
    bool segments;   /* those that cost another forward are offered */
    bool exact_only; /* options of the step that are not exact are not admitted */
} ms__limits;

/*
 * Makes the plan: candidates over what was admitted, replayed, the fastest whose
 * peak fits; never worse than the best uniform plan; monotone: a larger budget
 * never gives a slower plan, a smaller one never one that takes more of it. A forced plan is the one
 * of the smallest peak among those that shrink the tensors; where all that is admitted
 * moves tensors and they are tiny, the slab can lift that peak above everything kept.
 * What may change bits (enable_tiling) is chosen only where nothing exact fits: there, a
 * larger budget may be slower.
 *
 * MS_EINFEASIBLE, with err->hint_bytes = the smallest budget, when the user's budget fits
 * no candidate. A default target that fits none gives the plan of the smallest peak, with
 * `over_target` set.
 *
 * replay.step_ns counts on a cache of a size that the budget surely leaves;
 * replay.peak_bytes on one that may fill all of it.
 *
 * What fits a budget, what a refusal names and what pressure->need_bytes is counts all of
 * the process's scratch; replay.peak_bytes and unoptimized.peak_bytes only what is expected
 * of it, and of a cache only what it will hold. So replay.peak_bytes + reserve_bytes is
 * within a budget that was given; that sum is what a smaller budget never raises.
 */
int ms__plan_solve(const ms_graph *graph, const ms_hardware *hardware, const ms_config *config,
                   const ms_pressure *pressure, const ms_admission *admissions, ms__limits *limits, ms_plan **plan,
                   ms_error *err);

/* The numbers of the chosen variant, which may use `room_bytes` of the device in all (0:
 * no more than it requires); of the same step unoptimized; the entries' techniques. */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);
/* What an unoptimized run would hold with an unbounded cache: keeping all is the first candidate. */
uint64_t ms__plan_most(const ms__search *search);
/* What a plan may take of `allowed_bytes`: no more than that, with a margin for the cache. */
uint64_t ms__plan_room(const ms__search *search, uint64_t allowed_bytes);
/* What a variant takes of the device at most where it may use `room_bytes` in all. */
uint64_t ms__plan_peak(const ms__search *search, const ms__variant *variant, uint64_t room_bytes);
/* What is expected of it then, `peak` being ms__plan_peak(): the two peaks of `expected`,
 * the reserve left out. */
void ms__plan_expect(ms__search *search, const ms__variant *variant, uint64_t peak, ms_replay *expected);
void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan);
int ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Fills the entries' rules and bytes, and, by replaying each node's alternatives, cost
 * and runner-up. An alternative fits if it needs no more than `room_bytes`, or than the
 * chosen one where that is more. */
void ms__plan_fill_entries(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);

/* Which options of the step were chosen, and what each does by itself: by a replay that
 * differs from the plan in this option alone. */
void ms__plan_fill_options(ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* How many saved tensors of two values become bits, and how many of them there are. */
uint32_t ms__plan_packed(const ms_plan *plan, uint32_t *tensors);
/* The line that says so, with the bytes and what it takes (table.c). */
void ms__plan_add_packed(ms__text *text, const char *label, const ms_plan *plan);

/* How many layers (nodes that are not the root's) use each technique. */
void ms__plan_count(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT]);

#endif
