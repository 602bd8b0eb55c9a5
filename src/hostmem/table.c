/*
 * The radix from addresses to blocks, and the store of block descriptors. heap.c changes it under
 * its lock; the hooks and ms_hostmem_find() read it without one. Must not use malloc: it runs
 * inside free().
 */
#include "hostmem/table.h"

#include <stddef.h>

#include "base/os/map.h"
#include "base/units.h"

enum {
    GRANULE_BITS = 17,
    LEAF_BITS = 13,    /* a leaf covers 1 GiB */
    ADDRESS_BITS = 48, /* mmap()'s addresses without a hint, on every 64-bit Linux */
    ROOT_BITS = ADDRESS_BITS - GRANULE_BITS - LEAF_BITS
};

enum { BLOCK_STORE_BYTES = 64 << 10 };

typedef struct granule {
    _Atomic(ms__map_block *) starts; /* the block whose first byte is here */
    _Atomic(ms__map_block *) covers; /* the block that began in a lower granule and covers this start */
} granule;

typedef struct leaf {
    granule granules[1u << LEAF_BITS];
} leaf;

static _Atomic(leaf *) root[1u << ROOT_BITS];
static ms__map_block *spare_blocks; /* linked through age_next; under the heap's lock */

/* A zeroed map below the huge-page size, so that only touched pages become resident. */
static void *map_table(size_t bytes)
{
    void *address = NULL;
    size_t page_bytes = ms__page_bytes();
    int rc = ms__map((size_t)ms__align_up(bytes, page_bytes), page_bytes, &address, NULL);
    return rc == MS_OK ? address : NULL;
}

static granule *granule_at(uint64_t number)
{
    leaf *node = atomic_load_explicit(&root[number >> LEAF_BITS], memory_order_acquire);
    return node ? &node->granules[number & ((1u << LEAF_BITS) - 1)] : NULL;
}

/* The granule of an address, or NULL if no block can be there. */
static granule *granule_of(uintptr_t address)
{
    uint64_t number = (uint64_t)address >> GRANULE_BITS;
    return number >> (LEAF_BITS + ROOT_BITS) ? NULL : granule_at(number);
}

static bool ensure_leaves(uint64_t first, uint64_t last)
{
    if (last >> (LEAF_BITS + ROOT_BITS)) {
        return false;
    }
    for (uint64_t i = first >> LEAF_BITS; i <= last >> LEAF_BITS; i++) {
        if (atomic_load_explicit(&root[i], memory_order_relaxed)) {
            continue;
        }
        leaf *node = map_table(sizeof *node);
        if (node == NULL) {
            return false;
        }
        atomic_store_explicit(&root[i], node, memory_order_release);
    }
    return true;
}

ms__map_block *ms__map_block_new(void)
{
    if (spare_blocks == NULL) {
        ms__map_block *fresh = map_table(BLOCK_STORE_BYTES);
        if (fresh == NULL) {
            return NULL;
        }
        for (size_t i = 0; i < BLOCK_STORE_BYTES / sizeof *fresh; i++) {
            ms__map_block_free(&fresh[i]);
        }
    }
    ms__map_block *block = spare_blocks;
    spare_blocks = block->age_next;
    block->age_next = NULL;
    return block;
}

void ms__map_block_free(ms__map_block *block)
{
    block->age_next = spare_blocks;
    spare_blocks = block;
}

bool ms__map_table_add(ms__map_block *block)
{
    uintptr_t address = atomic_load_explicit(&block->address, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&block->bytes, memory_order_relaxed);
    uint64_t first = (uint64_t)address >> GRANULE_BITS;
    uint64_t last = (address + bytes - 1) >> GRANULE_BITS;
    if (!ensure_leaves(first, last)) {
        return false;
    }
    for (uint64_t i = first + 1; i <= last; i++) {
        atomic_store_explicit(&granule_at(i)->covers, block, memory_order_release);
    }
    atomic_store_explicit(&granule_at(first)->starts, block, memory_order_release);
    return true;
}

void ms__map_table_remove(ms__map_block *block)
{
    uintptr_t address = atomic_load_explicit(&block->address, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&block->bytes, memory_order_relaxed);
    uint64_t first = (uint64_t)address >> GRANULE_BITS;
    uint64_t last = (address + bytes - 1) >> GRANULE_BITS;
    atomic_store_explicit(&granule_at(first)->starts, NULL, memory_order_release);
    for (uint64_t i = first + 1; i <= last; i++) {
        atomic_store_explicit(&granule_at(i)->covers, NULL, memory_order_release);
    }
}

ms__map_block *ms__map_table_start(const void *address)
{
    granule *place = granule_of((uintptr_t)address);
    if (place == NULL) {
        return NULL;
    }
    ms__map_block *block = atomic_load_explicit(&place->starts, memory_order_acquire);
    if (block == NULL || atomic_load_explicit(&block->address, memory_order_relaxed) != (uintptr_t)address) {
        return NULL;
    }
    return block;
}

/* Reads the serial before and after: it differs if the descriptor was reused. */
static bool copy_if_inside(ms__map_block *block, uintptr_t address, uintptr_t *start, uint64_t *bytes, uint64_t *serial)
{
    if (block == NULL) {
        return false;
    }
    uint64_t before = atomic_load_explicit(&block->serial, memory_order_acquire);
    uintptr_t block_start = atomic_load_explicit(&block->address, memory_order_acquire);
    uint64_t block_bytes = atomic_load_explicit(&block->bytes, memory_order_acquire);
    uint64_t after = atomic_load_explicit(&block->serial, memory_order_acquire);
    if (before == 0 || before != after || address < block_start || address - block_start >= block_bytes) {
        return false;
    }
    *start = block_start;
    *bytes = block_bytes;
    *serial = before;
    return true;
}

bool ms__map_table_find(const void *address, uintptr_t *start, uint64_t *bytes, uint64_t *serial)
{
    granule *place = granule_of((uintptr_t)address);
    if (place == NULL) {
        return false;
    }
    ms__map_block *starts = atomic_load_explicit(&place->starts, memory_order_acquire);
    ms__map_block *covers = atomic_load_explicit(&place->covers, memory_order_acquire);
    return copy_if_inside(starts, (uintptr_t)address, start, bytes, serial) ||
           copy_if_inside(covers, (uintptr_t)address, start, bytes, serial);
}
