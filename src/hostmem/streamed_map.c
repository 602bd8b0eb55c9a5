/*
 * Files of checkpoints whose tensors are streamed blocks, and blocks that leave them for files of their own.
 */
#include "base/os/file.h"
#include "base/os/map.h"
#include "base/units.h"
#include "hostmem/heap.h"
#include "hostmem/streamed.h"

struct ms_streamed_map {
    char *address;
    uint64_t file_bytes;
    bool is_lent; /* the map stays the caller's */
    size_t count;
    void *blocks[]; /* their starts */
};

/* ---- maps --------------------------------------------------------------------- */

static int check_ranges(const ms_streamed_range *ranges, size_t count, uint64_t file_bytes, ms_error *err)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].offset_bytes < end || ranges[i].offset_bytes > file_bytes ||
            ranges[i].size_bytes > file_bytes - ranges[i].offset_bytes) {
            return ms_fail(err, MS_EINVAL, "streamed: range %zu of a file is out of order or beyond its end", i);
        }
        end = ranges[i].offset_bytes + ranges[i].size_bytes;
    }
    return MS_OK;
}

static int map_whole(const char *path, uint64_t file_bytes, char **out, ms_error *err)
{
    ms__file file = MS__FILE_CLOSED;
    uint64_t size_bytes = 0;
    void *address = NULL;
    int rc = ms__file_open_to_read(path, &file, &size_bytes, err);
    if (rc == MS_OK && (size_bytes != file_bytes || file_bytes == 0)) {
        rc = ms_fail(err, MS_EFORMAT, "streamed: %s has %s, %s were expected", path, ms__text_bytes(size_bytes).text,
                     ms__text_bytes(file_bytes).text);
    }
    if (rc == MS_OK) {
        rc = ms__map_file_private(&file, (size_t)file_bytes, &address, err);
    }
    ms__file_close(&file);
    *out = address;
    return rc;
}

/* The last page of the file is whole too: the kernel has filled it with zeros. */
static int adopt_range(ms_streamed_map *map, const ms_streamed_range *range, ms_error *err)
{
    size_t page_bytes = ms__page_bytes();
    uint64_t end = range->offset_bytes + range->size_bytes;
    uint64_t first = ms__align_down(range->offset_bytes, page_bytes);
    end = end == map->file_bytes ? ms__align_up(end, page_bytes) : ms__align_down(end, page_bytes);
    if (end < first + MS_HOSTMEM_MIN_BYTES) {
        return MS_OK;
    }
    if (!ms__heap_adopt(map->address + first, end - first, MS__HEAP_LIBRARY, true)) {
        return ms_fail(err, MS_ENOMEM, "streamed: no memory for the record of a block");
    }
    /* Else a fault would map the ends of the blocks beside it, with all pages that lie in one large page. */
    if (map->count % 2 == 1) {
        (void)ms__map_set_apart(map->address + first, (size_t)(end - first));
    }
    map->blocks[map->count++] = map->address + first;
    return MS_OK;
}

int ms_streamed_map_file(const char *path, uint64_t file_bytes, const ms_streamed_range *ranges, size_t count,
                         ms_streamed_map **out, ms_error *err)
{
    if (!ms__streams()) {
        return ms_fail(err, MS_ESTATE, "streamed: streaming is off");
    }
    int rc = check_ranges(ranges, count, file_bytes, err);
    if (rc != MS_OK) {
        return rc;
    }
    ms_streamed_map *map = ms_calloc(1, sizeof *map + count * sizeof *map->blocks);
    if (map == NULL) {
        return ms_fail(err, MS_ENOMEM, "streamed: out of memory for a map of %zu blocks", count);
    }
    map->file_bytes = file_bytes;
    rc = map_whole(path, file_bytes, &map->address, err);
    for (size_t i = 0; i < count && rc == MS_OK; i++) {
        rc = adopt_range(map, &ranges[i], err);
    }
    if (rc != MS_OK) {
        ms_streamed_unmap(map);
        return rc;
    }
    *out = map;
    return MS_OK;
}

