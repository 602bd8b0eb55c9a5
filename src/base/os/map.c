/* map.h on Linux. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/map.h"
#include "base/units.h"

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

#ifndef MADV_PAGEOUT /* Linux 5.4 */
#define MADV_PAGEOUT 21
#endif

enum { PAGES_AT_ONCE = 512 };

/* Of an entry of /proc/self/pagemap. A written page of a private map is not the file's any more. */
static const uint64_t page_is_present = (uint64_t)1 << 63, page_is_swapped = (uint64_t)1 << 62;
static const uint64_t page_is_files = (uint64_t)1 << 61;

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

int ms__map_file_over(const ms__file *file, size_t size_bytes, void *address, ms_error *err)
{
    int failure = ENOMEM;
    if (!ms__fault(MS_FAULT_MAP, &failure)) {
        int protection = PROT_READ | PROT_WRITE;
        if (mmap(address, size_bytes, protection, MAP_SHARED | MAP_FIXED, file->fd, 0) != MAP_FAILED) {
            return MS_OK;
        }
        failure = errno;
    }
    return ms_fail_errno(err, MS_ESYSTEM, failure, "mapping %s of a file", ms__text_bytes(size_bytes).text);
}

int ms__map_file_private(const ms__file *file, size_t size_bytes, void **out, ms_error *err)
{
    int failure = ENOMEM;
    if (!ms__fault(MS_FAULT_MAP, &failure)) {
        /* Without NORESERVE the kernel refuses files larger than memory. */
        int flags = MAP_PRIVATE | MAP_NORESERVE;
        void *address = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, flags, file->fd, 0);
        if (address != MAP_FAILED) {
            *out = address;
            return MS_OK;
        }
        failure = errno;
    }
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

static bool is_written(uint64_t entry)
{
    return (entry & page_is_swapped) != 0 || ((entry & page_is_present) != 0 && (entry & page_is_files) == 0);
}

/* Calls `run` for each run of pages that are all written or all unwritten, until it returns false. False if the kernel
 * does not tell. */
static bool visit_runs(const void *address, size_t size_bytes, bool (*run)(void *, size_t, bool, void *),
                       void *argument)
{
    size_t page_bytes = ms__page_bytes(), pages = size_bytes / page_bytes;
    uint64_t entries[PAGES_AT_ONCE];
    bool goes_on = true;
    int pagemap = ms__fault(MS_FAULT_MAP, NULL) ? -1 : open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    bool is_told = pagemap >= 0;
    for (size_t first = 0; first < pages && goes_on && is_told; first += PAGES_AT_ONCE) {
        size_t count = (size_t)ms__min_u64(pages - first, PAGES_AT_ONCE);
        char *start = (char *)address + first * page_bytes; /* `run` decides whether it changes the pages */
        off_t at = (off_t)((uintptr_t)start / page_bytes * sizeof *entries);
        is_told = pread(pagemap, entries, count * sizeof *entries, at) == (ssize_t)(count * sizeof *entries);
        for (size_t i = 0, end; i < count && goes_on && is_told; i = end) {
            for (end = i + 1; end < count && is_written(entries[end]) == is_written(entries[i]); end++) {
            }
            goes_on = run(start + i * page_bytes, (end - i) * page_bytes, is_written(entries[i]), argument);
        }
    }
    if (pagemap >= 0) {
        close(pagemap);
    }
    return is_told;
}

static bool note_written(void *address, size_t size_bytes, bool written, void *argument)
{
    (void)address;
    (void)size_bytes;
    *(bool *)argument = written;
    return !written;
}

bool ms__map_is_written(const void *address, size_t size_bytes)
{
    bool written = false;
    return !visit_runs(address, size_bytes, note_written, &written) || written;
}

static bool empty_unwritten(void *address, size_t size_bytes, bool written, void *argument)
{
    (void)argument;
    if (!written) {
        (void)ms__map_empty(address, size_bytes);
    }
    return true;
}

void ms__map_empty_unwritten(void *address, size_t size_bytes)
{
    (void)visit_runs(address, size_bytes, empty_unwritten, NULL);
}

bool ms__map_set_apart(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_DONTDUMP);
}

bool ms__map_page_out(void *address, size_t size_bytes)
{
    return map_advise(address, size_bytes, MADV_PAGEOUT);
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
