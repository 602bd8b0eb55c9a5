/*
 * Anonymous memory maps, private to this process. Used by hostmem for tensors, by offload for slabs. Every call is a
 * fault point of kind MS_FAULT_MAP.
 * Tests: tests/c/base/test_os.c.
 */
#ifndef MS_BASE_OS_MAP_H
#define MS_BASE_OS_MAP_H

#include "memscale/base.h"

enum { MS__HUGE_PAGE_BYTES = 2 << 20 };

/* The size of a small page. */
size_t ms__page_bytes(void);

/* A readable and writable private map of `size_bytes` (a multiple of the page
 * size, not 0) at a multiple of `align_bytes` (a power of two, at least the page
 * size); zeroed, not yet resident. MS_EINVAL, MS_EOVERFLOW, MS_ENOMEM. */
MS_NODISCARD int ms__map(size_t size_bytes, size_t align_bytes, void **out, ms_error *err);

/* Unmaps the range; if that fails, releases its pages. NULL is allowed. Not a fault point. */
void ms__unmap(void *address, size_t size_bytes);

/* Releases the pages of a range and keeps it mapped: zeroed, not resident. False, with the range unchanged, if the
 * kernel refuses. */
bool ms__map_empty(void *address, size_t size_bytes);

/* Advice: if the kernel refuses (false), only speed changes. */
bool ms__map_want_huge_pages(void *address, size_t size_bytes);
/* Children made by fork() do not get the range. */
bool ms__map_no_fork(void *address, size_t size_bytes);

/* Bytes of the whole pages within [address, address + size) that are not resident; 0 if the kernel does not say. */
uint64_t ms__map_untouched(const void *address, size_t size_bytes);

/* Makes the pages that hold [address, address + size) read-only or writable. */
MS_NODISCARD int ms__map_protect(void *address, size_t size_bytes, bool writable, ms_error *err);

#endif
