/*
 * Random steps, machines and configurations of all kinds, small, so that a test plans hundreds of them in a second.
 */
#ifndef MS_TEST_PLAN_RANDOM_H
#define MS_TEST_PLAN_RANDOM_H

#include <stdio.h>

#include "plan_fixture.h"

/* The next number of a sequence, below `below`. The seed is never 0. */
uint64_t random_below(uint64_t *seed, uint64_t below);
/* True once in `times`. */
bool random_once_in(uint64_t *seed, uint64_t times);

/* A chain of 1 to 10 layers, each with its own program: inner results and temporaries, saved ones, masks, makers, tiles,
 * draws and evaluations. Checked by ms_graph_check(). */
ms_graph *random_graph(uint64_t *seed);

/* A random graph on a random machine under random options. Closed by fixture_close(). */
fixture_planning random_planning(uint64_t *seed);

/* `text` becomes the next line of a golden table, or else must be that line, of at most 4095 characters. */
void golden_line(FILE *golden, bool writes, const char *text);

#endif
