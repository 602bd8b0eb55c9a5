/*
 * Files of the operating system: spill files without a name, reads and writes that resume, small text files, the
 * description of a file system. Used by the file backend, the hardware probe and the readers of documents. Every
 * system call is a fault point.
 * Tests: tests/c/base/test_file.c.
 */
#ifndef MS_BASE_OS_FILE_H
#define MS_BASE_OS_FILE_H

#include <sys/types.h>

#include "memscale/base.h"

/* ---- spill files -------------------------------------------------------- */

typedef struct ms__file {
    int fd;              /* -1 when closed */
    bool is_direct;      /* O_DIRECT is on: offsets, sizes and addresses must be aligned */
    size_t align_bytes;  /* required alignment, at least 4096 */
} ms__file;

#define MS__FILE_CLOSED {.fd = -1}

/* Opens a new, empty file without a name in `directory`, mode 0600: with O_TMPFILE, or if that is missing, with
 * mkostemp() and an immediate unlink(). The file disappears with its last descriptor, also if the process is killed.
 * With `want_direct`, O_DIRECT is tried, and `is_direct` tells the result. MS_ENOSPC, MS_ESYSTEM. */
MS_NODISCARD int ms__file_open_unnamed(const char *directory, bool want_direct, ms__file *out, ms_error *err);

/* Opens an existing file to be read, and tells its size. MS_ESYSTEM, also for a directory, device or pipe. */
MS_NODISCARD int ms__file_open_to_read(const char *path, ms__file *out, uint64_t *size_bytes, ms_error *err);

void ms__file_close(ms__file *file);

/* Reserves `size_bytes` of disk blocks for the file, so that a full disk fails here. If the file system can't
 * reserve, only the size is set. */
MS_NODISCARD int ms__file_reserve(const ms__file *file, uint64_t size_bytes, ms_error *err);

/* Move all bytes; resume after interruptions and short transfers. MS_EIO (also if the file ends inside the range),
 * MS_ENOSPC. Threads may share the file: no file position is used. */
MS_NODISCARD int ms__file_write(const ms__file *file, const void *from, size_t size_bytes, uint64_t offset_bytes,
                                ms_error *err);
MS_NODISCARD int ms__file_read(const ms__file *file, void *to, size_t size_bytes, uint64_t offset_bytes, ms_error *err);

/* One transfer: returns the bytes moved or a negative errno. Passes the fault points of reads, writes, short
 * transfers and flipped bits. */
ssize_t ms__os_pwrite(int fd, const void *from, size_t size_bytes, uint64_t offset_bytes);
ssize_t ms__os_pread(int fd, void *to, size_t size_bytes, uint64_t offset_bytes);

/* ---- small files -------------------------------------------------------- */

/* Reads the whole file, and adds a NUL after its `*length` bytes. Free `*text`
 * with ms_free(). MS_ESYSTEM if the file cannot be read, MS_EFORMAT if it has
 * more than `most_bytes`. */
MS_NODISCARD int ms__file_read_text(const char *path, size_t most_bytes, char **text, size_t *length, ms_error *err);

/* The same for files that memscale wrote: MS_ESYSTEM unless the file is regular, belongs to this user and is not
 * writable by everybody. Does not follow links or wait for pipes. */
MS_NODISCARD int ms__file_read_own_text(const char *path, size_t most_bytes, char **text, size_t *length,
                                        ms_error *err);

/* Reads at most size - 1 bytes into `out` and adds a NUL; false if the file
 * cannot be read. Allocates nothing: for /proc and /sys. */
bool ms__file_read_small(const char *path, char *out, size_t size);

/* Replaces the whole file (mode 0644 less the umask): a reader sees the old or
 * the new text, never a part. Writes to an existing device, pipe or link target. */
MS_NODISCARD int ms__file_write_text(const char *path, const char *text, size_t length, ms_error *err);

/* The same, but also replaces a pipe or a link. */
MS_NODISCARD int ms__file_replace_text(const char *path, const char *text, size_t length, ms_error *err);

/* Makes the directory and its missing parents, mode 0700. Succeeds if it exists. */
MS_NODISCARD int ms__directory_make(const char *path, ms_error *err);

/* ---- file systems ------------------------------------------------------- */

typedef struct ms__filesystem {
    char type[16];        /* "ext4", "tmpfs", ...; "0x9123683e" if its name is unknown */
    bool is_memory;       /* tmpfs, ramfs, hugetlbfs: bytes there are resident memory */
    bool is_network;      /* NFS, SMB and their kin */
    bool is_read_only;
    uint64_t free_bytes;  /* for this user; both numbers are at most INT64_MAX */
    uint64_t total_bytes;
} ms__filesystem;

/* The file system that holds an existing path. MS_ESYSTEM. */
MS_NODISCARD int ms__filesystem_of(const char *path, ms__filesystem *out, ms_error *err);

#endif
