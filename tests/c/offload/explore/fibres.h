/*
 * fibres.h - thread.h and the clock without threads: each would-be thread is a fibre of one thread,
 * and at each lock, wait and pause a seed chooses the next to run. So a seed is a schedule: the same
 * number gives the same order of everything, and a circle of waits is detected at once.
 *
 * Linked in place of src/base/thread.c and src/base/time.c.
 */
#ifndef MS_TEST_FIBRES_H
#define MS_TEST_FIBRES_H

#include "base/thread.h"

/* Sets the schedule from now on. Called with no fibre but the first, or all others asleep. */
void fibres_seed(uint64_t seed);

/* A number that depends on every choice since the seed. */
uint64_t fibres_trace(void);

/* May let other fibres run first. */
void fibres_yield(void);

/* The calling fibre continues after `ns` of the fibres' own time. */
void fibres_sleep(uint64_t ns);

/* The number of the calling fibre, from 1. */
uintptr_t fibres_self(void);

/* Called when no fibre can continue; does not return. */
extern void (*fibres_stuck)(void);

#endif
