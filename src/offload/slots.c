/*
 * A stack of free slot numbers, and a count of takes for each other slot.
 */
#include "offload/slots.h"

#include <string.h>

#include "base/units.h"

int ms__slots_open(ms__slots *slots, const ms__slab *slab, uint64_t slot_bytes, uint32_t private_count, ms_error *err)
{
    memset(slots, 0, sizeof *slots);
    uint64_t count = slab->bytes / slot_bytes;
    if (count <= private_count || count >= MS__NO_SLOT) {
        return ms_fail(err, MS_EINVAL, "a slab of %s gives %llu slots of %s; the threads need %u and one more",
                       ms__text_bytes(slab->bytes).text, (unsigned long long)count, ms__text_bytes(slot_bytes).text,
                       private_count);
    }
    slots->free_list = ms_calloc(count, sizeof *slots->free_list);
    slots->user_counts = ms_calloc(count, sizeof *slots->user_counts);
    if (slots->free_list == NULL || slots->user_counts == NULL) {
        ms__slots_close(slots);
        return ms_fail(err, MS_ENOMEM, "no memory for a list of slots");
    }
    slots->base = slab->address;
    slots->slot_bytes = slot_bytes;
    slots->count = (uint32_t)count;
    slots->private_count = private_count;
    slots->shared = MS__NO_SLOT;
    for (uint32_t slot = slots->count; slot > private_count; slot--) {
        slots->free_list[slots->free_count++] = slot - 1;
    }
    return MS_OK;
}

void ms__slots_close(ms__slots *slots)
{
    ms_free(slots->free_list);
    ms_free(slots->user_counts);
    memset(slots, 0, sizeof *slots);
}

unsigned char *ms__slots_take(ms__slots *slots, uint64_t bytes)
{
    bool is_sharer = bytes <= slots->slot_bytes / 2;
    bool fits_behind = slots->shared != MS__NO_SLOT && bytes <= slots->slot_bytes - slots->shared_bytes;
    if (slots->taker_count == slots->count - slots->private_count) {
        return NULL;
    }
    slots->taker_count++;
    if (is_sharer && fits_behind) {
        unsigned char *memory = ms__slot_address(slots, slots->shared) + slots->shared_bytes;
        slots->shared_bytes += bytes;
        slots->user_counts[slots->shared]++;
        return memory;
    }
    uint32_t slot = slots->free_list[--slots->free_count]; /* never empty: a taker uses one at most */
    slots->user_counts[slot] = 1;
    if (is_sharer) {
        slots->shared = slot;
        slots->shared_bytes = bytes;
    }
    return ms__slot_address(slots, slot);
}

void ms__slots_give(ms__slots *slots, const unsigned char *memory)
{
    uint32_t slot = (uint32_t)((uint64_t)(memory - slots->base) / slots->slot_bytes);
    slots->taker_count--;
    if (--slots->user_counts[slot] > 0) {
        return;
    }
    if (slot == slots->shared) {
        slots->shared = MS__NO_SLOT;
    }
    slots->free_list[slots->free_count++] = slot;
}
