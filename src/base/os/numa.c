/* numa.h on Linux, by two system calls, which do not justify a dependency on libnuma. */
#include "base/os/numa.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/file.h"

enum { NODES_MOST = 1024, LONG_BITS = 8 * sizeof(unsigned long) };

/* The count of numbers in a list such as "0-1,4"; 0 if the text is not such a list. */
static uint32_t count_listed(const char *text)
{
    uint32_t count = 0;
    for (;;) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (end == text) {
            return 0;
        }
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
        }
        if (end == text || last < first || last >= NODES_MOST) {
            return 0;
        }
        count += (uint32_t)(last - first + 1);
        if (*end != ',') {
            return count;
        }
        text = end + 1;
    }
}

uint32_t ms__numa_node_count(const char *root)
{
    char path[PATH_MAX], text[1024];
    snprintf(path, sizeof path, "%s/sys/devices/system/node/has_memory", root);
    uint32_t count = ms__file_read_small(path, text, sizeof text) ? count_listed(text) : 0;
    return count > 0 ? count : 1;
}

int ms__numa_current_node(void)
{
    unsigned cpu, node;
    if (ms__fault(MS_FAULT_SYSTEM, NULL)) {
        return -1;
    }
    return syscall(SYS_getcpu, &cpu, &node, NULL) == 0 && node < NODES_MOST ? (int)node : -1;
}

bool ms__map_prefer_node(void *address, size_t size_bytes, int node)
{
    unsigned long mask[NODES_MOST / LONG_BITS] = {0};
    if (node < 0 || node >= NODES_MOST || ms__fault(MS_FAULT_MAP, NULL)) {
        return false;
    }
    mask[(size_t)node / LONG_BITS] = 1UL << (size_t)node % LONG_BITS;
    /* The kernel subtracts one from the given number of bits. */
    return syscall(SYS_mbind, address, size_bytes, MPOL_PREFERRED, mask, NODES_MOST + 1UL, 0U) == 0;
}
