/*
 * For tests of streamed blocks: memscale in a fake allocator's place, a directory for the files, and a clean end.
 */
#ifndef MS_TEST_HOSTMEM_STREAMED_SUPPORT_H
#define MS_TEST_HOSTMEM_STREAMED_SUPPORT_H

#include "fake.h"
#include "memscale/streamed.h"

/* Installs memscale into a fake library, and names a directory on a disk. */
static inline fake streamed_install(char *directory, size_t size)
{
    fake library = fake_load("FAKE_C10_LAZY");
    assert_int_equal(install_into(&library), MS_HOSTMEM_SLOTS);
    const char *named = getenv("MEMSCALE_TEST_DISK");
    snprintf(directory, size, "%s", named != NULL ? named : ".");
    return library;
}

static inline ms_streamed_stats streamed_now(void)
{
    ms_streamed_stats stats;
    ms_streamed_get_stats(&stats);
    return stats;
}

/* Ends all faults and memscale's part in the library. -1 if a test left a block; cmocka counts it as a failure. */
static inline int streamed_uninstall(void)
{
    ms_fault_disarm_all();
    ms_hostmem_uninstall();
    ms_streamed_stats stats = streamed_now();
    ms_streamed_set_window(MS_STREAMED_WINDOW_BYTES);
    return stats.blocks == 0 && stats.total_bytes == 0 && stats.resident_bytes == 0 && stats.kept_bytes == 0 ? 0 : -1;
}

#endif
