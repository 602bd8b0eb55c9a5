/*
 * streamed.h - allocations that become shared maps of files, for the hook in the allocator's slot.
 *
 * Tests: tests/c/hostmem/test_streamed.c.
 */
#ifndef MS_HOSTMEM_STREAMED_H
#define MS_HOSTMEM_STREAMED_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "hostmem/table.h"

/* Whether allocations are streamed now. */
bool ms__streams(void);

/* A zeroed streamed block of at least `bytes`. NULL if it can't be made; ms_streamed_failure() then says why. May call
 * malloc and wait for the disk. */
void *ms__streamed_alloc(size_t bytes);

/* Sees to it that the worker runs as long as there are blocks. Called when there is one. */
bool ms__streamed_watch(void);

/* Copies the directory of the files. */
void ms__streamed_directory(char out[PATH_MAX]);

/* The streamed block that holds an address; NULL if there is none. Under the heap's lock. */
ms__map_block *ms__streamed_block_at(const void *address);

#endif
