/* Files of spool.h. A line is written at the end that is known to be good, so a torn one is overwritten. */
#include "observability/spool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/os/file.h"
#include "base/units.h"

enum { FILES_PER_FOLDER = 8, LOOKS_PER_FOLDER = 16, OWN_MOST_BYTES = 64 };

static const char continued[] = "{\"version\":1,\"time\":\"\",\"event\":\"continued\",\"message\":\"\"}";

typedef struct spool_run {
    char *begin; /* its first line, for its next file; NULL: ended */
    int fd;      /* -1: no file could be made */
    uint64_t bytes, part;
} spool_run;

struct ms__spool {
    char *folder;
    char own[OWN_MOST_BYTES];
    uint64_t most_bytes;
    uint64_t room_bytes; /* that may be written before the folder is looked at again */
    MS__ARRAY(spool_run) runs;
    bool has_dropped;
};

/* ---- the folder ------------------------------------------------------------------ */

static int check_folder(const char *folder, ms_error *err)
{
    struct stat found;
    if (lstat(folder, &found) != 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "%s", folder);
    }
    if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return ms_fail(err, MS_ESYSTEM, "%s: not a folder that only this user may write", folder);
    }
    return MS_OK;
}

int ms__spool_open(const char *folder, uint64_t most_bytes, const char *own, ms__spool **spool, ms_error *err)
{
    int rc = ms__directory_make(folder, err);
    if (rc == MS_OK) {
        rc = check_folder(folder, err);
    }
    if (rc == MS_OK && (strlen(own) >= OWN_MOST_BYTES || strchr(own, '/') != NULL || own[0] == '.')) {
        rc = ms_fail(err, MS_EINVAL, "spool: \"%s\" can't begin a file's name", own);
    }
    if (rc != MS_OK) {
        return rc;
    }
    ms__spool *made = ms_calloc(1, sizeof *made);
    char *copy = made != NULL ? ms_strdup(folder) : NULL;
    if (copy == NULL) {
        ms_free(made);
        return ms_fail(err, MS_ENOMEM, "spool: out of memory");
    }
    made->folder = copy;
    made->most_bytes = ms__max_u64(most_bytes, MS__SPOOL_LEAST_BYTES);
    snprintf(made->own, sizeof made->own, "%s", own);
    *spool = made;
    return MS_OK;
}

static void close_file(spool_run *run)
{
    if (run->fd >= 0) {
        close(run->fd);
    }
    run->fd = -1;
}

void ms__spool_close(ms__spool *spool)
{
    if (spool == NULL) {
        return;
    }
    for (size_t i = 0; i < spool->runs.count; i++) {
        close_file(&spool->runs.items[i]);
        ms_free(spool->runs.items[i].begin);
    }
    MS__ARRAY_FREE(&spool->runs);
    ms_free(spool->folder);
    ms_free(spool);
}

bool ms__spool_has_dropped(const ms__spool *spool)
{
    return spool->has_dropped;
}

/* ---- room ------------------------------------------------------------------------ */

static int is_log(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && strcmp(entry->d_name + length - 4, ".log") == 0;
}

/* Removes a file if no writer has it; `*bytes` are then free. */
static bool remove_unused(int folder, const char *name, uint64_t *bytes)
{
    struct stat found;
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool is_unused = fd >= 0 && fstat(fd, &found) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    bool is_removed = is_unused && unlinkat(folder, name, 0) == 0;
    if (is_removed) {
        *bytes = (uint64_t)found.st_size;
    }
    if (fd >= 0) {
        close(fd);
    }
    return is_removed;
}

static uint64_t bytes_of(int folder, const char *name)
{
    struct stat found;
    return fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)found.st_size : 0;
}

