/*
 * The resident streamed blocks, by time of use. Runs under the heap's lock: must not allocate or log.
 */
#include "hostmem/window.h"

#include <stddef.h>

#include "base/os/map.h"
#include "base/units.h"

static uint64_t bytes_of(const ms__map_block *block)
{
    return atomic_load_explicit(&block->bytes, memory_order_relaxed);
}

static void release_pages(const ms__window *window, const ms__map_block *block)
{
    void *address = (void *)atomic_load_explicit(&block->address, memory_order_relaxed);
    if (!block->part) {
        (void)ms__map_empty(address, bytes_of(block));
    } else if (window->is_asynchronous) {
        (void)ms__map_page_out(address, bytes_of(block));
    } else {
        ms__map_empty_unwritten(address, bytes_of(block));
    }
}

/* ---- the list of blocks that may be dropped ------------------------------- */

static void age_append(ms__window *window, ms__map_block *block)
{
    block->age_next = NULL;
    block->age_prev = window->newest;
    *(window->newest != NULL ? &window->newest->age_next : &window->oldest) = block;
    window->newest = block;
}

static void age_unlink(ms__window *window, ms__map_block *block)
{
    *(block->age_prev != NULL ? &block->age_prev->age_next : &window->oldest) = block->age_next;
    *(block->age_next != NULL ? &block->age_next->age_prev : &window->newest) = block->age_prev;
    block->age_prev = block->age_next = NULL;
}

/* From now on the block counts neither as resident nor as kept. */
static void forget_residence(ms__window *window, ms__map_block *block)
{
    if (block->resident && !block->kept) {
        age_unlink(window, block);
    }
    window->resident_bytes -= block->resident ? bytes_of(block) : 0;
    window->kept_bytes -= block->kept ? bytes_of(block) : 0;
    block->resident = block->kept = false;
}

static void drop_oldest(ms__window *window)
{
    ms__map_block *block = window->oldest;
    release_pages(window, block);
    window->dropped_bytes += bytes_of(block);
    forget_residence(window, block);
}

/* ---- blocks ---------------------------------------------------------------- */

void ms__window_add(ms__window *window, ms__map_block *block)
{
    block->resident = block->kept = false;
    block->round = 0;
    block->age_prev = block->age_next = block->same_prev = NULL;
    block->same_next = window->all;
    if (window->all != NULL) {
        window->all->same_prev = block;
    }
    window->all = block;
    window->blocks++;
    window->parts += block->part;
    window->total_bytes += bytes_of(block);
}

void ms__window_remove(ms__window *window, ms__map_block *block)
{
    forget_residence(window, block);
    *(block->same_prev != NULL ? &block->same_prev->same_next : &window->all) = block->same_next;
    if (block->same_next != NULL) {
        block->same_next->same_prev = block->same_prev;
    }
    block->same_prev = block->same_next = NULL;
    window->blocks--;
    window->parts -= block->part;
    window->total_bytes -= bytes_of(block);
}

void ms__window_next_round(ms__window *window)
{
    window->round++;
}

bool ms__window_make_room(ms__window *window, uint64_t more_bytes)
{
    uint64_t most_bytes = ms__sub_sat(window->most_bytes, more_bytes);
    while (window->resident_bytes > most_bytes && window->oldest != NULL && window->oldest->round != window->round) {
        drop_oldest(window);
    }
    return window->resident_bytes <= most_bytes;
}

bool ms__window_use(ms__window *window, ms__map_block *block, bool must_fit)
{
    block->round = window->round;
    if (block->resident) {
        if (!block->kept) {
            age_unlink(window, block);
            age_append(window, block);
        }
        return true;
    }
    if (!ms__window_make_room(window, bytes_of(block)) && must_fit) {
        return false;
    }
    block->resident = true;
    window->resident_bytes += bytes_of(block);
    window->fetched_bytes += bytes_of(block);
    age_append(window, block);
    return true;
}

void ms__window_keep(ms__window *window, ms__map_block *block, bool kept)
{
    if (block->kept == kept) {
        return;
    }
    if (kept) {
        (void)ms__window_use(window, block, false);
        age_unlink(window, block);
        window->kept_bytes += bytes_of(block);
    } else {
        age_append(window, block);
        window->kept_bytes -= bytes_of(block);
    }
    block->kept = kept;
}

void ms__window_shrink(ms__window *window, uint64_t most_bytes)
{
    while (window->resident_bytes > most_bytes && window->oldest != NULL) {
        drop_oldest(window);
    }
}

void ms__window_empty(ms__window *window)
{
    ms__window_shrink(window, 0);
    for (const ms__map_block *block = window->all; block != NULL; block = block->same_next) {
        release_pages(window, block);
    }
}

void ms__window_recheck(const ms__window *window, const ms__map_block *block)
{
    if (!block->resident) {
        release_pages(window, block);
    }
}

void ms__window_sweep(ms__window *window)
{
    for (const ms__map_block *block = window->all; block != NULL; block = block->same_next) {
        ms__window_recheck(window, block);
    }
}
