/*
 * Several arrays in one allocation, for things that are made and dropped together:
 *
 *     static void lay_out(model *m, ms__parts *parts)
 *     {
 *         m->sizes = MS__PART(parts, m->sizes, m->count + 1);
 *         m->steps = MS__PART(parts, m->steps, m->count);
 *     }
 *
 *     ms__parts parts = {0};
 *     lay_out(m, &parts);                         measures; every array is NULL
 *     if (!ms__parts_allocate(&parts)) ...        MS_ENOMEM
 *     lay_out(m, &parts);                         the arrays, zeroed
 *     ...
 *     ms_free(parts.block);
 */
#ifndef MS_BASE_PARTS_H
#define MS_BASE_PARTS_H

#include "base/units.h"
#include "memscale/base.h"

enum { MS__PART_ALIGNMENT = 16 };

typedef struct ms__parts {
    unsigned char *block; /* NULL while parts are measured */
    uint64_t used_bytes;  /* UINT64_MAX: more than there can be */
} ms__parts;

static inline void *ms__part(ms__parts *parts, size_t count, size_t item_bytes)
{
    void *part = parts->block != NULL ? parts->block + parts->used_bytes : NULL;
    uint64_t bytes = ms__add_sat(ms__mul_sat(count, item_bytes), MS__PART_ALIGNMENT - 1);
    parts->used_bytes = ms__add_sat(parts->used_bytes, bytes / MS__PART_ALIGNMENT * MS__PART_ALIGNMENT);
    return part;
}

/* Room for `count` items of what `array` points to. */
#define MS__PART(parts, array, count) ms__part((parts), (count), sizeof *(array))

/* Room for all that was measured, zeroed; false where memory is out. The caller frees `block`. */
static inline bool ms__parts_allocate(ms__parts *parts)
{
    parts->block = parts->used_bytes > SIZE_MAX / 2 ? NULL : ms_calloc(1, (size_t)parts->used_bytes);
    parts->used_bytes = 0;
    return parts->block != NULL;
}

#endif
