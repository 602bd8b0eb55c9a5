/*
 * What the files that make, show and save plans share. Nothing outside src/plan and
 * src/pipeline.c includes this.
 */
#ifndef MS_PLAN_PLAN_INTERNAL_H
#define MS_PLAN_PLAN_INTERNAL_H

#include "plan/select.h"

/* A plan of the graph's model and shapes with entries of zeros, KEEP everywhere; NULL
 * when memory is out. Graph may be NULL. */
ms_plan *ms__plan_new(const ms_graph *graph);

/* The numbers of the chosen variant, which may use `room_bytes` of the device in all (0:
 * no more than it requires); of the same step unoptimized; the entries' techniques. */
void ms__plan_fill(ms__search *search, const ms__variant *chosen, uint64_t room_bytes, ms_plan *plan);
void ms__plan_fill_unoptimized(ms__search *search, ms_plan *plan);
void ms__plan_apply(const ms__search *search, const ms__variant *chosen, ms_plan *plan);

/* Fills the entries' rules and bytes, and, by replaying each node's alternatives, cost
 * and runner-up. An alternative fits if it needs no more than `room_bytes`. */
void ms__plan_fill_entries(ms__search *search, size_t chosen, uint64_t room_bytes, ms_plan *plan);

/* How many layers (nodes that are not the root's) use each technique. */
void ms__plan_count(const ms_plan *plan, uint32_t counts[MS_TECHNIQUE_COUNT]);

#endif