/* Removes the oldest files, whose names come first, until the others have at most `most_bytes`. Gives their bytes. */
static uint64_t shrink_to(ms__spool *spool, struct dirent **entries, int count, uint64_t most_bytes)
{
    int folder = open(spool->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t used = 0, freed = 0;
    for (int i = 0; folder >= 0 && i < count; i++) {
        used += bytes_of(folder, entries[i]->d_name);
    }
    for (int i = 0; folder >= 0 && i < count && used > most_bytes; i++) {
        if (remove_unused(folder, entries[i]->d_name, &freed)) {
            used -= ms__min_u64(freed, used);
            spool->has_dropped = true;
        }
    }
    if (folder >= 0) {
        close(folder);
    }
    return used;
}

/* Looks at the folder, and removes old files so that `needed` more bytes fit. MS_ENOSPC if they don't. */
static int make_room(ms__spool *spool, uint64_t needed, ms_error *err)
{
    struct dirent **entries;
    int count = scandir(spool->folder, &entries, is_log, alphasort);
    if (count < 0) {
        return ms_fail_errno(err, MS_ESYSTEM, errno, "%s", spool->folder);
    }
    uint64_t most = needed < spool->most_bytes ? spool->most_bytes - needed : 0;
    uint64_t used = shrink_to(spool, entries, count, most);
    for (int i = 0; i < count; i++) {
        free(entries[i]);
    }
    free(entries);
    if (used > most) {
        spool->room_bytes = 0;
        return ms_fail(err, MS_ENOSPC, "%s: the spool is full", spool->folder);
    }
    spool->room_bytes = needed + ms__min_u64(most - used, spool->most_bytes / LOOKS_PER_FOLDER);
    return MS_OK;
}

/* ---- lines ------------------------------------------------------------------------- */

static int write_once(spool_run *run, const char *text, size_t length)
{
    size_t done = 0;
    while (done < length) {
        ssize_t moved = ms__os_pwrite(run->fd, text + done, length - done, run->bytes + done);
        if (moved < 0 && moved != -EINTR) {
            return (int)-moved;
        }
        done += moved > 0 ? (size_t)moved : 0;
    }
    run->bytes += length;
    return 0;
}

/* Writes whole lines. On a full disk old files make room once. */
static int write_text(ms__spool *spool, spool_run *run, const char *text, size_t length, ms_error *err)
{
    int rc = length > spool->room_bytes ? make_room(spool, length, err) : MS_OK;
    if (rc != MS_OK) {
        return rc;
    }
    int problem = write_once(run, text, length);
    bool is_full = problem == ENOSPC || problem == EDQUOT;
    if (is_full && make_room(spool, spool->most_bytes / FILES_PER_FOLDER + length, err) == MS_OK) {
        problem = write_once(run, text, length);
    }
    if (problem != 0) {
        (void)!ftruncate(run->fd, (off_t)run->bytes); /* else the next line overwrites the torn one */
        return ms_fail_errno(err, MS_ESYSTEM, problem, "%s", spool->folder);
    }
    spool->room_bytes -= ms__min_u64(length, spool->room_bytes);
    return MS_OK;
}

static int write_line(ms__spool *spool, spool_run *run, const char *line, ms_error *err)
{
    size_t length = strlen(line);
    char *text = ms_malloc(length + 2);
    if (text == NULL) {
        return ms_fail(err, MS_ENOMEM, "spool: out of memory for a line");
    }
    memcpy(text, line, length);
    memcpy(text + length, "\n", 2);
    int rc = write_text(spool, run, text, length + 1, err);
    ms_free(text);
    return rc;
}

static int open_file(ms__spool *spool, spool_run *run, size_t number, ms_error *err)
{
    char path[4096];
    size_t length = (size_t)snprintf(path, sizeof path, "%s/%s%06zu-%06llu.log", spool->folder, spool->own, number,
                                     (unsigned long long)run->part);
    if (length >= sizeof path) {
        return ms_fail(err, MS_ESYSTEM, "%s: the path is too long", spool->folder);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int rc = ms_fail_errno(err, MS_ESYSTEM, errno, "%s", path);
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    run->fd = fd;
    run->bytes = 0;
    run->part++;
    int rc = write_line(spool, run, run->begin, err);
    if (rc != MS_OK) {
        unlink(path);
        close_file(run);
    }
    return rc;
}

/* Each file of a run has a part of the folder, so that old ones can be removed while it goes on. */
static int use_next_file(ms__spool *spool, spool_run *run, size_t number, ms_error *err)
{
    (void)!write_line(spool, run, continued,
                      err); /* without it the run is taken as stopped until its next lines come */
    close_file(run);
    return open_file(spool, run, number, err);
}

int ms__spool_begin(ms__spool *spool, const char *line, size_t *run, ms_error *err)
{
    char *copy = ms_strdup(line);
    spool_run *added = copy != NULL ? MS__ARRAY_PUSH(&spool->runs) : NULL;
    if (added == NULL) {
        ms_free(copy);
        return ms_fail(err, MS_ENOMEM, "spool: out of memory for a run");
    }
    *added = (spool_run){.begin = copy, .fd = -1};
    *run = spool->runs.count - 1;
    ms_error later;
    (void)!open_file(spool, added, *run, &later); /* if it fails, the next line tries again, and says so */
    return MS_OK;
}

int ms__spool_write(ms__spool *spool, size_t run, const char *line, ms_error *err)
{
    spool_run *found = run < spool->runs.count ? &spool->runs.items[run] : NULL;
    if (found == NULL || found->begin == NULL) {
        return ms_fail(err, MS_ESTATE, "spool: run %zu has ended", run);
    }
    int rc = MS_OK;
    if (found->fd < 0) {
        rc = open_file(spool, found, run, err);
    } else if (found->bytes + strlen(line) > spool->most_bytes / FILES_PER_FOLDER &&
               found->bytes > strlen(found->begin) + 1) {
        rc = use_next_file(spool, found, run, err);
    }
    return rc == MS_OK ? write_line(spool, found, line, err) : rc;
}

int ms__spool_end(ms__spool *spool, size_t run, const char *line, ms_error *err)
{
    int rc = line != NULL ? ms__spool_write(spool, run, line, err) : MS_OK;
    if (run < spool->runs.count) {
        close_file(&spool->runs.items[run]);
        ms_free(spool->runs.items[run].begin);
        spool->runs.items[run].begin = NULL;
    }
    return rc;
}
