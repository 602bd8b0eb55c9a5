/*
 * probe.h - the parts of the hardware probe, one file each; hardware.c combines them. A part may be absent.
 * Tests: tests/c/hardware/test_probe.c.
 */
#ifndef MS_HARDWARE_PROBE_H
#define MS_HARDWARE_PROBE_H

#include "memscale/hardware.h"

/* ---- probe_host.c ------------------------------------------------------- */

/* Name, usable CPUs and instruction sets; the rates stay as they are. */
void ms__probe_cpu(ms_cpu *cpu);
int ms__probe_ram(ms_ram *ram, ms_error *err);

/* The processor's name in the text of /proc/cpuinfo; "" if it has none. */
void ms__cpu_name(const char *cpuinfo, char *name, size_t size);

/* ---- hardware.c --------------------------------------------------------- */

/* The GPUs that the drivers show, at most MS_GPU_MAX, kind by kind; returns their number.
 * Rates are estimates, rounded. */
uint32_t ms__probe_gpus(ms_gpu *gpus);

/* ---- probe_disk.c ------------------------------------------------------- */

/* Whether a directory can hold the disk tier. */
typedef enum ms__disk_verdict {
    MS__DISK_FIT,
    MS__DISK_FULL,  /* fit, except for space */
    MS__DISK_UNFIT
} ms__disk_verdict;

/* Examines `dir`. If `dir` does not exist: with `make` makes it, else examines the nearest existing directory above it.
 * Fills everything except the rates; `reason` (of `reason_bytes`) gets the refusal without the directory's name. */
ms__disk_verdict ms__disk_examine(const char *dir, bool make, ms_disk *disk, char *reason, size_t reason_bytes);

/* Fills `disk` with the first fit directory of the usual places. If none is fit, `dir` is empty and `refusal` gives the
 * reasons. */
void ms__disk_choose(bool make, ms_disk *disk);

/* One line that identifies the disk of `dir` on this machine: device number, source and type of the mount. */
void ms__disk_identity(const char *dir, char *out, size_t size);

/* The path `name` (may be "") in the user's directory of cache files, under
 * XDG_CACHE_HOME or ~/.cache. False if neither is known. Makes no directory. */
bool ms__cache_directory(const char *name, char *out, size_t size);

/* ---- rate_cache.c ------------------------------------------------------- */

typedef struct ms__rate {
    const char *name;
    uint64_t *value;
} ms__rate;

/* Loads measured rates from a file in `dir`; each `kind` ("cpu", "disk", "gpu") and `key` has its own file. `key` is a
 * line that identifies the measured part. False if the file is missing, damaged, or has another key. */
MS_NODISCARD bool ms__rate_cache_load(const char *dir, const char *kind, const char *key, const ms__rate *rates,
                                      size_t count);
/* Replaces the file. A failure is only logged: the next run measures again. */
void ms__rate_cache_save(const char *dir, const char *kind, const char *key, const ms__rate *rates, size_t count);

#endif
