/*
 * crew.h - a few threads that run one body side by side for the length of a call. Used
 * by the techniques that work on whole tensors.
 */
#ifndef MS_TECHNIQUES_CREW_H
#define MS_TECHNIQUES_CREW_H

#include "base/thread.h"

/* Runs body(argument) in the calling thread and in up to `threads` - 1 others, and
 * returns when all have. The system may give fewer: the body shares out the work
 * through `argument`, so that every piece is taken by somebody. The others are those of
 * the process's OpenMP team where it has one, else new ones named `name`. Cannot fail. */
void ms__crew_run(uint32_t threads, const char *name, ms__thread_body body, void *argument);

#endif
