/*
 * The limits of memory and CPU time that the control groups of version 1 and 2
 * put on this process. Used by the hardware probe and by checks of what may be allocated.
 */
#ifndef MS_BASE_OS_CGROUP_H
#define MS_BASE_OS_CGROUP_H

#include "memscale/base.h"

typedef struct ms__cgroup_memory {
    uint64_t limit_bytes; /* the smallest on the way to the top; UINT64_MAX where there is none */
    uint64_t usage_bytes; /* charged to the group that has that limit; 0 without a limit */
    uint64_t cache_bytes; /* the part of it that is file cache, which the kernel can drop */
    unsigned version;     /* 1 or 2; 0 without a limit */
    char directory[1024]; /* of the group that has the limit; "" without one */
    const char *limit_file; /* the file in there that sets it; "" without a limit */
} ms__cgroup_memory;

/*
 * Reads /proc/self/cgroup and /proc/self/mountinfo and walks from the group of
 * this process up to the root of its hierarchy; a parent's limit binds as well.
 * `root` goes before every path: "" but in tests. A machine without control
 * groups, or one that shows nothing of them, has no limit; that is no error.
 */
void ms__cgroup_memory_read(const char *root, ms__cgroup_memory *out);

/* Bytes that this process may still take, by the kernel's estimate and by the limit, whose
 * group can drop its cache; 0 where the kernel tells nothing. */
uint64_t ms__memory_room_bytes(const char *root);

/* How many CPUs' worth of time the tightest quota leaves, rounded up; 0 where
 * there is no quota. Found in the same way. */
uint32_t ms__cgroup_cpu_quota(const char *root);

#endif
