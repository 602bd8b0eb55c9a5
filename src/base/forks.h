/*
 * Handlers for fork(). Called once by each room whose locks or threads would not work in a child.
 * Tests: tests/c/base/test_thread.c.
 */
#ifndef MS_BASE_FORKS_H
#define MS_BASE_FORKS_H

#include "memscale/base.h"

/* pthread_atfork() with a fault point of kind MS_FAULT_SYSTEM: the handlers stay for the life of the process.
 * False when out of memory. */
MS_NODISCARD bool ms__hear_of_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
