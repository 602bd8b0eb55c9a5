/*
 * The cache of freed maps, as hostmem keeps it: by exact size, under a ceiling on live + cached bytes. The map
 * that was freed first leaves first; the last one to leave loses only as many huge pages as are needed. The
 * cache decides only how many bytes of a map must be faulted in, and how many are held at most.
 */
#include "base/os/map.h"
#include "base/units.h"
#include "sim/sim.h"

enum { NONE = UINT32_MAX };

void ms__cache_reset(ms__sim *sim, uint64_t ceiling_bytes)
{
    ms__cache *cache = &sim->cache;
    cache->on = ceiling_bytes > 0 && sim->on_host;
    cache->ceiling_bytes = ceiling_bytes;
    cache->cached_bytes = 0;
    cache->held_peak_bytes = 0;
    cache->oldest = cache->newest = NONE;
    if (!cache->on) {
        return;
    }
    cache->free_entry = 0;
    for (uint32_t i = 0; i < sim->instance_count; i++) {
        cache->entries[i].newer = i + 1 < sim->instance_count ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < sim->class_count; i++) {
        cache->top[i] = NONE;
    }
}

static void cache_unlink(ms__cache *cache, uint32_t index)
{
    ms__cache_entry *entry = &cache->entries[index];
    if (entry->older != NONE) {
        cache->entries[entry->older].newer = entry->newer;
    } else {
        cache->oldest = entry->newer;
    }
    if (entry->newer != NONE) {
        cache->entries[entry->newer].older = entry->older;
    } else {
        cache->newest = entry->older;
    }
    if (entry->above != NONE) {
        cache->entries[entry->above].below = entry->below;
    } else {
        cache->top[entry->class_id] = entry->below;
    }
    if (entry->below != NONE) {
        cache->entries[entry->below].above = entry->above;
    }
    entry->newer = cache->free_entry;
    cache->free_entry = index;
}

static uint64_t cache_resident_bytes(const ms__sim *sim, const ms__cache_entry *entry)
{
    return sim->class_bytes[entry->class_id] - entry->absent_bytes;
}

/* The same result as hostmem's cache_shrink_oldest(). */
static void cache_shrink_oldest(ms__sim *sim, uint64_t lack_bytes)
{
    ms__cache *cache = &sim->cache;
    ms__cache_entry *entry = &cache->entries[cache->oldest];
    uint64_t resident = cache_resident_bytes(sim, entry);
    uint64_t keep = ms__align_down(ms__sub_sat(resident, lack_bytes), MS__HUGE_PAGE_BYTES);
    cache->cached_bytes -= resident - keep;
    entry->absent_bytes += resident - keep;
    if (keep == 0) {
        cache_unlink(cache, cache->oldest);
    }
}

void ms__cache_squeeze(ms__sim *sim, uint64_t coming_bytes)
{
    ms__cache *cache = &sim->cache;
    uint64_t most = ms__sub_sat(cache->ceiling_bytes, ms__sim_resident(sim) + coming_bytes);
    while (cache->oldest != NONE && cache->cached_bytes > most) {
        cache_shrink_oldest(sim, cache->cached_bytes - most);
    }
}

uint64_t ms__cache_take(ms__sim *sim, uint32_t class_id)
{
    ms__cache *cache = &sim->cache;
    uint64_t bytes = sim->class_bytes[class_id];
    uint64_t absent = bytes;
    uint32_t top = cache->top[class_id];
    if (top != NONE) {
        absent = cache->entries[top].absent_bytes;
        cache->cached_bytes -= bytes - absent;
        cache_unlink(cache, top);
    }
    if (absent > 0) {
        ms__cache_squeeze(sim, bytes);
    }
    return absent;
}

void ms__cache_give(ms__sim *sim, uint32_t class_id)
{
    ms__cache *cache = &sim->cache;
    uint64_t bytes = sim->class_bytes[class_id];
    uint64_t held = ms__sim_resident(sim) + cache->cached_bytes;
    if (cache->free_entry == NONE || held > cache->ceiling_bytes || bytes > cache->ceiling_bytes - held) {
        return;
    }
    uint32_t index = cache->free_entry;
    ms__cache_entry *entry = &cache->entries[index];
    cache->free_entry = entry->newer;
    *entry = (ms__cache_entry){
        .class_id = class_id, .older = cache->newest, .newer = NONE, .below = cache->top[class_id], .above = NONE};
    if (cache->newest != NONE) {
        cache->entries[cache->newest].newer = index;
    } else {
        cache->oldest = index;
    }
    if (entry->below != NONE) {
        cache->entries[entry->below].above = index;
    }
    cache->top[class_id] = index;
    cache->newest = index;
    cache->cached_bytes += bytes;
}
