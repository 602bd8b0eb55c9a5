/*
 * hostmem.h - memory of CPU tensors: exact maps, a cache of freed maps, exact
 * live and peak bytes.
 *
 * torch's CPU allocator reaches libc through two slots of libc10's relocation table,
 * posix_memalign and free. While installed, blocks of MS_HOSTMEM_MIN_BYTES and more come
 * from maps of hostmem (whole pages, 2 MiB aligned with huge pages advised from 2 MiB on).
 * They are counted, and returned to the system or to a bounded cache as soon as they are
 * freed. So resident memory follows live bytes, and one ceiling bounds both.
 *
 * One per process, for the process's life: the state is global because the slots are. All
 * functions are thread-safe. The library must never be unloaded once installed
 * (RTLD_NODELETE). A child made by fork() keeps its copies of the blocks; it starts with an
 * empty cache and a ceiling of 0, because writing to cached pages would copy them.
 *
 * Tests: tests/c/hostmem/.
 */
#ifndef MEMSCALE_HOSTMEM_H
#define MEMSCALE_HOSTMEM_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Smaller blocks stay with libc. */
#define MS_HOSTMEM_MIN_BYTES ((size_t)128 << 10)

/* How the allocator was taken over. */
typedef enum ms_hostmem_means {
    MS_HOSTMEM_NONE,   /* nothing installed */
    MS_HOSTMEM_SLOTS,  /* the allocator's slots point here */
    MS_HOSTMEM_MALLOPT /* the slots cannot be taken: glibc maps big blocks, and is trimmed */
} ms_hostmem_means;

/* "none", "slots" or "mallopt"; "unknown" for any other number. */
MS_API const char *ms_hostmem_means_name(ms_hostmem_means means);

/*
 * Installs on behalf of one user; users are counted. `library` is the name of the loaded
 * library whose slots are taken (NULL: "libc10.so"). Acts only if both slots hold the address
 * of libc or of a known interposer; otherwise falls back to mallopt, logs the reason and still
 * returns MS_OK. *means (may be NULL) gets the result; it is MS_HOSTMEM_NONE if the allocator
 * is not glibc's either. After a fall-back the next call tries the slots again. Installs `free`
 * first. MS_ESTATE if another library is served already; MS_ENOMEM.
 */
MS_API int ms_hostmem_install(const char *library, ms_hostmem_means *means, ms_error *err);

/* Removes one user. The last one restores posix_memalign at once, and `free` when the last block
 * that came through the slots is freed; sets the ceiling to 0, which empties the cache; leaves
 * alone a slot that another tool has taken. Blocks that tensors still use stay valid and are
 * unmapped when freed. After a fall-back glibc gets the thresholds at which its own adjustment
 * ends, since that cannot be switched on again. */
MS_API void ms_hostmem_uninstall(void);

/* Counters of the maps. */
typedef struct ms_hostmem_stats {
    ms_hostmem_means means;
    uint64_t live_bytes;      /* of maps in use, whole pages */
    uint64_t peak_live_bytes; /* since ms_hostmem_reset_peak() */
    uint64_t cached_bytes;    /* resident bytes of cached maps */
    uint64_t peak_held_bytes; /* most of live + cached since the reset */
    uint64_t live_blocks;
    uint64_t mapped_count;    /* maps made, cumulative */
    uint64_t reused_count;    /* blocks served from the cache, cumulative */
} ms_hostmem_stats;

/* Fills `stats`. */
MS_API void ms_hostmem_get_stats(ms_hostmem_stats *stats);
/* Restarts both peaks at the current values. */
MS_API void ms_hostmem_reset_peak(void);

/*
 * Sets the ceiling on live + cached bytes. The cache yields: a freed map is cached only below
 * the ceiling, and before a new map is made, cached maps are released (least recently freed
 * first) until the sum is under it; the last one only as far as needed, in whole huge pages
 * from its end. Live bytes are never refused. 0, the initial value: nothing is cached.
 * Lowering it trims at once.
 */
MS_API void ms_hostmem_set_ceiling(uint64_t ceiling_bytes);

/* A finished step. All 0: unknown. */
typedef struct ms_hostmem_step {
    uint64_t peak_bytes; /* of the process's resident memory */
    uint64_t held_bytes; /* peak of live + cached maps */
} ms_hostmem_step;

/* What the next step has beside its maps. */
typedef struct ms_hostmem_beside {
    uint64_t budget_bytes;        /* of the whole process; 0: it has none, and a plan's ceiling holds */
    ms_hostmem_step last, before; /* the last two steps */
    bool smaller_inputs;          /* the next inputs are smaller than the plan's */
} ms_hostmem_beside;

/*
 * The ceiling for the next step under a plan whose ceiling is `plan_bytes`: never higher, and lower if maps up to it
 * and the memory beside them would exceed the budget. That memory is assumed to grow by as much as in the last step.
 * Tensors of smaller inputs may be too small for maps of their own; they need half of the plan's ceiling beside it.
 */
MS_API uint64_t ms_hostmem_ceiling(uint64_t plan_bytes, const ms_hostmem_beside *beside);

/* Releases cached maps in the same order down to `keep_bytes`, and asks glibc to return its free
 * memory (malloc_trim) if `trim_libc`. */
MS_API void ms_hostmem_trim(uint64_t keep_bytes, bool trim_libc);

/* A live block. */
typedef struct ms_hostmem_block {
    uintptr_t address;
    uint64_t bytes;        /* whole pages */
    uint64_t serial;
} ms_hostmem_block;

/*
 * Whether `address` is in a live block of hostmem. Fills the block's whole-page size and a
 * serial that no other block of this process has. Direct I/O may use the block up to the end
 * of its last page.
 */
MS_API bool ms_hostmem_find(const void *address, ms_hostmem_block *block);

/* Bytes of the whole pages within a range of mapped memory that are not resident, such as fresh
 * ones not touched yet; 0 if unknown. */
MS_API uint64_t ms_hostmem_untouched(const void *address, size_t bytes);

/* Blocks outside torch's allocator, of the same kind and from the same cache, for the library's
 * own buffers: at least MS_HOSTMEM_MIN_BYTES, whole pages, of undefined contents. Counted as
 * live, installed or not. NULL without memory. Releasing accepts NULL, and ignores addresses of
 * no live block. */
MS_API void *ms_hostmem_alloc(size_t bytes);
MS_API void ms_hostmem_release(void *address);

#ifdef __cplusplus
}
#endif

#endif
