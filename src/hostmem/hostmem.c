/*
 * The public functions of memscale/hostmem.h over heap.c (bytes) and install.c (slots).
 */
#include "memscale/hostmem.h"

#include <malloc.h>

#include "base/os/map.h"
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

uint64_t ms_hostmem_ceiling_of_smaller(uint64_t ceiling_bytes)
{
    return ceiling_bytes / 2;
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
