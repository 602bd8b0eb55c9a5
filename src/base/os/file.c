/*
 * Spill files, positioned reads and writes, and the description of file systems, on Linux.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/file.h"
#include "base/units.h"

enum {
    DIRECT_ALIGN_BYTES = 4096,
    /* Largest single transfer; Linux moves at most 0x7ffff000 bytes a call. */
    STEP_MAX_BYTES = 1 << 30,
    STUCK_STEPS_MAX = 16,
};

/* The errno that an armed fault injects; 0 if the call is to be made. */
static int injected(ms_fault kind, int otherwise)
{
    int system_errno = 0;
    if (!ms__fault(kind, &system_errno)) {
        return 0;
    }
    return system_errno != 0 ? system_errno : otherwise;
}

/* The largest size that a file may have. A write beyond it would raise SIGXFSZ, which kills the process unless the
 * caller's thread blocks it; so it is never tried. */
static uint64_t file_limit_bytes(void)
{
    struct rlimit limit;
    bool is_known = injected(MS_FAULT_SYSTEM, EIO) == 0 && getrlimit(RLIMIT_FSIZE, &limit) == 0;
    return is_known ? limit.rlim_cur : UINT64_MAX;
}

/* ---- opening ------------------------------------------------------------ */

/* Negative errno or a descriptor. */
static int open_tmpfile(const char *directory)
{
    int failure = injected(MS_FAULT_OPEN, EIO);
    if (failure != 0) {
        return -failure;
    }
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    return fd >= 0 ? fd : -errno;
}

static int remove_once(const char *path)
{
    int failure = injected(MS_FAULT_SYSTEM, EIO);
    return failure != 0 || unlink(path) == 0 ? failure : errno;
}

/* 0 or the errno. A file that can't be removed would stay for good, so removal is tried twice: a network may have
 * failed for a moment. */
static int remove_name(const char *path)
{
    int failure = remove_once(path);
    if (failure != 0) {
        failure = remove_once(path);
    }
    return failure == ENOENT ? 0 : failure; /* already removed by another process */
}

static int open_and_unlink(const char *directory)
{
    int failure = injected(MS_FAULT_OPEN, EIO);
    if (failure != 0) {
        return -failure;
    }
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/.memscale-XXXXXX", directory);
    if (length < 0 || (size_t)length >= sizeof path) {
        return -ENAMETOOLONG;
    }
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    failure = remove_name(path);
    if (failure != 0) {
        close(fd);
        return -failure;
    }
    return fd;
}

/* The answers of kernels and file systems without O_TMPFILE. */
static bool means_no_tmpfile(int failure)
{
    return failure == EOPNOTSUPP || failure == EISDIR || failure == EINVAL || failure == ENOSYS;
}

static bool turn_direct_on(int fd)
{
    int flags = injected(MS_FAULT_SYSTEM, EIO) == 0 ? fcntl(fd, F_GETFL) : -1;
    return flags >= 0 && injected(MS_FAULT_SYSTEM, EIO) == 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

/* The alignment that the file system requires for direct I/O, at least 4096. */
static size_t direct_alignment(int fd)
{
    size_t align_bytes = DIRECT_ALIGN_BYTES;
#ifdef STATX_DIOALIGN
    struct statx info;
    if (injected(MS_FAULT_SYSTEM, EIO) == 0 && statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN) != 0) {
        align_bytes = ms__max_u64(align_bytes, info.stx_dio_offset_align);
        align_bytes = ms__max_u64(align_bytes, info.stx_dio_mem_align);
    }
#else
    (void)fd;
#endif
    return align_bytes;
}

int ms__file_open_unnamed(const char *directory, bool want_direct, ms__file *out, ms_error *err)
{
    int fd = open_tmpfile(directory);
    if (fd < 0 && means_no_tmpfile(-fd)) {
        fd = open_and_unlink(directory);
    }
    if (fd < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, -fd, "opening a spill file in %s", directory);
    }
    out->fd = fd;
    out->is_direct = want_direct && turn_direct_on(fd);
    out->align_bytes = direct_alignment(fd);
    return MS_OK;
}

int ms__file_open_to_read(const char *path, ms__file *out, uint64_t *size_bytes, ms_error *err)
{
    struct stat status;
    int failure = injected(MS_FAULT_OPEN, EIO);
    int fd = failure == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1; /* a pipe would wait for its writer */
    if (failure == 0 && (fd < 0 || fstat(fd, &status) != 0)) {
        failure = errno;
    } else if (failure == 0 && !S_ISREG(status.st_mode)) {
        failure = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    }
    if (failure != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return ms_fail_errno(err, MS_ESYSTEM, failure, "opening %s", path);
    }
    *out = (ms__file){.fd = fd, .align_bytes = DIRECT_ALIGN_BYTES};
    *size_bytes = (uint64_t)status.st_size;
    return MS_OK;
}

