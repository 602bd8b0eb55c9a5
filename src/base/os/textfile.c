/*
 * The small files and directories of file.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/file.h"

/* Negative errno or a descriptor. */
static int open_checked(const char *path, int flags)
{
    int failure = 0;
    if (ms__fault(MS_FAULT_OPEN, &failure)) {
        return failure != 0 ? -failure : -EIO;
    }
    int fd = open(path, flags | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

/* Reads until the end or until `size` bytes; negative errno or the bytes
 * read. Files under /proc have no size and may be read in pieces. */
static ssize_t read_up_to(int fd, char *out, size_t size)
{
    size_t used = 0;
    while (used < size) {
        int failure = 0;
        if (ms__fault(MS_FAULT_READ, &failure)) {
            return failure != 0 ? -failure : -EIO;
        }
        ssize_t got = read(fd, out + used, size - used);
        if (got < 0 && errno != EINTR) {
            return -errno;
        }
        if (got == 0) {
            break;
        }
        used += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)used;
}

bool ms__file_read_small(const char *path, char *out, size_t size)
{
    int fd = open_checked(path, O_RDONLY);
    if (fd < 0) {
        return false;
    }
    ssize_t used = read_up_to(fd, out, size - 1);
    close(fd);
    if (used < 0) {
        return false;
    }
    out[used] = '\0';
    return true;
}

/* Reads all of `fd` into a block that doubles up to one byte beyond the limit. The caller frees `*text`, also on
 * failure. */
static int read_growing(int fd, const char *path, size_t most_bytes, char **text, size_t *length, ms_error *err)
{
    size_t capacity = most_bytes < 4096 ? most_bytes + 1 : 4096;
    size_t used = 0;
    for (;;) {
        char *grown = ms_realloc_array(*text, capacity + 1, 1);
        if (grown == NULL) {
            return ms_fail(err, MS_ENOMEM, "reading %s: out of memory", path);
        }
        *text = grown;
        ssize_t got = read_up_to(fd, grown + used, capacity - used);
        if (got < 0) {
            return ms_fail_errno(err, MS_ESYSTEM, (int)-got, "reading %s", path);
        }
        used += (size_t)got;
        if (used > most_bytes) {
            return ms_fail(err, MS_EFORMAT, "reading %s: it holds more than %zu bytes", path, most_bytes);
        }
        if (used < capacity) {
            grown[used] = '\0';
            *length = used;
            return MS_OK;
        }
        capacity = capacity > most_bytes / 2 ? most_bytes + 1 : capacity * 2;
    }
}

/* Closes `fd`. */
static int read_and_close(int fd, const char *path, size_t most_bytes, char **text, size_t *length, ms_error *err)
{
    char *block = NULL;
    size_t used = 0;
    int rc = read_growing(fd, path, most_bytes, &block, &used, err);
    close(fd);
    if (rc != MS_OK) {
        ms_free(block);
        return rc;
    }
    *text = block;
    *length = used;
    return MS_OK;
}

int ms__file_read_text(const char *path, size_t most_bytes, char **text, size_t *length, ms_error *err)
{
    int fd = open_checked(path, O_RDONLY);
    if (fd < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, -fd, "opening %s", path);
    }
    return read_and_close(fd, path, most_bytes, text, length, err);
}

int ms__file_read_own_text(const char *path, size_t most_bytes, char **text, size_t *length, ms_error *err)
{
    struct stat info;
    int fd = open_checked(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, -fd, "opening %s", path);
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & S_IWOTH) != 0) {
        close(fd);
        return ms_fail(err, MS_ESYSTEM, "%s is not a file that this user alone may write", path);
    }
    return read_and_close(fd, path, most_bytes, text, length, err);
}

enum { NAME_TRIES = 100 };

/* A new file beside `path`, to be renamed over it: a descriptor or a negative errno. The kernel applies the umask.
 * Reading the umask would change it for a moment, while other threads may create files. */
