/*
 * Memory nodes of machines that have several, and the one that a map's pages are to come
 * from. Used by offload for slabs and pinned pools. Nothing here is needed for being right:
 * where the kernel refuses, pages come from the node of whoever touches them first.
 */
#ifndef MS_BASE_OS_NUMA_H
#define MS_BASE_OS_NUMA_H

#include "memscale/base.h"

/* Nodes that have memory, by `root`/sys/devices/system/node; `root` is "" but in tests. 1
 * where the kernel does not say. */
uint32_t ms__numa_node_count(const char *root);

/* The node of the processor that the calling thread runs on; -1 where the kernel does not say. */
int ms__numa_current_node(void);

/* Asks that pages of the range, when they are first touched, come from that node while it has
 * any. False where the kernel refuses. A fault point of kind MS_FAULT_MAP. */
bool ms__map_prefer_node(void *address, size_t size_bytes, int node);

#endif
