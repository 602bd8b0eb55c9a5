/*
 * Memory maps: anonymous ones, private to this process, and shared maps of files. Used by hostmem for tensors, by
 * offload for slabs. Every call is a fault point of kind MS_FAULT_MAP.
 * Tests: tests/c/base/test_os.c.
 */
#ifndef MS_BASE_OS_MAP_H
#define MS_BASE_OS_MAP_H

#include "base/os/file.h"

enum { MS__HUGE_PAGE_BYTES = 2 << 20 };

/* The size of a small page. */
size_t ms__page_bytes(void);

/* Makes a readable and writable private map of `size_bytes` (a multiple of the
 * page size, not 0) at a multiple of `align_bytes` (a power of two, at least the
 * page size): zeroed, not yet resident. MS_EINVAL, MS_EOVERFLOW, MS_ENOMEM. */
MS_NODISCARD int ms__map(size_t size_bytes, size_t align_bytes, void **out, ms_error *err);

/* The same, but a shared map of the file's first `size_bytes`: changes reach the file, which may be closed. */
MS_NODISCARD int ms__map_file(const ms__file *file, size_t size_bytes, size_t align_bytes, void **out, ms_error *err);

/* Puts a shared map of the file's first `size_bytes` in the place of the pages at `address`, in one step for threads
 * that read them. */
MS_NODISCARD int ms__map_file_over(const ms__file *file, size_t size_bytes, void *address, ms_error *err);

/* A private map of an existing file's first `size_bytes`, not rounded: pages come from the file until they are written,
 * and changes stay in memory. The file may be closed. MS_ESYSTEM, MS_ENOMEM. */
MS_NODISCARD int ms__map_file_private(const ms__file *file, size_t size_bytes, void **out, ms_error *err);

/* Unmaps the range; if that fails, releases its pages. Accepts NULL. No fault point. */
void ms__unmap(void *address, size_t size_bytes);

/* Releases the pages of a range, which stays mapped but is not resident; anonymous memory is zeroed then. False, with
 * the range unchanged, if the kernel refuses. */
bool ms__map_empty(void *address, size_t size_bytes);

/* For whole pages of a private map of a file: whether any was written, or the kernel does not tell. */
bool ms__map_is_written(const void *address, size_t size_bytes);

/* Releases those of these pages that were not written, and none if the kernel does not tell. The caller sees to it that
 * no thread writes them meanwhile. */
void ms__map_empty_unwritten(void *address, size_t size_bytes);

/* Asks the kernel to release those pages that were not written; threads may write them meanwhile. It also releases the
 * file's bytes from the page cache, and refuses (false) for a file that this user may not write. */
bool ms__map_page_out(void *address, size_t size_bytes);

/* Makes the pages of a range resident, to be read. If the kernel refuses (false), they come when they are touched. */
bool ms__map_fill(void *address, size_t size_bytes);

/* Asks for huge pages. If the kernel refuses (false), only speed changes. */
bool ms__map_want_huge_pages(void *address, size_t size_bytes);
/* Leaves the range out of core dumps. The kernel handles it apart from its neighbours, so a fault in one of them maps
 * nothing of it. */
bool ms__map_set_apart(void *address, size_t size_bytes);
/* Withholds the range from children made by fork(). */
bool ms__map_no_fork(void *address, size_t size_bytes);

/* Bytes of whole pages within [address, address + size) that are not resident; 0 if the kernel does not tell. */
uint64_t ms__map_untouched(const void *address, size_t size_bytes);

/* Makes the pages that hold [address, address + size) read-only or writable. */
MS_NODISCARD int ms__map_protect(void *address, size_t size_bytes, bool writable, ms_error *err);

#endif
