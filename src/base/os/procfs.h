/*
 * Resident memory of this process and memory of this machine, as the kernel reports them. Used by the hardware probe
 * and by the executor at step boundaries. Allocates nothing.
 * Tests: tests/c/base/test_os.c.
 */
#ifndef MS_BASE_OS_PROCFS_H
#define MS_BASE_OS_PROCFS_H

#include "memscale/base.h"

typedef struct ms__resident {
    uint64_t now_bytes;  /* VmRSS */
    uint64_t peak_bytes; /* VmHWM: since the start or the last reset */
    uint64_t file_bytes; /* RssFile: the part of now_bytes that maps files */
} ms__resident;

/* Resident memory of this process. MS_ESYSTEM if /proc cannot be read. */
MS_NODISCARD int ms__resident_read(ms__resident *out, ms_error *err);

/* Sets VmHWM to VmRSS. MS_ENOTSUP if the kernel forbids it. */
MS_NODISCARD int ms__resident_reset_peak(ms_error *err);

typedef struct ms__machine_memory {
    uint64_t total_bytes;
    uint64_t available_bytes; /* the kernel's estimate of memory available without swapping */
} ms__machine_memory;

/* Reads `root`/proc/meminfo; `root` is "" except in tests. MS_ESYSTEM. */
MS_NODISCARD int ms__machine_memory_read(const char *root, ms__machine_memory *out, ms_error *err);

/* Bytes that this process may lock in memory; UINT64_MAX without a limit. */
uint64_t ms__memlock_limit_bytes(void);

/* Reads the number after "key:" at the start of a line, times 1024 if "kB" follows. False if the key is missing.
 * Parsers of similar files use it too. */
bool ms__proc_field(const char *text, const char *key, uint64_t *out);

#endif