int ms_streamed_lend(void *address, uint64_t size_bytes, ms_streamed_map **out, ms_error *err)
{
    uint64_t bytes = ms__align_up(size_bytes, ms__page_bytes());
    if ((uintptr_t)address % ms__page_bytes() != 0 || bytes < MS_HOSTMEM_MIN_BYTES) {
        return ms_fail(err, MS_EINVAL, "streamed: a map of %s is not whole pages, or too small",
                       ms__text_bytes(size_bytes).text);
    }
    ms_streamed_map *map = ms_calloc(1, sizeof *map + sizeof *map->blocks);
    if (map == NULL || !ms__heap_adopt(address, bytes, MS__HEAP_LIBRARY, false)) {
        ms_free(map);
        return ms_fail(err, MS_ENOMEM, "streamed: no memory for the record of a map");
    }
    *map = (ms_streamed_map){.address = address, .file_bytes = size_bytes, .is_lent = true, .count = 1};
    map->blocks[0] = address;
    if (!ms__streamed_watch()) {
        ms_streamed_unmap(map);
        return ms_fail(err, MS_ESYSTEM, "streamed: no thread could be started");
    }
    *out = map;
    return MS_OK;
}

void *ms_streamed_map_address(const ms_streamed_map *map)
{
    return map->address;
}

void ms_streamed_unmap(ms_streamed_map *map)
{
    if (map == NULL) {
        return;
    }
    for (size_t i = 0; i < map->count; i++) {
        ms__heap_disown(map->blocks[i]);
    }
    if (!map->is_lent) {
        ms__unmap(map->address, (size_t)ms__align_up(map->file_bytes, ms__page_bytes()));
    }
    ms_free(map);
}

/* ---- files of their own --------------------------------------------------------- */

typedef struct part {
    const void *inside;
    void *address;
    uint64_t bytes; /* 0 if no part is there */
} part;

static void find_part(ms__window *window, void *argument)
{
    (void)window;
    part *sought = argument;
    const ms__map_block *block = ms__streamed_block_at(sought->inside);
    if (block != NULL && block->part) {
        sought->address = (void *)atomic_load(&block->address);
        sought->bytes = atomic_load(&block->bytes);
    }
}

static void leave_map(ms__window *window, void *argument)
{
    ms__map_block *block = ms__streamed_block_at(((const part *)argument)->address);
    if (block != NULL && block->part) {
        block->part = false;
        window->parts--;
    }
}

static int own_file(const part *owned, ms_error *err)
{
    char directory[PATH_MAX];
    ms__file file = MS__FILE_CLOSED;
    ms__streamed_directory(directory);
    int rc = ms__file_open_unnamed(directory, false, &file, err);
    if (rc == MS_OK) {
        rc = ms__file_reserve(&file, owned->bytes, err);
    }
    if (rc == MS_OK) {
        rc = ms__file_write(&file, owned->address, (size_t)owned->bytes, 0, err);
    }
    if (rc == MS_OK) {
        rc = ms__map_file_over(&file, (size_t)owned->bytes, owned->address, err);
    }
    ms__file_close(&file);
    return rc;
}

int ms_streamed_own(ms_streamed_blocks blocks, bool only_written, ms_error *err)
{
    int rc = MS_OK;
    for (size_t i = 0; i < blocks.count && rc == MS_OK; i++) {
        part found = {.inside = blocks.addresses[i]};
        ms__heap_visit_window(find_part, &found);
        if (found.bytes == 0 || (only_written && !ms__map_is_written(found.address, (size_t)found.bytes))) {
            continue;
        }
        rc = own_file(&found, err);
        if (rc == MS_OK) {
            ms__heap_visit_window(leave_map, &found);
        }
    }
    return rc;
}
