/* map.h on Linux. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/map.h"
#include "base/units.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

size_t ms__page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void *map_anonymous(size_t size_bytes)
{
    int failure = ENOMEM;
    if (ms__fault(MS_FAULT_MAP, &failure)) {
        errno = failure;
        return MAP_FAILED;
    }
    return mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int ms__map(size_t size_bytes, size_t align_bytes, void **out, ms_error *err)
{
    size_t page_bytes = ms__page_bytes();
    if (size_bytes == 0 || size_bytes % page_bytes != 0 || align_bytes < page_bytes ||
        (align_bytes & (align_bytes - 1)) != 0) {
        return ms_fail(err, MS_EINVAL, "mapping %zu bytes aligned to %zu", size_bytes, align_bytes);
    }
    size_t spare_bytes = align_bytes - page_bytes;
    if (size_bytes > SIZE_MAX - spare_bytes) {
        return ms_fail(err, MS_EOVERFLOW, "mapping %zu bytes aligned to %zu", size_bytes, align_bytes);
    }
    char *whole = map_anonymous(size_bytes + spare_bytes);
    if (whole == MAP_FAILED) {
        return ms_fail_errno(err, MS_ENOMEM, errno, "mapping %s", ms__text_bytes(size_bytes).text);
    }
    size_t before_bytes = (size_t)(ms__align_up((uintptr_t)whole, align_bytes) - (uintptr_t)whole);
    char *aligned = whole + before_bytes;
    size_t after_bytes = spare_bytes - before_bytes;
    if (before_bytes > 0) {
        munmap(whole, before_bytes);
    }
    if (after_bytes > 0) {
        munmap(aligned + size_bytes, after_bytes);
    }
    *out = aligned;
    return MS_OK;
}

int ms__map_file(const ms__file *file, size_t size_bytes, size_t align_bytes, void **out, ms_error *err)
{
    void *place = NULL;
    int rc = ms__map(size_bytes, align_bytes, &place, err);
    if (rc != MS_OK) {
        return rc;
    }
    int failure = ENOMEM;
    if (!ms__fault(MS_FAULT_MAP, &failure)) {
        if (mmap(place, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->fd, 0) != MAP_FAILED) {
            *out = place;
            return MS_OK;
        }
        failure = errno;
    }
    ms__unmap(place, size_bytes);
    return ms_fail_errno(err, MS_ESYSTEM, failure, "mapping %s of a file", ms__text_bytes(size_bytes).text);
}

void ms__unmap(void *address, size_t size_bytes)
{
    if (address != NULL && munmap(address, size_bytes) != 0) {
        /* Splitting a map can exceed the process's number of maps. */
        (void)madvise(address, size_bytes, MADV_DONTNEED);
    }
}

static bool map_advise(void *address, size_t size_bytes, int advice)
{
    return !ms__fault(MS_FAULT_MAP, NULL) && madvise(address, size_bytes, advice) == 0;
}

bool ms__map_want_huge_pages(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_HUGEPAGE);
}

bool ms__map_no_fork(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_DONTFORK);
}

bool ms__map_empty(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_DONTNEED);
}

bool ms__map_fill(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_POPULATE_READ);
}

uint64_t ms__map_untouched(const void *address, size_t size_bytes)
{
    size_t page_bytes = ms__page_bytes();
    uintptr_t at = (uintptr_t)ms__align_up((uintptr_t)address, page_bytes);
    uintptr_t end = (uintptr_t)ms__align_down((uintptr_t)address + size_bytes, page_bytes);
    uint64_t untouched = 0;
    unsigned char state[1024];
    while (at < end) {
        size_t bytes = (size_t)ms__min_u64(end - at, sizeof state * page_bytes);
        if (ms__fault(MS_FAULT_MAP, NULL) || mincore((void *)at, bytes, state) != 0) {
            return 0;
        }
        for (size_t i = 0; i < bytes / page_bytes; i++) {
            untouched += (state[i] & 1) == 0 ? page_bytes : 0;
        }
        at += bytes;
    }
    return untouched;
}

int ms__map_protect(void *address, size_t size_bytes, bool writable, ms_error *err)
{
    size_t page_bytes = ms__page_bytes();
    uintptr_t first = (uintptr_t)ms__align_down((uintptr_t)address, page_bytes);
    uintptr_t end = (uintptr_t)ms__align_up((uintptr_t)address + size_bytes, page_bytes);
    int failure = EACCES;
    if (!ms__fault(MS_FAULT_MAP, &failure)) {
        /* An integer because the range is rounded to pages. */
        void *start = (void *)first;
        if (mprotect(start, end - first, writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0) {
            return MS_OK;
        }
        failure = errno;
    }
    return ms_fail_errno(err, MS_ESYSTEM, failure, "changing the protection of %zu bytes", size_bytes);
}
