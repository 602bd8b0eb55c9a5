/*
 * The arena of arena.h: chunks of growing size, blocks cut from the newest.
 */
#include <string.h>

#include "base/arena.h"
#include "base/units.h"

enum { FIRST_CHUNK_BYTES = 4096, LARGEST_CHUNK_BYTES = 1 << 20, BLOCK_ALIGNMENT = 16 };

struct ms__arena_chunk {
    ms__arena_chunk *older;
    size_t size_bytes;
    size_t used_bytes;
    _Alignas(BLOCK_ALIGNMENT) unsigned char data[];
};

static ms__arena_chunk *chunk_with_room(ms__arena *arena, size_t block_bytes)
{
    ms__arena_chunk *chunk = arena->chunks;
    if (chunk != NULL && chunk->size_bytes - chunk->used_bytes >= block_bytes) {
        return chunk;
    }
    size_t wanted = arena->next_chunk_bytes != 0 ? arena->next_chunk_bytes : FIRST_CHUNK_BYTES;
    size_t size_bytes = block_bytes > wanted ? block_bytes : wanted;
    size_t total_bytes;
    if (__builtin_add_overflow(size_bytes, sizeof *chunk, &total_bytes)) {
        return NULL;
    }
    chunk = ms_malloc(total_bytes);
    if (chunk == NULL) {
        return NULL;
    }
    arena->next_chunk_bytes = wanted < LARGEST_CHUNK_BYTES ? wanted * 2 : wanted;
    chunk->older = arena->chunks;
    chunk->size_bytes = size_bytes;
    chunk->used_bytes = 0;
    arena->chunks = chunk;
    return chunk;
}

void *ms__arena_alloc(ms__arena *arena, size_t count, size_t size_bytes)
{
    uint64_t product;
    if (!ms__mul_checked(count, size_bytes, &product)) {
        return NULL;
    }
    uint64_t block_bytes = ms__align_up(product != 0 ? product : 1, BLOCK_ALIGNMENT);
    if (block_bytes > SIZE_MAX / 2) {
        return NULL;
    }
    ms__arena_chunk *chunk = chunk_with_room(arena, (size_t)block_bytes);
    if (chunk == NULL) {
        return NULL;
    }
    void *block = chunk->data + chunk->used_bytes;
    chunk->used_bytes += (size_t)block_bytes;
    return memset(block, 0, (size_t)block_bytes);
}

char *ms__arena_strdup(ms__arena *arena, const char *text)
{
    return ms__arena_strndup(arena, text, strlen(text));
}

char *ms__arena_strndup(ms__arena *arena, const char *text, size_t length)
{
    char *copy = length < SIZE_MAX ? ms__arena_alloc(arena, length + 1, 1) : NULL;
    if (copy != NULL) {
        memcpy(copy, text, length);
    }
    return copy;
}

void ms__arena_free(ms__arena *arena)
{
    ms__arena_chunk *chunk = arena->chunks;
    while (chunk != NULL) {
        ms__arena_chunk *older = chunk->older;
        ms_free(chunk);
        chunk = older;
    }
    *arena = (ms__arena){0};
}
