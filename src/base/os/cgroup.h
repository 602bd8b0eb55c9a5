/*
 * The limits of memory and CPU time that control groups (versions 1 and 2) put on this process. Used by the hardware
 * probe and by checks of available memory.
 * Tests: tests/c/base/test_cgroup.c.
 */
#ifndef MS_BASE_OS_CGROUP_H
#define MS_BASE_OS_CGROUP_H

#include "memscale/base.h"

typedef struct ms__cgroup_memory {
    uint64_t limit_bytes; /* the smallest limit up to the root; UINT64_MAX without a limit */
    uint64_t usage_bytes; /* charged to the group that has that limit; 0 without a limit */
    uint64_t cache_bytes; /* the part of the usage that is file cache, which the kernel can drop */
    unsigned version;     /* 1 or 2; 0 without a limit */
    char directory[1024]; /* of the group that has the limit; "" without a limit */
    const char *limit_file; /* the file in that directory that sets the limit; "" without a limit */
} ms__cgroup_memory;

/*
 * Reads /proc/self/cgroup and /proc/self/mountinfo and walks from the group of this process up to the root of its
 * hierarchy: a parent's limit counts too. `root` is prepended to every path; it is "" except in tests. A machine
 * without visible control groups has no limit.
 */
void ms__cgroup_memory_read(const char *root, ms__cgroup_memory *out);

/* Bytes that this process may still allocate: the smaller of the kernel's estimate and the rest of the group's
 * limit. The group's file cache counts as free. 0 if the kernel does not tell. */
uint64_t ms__memory_room_bytes(const char *root);

/* The tightest quota in CPUs, rounded up; 0 without a quota. Walks like ms__cgroup_memory_read(). */
uint32_t ms__cgroup_cpu_quota(const char *root);

#endif
