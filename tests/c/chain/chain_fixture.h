/*
 * Random chains from fixed seeds, and judges of schedules that share nothing with the
 * solver: a replay, the recurrence written down literally, and an exhaustive search.
 */
#ifndef MS_CHAIN_FIXTURE_H
#define MS_CHAIN_FIXTURE_H

#include "memscale/chain.h"
#include "test_common.h"

typedef struct chain_recipe {
    uint32_t layers, options, types; /* types 0: all layers differ */
    uint64_t size_most, unit;        /* sizes are up to size_most units */
    uint64_t time_most;
    bool any_transients;             /* a forward that saves may take less than one that doesn't */
} chain_recipe;

uint64_t chain_random(uint64_t *state);
uint64_t chain_between(uint64_t *state, uint64_t least, uint64_t most);

ms_chain *chain_make(const chain_recipe *recipe, uint64_t seed);
/* Copies the chain and gives layer i one more option. */
ms_chain *chain_with_option(const ms_chain *chain, uint32_t i, const ms_chain_option *option);

/* Fails the test where the answer's operations are no schedule, or where makespan or
 * peak differ from what they take. */
void chain_check(const ms_chain *chain, const ms_chain_answer *answer, uint64_t budget_bytes);

/* The optimum of the recurrence and of an exhaustive search over memory-persistent
 * schedules, by operations (at most 7 layers and 3 options); UINT64_MAX: nothing fits. */
uint64_t chain_recurrence(const ms_chain *chain, uint64_t budget_bytes);
uint64_t chain_exhaustive(const ms_chain *chain, uint64_t budget_bytes);

/* Rotor's table: one option per layer, sizes rounded up to budget / slots. */
uint64_t chain_rotor(const ms_chain *chain, uint64_t budget_bytes, uint32_t slots);

/* Solves and checks. */
void chain_solve(const ms_chain *chain, uint64_t budget_bytes, uint32_t threads, ms_chain_answer *answer);

#endif
