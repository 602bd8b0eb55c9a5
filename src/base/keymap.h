/*
 * A map from 64-bit keys to 64-bit values, open addressing. Keys and values are any numbers. Used by the tracer:
 * storages by address, saves by node and storage.
 * Tests: tests/c/base/test_keymap.c.
 */
#ifndef MS_BASE_KEYMAP_H
#define MS_BASE_KEYMAP_H

#include "memscale/base.h"

typedef struct ms__keymap_slot {
    uint64_t key;
    uint64_t value;
    bool used;
} ms__keymap_slot;

/* All zeros are a valid empty map. */
typedef struct ms__keymap {
    ms__keymap_slot *slots;
    size_t capacity; /* 0 or a power of two */
    size_t count;
} ms__keymap;

void ms__keymap_free(ms__keymap *map);

/* False, without writing `*value`, if the key is absent. */
bool ms__keymap_get(const ms__keymap *map, uint64_t key, uint64_t *value);

/* Adds or replaces a value. MS_ENOMEM; then the map is unchanged. */
MS_NODISCARD int ms__keymap_put(ms__keymap *map, uint64_t key, uint64_t value);

/* Removes the key if it is present. */
void ms__keymap_remove(ms__keymap *map, uint64_t key);

#endif
