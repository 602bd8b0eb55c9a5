/*
 * slots.h - the slab cut into slots of one size, and the list of free ones.
 *
 * Only bookkeeping: no lock, no waiting. The engine takes room in slots for stores that it
 * must copy, and lets callers wait. The first `private_count` slots always belong to the
 * lanes, one for every transfer that a lane can have in flight, so a lane never waits for a
 * slot.
 *
 * Extents of at most half a slot share one. Each lies behind the one taken before it, so
 * that one request can write consecutive stores. There are never more takers than slots, as
 * without sharing: callers must not run further ahead of the tier. So a taker always finds a
 * slot. A slot is free again when all room taken in it was given back.
 *
 * Tests: tests/c/offload/test_slots.c.
 */
#ifndef MS_OFFLOAD_SLOTS_H
#define MS_OFFLOAD_SLOTS_H

#include "offload/slab.h"

#define MS__NO_SLOT UINT32_MAX

typedef struct ms__slots {
    unsigned char *base;
    uint64_t slot_bytes;
    uint32_t count;
    uint32_t private_count;
    uint32_t free_count;
    uint32_t taker_count; /* takes not given back yet; at most count - private_count */
    uint32_t *free_list; /* a stack: the slot freed last is still in the processor's caches */
    uint32_t *user_counts; /* [count] takes in each slot not given back yet */
    uint32_t shared;       /* the slot with room for sharers, or MS__NO_SLOT */
    uint64_t shared_bytes; /* its bytes in use; the room is behind them */
} ms__slots;

/* Needs slab->bytes / slot_bytes > private_count. */
int ms__slots_open(ms__slots *slots, const ms__slab *slab, uint64_t slot_bytes, uint32_t private_count, ms_error *err);
void ms__slots_close(ms__slots *slots);

/* Takes room for `bytes` (whole blocks, at most a slot); NULL if there is none. */
unsigned char *ms__slots_take(ms__slots *slots, uint64_t bytes);
void ms__slots_give(ms__slots *slots, const unsigned char *memory);

static inline unsigned char *ms__slot_address(const ms__slots *slots, uint32_t slot)
{
    return slots->base + (uint64_t)slot * slots->slot_bytes;
}

#endif
