/*
 * hostmem.h - memory of CPU tensors: exact maps, a cache of freed maps, exact
 * live and peak bytes.
 *
 * torch's CPU allocator reaches libc through two slots of libc10's relocation
 * table, posix_memalign and free. While installed, blocks of MS_HOSTMEM_MIN_BYTES
 * and more come from maps of our own (whole pages, 2 MiB aligned with huge pages
 * advised from 2 MiB on), are counted, and go back to the system, or into a
 * bounded cache, the moment they are freed. So resident memory follows live
 * bytes, and one ceiling bounds both.
 *
 * One per process, for the process's life: the state is global because the
 * slots are. All functions are thread-safe. The library must never be unloaded
 * once installed (RTLD_NODELETE). A child made by fork() goes on with its copies of
 * the blocks; it starts with an empty cache and a ceiling of 0, because cached pages
 * would be copied when it writes to them.
 */
#ifndef MEMSCALE_HOSTMEM_H
#define MEMSCALE_HOSTMEM_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Smaller blocks stay with libc. */
#define MS_HOSTMEM_MIN_BYTES ((size_t)1 << 20)

/* How the allocator was taken over. */
typedef enum ms_hostmem_means {
    MS_HOSTMEM_NONE,   /* nothing installed */
    MS_HOSTMEM_SLOTS,  /* the allocator's slots point here */
    MS_HOSTMEM_MALLOPT /* slots not to be had: glibc told to map big blocks, and trimmed */
} ms_hostmem_means;

/* "none", "slots" or "mallopt"; "unknown" for any other number. */
MS_API const char *ms_hostmem_means_name(ms_hostmem_means means);

/*
 * Installs on behalf of one user; users are counted. `library` is the name of the
 * loaded library whose slots are taken (NULL: "libc10.so"). Acts only if both
 * slots hold the address that libc, or a known interposer, gives; otherwise falls
 * back to mallopt, says why in the log and still returns MS_OK. *means (may be NULL)
 * says which it is; it is MS_HOSTMEM_NONE where the allocator is not glibc's either.
 * After a fall-back the next call tries the slots again. Installs `free` first.
 * MS_ESTATE if another library is served already; MS_ENOMEM.
 */
MS_API int ms_hostmem_install(const char *library, ms_hostmem_means *means, ms_error *err);

/* One user less. The last one restores posix_memalign at once, and `free` when the
 * last block that came through the slots is gone; sets the ceiling to 0, which drops
 * the cache; a slot that is no longer ours is left alone. Blocks that tensors still
 * use stay valid and are unmapped when freed. After a fall-back glibc is told the thresholds that
 * its own adjustment ends at, since that can't be switched on again. */
MS_API void ms_hostmem_uninstall(void);

/* What the maps hold now, and have held. */
typedef struct ms_hostmem_stats {
    ms_hostmem_means means;
    uint64_t live_bytes;      /* of maps in use, whole pages */
    uint64_t peak_live_bytes; /* since ms_hostmem_reset_peak() */
    uint64_t cached_bytes;    /* what is resident of freed maps kept */
    uint64_t peak_held_bytes; /* most of live + cached since the reset */
    uint64_t live_blocks;
    uint64_t mapped_count;    /* maps made, cumulative */
    uint64_t reused_count;    /* blocks served from the cache, cumulative */
} ms_hostmem_stats;

/* Fills `stats`. */
MS_API void ms_hostmem_get_stats(ms_hostmem_stats *stats);
/* Lets both peaks begin anew at what is held now. */
MS_API void ms_hostmem_reset_peak(void);

/*
 * The ceiling on live + cached bytes. The cache gives way: a freed map is kept only
 * below the ceiling, and before a new map is made, cached maps are released (least
 * recently freed first) until the sum is under it; the last of them only as far as
 * needed, whole huge pages from its end. Live bytes are never refused.
 * 0, the start: nothing is cached. Lowering it trims at once.
 */
MS_API void ms_hostmem_set_ceiling(uint64_t ceiling_bytes);

/* Releases cached maps in the same order down to `keep_bytes`, and asks glibc to return what it
 * holds free (malloc_trim) if `trim_libc`. */
MS_API void ms_hostmem_trim(uint64_t keep_bytes, bool trim_libc);

/* A block that lives. */
typedef struct ms_hostmem_block {
    uintptr_t address;
    uint64_t bytes;        /* whole pages */
    uint64_t serial;
} ms_hostmem_block;

/*
 * Is `address` the start of, or inside, a live block of ours? Then its whole-page
 * size and a serial that no other block of this process has are filled in: safe to
 * transfer by direct I/O, up to the whole page behind its last byte.
 */
MS_API bool ms_hostmem_find(const void *address, ms_hostmem_block *block);

/* Bytes of the whole pages within a range of mapped memory that are not resident, such as fresh
 * ones that nothing has touched yet; 0 where that can't be told. */
MS_API uint64_t ms_hostmem_untouched(const void *address, size_t bytes);

/* Blocks outside torch's allocator, of the same kind and out of the same cache, for
 * buffers of the library's own: at least MS_HOSTMEM_MIN_BYTES, whole pages, of
 * undefined contents. Counted as live, installed or not. NULL when memory is out.
 * Releasing takes NULL, and ignores what is no live block. */
MS_API void *ms_hostmem_alloc(size_t bytes);
MS_API void ms_hostmem_release(void *address);

#ifdef __cplusplus
}
#endif

#endif
