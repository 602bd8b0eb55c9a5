/*
 * The map behind the slots.
 */
#include "offload/slab.h"

#include "base/os/map.h"
#include "base/os/numa.h"
#include "base/thread.h"
#include "base/units.h"

void ms__keep_near(void *address, uint64_t bytes, uint32_t node_count, const char *what)
{
    if (node_count < 2) {
        return;
    }
    int node = ms__numa_current_node();
    if (ms__map_prefer_node(address, bytes, node)) {
        ms_log(MS_LOG_INFO, "%s: %s from memory node %d of %u", what, ms__text_bytes(bytes).text, node, node_count);
    } else {
        ms_log(MS_LOG_INFO,
               "%s: %s from the memory node, of %u, nearest at first use: the kernel "
               "refused a choice",
               what, ms__text_bytes(bytes).text, node_count);
    }
}

/* ---- pages ---------------------------------------------------------------------- */

enum { TOUCHERS = 4 };

/* A thread costs as much as clearing some hundred kilobytes. */
#define TOUCHED_LEAST_BYTES ((uint64_t)4 * MS__HUGE_PAGE_BYTES)

typedef struct stretch {
    volatile unsigned char *begin;
    uint64_t bytes;
} stretch;

static void touch_stretch(void *argument)
{
    const stretch *own = argument;
    uint64_t page_bytes = ms__page_bytes();
    for (uint64_t at = 0; at < own->bytes; at += page_bytes) {
        own->begin[at] = 0;
    }
}

void ms__touch(void *address, uint64_t bytes)
{
    ms__thread threads[TOUCHERS] = {{0}};
    stretch stretches[TOUCHERS];
    uint64_t count = ms__max_u64(ms__min_u64(bytes / TOUCHED_LEAST_BYTES, TOUCHERS), 1);
    uint64_t part_bytes = ms__align_up(ms__div_up(bytes, count), MS__HUGE_PAGE_BYTES);
    for (uint64_t i = 0, at = 0; i < count; i++, at += part_bytes) {
        uint64_t own_bytes = at < bytes ? ms__min_u64(part_bytes, bytes - at) : 0;
        stretches[i] = (stretch){(unsigned char *)address + at, own_bytes};
        if (i + 1 == count || ms__thread_start(&threads[i], "ms-touch", touch_stretch, &stretches[i], NULL) != MS_OK) {
            touch_stretch(&stretches[i]);
        }
    }
    for (uint64_t i = 0; i < count; i++) {
        ms__thread_join(&threads[i]);
    }
}

void ms__untouch(void *address, uint64_t bytes)
{
    (void)ms__map_empty(address, bytes); /* if refused, the pages stay */
}

/* ---- the slab ----------------------------------------------------------------------- */

int ms__slab_open(ms__slab *slab, uint64_t bytes, ms_error *err)
{
    void *address = NULL;
    size_t align_bytes = bytes >= MS__HUGE_PAGE_BYTES ? MS__HUGE_PAGE_BYTES : ms__page_bytes();
    int rc = ms__map(bytes, align_bytes, &address, err);
    if (rc != MS_OK) {
        return rc;
    }
    /* Both may be refused: huge pages only save time, and a child that inherits the slab only
     * holds unused memory. */
    (void)ms__map_want_huge_pages(address, bytes);
    (void)ms__map_no_fork(address, bytes);
    ms__keep_near(address, bytes, ms__numa_node_count(""), "transfer slots");
    slab->address = address;
    slab->bytes = bytes;
    return MS_OK;
}

void ms__slab_close(ms__slab *slab)
{
    ms__unmap(slab->address, slab->bytes);
    ms__slab_forget(slab);
}

void ms__slab_forget(ms__slab *slab)
{
    slab->address = NULL;
    slab->bytes = 0;
}

uint64_t ms__slab_resident_bytes(const ms__slab *slab)
{
    return slab->bytes - ms__map_untouched(slab->address, slab->bytes);
}
