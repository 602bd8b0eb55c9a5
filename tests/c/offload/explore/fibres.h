/*
 * fibres.h - thread.h and the clock without threads: everything that would be a thread is
 * a fibre of one, and at each lock, wait and pause a seed chooses which goes on. So a seed
 * is a schedule: the same number gives the same order of everything, and a circle of waits
 * is seen at once instead of being waited for.
 *
 * Linked in place of src/base/thread.c and src/base/time.c.
 */
#ifndef MS_TEST_FIBRES_H
#define MS_TEST_FIBRES_H

#include "base/thread.h"

/* The schedule from now on. Called with no fibre but the first, or all others asleep. */
void fibres_seed(uint64_t seed);

/* A number that depends on every choice since the seed. */
uint64_t fibres_trace(void);

/* Lets others go first, perhaps. */
void fibres_yield(void);

/* The calling fibre goes on after `ns` of the fibres' own time. */
void fibres_sleep(uint64_t ns);

/* Which fibre is calling, from 1. */
uintptr_t fibres_self(void);

/* Called, and not returned from, where nobody can go on any more. */
extern void (*fibres_stuck)(void);

#endif
