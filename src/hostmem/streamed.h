/*
 * streamed.h - allocations that become shared maps of files, for the hook in the allocator's slot.
 *
 * Tests: tests/c/hostmem/test_streamed.c.
 */
#ifndef MS_HOSTMEM_STREAMED_H
#define MS_HOSTMEM_STREAMED_H

#include <stdbool.h>
#include <stddef.h>

/* Whether allocations are streamed now. */
bool ms__streams(void);

/* A zeroed streamed block of at least `bytes`. NULL if it can't be made; ms_streamed_failure() then says why. May call
 * malloc and wait for the disk. */
void *ms__streamed_alloc(size_t bytes);

#endif
