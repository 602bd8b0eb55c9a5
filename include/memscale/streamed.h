/*
 * streamed.h - parameters larger than memory: each lies in a shared map of an unnamed file.
 *
 * While streaming is on, every block of MS_HOSTMEM_MIN_BYTES and more that torch's allocator asks for, on any thread,
 * is a shared map of its own unnamed file. Any code may read and write the block at any time: pages that are not
 * resident come back when they are touched, and the kernel writes changed pages to the file. So code that uses a
 * parameter needs to know nothing of this. This room only decides which pages are resident, and when:
 *
 *   - ms_streamed_use() makes blocks resident ahead of their use, and asks a worker for the blocks after them. The
 *     blocks used longest ago leave memory, so that all resident ones fit in the window. A training step uses layers
 *     in order and then in reverse order, so the end of each pass is still resident at the beginning of the next.
 *   - Other code also touches pages (an average of the weights, a checkpoint). Every 20 ms, and every 2 ms while tensors
 *     are made or too many pages were found, the worker reads the kernel's count of resident pages, and drops such pages
 *     if they exceed the window.
 *
 * Kept blocks never leave memory and count in the window. The state is global, as hostmem's is. All functions are
 * thread-safe. A child made by fork() shares the bytes of the blocks with its parent, and has no worker.
 *
 * Tests: tests/c/hostmem/test_streamed.c, test_streamed_map.c.
 */
#ifndef MEMSCALE_STREAMED_H
#define MEMSCALE_STREAMED_H

#include "memscale/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The window until ms_streamed_set_window() sets another. */
#define MS_STREAMED_WINDOW_BYTES ((uint64_t)128 << 20)

/*
 * From now on new blocks are streamed, in files of `directory`. Calls nest: streaming ends when ms_streamed_end() has
 * been called as often as this function. All threads stream, because loaders of checkpoints make tensors on threads of
 * their own. MS_ENOTSUP unless hostmem serves torch's
 * allocator through its slots; MS_ECONFIG if `directory` is on a memory file system; MS_ESTATE if another directory is
 * in use; MS_ESYSTEM if no file can be made there or no worker can be started.
 */
MS_API int ms_streamed_begin(const char *directory, ms_error *err);

/* Does nothing if streaming is off. */
MS_API void ms_streamed_end(void);

/* The directory of ms_streamed_begin(), also after streaming has ended; "" before it first began. */
MS_API void ms_streamed_directory(char *out, size_t size);

/* Why the last failed allocation since streaming began has failed, such as a full disk; MS_OK if none has. The allocator
 * itself can only report that memory is short. */
MS_API int ms_streamed_failure(ms_error *err);

/*
 * A file whose tensors are streamed blocks, without a copy: a private map of the whole file. Its bytes may be written
 * like any others. Written pages stay in memory, so blocks that are trained should get files of their own
 * (ms_streamed_own()). The file must keep its bytes as long as the map is there: the kernel kills a process that reads
 * beyond the end of a file that was truncated.
 *
 * While a layer is entered, no other thread may write into a map for the first time: the window might drop the page.
 */
typedef struct ms_streamed_map ms_streamed_map;

/* Bytes of a file that become one block. */
typedef struct ms_streamed_range {
    uint64_t offset_bytes, size_bytes;
} ms_streamed_range;

/* Maps the file at `path`, which must have `file_bytes`. The ranges, which don't overlap and are in order, become
 * blocks: whole pages, so that a page that two ranges share belongs to the second. Ranges of less than 128 KiB stay in
 * memory once they are touched. MS_ESTATE unless streaming is on; MS_EINVAL for ranges out of order; MS_EFORMAT if the
 * file has another size; MS_ESYSTEM, MS_ENOMEM. */
MS_API int ms_streamed_map_file(const char *path, uint64_t file_bytes, const ms_streamed_range *ranges, size_t count,
                                ms_streamed_map **out, ms_error *err);

/* A shared map of a file that is the caller's also streams, until ms_streamed_unmap(), which leaves it mapped: what other
 * code has read of it leaves memory like any streamed block. Streaming need not be on. MS_EINVAL if it doesn't begin on
 * a page or has less than 128 KiB; MS_ENOMEM, MS_ESYSTEM. */
