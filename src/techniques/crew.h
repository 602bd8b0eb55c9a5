/*
 * crew.h - a few threads that run one body in parallel during a call. Used by the techniques that
 * work on whole tensors.
 *
 * Tests: tests/c/techniques/test_crew.c.
 */
#ifndef MS_TECHNIQUES_CREW_H
#define MS_TECHNIQUES_CREW_H

#include "base/thread.h"

/* Runs body(argument) in the calling thread and up to `threads` - 1 others; returns when all have
 * ended. There may be fewer threads, so the body takes pieces of work through `argument` until none
 * is left. The others belong to the process's OpenMP team if it has one; else they are new threads
 * named `name`. Cannot fail. */
void ms__crew_run(uint32_t threads, const char *name, ms__thread_body body, void *argument);

#endif
