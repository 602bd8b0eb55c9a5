/*
 * Counted memory: every allocation of the library. Blocks are libc's own and carry no header, because jansson
 * allocates here too and may free blocks that it allocated earlier for another user.
 */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

static _Atomic uint64_t live_bytes;
static _Atomic uint64_t live_blocks;

static void *count_in(void *block)
{
    if (block != NULL) {
        atomic_fetch_add_explicit(&live_bytes, malloc_usable_size(block), memory_order_relaxed);
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    }
    return block;
}

static bool allocation_must_fail(void)
{
    int system_errno = ENOMEM;
    if (!ms__fault(MS_FAULT_ALLOC, &system_errno)) {
        return false;
    }
    errno = system_errno;
    return true;
}

void *ms_malloc(size_t size_bytes)
{
    if (allocation_must_fail()) {
        return NULL;
    }
    return count_in(malloc(size_bytes != 0 ? size_bytes : 1));
}

void *ms_calloc(size_t count, size_t size_bytes)
{
    size_t total_bytes;
    if (__builtin_mul_overflow(count, size_bytes, &total_bytes) || allocation_must_fail()) {
        return NULL;
    }
    return count_in(calloc(1, total_bytes != 0 ? total_bytes : 1));
}

void *ms_realloc_array(void *block, size_t count, size_t size_bytes)
{
    size_t total_bytes;
    if (__builtin_mul_overflow(count, size_bytes, &total_bytes) || allocation_must_fail()) {
        return NULL;
    }
    size_t old_bytes = block != NULL ? malloc_usable_size(block) : 0;
    bool was_block = block != NULL;
    void *moved = realloc(block, total_bytes != 0 ? total_bytes : 1);
    if (moved == NULL) {
        return NULL;
    }
    if (was_block) {
        atomic_fetch_sub_explicit(&live_bytes, old_bytes, memory_order_relaxed);
        atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    }
    return count_in(moved);
}

char *ms_strdup(const char *text)
{
    size_t size_bytes = strlen(text) + 1;
    char *copy = ms_malloc(size_bytes);
    if (copy != NULL) {
        memcpy(copy, text, size_bytes);
    }
    return copy;
}

void ms_free(void *block)
{
    if (block == NULL) {
        return;
    }
    atomic_fetch_sub_explicit(&live_bytes, malloc_usable_size(block), memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(block);
}

uint64_t ms_memory_live_bytes(void)
{
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}

uint64_t ms_memory_live_blocks(void)
{
    return atomic_load_explicit(&live_blocks, memory_order_relaxed);
}
