/* procfs.h on Linux. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/os/file.h"
#include "base/os/procfs.h"
#include "base/units.h"

bool ms__proc_field(const char *text, const char *key, uint64_t *out)
{
    size_t key_length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, key_length) == 0 && line[key_length] == ':') {
            const char *start = line + key_length + 1;
            char *end;
            errno = 0;
            unsigned long long value = strtoull(start, &end, 10);
            if (end == start || errno != 0) {
                return false;
            }
            *out = strncmp(end, " kB", 3) == 0 ? ms__mul_sat(value, 1024) : value;
            return true;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return false;
}

int ms__resident_read(ms__resident *out, ms_error *err)
{
    char text[4096];
    ms__resident found;
    if (!ms__file_read_small("/proc/self/status", text, sizeof text) ||
        !ms__proc_field(text, "VmRSS", &found.now_bytes) || !ms__proc_field(text, "VmHWM", &found.peak_bytes) ||
        !ms__proc_field(text, "RssFile", &found.file_bytes)) {
        return ms_fail(err, MS_ESYSTEM, "reading resident memory from /proc/self/status");
    }
    *out = found;
    return MS_OK;
}

int ms__resident_reset_peak(ms_error *err)
{
    int failure = 0;
    if (!ms__fault(MS_FAULT_OPEN, &failure)) {
        int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, "5", 1) == 1) {
            close(fd);
            return MS_OK;
        }
        failure = errno;
        if (fd >= 0) {
            close(fd);
        }
    }
    return ms_fail_errno(err, MS_ENOTSUP, failure, "resetting the peak in /proc/self/clear_refs");
}

int ms__machine_memory_read(const char *root, ms__machine_memory *out, ms_error *err)
{
    char path[PATH_MAX];
    char text[8192];
    ms__machine_memory found;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!ms__file_read_small(path, text, sizeof text) || !ms__proc_field(text, "MemTotal", &found.total_bytes) ||
        !ms__proc_field(text, "MemAvailable", &found.available_bytes)) {
        return ms_fail(err, MS_ESYSTEM, "reading the machine's memory from %s", path);
    }
    *out = found;
    return MS_OK;
}

uint64_t ms__memlock_limit_bytes(void)
{
    struct rlimit limit;
    if (ms__fault(MS_FAULT_SYSTEM, NULL) || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return 0;
    }
    /* A limit beyond the 63 bits of documents counts as unlimited. */
    return limit.rlim_cur > INT64_MAX ? UINT64_MAX : (uint64_t)limit.rlim_cur;
}