static int open_beside(const char *path, char *temporary, size_t size)
{
    int failure = 0;
    if (ms__fault(MS_FAULT_OPEN, &failure)) {
        return failure != 0 ? -failure : -EIO;
    }
    for (int i = 0; i < NAME_TRIES; i++) {
        int length = snprintf(temporary, size, "%s.%lx-%llx", path, (long)getpid(), (unsigned long long)ms_now_ns());
        if (length < 0 || (size_t)length >= size) {
            return -ENAMETOOLONG;
        }
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (fd >= 0 || errno != EEXIST) {
            return fd >= 0 ? fd : -errno;
        }
    }
    return -EEXIST;
}

/* True if a new file replaces the name. Devices, pipes and links stay and are written to. */
static bool is_replaced(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0 || S_ISREG(info.st_mode) || (S_ISLNK(info.st_mode) && stat(path, &info) != 0);
}

/* 0 or the number of the failure. */
static int write_all(int fd, const char *text, size_t length)
{
    for (size_t done = 0; done < length;) {
        int failure = 0;
        if (ms__fault(MS_FAULT_WRITE, &failure)) {
            return failure != 0 ? failure : EIO;
        }
        ssize_t moved = write(fd, text + done, length - done);
        if (moved < 0 && errno != EINTR) {
            return errno;
        }
        done += moved > 0 ? (size_t)moved : 0;
    }
    return 0;
}

/* 0 or the number of the failure. */
static int rename_checked(const char *from, const char *to)
{
    int failure = 0;
    if (ms__fault(MS_FAULT_SYSTEM, &failure)) {
        return failure != 0 ? failure : EIO;
    }
    return rename(from, to) == 0 ? 0 : errno;
}

static int write_into(const char *path, const char *text, size_t length, ms_error *err)
{
    int fd = open_checked(path, O_WRONLY | O_TRUNC);
    int failure = fd >= 0 ? write_all(fd, text, length) : -fd;
    if (fd >= 0 && close(fd) != 0 && failure == 0) {
        failure = errno;
    }
    return failure == 0 ? MS_OK : ms_fail_errno(err, MS_ESYSTEM, failure, "writing %s", path);
}

int ms__file_write_text(const char *path, const char *text, size_t length, ms_error *err)
{
    return is_replaced(path) ? ms__file_replace_text(path, text, length, err) : write_into(path, text, length, err);
}

int ms__file_replace_text(const char *path, const char *text, size_t length, ms_error *err)
{
    char temporary[PATH_MAX];
    int fd = open_beside(path, temporary, sizeof temporary);
    if (fd < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, -fd, "writing %s", path);
    }
    ms__file file = {.fd = fd, .align_bytes = 1};
    int rc = ms__file_write(&file, text, length, 0, err);
    /* Some file systems report a full disk only at close. */
    if (close(fd) != 0 && rc == MS_OK) {
        rc = ms_fail_errno(err, MS_ESYSTEM, errno, "writing %s", path);
    }
    int failure = rc == MS_OK ? rename_checked(temporary, path) : 0;
    if (failure != 0) {
        rc = ms_fail_errno(err, MS_ESYSTEM, failure, "writing %s", path);
    }
    if (rc != MS_OK) {
        unlink(temporary);
    }
    return rc;
}

int ms__directory_make(const char *path, ms_error *err)
{
    char partial[PATH_MAX];
    size_t length = strlen(path);
    int failure = 0;
    if (ms__fault(MS_FAULT_OPEN, &failure)) {
        return ms_fail_errno(err, MS_ESYSTEM, failure, "making directory %s", path);
    }
    if (length == 0 || length >= sizeof partial) {
        return ms_fail_errno(err, MS_ESYSTEM, length == 0 ? ENOENT : ENAMETOOLONG, "making directory %.64s", path);
    }
    memcpy(partial, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (partial[i] != '/' && partial[i] != '\0') {
            continue;
        }
        partial[i] = '\0';
        struct stat info;
        if (mkdir(partial, 0700) != 0 && (errno != EEXIST || stat(partial, &info) != 0)) {
            return ms_fail_errno(err, MS_ESYSTEM, errno, "making directory %s", path);
        }
        partial[i] = path[i];
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return ms_fail_errno(err, MS_ESYSTEM, ENOTDIR, "making directory %s", path);
    }
    return MS_OK;
}