MS_API int ms_streamed_lend(void *address, uint64_t size_bytes, ms_streamed_map **out, ms_error *err);

/* The address of the file's first byte. */
MS_API void *ms_streamed_map_address(const ms_streamed_map *map);

/* Unmaps the file. Nothing may use its bytes any more. Accepts NULL. */
MS_API void ms_streamed_unmap(ms_streamed_map *map);

/* Counters, in bytes. */
typedef struct ms_streamed_stats {
    uint64_t blocks;
    uint64_t total_bytes;    /* of all streamed blocks */
    uint64_t resident_bytes; /* of blocks that were used and not dropped since */
    uint64_t kept_bytes;     /* of kept blocks; part of resident_bytes */
    uint64_t window_bytes;
    uint64_t fetched_bytes; /* cumulative: made resident by ms_streamed_use(), ms_streamed_keep() and the worker */
    uint64_t dropped_bytes; /* cumulative */
} ms_streamed_stats;

/* Fills `stats`. */
MS_API void ms_streamed_get_stats(ms_streamed_stats *stats);

/* Sets the most bytes of streamed blocks that should be resident, and drops the excess at once. Blocks that are kept or
 * in use may exceed it. */
MS_API void ms_streamed_set_window(uint64_t window_bytes);

/* Blocks, each named by any address inside it. Addresses outside of streamed blocks are ignored. */
typedef struct ms_streamed_blocks {
    const void *const *addresses;
    size_t count;
} ms_streamed_blocks;

/* Bytes of the streamed blocks among `blocks`. */
MS_API uint64_t ms_streamed_bytes(ms_streamed_blocks blocks);

/* The part of them that lies in files of checkpoints, and has no file of its own. */
MS_API uint64_t ms_streamed_checkpoint_bytes(ms_streamed_blocks blocks);

/* Keeps exactly these blocks: blocks that were kept before may be dropped again. */
MS_API void ms_streamed_keep(ms_streamed_blocks blocks);

/* Blocks of maps get files of their own in the streams' directory, with their present bytes at the same addresses: all
 * of `blocks`, or if `only_written` those with written pages. Other blocks are left alone. No thread may write them
 * meanwhile. MS_ENOSPC, MS_ESYSTEM, MS_EIO: the blocks before the failing one have their files. */
MS_API int ms_streamed_own(ms_streamed_blocks blocks, bool only_written, ms_error *err);

/* `now` is about to be used: returns when its blocks are resident. `ahead` comes next: the worker makes as much of it
 * resident as the window holds beside `now`. Drops other blocks if the window is full. */
MS_API void ms_streamed_use(ms_streamed_blocks now, ms_streamed_blocks ahead);

/*
 * The layers of one model, numbered from 0 as they are added. The object learns in which order training enters them.
 * Layers may be entered on any thread.
 */
typedef struct ms_streamed_layers ms_streamed_layers;

/* NULL if out of memory. */
MS_API ms_streamed_layers *ms_streamed_layers_new(void);
MS_API void ms_streamed_layers_free(ms_streamed_layers *layers);

/* Adds the next layer. Copies the list. MS_ENOMEM. */
MS_API int ms_streamed_layers_add(ms_streamed_layers *layers, ms_streamed_blocks blocks, ms_error *err);

/* The smallest sensible window for these layers: two that follow each other. */
MS_API uint64_t ms_streamed_layers_least_bytes(const ms_streamed_layers *layers);

/* Layer `number` is about to run in forward or backward: calls ms_streamed_use() for its blocks, and for those of the
 * layer that is expected next in that direction. Ignores unknown numbers. */
MS_API void ms_streamed_layers_enter(ms_streamed_layers *layers, uint32_t number, bool in_backward);

/* Drops the pages of all streamed blocks, also of kept ones: they come back when they are used. Kept blocks still count
 * as resident. What was to be filled ahead is not filled any more. */
MS_API void ms_streamed_drop(void);

#ifdef __cplusplus
}
#endif

#endif
