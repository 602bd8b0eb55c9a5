/*
 * Growable arrays of any type.
 * Tests: tests/c/base/test_memory.c.
 *
 *     MS__ARRAY(uint64_t) sizes = {0};
 *     uint64_t *item = MS__ARRAY_PUSH(&sizes);    NULL when out of memory
 *     ...
 *     MS__ARRAY_FREE(&sizes);
 *
 * Items move when the array grows: keep indices, not pointers.
 */
#ifndef MS_BASE_ARRAY_H
#define MS_BASE_ARRAY_H

#include <string.h>

#include "memscale/base.h"

#define MS__ARRAY(type) \
    struct { \
        type *items; \
        size_t count; \
        size_t capacity; \
    }

/* Makes room for a total of `needed` items. `items` is the address of the array's pointer. On failure the array is
 * unchanged: MS_ENOMEM, or MS_EOVERFLOW if the bytes do not fit a size_t. */
MS_NODISCARD int ms__array_reserve(void *items, size_t *capacity, size_t needed, size_t item_bytes);

/* Makes room for a total of `needed` items: 0 or an error code. */
#define MS__ARRAY_RESERVE(array, needed) \
    ms__array_reserve(&(array)->items, &(array)->capacity, (needed), sizeof *(array)->items)

/* Appends a zeroed item: gives its address, or NULL when out of memory. */
#define MS__ARRAY_PUSH(array) \
    (MS__ARRAY_RESERVE(array, (array)->count + 1) == MS_OK \
         ? (memset(&(array)->items[(array)->count], 0, sizeof *(array)->items), &(array)->items[(array)->count++]) \
         : NULL)

#define MS__ARRAY_FREE(array) \
    do { \
        ms_free((array)->items); \
        (array)->items = NULL; \
        (array)->count = 0; \
        (array)->capacity = 0; \
    } while (0)

#endif
