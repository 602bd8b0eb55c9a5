/*
 * Decides whether a directory can hold the disk tier, and chooses one if the user named none. Memory file systems are
 * refused: writing there frees no memory. Called by hardware.c; makes directories only on request and writes nothing
 * into them.
 */
#include <errno.h>
#include <limits.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/file.h"
#include "base/units.h"
#include "hardware/probe.h"

/* A directory that the user names may have little space; one that memscale chooses should hold a step's activations. */
#define NAMED_LEAST_BYTES (UINT64_C(64) << 20)
#define CHOSEN_LEAST_BYTES (UINT64_C(1) << 30)

enum { MOUNT_LINE_BYTES = 64 << 10, REASON_BYTES = 160 };

/* ---- mounts ------------------------------------------------------------- */

typedef struct mount_info {
    char type[32];
    char source[256];
    char upper[MS_PATH_MAX]; /* of an overlay: its upper directory, which gets the writes; else "" */
} mount_info;

static bool is_below(const char *path, const char *mount_point)
{
    size_t length = strlen(mount_point);
    if (length == 1) {
        return true; /* the root */
    }
    return strncmp(path, mount_point, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static void copy_mount(const struct mntent *entry, mount_info *out)
{
    const char *upper = hasmntopt(entry, "upperdir");
    snprintf(out->type, sizeof out->type, "%s", entry->mnt_type);
    snprintf(out->source, sizeof out->source, "%s", entry->mnt_fsname);
    out->upper[0] = '\0';
    if (upper != NULL && strchr(upper, '=') != NULL) {
        const char *value = strchr(upper, '=') + 1;
        snprintf(out->upper, sizeof out->upper, "%.*s", (int)strcspn(value, ","), value);
    }
}

/* The mount that holds an existing path: that of the longest mount point above it; if several mounts share this point,
 * the last one. */
static bool find_mount(const char *path, mount_info *out)
{
    char real[PATH_MAX];
    size_t best = 0;
    char *line = ms_malloc(MOUNT_LINE_BYTES);
    FILE *mounts = NULL;
    if (line == NULL || ms__fault(MS_FAULT_OPEN, NULL) || realpath(path, real) == NULL) {
        goto cleanup;
    }
    mounts = setmntent("/proc/self/mounts", "re");
    if (mounts == NULL) {
        goto cleanup;
    }
    struct mntent entry;
    while (getmntent_r(mounts, &entry, line, MOUNT_LINE_BYTES) != NULL) {
        size_t length = strlen(entry.mnt_dir);
        if (length >= best && length > 0 && is_below(real, entry.mnt_dir)) {
            best = length;
            copy_mount(&entry, out);
        }
    }
cleanup:
    if (mounts != NULL) {
        endmntent(mounts);
    }
    ms_free(line);
    return best > 0;
}

/* True if writing to this file system takes memory; `what` says why. */
static bool is_in_memory(const ms__filesystem *filesystem, const mount_info *mount, char *what, size_t size)
{
    ms__filesystem upper;
    if (filesystem->is_memory) {
        snprintf(what, size, "a %s", filesystem->type);
        return true;
    }
    if (mount == NULL) {
        return false;
    }
    if (strncmp(mount->source, "/dev/zram", 9) == 0 || strncmp(mount->source, "/dev/ram", 8) == 0) {
        snprintf(what, size, "on %.64s", mount->source);
        return true;
    }
    if (mount->upper[0] != '\0' && ms__filesystem_of(mount->upper, &upper, NULL) == MS_OK && upper.is_memory) {
        snprintf(what, size, "an overlay on a %s", upper.type);
        return true;
    }
    return false;
}

void ms__disk_identity(const char *dir, char *out, size_t size)
{
    struct stat info;
    mount_info mount = {0};
    unsigned device_major = 0;
    unsigned device_minor = 0;
    if (!ms__fault(MS_FAULT_OPEN, NULL) && stat(dir, &info) == 0) {
        device_major = major(info.st_dev);
        device_minor = minor(info.st_dev);
    }
    find_mount(dir, &mount);
    snprintf(out, size, "device %u:%u source %s type %s", device_major, device_minor, mount.source, mount.type);
}

/* ---- one directory ------------------------------------------------------ */

static bool make_absolute(const char *dir, char *out, size_t size)
{
    char current[PATH_MAX];
    int length;
    if (dir[0] == '/') {
        length = snprintf(out, size, "%s", dir);
    } else if (getcwd(current, sizeof current) == NULL) {
        return false;
    } else if (strcmp(dir, ".") == 0) {
        length = snprintf(out, size, "%s", current);
    } else {
        length = snprintf(out, size, "%s/%s", current, dir);
    }
    return length > 0 && (size_t)length < size;
}

/* Removes names from the end of an absolute path until it exists. */
static void nearest_existing(const char *path, char *out, size_t size)
{
    struct stat info;
    snprintf(out, size, "%s", path);
    while (stat(out, &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        char *slash = strrchr(out, '/');
        if (slash == out || slash == NULL) {
            out[1] = '\0';
            return;
        }
        *slash = '\0';
    }
}

typedef struct reason_text {
    char *text;
    size_t size;
} reason_text;

/* Writes the reason and returns the verdict. */
static ms__disk_verdict refuse_disk(reason_text why, ms__disk_verdict verdict, const char *fmt, ...) MS_PRINTF(3, 4);

static ms__disk_verdict refuse_disk(reason_text why, ms__disk_verdict verdict, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why.text, why.size, fmt, args);
    va_end(args);
    return verdict;
}

/* Examines the file system before making anything on it. */
static ms__disk_verdict examine_filesystem(const char *existing, ms_disk *disk, reason_text why)
{
    ms__filesystem filesystem;
    ms_error err;
    char what[96];
    if (ms__filesystem_of(existing, &filesystem, &err) != MS_OK) {
        return refuse_disk(why, MS__DISK_UNFIT, "can't be examined (%s)", strerror(err.system_errno));
    }
    mount_info *mount = ms_calloc(1, sizeof *mount);
    bool has_mount = mount != NULL && find_mount(existing, mount);
    snprintf(disk->filesystem, sizeof disk->filesystem, "%s", has_mount ? mount->type : filesystem.type);
    disk->is_memory = is_in_memory(&filesystem, has_mount ? mount : NULL, what, sizeof what);
    disk->free_bytes = filesystem.free_bytes;
    ms_free(mount);
    if (disk->is_memory) {
        return refuse_disk(why, MS__DISK_UNFIT, "is %s, which is memory; name a directory on a disk", what);
    }
    if (filesystem.is_read_only) {
        return refuse_disk(why, MS__DISK_UNFIT, "is on a read-only file system; name a directory that can be written");
    }
    return MS__DISK_FIT;
}

/* Opens a file in the directory, as the disk tier does. */
static ms__disk_verdict examine_writing(const char *dir, ms_disk *disk, reason_text why)
{
    ms__file file = MS__FILE_CLOSED;
    ms_error err;
    int rc = ms__file_open_unnamed(dir, true, &file, &err);
    if (rc == MS_ENOSPC) {
        return refuse_disk(why, MS__DISK_FULL, "is full (%s)", strerror(err.system_errno));
    }
    if (rc != MS_OK) {
        return refuse_disk(why, MS__DISK_UNFIT, "can't be written (%s); name a directory that can",
                           strerror(err.system_errno));
    }
    disk->direct_io = file.is_direct;
    ms__file_close(&file);
    return MS__DISK_FIT;
}

static ms__disk_verdict examine_directory(bool make, ms_disk *disk, reason_text why)
{
    char existing[MS_PATH_MAX];
    struct stat info;
    ms_error err;
    nearest_existing(disk->dir, existing, sizeof existing);
    bool is_there = strcmp(existing, disk->dir) == 0;
    if (stat(existing, &info) != 0) {
        return refuse_disk(why, MS__DISK_UNFIT, "can't be reached (%s)", strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return refuse_disk(why, MS__DISK_UNFIT, "is not a directory");
    }
    ms__disk_verdict verdict = examine_filesystem(existing, disk, why);
    if (verdict != MS__DISK_FIT) {
        return verdict;
    }
    if (make && !is_there && ms__directory_make(disk->dir, &err) != MS_OK) {
        return refuse_disk(why, MS__DISK_UNFIT, "does not exist and can't be made (%s)", strerror(err.system_errno));
    }
    verdict = examine_writing(make ? disk->dir : existing, disk, why);
    if (verdict == MS__DISK_FIT && disk->free_bytes < NAMED_LEAST_BYTES) {
        verdict = refuse_disk(why, MS__DISK_FULL, "has only %s free", ms__text_bytes(disk->free_bytes).text);
    }
    return verdict;
}

ms__disk_verdict ms__disk_examine(const char *dir, bool make, ms_disk *disk, char *reason, size_t reason_bytes)
{
    reason_text why = {reason, reason_bytes};
    ms__disk_verdict verdict;
    memset(disk, 0, sizeof *disk);
    reason[0] = '\0';
    if (!make_absolute(dir, disk->dir, sizeof disk->dir)) {
        verdict = refuse_disk(why, MS__DISK_UNFIT, "is longer than a path may be");
    } else {
        size_t length = strlen(disk->dir);
        while (length > 1 && disk->dir[length - 1] == '/') {
            disk->dir[--length] = '\0';
        }
        verdict = examine_directory(make, disk, why);
    }
    if (verdict != MS__DISK_FIT) {
        snprintf(disk->refusal, sizeof disk->refusal, "%.*s %s", (int)(MS_NAME_MAX - REASON_BYTES), disk->dir, reason);
    }
    return verdict;
}

int ms_disk_probe(const char *dir, ms_disk *disk, ms_error *err)
{
    char reason[REASON_BYTES];
    ms_disk *found = ms_malloc(sizeof *found);
    if (found == NULL) {
        return ms_fail(err, MS_ENOMEM, "disk_offload_dir: out of memory");
    }
    ms__disk_verdict verdict = ms__disk_examine(dir, true, found, reason, sizeof reason);
    int rc = MS_OK;
    if (verdict == MS__DISK_UNFIT) {
        rc = ms_fail(err, MS_ECONFIG, "disk_offload_dir: %s %s", dir, reason);
    } else {
        *disk = *found;
        if (verdict == MS__DISK_FULL) {
            disk->dir[0] = '\0';
        }
    }
    ms_free(found);
    return rc;
}

/* ---- the usual places --------------------------------------------------- */

static bool cache_below(const char *variable, const char *between, const char *name, char *out, size_t size)
{
    const char *base = getenv(variable);
    if (base == NULL || base[0] != '/') {
        return false; /* relative paths are ignored, by the XDG base directory specification */
    }
    int length = snprintf(out, size, "%s%s/memscale%s%s", base, between, name[0] ? "/" : "", name);
    return length > 0 && (size_t)length < size;
}

bool ms__cache_directory(const char *name, char *out, size_t size)
{
    return cache_below("XDG_CACHE_HOME", "", name, out, size) || cache_below("HOME", "/.cache", name, out, size);
}

enum { PLACES = 4 };

/* The path of place number `place`; false if this machine does not have it. */
static bool usual_place(int number, char *out, size_t size)
{
    switch (number) {
    case 0:
        return cache_below("XDG_CACHE_HOME", "", "spill", out, size);
    case 1:
        return cache_below("HOME", "/.cache", "spill", out, size);
    case 2:
        return snprintf(out, size, "/var/tmp") > 0;
    default:
        return snprintf(out, size, ".") > 0;
    }
}

void ms__disk_choose(bool make, ms_disk *disk)
{
    char place[MS_PATH_MAX];
    char reason[REASON_BYTES];
    char refusals[MS_NAME_MAX] = "";
    bool all_memory = true;
    for (int i = 0; i < PLACES; i++) {
        if (!usual_place(i, place, sizeof place)) {
            continue;
        }
        /* First without making directories, so that refused places stay unchanged. */
        ms__disk_verdict verdict = ms__disk_examine(place, false, disk, reason, sizeof reason);
        if (verdict == MS__DISK_FIT && disk->free_bytes < CHOSEN_LEAST_BYTES) {
            snprintf(disk->refusal, sizeof disk->refusal, "%.*s has only %s free", (int)(MS_NAME_MAX - REASON_BYTES),
                     disk->dir, ms__text_bytes(disk->free_bytes).text);
        } else if (verdict == MS__DISK_FIT && make) {
            verdict = ms__disk_examine(place, true, disk, reason, sizeof reason);
        }
        if (disk->refusal[0] == '\0') {
            return;
        }
        all_memory = all_memory && disk->is_memory;
        size_t used = strlen(refusals);
        snprintf(refusals + used, sizeof refusals - used, "%s%.*s", used > 0 ? "; " : "", (int)(sizeof refusals - used),
                 disk->refusal);
    }
    memset(disk, 0, sizeof *disk);
    disk->is_memory = all_memory;
    snprintf(disk->refusal, sizeof disk->refusal, "%s", refusals);
}
