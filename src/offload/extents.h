/*
 * extents.h - which bytes of a spill file are in use.
 *
 * A backend whose tier is one linear space reserves its extents here: lowest
 * address first, so that freed space is used again before the file grows. Pure
 * bookkeeping: no file is touched, no lock is taken; the owner holds one.
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
    ms__run *runs; /* by position; never empty, never touching each other or the end */
    size_t run_count;
    size_t run_capacity;
    size_t live_count;
    uint64_t end_bytes;   /* behind the last extent in use */
    uint64_t limit_bytes; /* end_bytes never exceeds it */
} ms__extents;

void ms__extents_init(ms__extents *extents, uint64_t limit_bytes);
void ms__extents_destroy(ms__extents *extents);

/* Takes `bytes` > 0 at the lowest position with room. MS_ENOSPC where that would
 * pass the limit, MS_ENOMEM where memory is out; nothing has changed then. */
int ms__extents_reserve(ms__extents *extents, uint64_t bytes, uint64_t *position);

/* Gives back exactly what a reserve took. Cannot fail: reserve made the room that
 * the free run may need. */
void ms__extents_release(ms__extents *extents, uint64_t position, uint64_t bytes);

#endif
