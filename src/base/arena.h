/*
 * An arena: many small blocks that die together. Used while a document is read
 * or a plan is searched. Memory comes from ms_malloc(), so it is counted and a
 * fault point; blocks cannot be freed one by one.
 */
#ifndef MS_BASE_ARENA_H
#define MS_BASE_ARENA_H

#include "memscale/base.h"

typedef struct ms__arena_chunk ms__arena_chunk;

/* All zero is a valid empty arena. */
typedef struct ms__arena {
    ms__arena_chunk *chunks; /* newest first */
    size_t next_chunk_bytes;
} ms__arena;

/* `count` zeroed items of `size_bytes`, aligned to 16; NULL where memory is out
 * or the product does not fit. A count or size of 0 gives a valid block. */
void *ms__arena_alloc(ms__arena *arena, size_t count, size_t size_bytes);

/* A copy of `text`, or of its first `length` bytes with a NUL after them. */
char *ms__arena_strdup(ms__arena *arena, const char *text);
char *ms__arena_strndup(ms__arena *arena, const char *text, size_t length);

/* Frees every block; the arena is empty and may be used again. */
void ms__arena_free(ms__arena *arena);

#endif
