/*
 * slots.h - the slab cut into slots of one size, and which of them are free.
 *
 * Bookkeeping only: no lock, no waiting. The engine takes room in slots for stores that
 * it has to copy and lets callers wait; the first `private_count` slots are handed to
 * the lanes for good, one for every transfer that a lane can have under way, so
 * that a lane never has to wait for a slot.
 *
 * What takes at most half of a slot shares one: it lies behind what was taken before it, so
 * that what is stored one after the other can be written at once. Sharing is for that alone: there
 * are never more takers than slots. A caller that ran further ahead of the tier would come
 * back to its bytes before they are stored. So whoever may take finds a slot, whoever shares. One is
 * free again when all that was taken of it has been given back.
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
    uint32_t taker_count; /* of room that was not given back; at most count - private_count */
    uint32_t *free_list; /* a stack: the slot freed last is the warmest */
    uint32_t *user_counts; /* [count] how often room in it was taken and not given back */
    uint32_t shared;       /* the slot that has room for sharers, or MS__NO_SLOT ... */
    uint64_t shared_bytes; /* ... behind these */
} ms__slots;

/* Needs slab->bytes / slot_bytes > private_count. */
int ms__slots_open(ms__slots *slots, const ms__slab *slab, uint64_t slot_bytes, uint32_t private_count, ms_error *err);
void ms__slots_close(ms__slots *slots);

/* Room for `bytes` (whole blocks, at most a slot's), or NULL where there is none. */
unsigned char *ms__slots_take(ms__slots *slots, uint64_t bytes);
void ms__slots_give(ms__slots *slots, const unsigned char *memory);

static inline unsigned char *ms__slot_address(const ms__slots *slots, uint32_t slot)
{
    return slots->base + (uint64_t)slot * slots->slot_bytes;
}

#endif
