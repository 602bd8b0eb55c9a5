/*
 * First fit over an array of free runs sorted by position, with coalescing on release.
 * Training frees extents in the reverse order of its stores, so the array holds a handful
 * of runs and a search is a short scan; a cleverer structure gains nothing.
 */
#include "offload/extents.h"

#include <string.h>

void ms__extents_init(ms__extents *extents, uint64_t limit_bytes)
{
    memset(extents, 0, sizeof *extents);
    extents->limit_bytes = limit_bytes;
}

void ms__extents_destroy(ms__extents *extents)
{
    ms_free(extents->runs);
    memset(extents, 0, sizeof *extents);
}

/* n extents have at most n gaps before them: with room for one run per live extent and a
 * spare one, a release never has to allocate. */
static int extents_make_room(ms__extents *extents)
{
    size_t needed = extents->live_count + 2;
    if (needed <= extents->run_capacity) {
        return MS_OK;
    }
    size_t capacity = needed < 32 ? 32 : needed * 2;
    ms__run *runs = ms_realloc_array(extents->runs, capacity, sizeof *runs);
    if (runs == NULL) {
        return MS_ENOMEM;
    }
    extents->runs = runs;
    extents->run_capacity = capacity;
    return MS_OK;
}

static void remove_run(ms__extents *extents, size_t index)
{
    size_t behind = extents->run_count - index - 1;
    memmove(&extents->runs[index], &extents->runs[index + 1], behind * sizeof *extents->runs);
    extents->run_count--;
}

static void insert_run(ms__extents *extents, size_t index, uint64_t position, uint64_t bytes)
{
    size_t behind = extents->run_count - index;
    memmove(&extents->runs[index + 1], &extents->runs[index], behind * sizeof *extents->runs);
    extents->runs[index] = (ms__run){position, bytes};
    extents->run_count++;
}

int ms__extents_reserve(ms__extents *extents, uint64_t bytes, uint64_t *position)
{
    int rc = extents_make_room(extents);
    if (rc != MS_OK) {
        return rc;
    }
    for (size_t i = 0; i < extents->run_count; i++) {
        ms__run *run = &extents->runs[i];
        if (run->bytes < bytes) {
            continue;
        }
        *position = run->position;
        run->position += bytes;
        run->bytes -= bytes;
        if (run->bytes == 0) {
            remove_run(extents, i);
        }
        extents->live_count++;
        return MS_OK;
    }
    if (bytes > extents->limit_bytes - extents->end_bytes) {
        return MS_ENOSPC;
    }
    *position = extents->end_bytes;
    extents->end_bytes += bytes;
    extents->live_count++;
    return MS_OK;
}

/* The first run at or behind `position`. */
static size_t find_run(const ms__extents *extents, uint64_t position)
{
    size_t low = 0, high = extents->run_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (extents->runs[middle].position < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void ms__extents_release(ms__extents *extents, uint64_t position, uint64_t bytes)
{
    size_t next = find_run(extents, position);
    ms__run *before = next > 0 ? &extents->runs[next - 1] : NULL;
    ms__run *behind = next < extents->run_count ? &extents->runs[next] : NULL;
    bool joins_before = before != NULL && before->position + before->bytes == position;
    bool joins_behind = behind != NULL && behind->position == position + bytes;
    extents->live_count--;
    if (position + bytes == extents->end_bytes) {
        extents->end_bytes = position;
        if (joins_before) {
            extents->end_bytes = before->position;
            remove_run(extents, next - 1);
        }
    } else if (joins_before && joins_behind) {
        before->bytes += bytes + behind->bytes;
        remove_run(extents, next);
    } else if (joins_before) {
        before->bytes += bytes;
    } else if (joins_behind) {
        behind->position = position;
        behind->bytes += bytes;
    } else {
        insert_run(extents, next, position, bytes);
    }
}
