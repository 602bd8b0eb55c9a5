/*
 * slab.h - one private map of exact size from which an engine's slots are cut.
 *
 * The map is page-aligned and zero at first. Huge pages are advised, on the memory node of the thread
 * that opens the engine. Forked children do not inherit it. Slots are touched only when used, so an
 * engine that moves nothing through slots takes no memory.
 *
 * Tests: tests/c/offload/test_slab.c.
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

/* If the machine has several memory nodes, asks for the range's pages from the calling thread's
 * node and logs the result. Any thread may touch them. */
void ms__keep_near(void *address, uint64_t bytes, uint32_t node_count, const char *what);

/* Brings every page of a fresh range into memory. A large range gets several threads, because one
 * thread clears pages hardly faster than a link moves them; the caller works alone if none starts. */
void ms__touch(void *address, uint64_t bytes);
/* Frees the range's pages; the range reads as zeros again. */
void ms__untouch(void *address, uint64_t bytes);

void ms__slab_close(ms__slab *slab);

/* In a forked child, which did not inherit the map: clears the fields but unmaps nothing, because
 * the addresses may be in use by then. */
void ms__slab_forget(ms__slab *slab);

/* The bytes of the slab that are in memory. */
uint64_t ms__slab_resident_bytes(const ms__slab *slab);

#endif
