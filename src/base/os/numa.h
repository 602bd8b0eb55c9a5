/*
 * NUMA nodes, and the choice of a node for a map's pages. Used by offload for slabs and pinned pools. It affects only
 * speed: if the kernel refuses, pages come from the node of the thread that touches them first.
 * Tests: tests/c/base/test_numa.c.
 */
#ifndef MS_BASE_OS_NUMA_H
#define MS_BASE_OS_NUMA_H

#include "memscale/base.h"

/* The number of nodes that have memory, from `root`/sys/devices/system/node; `root` is "" except in tests. 1 if the
 * kernel does not tell. */
uint32_t ms__numa_node_count(const char *root);

/* The node of the processor that the calling thread runs on; -1 if the kernel does not tell. */
int ms__numa_current_node(void);

/* Requests that pages of the range come from `node` when first touched, while it has free pages. False if the kernel
 * refuses. A fault point of kind MS_FAULT_MAP. */
bool ms__map_prefer_node(void *address, size_t size_bytes, int node);

#endif