void ms__file_close(ms__file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
}

/* ---- space -------------------------------------------------------------- */

static int set_size(int fd, uint64_t size_bytes, bool with_blocks)
{
    int failure = injected(MS_FAULT_OPEN, ENOSPC);
    if (failure == 0 && size_bytes > file_limit_bytes()) {
        failure = EFBIG;
    }
    if (failure != 0) {
        return failure;
    }
    int rc;
    do {
        rc = with_blocks ? fallocate(fd, 0, 0, (off_t)size_bytes) : ftruncate(fd, (off_t)size_bytes);
    } while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : errno;
}

int ms__file_reserve(const ms__file *file, uint64_t size_bytes, ms_error *err)
{
    if (size_bytes > INT64_MAX) {
        return ms_fail(err, MS_EOVERFLOW, "reserving a spill file of %llu bytes", (unsigned long long)size_bytes);
    }
    if (size_bytes == 0) {
        return MS_OK;
    }
    int failure = set_size(file->fd, size_bytes, true);
    if (failure == EOPNOTSUPP || failure == ENOSYS) {
        failure = set_size(file->fd, size_bytes, false);
    }
    if (failure != 0) {
        return ms_fail_errno(err, MS_EIO, failure, "reserving %s for a spill file", ms__text_bytes(size_bytes).text);
    }
    return MS_OK;
}

/* ---- moving bytes ------------------------------------------------------- */

/* A test's short transfer moves half the bytes (whole blocks, for direct I/O) and reports one less, so that the
 * caller must continue at an odd offset. */
static bool shorten(size_t *size_bytes)
{
    if (*size_bytes < 4 || !ms__fault(MS_FAULT_SHORT, NULL)) {
        return false;
    }
    size_t half = *size_bytes / 2;
    *size_bytes = half >= DIRECT_ALIGN_BYTES ? half - half % DIRECT_ALIGN_BYTES : half;
    return true;
}

ssize_t ms__os_pwrite(int fd, const void *from, size_t size_bytes, uint64_t offset_bytes)
{
    int failure = injected(MS_FAULT_WRITE, EIO);
    if (failure == 0 && offset_bytes >= file_limit_bytes()) {
        failure = EFBIG; /* the kernel shortens a write that begins below the limit, without a signal */
    }
    if (failure != 0) {
        return -failure;
    }
    bool is_short = shorten(&size_bytes);
    ssize_t moved = pwrite(fd, from, size_bytes, (off_t)offset_bytes);
    if (moved < 0) {
        return -errno;
    }
    return is_short && moved > 1 ? moved - 1 : moved;
}

ssize_t ms__os_pread(int fd, void *to, size_t size_bytes, uint64_t offset_bytes)
{
    int failure = injected(MS_FAULT_READ, EIO);
    if (failure != 0) {
        return -failure;
    }
    bool is_short = shorten(&size_bytes);
    ssize_t moved = pread(fd, to, size_bytes, (off_t)offset_bytes);
    if (moved < 0) {
        return -errno;
    }
    if (moved > 0 && ms__fault(MS_FAULT_FLIP, NULL)) {
        ((unsigned char *)to)[moved / 2] ^= 0x10;
    }
    return is_short && moved > 1 ? moved - 1 : moved;
}

/* Accounts for a transfer that moved `moved` of `left` bytes or was interrupted. Direct I/O continues at aligned
 * offsets only. False after STUCK_STEPS_MAX transfers without progress. */
static bool advance_transfer(const ms__file *file, ssize_t moved, size_t left, size_t *done, int *stuck)
{
    size_t ahead = moved > 0 ? (size_t)moved : 0;
    if (file->is_direct && ahead < left) {
        ahead -= ahead % file->align_bytes;
    }
    *done += ahead;
    *stuck = ahead > 0 ? 0 : *stuck + 1;
    return *stuck <= STUCK_STEPS_MAX;
}

static size_t step_of(size_t left)
{
    return left < STEP_MAX_BYTES ? left : STEP_MAX_BYTES;
}

