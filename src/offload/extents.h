/*
 * extents.h - the used bytes of a spill file.
 *
 * A backend whose tier is one linear space reserves its extents here, at the lowest
 * position first, so that freed space is reused before the file grows. Only bookkeeping:
 * touches no file and takes no lock; the owner holds one.
 *
 * Tests: tests/c/offload/test_extents.c.
 */
#ifndef MS_OFFLOAD_EXTENTS_H
#define MS_OFFLOAD_EXTENTS_H

#include "memscale/base.h"

/* A stretch of free space below `end_bytes`. */
typedef struct ms__run {
    uint64_t position;
    uint64_t bytes;
} ms__run;

typedef struct ms__extents {
    ms__run *runs; /* by position; none is empty or adjacent to another one or to the end */
    size_t run_count;
    size_t run_capacity;
    size_t live_count;
    uint64_t end_bytes;   /* the end of the last extent in use */
    uint64_t limit_bytes; /* end_bytes never exceeds it */
} ms__extents;

void ms__extents_init(ms__extents *extents, uint64_t limit_bytes);
void ms__extents_destroy(ms__extents *extents);

/* Takes `bytes` > 0 at the lowest position with room. On failure nothing changes: MS_ENOSPC beyond
 * the limit, MS_ENOMEM. */
int ms__extents_reserve(ms__extents *extents, uint64_t bytes, uint64_t *position);

/* Frees exactly the bytes of one reserve. Cannot fail, because reserve allocated the entry that the
 * free run may need. */
void ms__extents_release(ms__extents *extents, uint64_t position, uint64_t bytes);

#endif
