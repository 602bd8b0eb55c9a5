/* The arrays of array.h grow by half of their size, and to at least eight items. */
#include "base/array.h"

enum { SMALLEST_CAPACITY = 8 };

int ms__array_reserve(void *items, size_t *capacity, size_t needed, size_t item_bytes)
{
    if (needed <= *capacity) {
        return MS_OK;
    }
    if (needed > SIZE_MAX / 2 / item_bytes) {
        return MS_EOVERFLOW;
    }
    size_t grown = *capacity + *capacity / 2;
    grown = grown > needed ? grown : needed;
    grown = grown > SMALLEST_CAPACITY ? grown : SMALLEST_CAPACITY;
    void *old;
    memcpy(&old, items, sizeof old);
    void *moved = ms_realloc_array(old, grown, item_bytes);
    if (moved == NULL) {
        return MS_ENOMEM;
    }
    memcpy(items, &moved, sizeof moved);
    *capacity = grown;
    return MS_OK;
}
