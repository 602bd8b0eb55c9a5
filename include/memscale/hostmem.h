/*
 * hostmem.h - memory of CPU tensors: exact maps, a cache of freed maps, exact
 * live and peak bytes.
 *
 * torch's CPU allocator reaches libc through two slots of libc10's relocation table,
 * posix_memalign and free. While installed, blocks of MS_HOSTMEM_MIN_BYTES and more come
 * from maps of hostmem (whole pages, 2 MiB aligned with huge pages advised from 2 MiB on).
 * They are counted. As soon as one is freed, it returns to the system or goes to a bounded
 * cache. So resident memory follows live bytes, and a ceiling limits live and cached bytes.
 *
 * The state is global, as the slots are, and lasts as long as the process. All functions are
 * thread-safe. The library must never be unloaded once installed (RTLD_NODELETE). A child
 * made by fork() keeps its copies of the blocks; it starts with an empty cache and a ceiling
 * of 0, because writing to cached pages would copy them.
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
    MS_HOSTMEM_MALLOPT /* the slots could not be taken: glibc maps big blocks, and is trimmed */
} ms_hostmem_means;

/* "none", "slots" or "mallopt"; "unknown" for any other number. */
MS_API const char *ms_hostmem_means_name(ms_hostmem_means means);

/*
 * Adds one user; users are counted. `library` is the name of the loaded library whose slots
 * are taken (NULL: "libc10.so"). If both slots hold addresses of libc or of a known interposer,
 * takes them, `free` first. Otherwise falls back to mallopt, logs the reason and still returns
 * MS_OK; the next call tries the slots again. *means (may be NULL) receives the result;
 * MS_HOSTMEM_NONE if glibc's allocator is not in use. MS_ESTATE if another library is served
 * already; MS_ENOMEM.
 */
MS_API int ms_hostmem_install(const char *library, ms_hostmem_means *means, ms_error *err);

/* Removes one user. With the last user, restores posix_memalign at once, and `free` when the last
 * block that came through the slots is freed, but leaves a slot that another tool has taken. Sets
 * the ceiling to 0, which empties the cache. Blocks that tensors still use stay valid and are
 * unmapped when freed. After a fall-back, sets glibc's thresholds to the values at which its own
 * adjustment ends, because the adjustment cannot be switched on again. */
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
 * Sets the ceiling on live + cached bytes. Only the cache yields; live bytes are never refused.
 * A freed map is cached only below the ceiling. Before a new map is made, cached maps are
 * released, least recently freed first, until the sum is under the ceiling; the last one only
 * as far as needed, in whole huge pages from its end. 0, the initial value: nothing is cached.
 * Lowering the ceiling trims at once.
 */
MS_API void ms_hostmem_set_ceiling(uint64_t ceiling_bytes);

/* Measurements of a finished step; all 0 if unknown. */
typedef struct ms_hostmem_step {
    uint64_t peak_bytes; /* of the process's resident memory */
    uint64_t held_bytes; /* peak of live + cached maps */
} ms_hostmem_step;

/* The memory of the process beside hostmem's maps, and the budget for both. */
typedef struct ms_hostmem_beside {
    uint64_t budget_bytes;        /* of the whole process; 0: none, and the plan's ceiling holds */
    ms_hostmem_step last, before; /* the last two steps */
    bool smaller_inputs;          /* the next inputs are smaller than the plan's */
} ms_hostmem_beside;

/*
 * The ceiling for the next step: `plan_bytes`, the plan's ceiling, or less if maps up to it and the memory beside
 * them would exceed the budget. The memory beside them is assumed to grow by as much as in the last step (4 to 16 MB).
 * With smaller inputs the ceiling is at most half of `plan_bytes`: their tensors may be too small for maps.
 */
MS_API uint64_t ms_hostmem_ceiling(uint64_t plan_bytes, const ms_hostmem_beside *beside);

/* Releases cached maps, least recently freed first, down to `keep_bytes`. With `trim_libc`, also
 * asks glibc to return its free memory (malloc_trim). */
MS_API void ms_hostmem_trim(uint64_t keep_bytes, bool trim_libc);

/* A live block. */
typedef struct ms_hostmem_block {
    uintptr_t address;
    uint64_t bytes;        /* whole pages */
    uint64_t serial;
} ms_hostmem_block;

/*
 * Whether `address` is in a live block of hostmem. Fills in the block's address, its size in
 * whole pages and a serial that no other block of this process has. Direct I/O may use the
 * block up to the end of its last page.
 */
MS_API bool ms_hostmem_find(const void *address, ms_hostmem_block *block);

/* Bytes of whole pages within a range of mapped memory that are not resident, such as fresh pages
 * not touched yet; 0 if unknown. */
MS_API uint64_t ms_hostmem_untouched(const void *address, size_t bytes);

/* Blocks for the library's own buffers, like those of torch's allocator and from the same cache:
 * whole pages, at least MS_HOSTMEM_MIN_BYTES, contents undefined. Counted as live, installed or
 * not. NULL when out of memory. Releasing ignores NULL and addresses that start no live block. */
MS_API void *ms_hostmem_alloc(size_t bytes);
MS_API void ms_hostmem_release(void *address);

#ifdef __cplusplus
}
#endif

#endif
