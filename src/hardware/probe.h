/*
 * probe.h - the parts of the hardware probe, one file each; hardware.c puts them
 * together. None fails for what is absent.
 */
#ifndef MS_HARDWARE_PROBE_H
#define MS_HARDWARE_PROBE_H

#include "memscale/hardware.h"

/* ---- probe_host.c ------------------------------------------------------- */

/* Name, usable CPUs and instruction sets; the rates stay as they are. */
void ms__probe_cpu(ms_cpu *cpu);
int ms__probe_ram(ms_ram *ram, ms_error *err);

/* The processor's name out of the text of /proc/cpuinfo; "" if it has none. */
void ms__cpu_name(const char *cpuinfo, char *name, size_t size);

/* ---- hardware.c --------------------------------------------------------- */

/* The GPUs that the drivers show, at most MS_GPU_MAX, kind by kind; returns their number.
 * Rates are estimates, rounded. */
uint32_t ms__probe_gpus(ms_gpu *gpus);

/* ---- probe_disk.c ------------------------------------------------------- */

/* Why a directory is, or is not, fit for the disk tier. */
typedef enum ms__disk_verdict {
    MS__DISK_FIT,
    MS__DISK_FULL,  /* fit, but for space */
    MS__DISK_UNFIT
} ms__disk_verdict;

/* Looks at `dir`, making it if `make` and else at the nearest directory above it
 * that exists. Fills everything but the rates, `refusal` included; `reason` (of
 * `reason_bytes`) gets the refusal without the directory's name. */
ms__disk_verdict ms__disk_examine(const char *dir, bool make, ms_disk *disk, char *reason, size_t reason_bytes);

/* Fills `disk` with the first fit directory of the usual places; with an empty
 * `dir` and a `refusal` where there is none. */
void ms__disk_choose(bool make, ms_disk *disk);

/* One line that names the disk behind `dir` as long as the machine stays as it
 * is: device number, source and type of the mount. */
void ms__disk_identity(const char *dir, char *out, size_t size);

/* A directory for the user's cache files with `name` (may be "") below it: under
 * XDG_CACHE_HOME or ~/.cache. False if neither is known. Nothing is made. */
bool ms__cache_directory(const char *name, char *out, size_t size);

/* ---- rate_cache.c ------------------------------------------------------- */

typedef struct ms__rate {
    const char *name;
    uint64_t *value;
} ms__rate;

/* Measured rates in a file of their own in `dir`, for one `kind` ("cpu", "disk")
 * and `key`, the line that says what was measured. A file that is missing,
 * damaged, or of another key is no answer. */
MS_NODISCARD bool ms__rate_cache_load(const char *dir, const char *kind, const char *key, const ms__rate *rates,
                                      size_t count);
/* Replaces the file at once. Failing costs only a measurement next time: logged. */
void ms__rate_cache_save(const char *dir, const char *kind, const char *key, const ms__rate *rates, size_t count);

#endif
