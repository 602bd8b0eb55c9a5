/*
 * slab.h - one private map of exact size from which an engine's slots are cut.
 *
 * Page-aligned, zero when new, huge pages advised, not inherited by forked
 * children, near the thread that opens the engine. Touched only as slots are used, so an
 * engine that moves nothing through slots costs no memory.
 */
#ifndef MS_OFFLOAD_SLAB_H
#define MS_OFFLOAD_SLAB_H

#include "memscale/base.h"

typedef struct ms__slab {
    unsigned char *address;
    uint64_t bytes;
} ms__slab;

/* Maps `bytes` (a multiple of the page size). */
int ms__slab_open(ms__slab *slab, uint64_t bytes, ms_error *err);

/* Asks for the range's pages from the node of the calling thread, where memory has more than
 * one, and logs what came of it. Threads that touch them may run anywhere. */
void ms__keep_near(void *address, uint64_t bytes, uint32_t node_count, const char *what);

/* Brings every page of a fresh range into memory, by several threads where it is large: one
 * clears pages hardly faster than a link moves them. Where threads are not to be had, the
 * caller does it alone. */
void ms__touch(void *address, uint64_t bytes);
/* Gives the range's pages back; it reads as zeros again. */
void ms__untouch(void *address, uint64_t bytes);

void ms__slab_close(ms__slab *slab);

/* In a forked child, where the map does not exist and its addresses may by now
 * be somebody else's: forgets it. */
void ms__slab_forget(ms__slab *slab);

/* What of it is in memory now. */
uint64_t ms__slab_resident_bytes(const ms__slab *slab);

#endif
