/*
 * The public functions of memscale/hostmem.h over heap.c (bytes) and install.c (slots).
 */
#include "memscale/hostmem.h"

#include <malloc.h>

#include "base/os/map.h"
#include "base/units.h"
#include "hostmem/heap.h"
#include "hostmem/install.h"
#include "hostmem/table.h"

const char *ms_hostmem_means_name(ms_hostmem_means means)
{
    switch (means) {
    case MS_HOSTMEM_NONE:
        return "none";
    case MS_HOSTMEM_SLOTS:
        return "slots";
    case MS_HOSTMEM_MALLOPT:
        return "mallopt";
    }
    return "unknown";
}

int ms_hostmem_install(const char *library, ms_hostmem_means *means, ms_error *err)
{
    return ms__install(library, means, err);
}

void ms_hostmem_uninstall(void)
{
    ms__uninstall();
}

void ms_hostmem_get_stats(ms_hostmem_stats *stats)
{
    ms__install_settle();
    ms__heap_get_stats(stats);
    stats->means = ms__install_means();
}

void ms_hostmem_reset_peak(void)
{
    ms__heap_reset_peak();
}

/* Growth of the memory beside maps: about 10 MB in a second step of another shape, later 1 to 3 MB a step while new
 * shapes are traced. */
static const uint64_t growth_first_bytes = 8000000, growth_least_bytes = 4000000, growth_most_bytes = 16000000;

uint64_t ms_hostmem_ceiling(uint64_t plan_bytes, const ms_hostmem_beside *beside)
{
    if (beside->budget_bytes == 0) {
        return plan_bytes;
    }
    uint64_t ceiling = beside->smaller_inputs ? plan_bytes / 2 : plan_bytes;
    uint64_t last = ms__sub_sat(beside->last.peak_bytes, beside->last.held_bytes);
    uint64_t before = ms__sub_sat(beside->before.peak_bytes, beside->before.held_bytes);
    if (last == 0) {
        return ceiling;
    }
    uint64_t grew = before == 0 ? growth_first_bytes : ms__sub_sat(last, before);
    uint64_t growth = ms__max_u64(growth_least_bytes, ms__min_u64(grew, growth_most_bytes));
    return ms__min_u64(ceiling, ms__sub_sat(beside->budget_bytes, ms__add_sat(last, growth)));
}

void ms_hostmem_set_ceiling(uint64_t ceiling_bytes)
{
    ms__heap_set_ceiling(ceiling_bytes);
}

void ms_hostmem_trim(uint64_t keep_bytes, bool trim_libc)
{
    ms__install_settle();
    ms__heap_trim(keep_bytes);
#if defined(__GLIBC__)
    if (trim_libc) {
        (void)malloc_trim(0);
    }
#else
    (void)trim_libc;
#endif
}

bool ms_hostmem_find(const void *address, ms_hostmem_block *block)
{
    ms_hostmem_block found;
    if (!ms__map_table_find(address, &found.address, &found.bytes, &found.serial)) {
        return false;
    }
    if (block != NULL) {
        *block = found;
    }
    return true;
}

uint64_t ms_hostmem_untouched(const void *address, size_t bytes)
{
    return ms__map_untouched(address, bytes);
}

void *ms_hostmem_alloc(size_t bytes)
{
    return ms__install_cover_fork() ? ms__heap_alloc(bytes, MS__HEAP_LIBRARY) : NULL;
}

void ms_hostmem_release(void *address)
{
    if (address != NULL && ms__heap_free(address)) {
        ms__install_settle();
    }
}
