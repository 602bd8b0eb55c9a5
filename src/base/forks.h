/*
 * Who is told when the process forks. Called once by each room that has locks or threads a child
 * would miss.
 */
#ifndef MS_BASE_FORKS_H
#define MS_BASE_FORKS_H

#include "memscale/base.h"

/* As pthread_atfork(): from now on, as long as the process lives. False without memory. A fault
 * point of kind MS_FAULT_SYSTEM. */
MS_NODISCARD bool ms__hear_of_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

#endif
