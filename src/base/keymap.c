/* The map of keymap.h: linear probing, at most half full. Removing a key moves the
 * entries after the hole back, so there are no tombstones. */
#include "base/keymap.h"

enum { SMALLEST_CAPACITY = 64 };

/* The finalizer of MurmurHash3: addresses differ in few bits. */
static size_t home_of(const ms__keymap *map, uint64_t key)
{
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdULL;
    key ^= key >> 33;
    return (size_t)key & (map->capacity - 1);
}

/* The key's entry, or the free entry that the key would take. */
static size_t slot_of(const ms__keymap *map, uint64_t key)
{
    size_t at = home_of(map, key);
    while (map->slots[at].used && map->slots[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    return at;
}

void ms__keymap_free(ms__keymap *map)
{
    ms_free(map->slots);
    *map = (ms__keymap){0};
}

bool ms__keymap_get(const ms__keymap *map, uint64_t key, uint64_t *value)
{
    if (map->count == 0) {
        return false;
    }
    const ms__keymap_slot *slot = &map->slots[slot_of(map, key)];
    if (slot->used) {
        *value = slot->value;
    }
    return slot->used;
}

static int keymap_grow(ms__keymap *map)
{
    ms__keymap larger = {0};
    larger.capacity = map->capacity != 0 ? 2 * map->capacity : SMALLEST_CAPACITY;
    larger.slots = ms_calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL) {
        return MS_ENOMEM;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].used) {
            larger.slots[slot_of(&larger, map->slots[i].key)] = map->slots[i];
        }
    }
    larger.count = map->count;
    ms_free(map->slots);
    *map = larger;
    return MS_OK;
}

int ms__keymap_put(ms__keymap *map, uint64_t key, uint64_t value)
{
    if (2 * (map->count + 1) > map->capacity) {
        int rc = keymap_grow(map);
        if (rc != MS_OK) {
            return rc;
        }
    }
    ms__keymap_slot *slot = &map->slots[slot_of(map, key)];
    map->count += !slot->used;
    *slot = (ms__keymap_slot){key, value, true};
    return MS_OK;
}

void ms__keymap_remove(ms__keymap *map, uint64_t key)
{
    if (map->count == 0) {
        return;
    }
    size_t hole = slot_of(map, key);
    if (!map->slots[hole].used) {
        return;
    }
    size_t mask = map->capacity - 1;
    for (size_t at = (hole + 1) & mask; map->slots[at].used; at = (at + 1) & mask) {
        /* An entry may move unless its home lies between the hole and the entry. */
        size_t distance = (at - home_of(map, map->slots[at].key)) & mask;
        if (distance >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole].used = false;
    map->count--;
}