int ms__file_write(const ms__file *file, const void *from, size_t size_bytes, uint64_t offset_bytes, ms_error *err)
{
    int stuck = 0;
    for (size_t done = 0; done < size_bytes;) {
        size_t left = size_bytes - done;
        uint64_t at = offset_bytes + done;
        ssize_t moved = ms__os_pwrite(file->fd, (const char *)from + done, step_of(left), at);
        if (moved < 0 && moved != -EINTR) {
            return ms_fail_errno(err, MS_EIO, (int)-moved, "writing %zu bytes at %llu to disk", left,
                                 (unsigned long long)at);
        }
        if (!advance_transfer(file, moved, left, &done, &stuck)) {
            return ms_fail(err, MS_EIO, "writing to disk makes no progress at %llu", (unsigned long long)at);
        }
    }
    return MS_OK;
}

int ms__file_read(const ms__file *file, void *to, size_t size_bytes, uint64_t offset_bytes, ms_error *err)
{
    int stuck = 0;
    for (size_t done = 0; done < size_bytes;) {
        size_t left = size_bytes - done;
        uint64_t at = offset_bytes + done;
        ssize_t moved = ms__os_pread(file->fd, (char *)to + done, step_of(left), at);
        if (moved < 0 && moved != -EINTR) {
            return ms_fail_errno(err, MS_EIO, (int)-moved, "reading %zu bytes at %llu from disk", left,
                                 (unsigned long long)at);
        }
        if (moved == 0) {
            return ms_fail(err, MS_EIO, "the spill file ends at %llu, %zu bytes too early", (unsigned long long)at,
                           left);
        }
        if (!advance_transfer(file, moved, left, &done, &stuck)) {
            return ms_fail(err, MS_EIO, "reading from disk makes no progress at %llu", (unsigned long long)at);
        }
    }
    return MS_OK;
}

/* ---- file systems ------------------------------------------------------- */

typedef struct filesystem_kind {
    long magic;
    const char *type;
    bool is_memory;
    bool is_network;
} filesystem_kind;

/* Magic numbers that <linux/magic.h> lacks are in statfs(2). */
static const filesystem_kind filesystem_kinds[] = {
    {EXT4_SUPER_MAGIC, "ext4", false, false},    {0x58465342, "xfs", false, false},
    {BTRFS_SUPER_MAGIC, "btrfs", false, false},  {0x2FC12FC1, "zfs", false, false},
    {F2FS_SUPER_MAGIC, "f2fs", false, false},    {OVERLAYFS_SUPER_MAGIC, "overlay", false, false},
    {TMPFS_MAGIC, "tmpfs", true, false},         {RAMFS_MAGIC, "ramfs", true, false},
    {HUGETLBFS_MAGIC, "hugetlbfs", true, false}, {NFS_SUPER_MAGIC, "nfs", false, true},
    {0xFF534D42, "cifs", false, true},           {0xFE534D42, "smb2", false, true},
    {0x65735546, "fuse", false, false},          {0x01021997, "9p", false, true},
    {0x0BD00BD0, "lustre", false, true},         {0x00C36400, "ceph", false, true},
};

int ms__filesystem_of(const char *path, ms__filesystem *out, ms_error *err)
{
    struct statfs info;
    int failure = injected(MS_FAULT_OPEN, EIO);
    if (failure == 0 && statfs(path, &info) != 0) {
        failure = errno;
    }
    if (failure != 0) {
        return ms_fail_errno(err, MS_ESYSTEM, failure, "looking at the file system of %s", path);
    }
    ms__filesystem found = {0};
    snprintf(found.type, sizeof found.type, "0x%lx", (unsigned long)info.f_type & 0xFFFFFFFFUL);
    for (size_t i = 0; i < sizeof filesystem_kinds / sizeof filesystem_kinds[0]; i++) {
        const filesystem_kind *kind = &filesystem_kinds[i];
        if (((unsigned long)kind->magic & 0xFFFFFFFFUL) == ((unsigned long)info.f_type & 0xFFFFFFFFUL)) {
            snprintf(found.type, sizeof found.type, "%s", kind->type);
            found.is_memory = kind->is_memory;
            found.is_network = kind->is_network;
        }
    }
    found.is_read_only = ((unsigned long)info.f_flags & ST_RDONLY) != 0;
    /* Some network file systems report 2^64 - 1; documents hold 63 bits. */
    found.free_bytes = ms__min_u64(ms__mul_sat(info.f_bavail, (uint64_t)info.f_frsize), INT64_MAX);
    found.total_bytes = ms__min_u64(ms__mul_sat(info.f_blocks, (uint64_t)info.f_frsize), INT64_MAX);
    *out = found;
    return MS_OK;
}
