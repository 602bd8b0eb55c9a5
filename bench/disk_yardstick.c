#include "disk_yardstick.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "memscale/base.h"

/* Fields of fio's terse output, version 3: KiB moved, and milliseconds taken. */
enum { READ_KIB = 6, READ_MS = 9, WRITE_KIB = 47, WRITE_MS = 50 };

typedef struct job {
    char path[64]; /* below /proc: the file has no other name */
    uint64_t block_bytes;
    uint64_t blocks; /* in each of `depth` parts */
    int depth;
} job;

static bool is_installed(const char *program)
{
    char command[64];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

const char *disk_yardstick_name(void)
{
    static const char *name;
    static bool is_known;
    if (!is_known) {
        name = is_installed("fio") ? "fio" : is_installed("dd") ? "dd" : NULL;
        is_known = true;
    }
    return name;
}

static double children_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* The nth field of a line, from 1; 0 if the line has fewer. */
static double field(const char *line, int n)
{
    while (--n > 0 && line != NULL) {
        line = strchr(line, ';');
        line = line != NULL ? line + 1 : NULL;
    }
    return line != NULL ? strtod(line, NULL) : 0;
}

/* GB/s by fio's own clock; 0 if it failed. */
static double run_fio(const job *j, bool is_read)
{
    char command[512], line[4096] = "";
    unsigned long long part = j->blocks * j->block_bytes;
    snprintf(command, sizeof command,
             "fio --name=yardstick --filename=%s --rw=%s --bs=%llu --direct=1 --ioengine=psync --thread "
             "--numjobs=%d --size=%llu --offset_increment=%llu --overwrite=1 --allow_file_create=0 "
             "--group_reporting --output-format=terse --terse-version=3 2>/dev/null",
             j->path, is_read ? "read" : "write", (unsigned long long)j->block_bytes, j->depth, part, part);
    FILE *output = popen(command, "r");
    if (output == NULL) {
        return 0;
    }
    bool is_there = fgets(line, sizeof line, output) != NULL;
    if (pclose(output) != 0 || !is_there) {
        return 0;
    }
    double kib = field(line, is_read ? READ_KIB : WRITE_KIB), ms = field(line, is_read ? READ_MS : WRITE_MS);
    return ms > 0 ? kib * 1024 / ms / 1e6 : 0;
}

/* GB/s by our clock, which includes starting the programs. */
static double run_dd(const job *j, bool is_read)
{
    char command[1024] = "";
    size_t length = 0;
    for (int i = 0; i < j->depth; i++) {
        unsigned long long first = (uint64_t)i * j->blocks;
        length +=
            (size_t)snprintf(command + length, sizeof command - length,
                             is_read ? "dd if=%s of=/dev/null bs=%llu count=%llu skip=%llu iflag=direct status=none & "
                                     : "dd of=%s if=/dev/zero bs=%llu count=%llu seek=%llu oflag=direct "
                                       "conv=notrunc status=none & ",
                             j->path, (unsigned long long)j->block_bytes, (unsigned long long)j->blocks, first);
        if (length >= sizeof command) {
            return 0;
        }
    }
    snprintf(command + length, sizeof command - length, "wait");
    uint64_t begun_ns = ms_now_ns();
    if (system(command) != 0) {
        return 0;
    }
    return (double)(j->blocks * j->block_bytes * (uint64_t)j->depth) / (double)(ms_now_ns() - begun_ns);
}

bool disk_yardstick_run(const char *directory, uint64_t bytes, uint64_t block_bytes, int depth, disk_rates *rates)
{
    const char *name = disk_yardstick_name();
    job j = {.block_bytes = block_bytes, .blocks = bytes / block_bytes / (uint64_t)depth, .depth = depth};
    uint64_t moved_bytes = j.blocks * block_bytes * (uint64_t)depth;
    int fd = name != NULL ? open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)moved_bytes) != 0) {
        return false;
    }
    snprintf(j.path, sizeof j.path, "/proc/%d/fd/%d", (int)getpid(), fd);
    double (*pass)(const job *, bool) = strcmp(name, "fio") == 0 ? run_fio : run_dd;
    (void)pass(&j, false); /* not counted: like the other variants, it first writes fresh blocks */
    double cpu = children_seconds();
    rates->write_gb = pass(&j, false);
    rates->read_gb = pass(&j, true);
    rates->cpu = (children_seconds() - cpu) / (2 * (double)moved_bytes / 1e9);
    close(fd);
    return rates->write_gb > 0 && rates->read_gb > 0;
}
