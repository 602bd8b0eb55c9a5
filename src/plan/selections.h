/*
 * A plan's selections (ms_selection), for the files that make, free, write and read plans.
 * Tests: tests/c/search/test_selective.c, test_packing.c.
 */
#ifndef MS_PLAN_SELECTIONS_H
#define MS_PLAN_SELECTIONS_H

#include "base/json.h"
#include "sim/sim.h"

void ms__selections_clear(ms_plan *plan);
/* Fills in the selections, once the entries have their techniques. MS_ENOMEM. */
int ms__selections_fill(const ms__sim *sim, ms_plan *plan);
/* The optional members "selections" of a plan and "selection" of an entry. */
void ms__selections_put(ms__json_writer *writer, json_t *root, const ms_plan *plan);
int ms__selections_read(const ms__json_at *root, ms_plan *plan);
int ms__selections_read_entry(const ms__json_at *entry, const ms_plan *plan, ms_plan_entry *out);

#endif
