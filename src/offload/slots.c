/*
 * A stack of free slot numbers.
 */
#include "offload/slots.h"

#include <string.h>

#include "base/units.h"

int ms__slots_open(ms__slots *slots, const ms__slab *slab, uint64_t slot_bytes,
                   uint32_t private_count, ms_error *err)
{
    memset(slots, 0, sizeof *slots);
    uint64_t count = slab->bytes / slot_bytes;
    if (count <= private_count || count >= MS__NO_SLOT) {
        return ms_fail(err, MS_EINVAL,
                       "a slab of %s gives %llu slots of %s; the threads need %u and one more",
                       ms__text_bytes(slab->bytes).text, (unsigned long long)count,
                       ms__text_bytes(slot_bytes).text, private_count);
    }
    slots->free_list = ms_calloc(count, sizeof *slots->free_list);
    if (slots->free_list == NULL) {
        return ms_fail(err, MS_ENOMEM, "no memory for a list of slots");
    }
    slots->base = slab->address;
    slots->slot_bytes = slot_bytes;
    slots->count = (uint32_t)count;
    slots->private_count = private_count;
    for (uint32_t slot = slots->count; slot > private_count; slot--) {
        slots->free_list[slots->free_count++] = slot - 1;
    }
    return MS_OK;
}

void ms__slots_close(ms__slots *slots)
{
    ms_free(slots->free_list);
    memset(slots, 0, sizeof *slots);
}

uint32_t ms__slots_take(ms__slots *slots)
{
    return slots->free_count == 0 ? MS__NO_SLOT : slots->free_list[--slots->free_count];
}

void ms__slots_give(ms__slots *slots, uint32_t slot)
{
    slots->free_list[slots->free_count++] = slot;
}
